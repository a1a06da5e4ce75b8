"""The GPT's options: shared keys and values, dropout. Without them it is what it was."""

import pytest
import torch

from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.models.attention import attend, turned

TOKENS = torch.arange(2 * 17).reshape(2, 17) * 7 % 61


DRAWN = ("tokens.weight", "positions.weight", "blocks.0.attention.qkv.weight", "blocks.1.feed_forward.down.weight")


@pytest.mark.parametrize(
    ("config", "seed", "expected"),
    [
        (GPTConfig(), 0, [-0.039557, -0.183389, 0.03593, 0.028512]),
        (
            GPTConfig(vocab=61, context=16, layers=3, heads=3, width=36, tied=False),
            5,
            [-0.049742, -0.164462, -0.188356, -0.055126],
        ),
    ],
)
def test_a_seed_gives_the_weights_that_it_always_gave(config, seed, expected):
    weights = GPT(config, seed).state_dict()
    assert [float(weights[name].flatten()[-1]) for name in DRAWN] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_shared_keys_are_keys_that_stand_there_several_times(groups):
    b, t, heads, k = 2, 9, 6, 4
    qkv = torch.randn(b, t, (heads + 2 * groups) * k)
    q, keys, values = qkv.split((heads * k, groups * k, groups * k), -1)
    spread = [x.unflatten(-1, (groups, k)).repeat_interleave(heads // groups, 2).flatten(2) for x in (keys, values)]
    torch.testing.assert_close(attend(qkv, heads, groups), attend(torch.cat([q, *spread], -1), heads, heads))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_written_out_for_dropout_is_the_same_attention(groups):
    qkv = torch.randn(2, 9, (4 + 2 * groups) * 8, dtype=torch.float64)
    torch.testing.assert_close(attend(qkv, 4, groups, dropout=1e-300), attend(qkv, 4, groups))


def test_dropout_sets_its_share_to_zero_in_training_only(monkeypatch):
    model, seen = GPT(GPTConfig(vocab=61, context=16, layers=2, dropout=0.25)), []
    real = torch.nn.functional.dropout

    def watched(x, p=0.5, training=True):
        seen.append((p, training, x.shape))
        return real(x, p, training)

    monkeypatch.setattr(torch.nn.functional, "dropout", watched)
    logits = model(TOKENS[:, :-1])
    assert [s[2] for s in seen] == [(2, 16, 64), *2 * [(2, 4, 16, 16), (2, 16, 64), (2, 16, 64)]]
    assert all(p == 0.25 and training for p, training, _ in seen)
    assert not torch.equal(logits, model(TOKENS[:, :-1]))
    next_token_loss(logits, TOKENS[:, 1:]).backward()
    model.eval()
    plain = GPT(GPTConfig(vocab=61, context=16, layers=2))
    assert torch.equal(model(TOKENS[:, :-1]), plain(TOKENS[:, :-1]))


def test_attention_weights_are_dropped_one_by_one():
    """Values of one, and rows that would sum to one: what is left is what was not dropped, larger by 1 / (1 - p)."""
    t, k = 400, 2
    qkv = torch.cat([torch.zeros(1, t, 2 * k), torch.ones(1, t, k)], -1)
    kept = attend(qkv, 1, 1, dropout=0.3)[0, :, 0]
    assert kept[-1] != 1 and abs(float(kept[200:].mean()) - 1) < 0.05


@pytest.mark.parametrize("dropout", [0.0, 1e-300])
def test_each_sequence_may_have_positions_and_a_mask_of_its_own(dropout):
    """Rotary positions only count by how far apart they are, so these are no plain shift of each other."""
    b, t, heads, k = 3, 7, 2, 4
    qkv = torch.randn(b, t, 3 * heads * k, dtype=torch.float64)
    positions = torch.stack([torch.arange(t), 2 * torch.arange(t), torch.arange(t).flip(0)])
    mask = torch.rand(b, t, t) < 0.5
    mask |= torch.eye(t, dtype=torch.bool)
    found = attend(qkv, heads, heads, dropout, rotary=True, positions=positions, mask_btt=mask)
    for i in range(b):
        q, key, v = (x.unflatten(-1, (heads, k)) for x in qkv[i].split(heads * k, -1))
        for h in range(heads):
            q_t, k_t = (turned(x[None, None, :, h], positions[i])[0, 0] for x in (q, key))
            scores = (q_t @ k_t.T / k**0.5).masked_fill(~mask[i], -torch.inf)
            expected = scores.softmax(-1) @ v[:, h]
            torch.testing.assert_close(found[i, :, h * k : (h + 1) * k], expected)


def test_positions_beyond_the_context_are_refused_in_any_sequence():
    positions = torch.tensor([[0, 1], [15, 16]])
    with pytest.raises(ValueError, match="17 positions, but this model has 16"):
        GPT(GPTConfig(vocab=61, context=16))(TOKENS[:, :2], positions)
