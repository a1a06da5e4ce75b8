"""Models are functions of configuration and seed, and have the size their formula says."""

import math

import pytest
import torch

from labkit.models import (
    CNN,
    GPT,
    MLP,
    CNNConfig,
    GPTConfig,
    MLPConfig,
    flat_gradient,
    next_token_loss,
    num_parameters,
    state,
)

SHAPES = [
    (GPT, GPTConfig()),
    (GPT, GPTConfig(tied=False)),
    (GPT, GPTConfig(vocab=11, context=5, layers=3, heads=3, width=12, expansion=2)),
    (GPT, GPTConfig(vocab=1, context=1, layers=1, heads=1, width=1, expansion=1, tied=False)),
    (GPT, GPTConfig(kv_heads=1)),
    (GPT, GPTConfig(heads=6, kv_heads=2, width=30, expansion=3, tied=False, dropout=0.2)),
    (MLP, MLPConfig()),
    (MLP, MLPConfig((3, 2))),
    (CNN, CNNConfig()),
    (CNN, CNNConfig(side=6, colours=3, channels=5, classes=4)),
]


@pytest.mark.parametrize(("model", "config"), SHAPES)
def test_the_formula_counts_the_parameters(model, config):
    assert num_parameters(model(config)) == config.num_parameters


def test_a_gpt_layer_has_twelve_squares_of_its_width():
    def layers(n):
        return GPTConfig(layers=n, width=48, heads=4).num_parameters

    assert layers(2) - layers(1) == 12 * 48**2 + 13 * 48


@pytest.mark.parametrize(("model", "config"), SHAPES)
def test_the_same_seed_gives_the_same_weights_and_leaves_the_callers_random_numbers_alone(model, config):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = state(model(config, seed=1))
    assert torch.equal(torch.rand(3), expected)
    second, other = state(model(config, seed=1)), state(model(config, seed=2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_state_is_a_copy_and_names_a_shared_weight_once():
    model = GPT()
    before = state(model)
    assert "tokens.weight" in before and "lm_head.weight" not in before
    assert sum(p.numel() for p in before.values()) == num_parameters(model)
    with torch.no_grad():
        model.tokens.weight.add_(1)
    assert not torch.equal(before["tokens.weight"], model.tokens.weight)


def test_the_flat_gradient_has_a_place_for_every_parameter():
    model = MLP(MLPConfig((4, 3, 2)))
    assert torch.equal(flat_gradient(model), torch.zeros(num_parameters(model)))
    model(torch.ones(1, 4)).sum().backward()
    flat = flat_gradient(model)
    assert flat.shape == (num_parameters(model),)
    assert torch.equal(flat[:12], model.layers[0].weight.grad.flatten())
    assert torch.equal(flat[-2:], torch.ones(2))  # the last bias adds straight to the sum


@pytest.mark.parametrize("rows", [1, 4])
def test_a_batch_of_images_becomes_a_row_of_scores_each(rows):
    images = torch.rand(rows, 1, 8, 8)
    assert MLP()(images).shape == CNN()(images).shape == (rows, 10)


def test_a_gpt_does_not_read_the_future():
    model = GPT(GPTConfig(context=16))
    tokens = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_an_untrained_gpt_guesses():
    tokens = torch.randint(0, 256, (4, 64), generator=torch.Generator().manual_seed(0))
    loss = next_token_loss(GPT()(tokens), tokens.roll(-1, 1))
    assert abs(loss.item() - math.log(256)) < 0.3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GPTConfig(width=10, heads=4), "width=10"),
        (lambda: GPTConfig(layers=0), "layers=0"),
        (lambda: GPTConfig(heads=6, width=12, kv_heads=4), "kv_heads=4.*choose one of 1, 2, 3, 6"),
        (lambda: GPTConfig(kv_heads=0), "kv_heads=0"),
        (lambda: GPTConfig(dropout=1.0), "dropout=1.0"),
        (lambda: MLPConfig((3,)), "widths"),
        (lambda: CNNConfig(side=7), "side=7"),
        (lambda: CNNConfig(classes=0), "classes=0"),
        (lambda: GPT(GPTConfig(context=4))(torch.zeros(1, 5, dtype=torch.int64)), "5 positions"),
    ],
)
def test_a_size_that_cannot_be_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
