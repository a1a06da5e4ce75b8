"""The models learn the real data, quickly: what chapters build on."""

import pytest
import torch
import torch.nn.functional as F

from labkit.data import batches, digits, image_batches, text
from labkit.models import CNN, GPT, MLP, GPTConfig, next_token_loss


@pytest.fixture(autouse=True)
def one_thread():
    """Matrices this small gain nothing from a second thread, and lose much when the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_two_layer_gpt_learns_the_text_in_sixty_steps():
    train, val = text()
    model = GPT(GPTConfig(layers=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _, (inputs, targets) in zip(range(60), batches(train, batch=8, context=64), strict=False):
        optimizer.zero_grad()
        next_token_loss(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        inputs, targets = next(batches(val, batch=64, context=64))
        loss = next_token_loss(model(inputs), targets).item()
    assert loss > 2, "nobody learns that fast: does the model see its targets?"
    assert loss < letter_frequencies(train, targets) - 0.3, "it learned no more than how often a letter occurs"


def letter_frequencies(train, targets):
    """Nats a byte for the best guess that looks at no context: the entropy of single bytes, about 3.3."""
    counts = torch.bincount(train.long(), minlength=256).float() + 1
    return -(counts / counts.sum()).log()[targets].mean().item()


def test_images_are_learned_by_both_image_models():
    train, val = digits()
    for model in (MLP(), CNN()):
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _, (x, y) in zip(range(100), image_batches(train, batch=32), strict=False):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        right = (model(val.x).argmax(1) == val.y).float().mean()
        assert right > 0.85, type(model).__name__
