"""A GPT with a scalar head: a number a position, from the same layers."""

import torch

from labkit.models import GPT, GPTConfig, ScalarGPT, num_parameters

CONFIG = GPTConfig(vocab=11, context=9, layers=2, heads=2, width=8)
TOKENS = torch.arange(14).reshape(2, 7) % 11


def test_it_begins_with_zeros_and_has_the_layers_of_the_model():
    model = GPT(CONFIG, 3)
    made = ScalarGPT.of(model)
    assert made(TOKENS).shape == (2, 7) and not made(TOKENS).any()
    torch.nn.init.ones_(made.lm_head.weight)
    model.lm_head = torch.nn.Identity()
    torch.testing.assert_close(made(TOKENS), model(TOKENS).sum(-1))
    assert num_parameters(made) == CONFIG.num_parameters + 8 + 1


def test_the_copy_is_its_own_and_its_head_is_new():
    model = ScalarGPT(CONFIG, 1)
    torch.nn.init.ones_(model.lm_head.weight)
    made = ScalarGPT.of(model)
    assert not made.lm_head.weight.any() and torch.equal(made.tokens.weight, model.tokens.weight)
    with torch.no_grad():
        made.tokens.weight.zero_()
    assert model.tokens.weight.any() and made.config == model.config


def test_a_position_reads_only_what_stands_before_it():
    model = ScalarGPT(CONFIG, 1)
    torch.nn.init.normal_(model.lm_head.weight)
    other = TOKENS.clone()
    other[:, 4] = 5
    same = model(TOKENS) == model(other)
    assert same[:, :4].all() and not same[:, 4:].any()
