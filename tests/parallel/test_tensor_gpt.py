"""`TensorParallelGPT` trains as the plain GPT does: loss, gradients, weights after steps; dropout; with others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from slices import TRANSPORTS, few
from torch import nn

from labkit import Network, launch
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import DataParallel, Mesh, TensorParallelGPT, checkpoint_blocks

pytestmark = pytest.mark.ranks

# 61 symbols divide by no degree here; 15 positions by 3 only. Heads, keys and columns divide by 2, 3 and 4.
CONFIG = GPTConfig(vocab=61, context=16, layers=2, heads=12, width=48, expansion=3)
CASES = {
    "plain": CONFIG,
    "untied": GPTConfig(vocab=61, context=16, layers=1, heads=12, width=48, tied=False),
    "grouped": GPTConfig(vocab=61, context=16, layers=2, heads=24, kv_heads=12, width=48),
}
WAYS = {
    "tensor": {}, "waiting": {"overlap": False}, "sequence": {"sequence": True},
    "sequence, kept": {"sequence": True, "gather_again": False, "overlap": False},
    "whole vocabulary": {"split_vocabulary": False},
    "sequence, whole vocabulary": {"split_vocabulary": False, "sequence": True},
}  # fmt: skip
TOKENS = torch.arange(4 * 17).reshape(4, 17) * 7 % 61


def batch(t=15, rows=slice(None)):
    return TOKENS[rows, :t], TOKENS[rows, 1 : t + 1]


def trained(config, dtype=torch.float32):
    """A plain GPT as it is in the middle of training: no parameter is zero or one."""
    model = GPT(config, seed=3).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=dtype), alpha=0.1)
    return model


def parts(config, group, dtype=torch.float32, **ways):
    model = TensorParallelGPT(config, group, **ways).to(dtype)
    model.load_whole(trained(config, dtype).state_dict())
    return model


def plain(model, x, y):
    loss = next_token_loss(model(x), y)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def furthest(a, b):
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    return max(float((a[k] - b[k]).abs().max()) for k in a)


@pytest.mark.parametrize("size", few([3, 1, 2, 4]))
def test_loss_and_gradients_are_those_of_the_plain_model(size):
    def on_rank(group):
        found = {}
        for case, config in CASES.items():
            for name, ways in WAYS.items():
                if case != "plain" and name not in ("tensor", "sequence"):
                    continue
                model = parts(config, group, **ways)
                x, y = batch(15 if case == "plain" else 13)
                loss = model(x, y)
                loss.backward()
                found[case, name] = [loss.item(), model.whole_gradients()]
        model = parts(CONFIG, group, sequence=True)
        x, y = batch(2)  # fewer positions than ranks
        logits = model(x)
        next_token_loss(logits, y).backward()
        found["logits"] = [logits.detach(), model.whole_gradients()]
        return found

    wanted = {case: plain(trained(c), *batch(15 if case == "plain" else 13)) for case, c in CASES.items()}
    short, (x, y) = trained(CONFIG), batch(2)
    results = launch(on_rank, size, transport="local").results
    for found in results:
        logits, gradients = found.pop("logits")
        assert (logits - short(x)).abs().max() < 1e-5 and furthest(gradients, plain(short, x, y)[1]) < 1e-6
        short.zero_grad()
        for (case, way), (loss, gradients) in found.items():
            assert abs(loss - wanted[case][0]) < 1e-6, (case, way)
            assert furthest(gradients, wanted[case][1]) < 1e-6, (case, way)
    assert all(found[case][0] == results[0][case][0] for found in results for case in found), "one loss on all ranks"


@pytest.mark.parametrize("size", few([2, 3, 4]))
def test_weights_are_drawn_alike_and_stay_those_of_the_plain_model_over_steps(size):
    def on_rank(group):
        found = {}
        for name in ("tensor", "sequence", "sequence, whole vocabulary"):
            ways = WAYS[name]
            model = TensorParallelGPT(CONFIG, group, seed=7, **ways)
            found[name] = [model.whole_state()]
            model = parts(CONFIG, group, torch.float64, **ways)
            optimizer, norms = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5), []
            for _ in range(3):
                optimizer.zero_grad()
                model(*batch()).backward()
                norms.append(float(model.clip_grad_norm_(0.5)))
                optimizer.step()
            found[name] += [model.whole_state(), norms]
        return found

    drawn = GPT(CONFIG, seed=7).state_dict()
    model = trained(CONFIG, torch.float64)
    optimizer, norms = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5), []
    for _ in range(3):
        optimizer.zero_grad()
        plain(model, *batch())
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
    assert min(norms) > 0.5
    for found in launch(on_rank, size, transport="local").results:
        for name, (first, last, theirs) in found.items():
            assert all(torch.equal(first[k], drawn[k]) for k in first) and len(first) == len(drawn) - 1, name
            assert furthest(last, {k: p.detach() for k, p in model.named_parameters()}) < 1e-10, name
            assert theirs == pytest.approx(norms, rel=1e-9), name


@pytest.mark.parametrize("p", [1, 2, 3, float("inf")])
def test_what_all_ranks_hold_counts_once_in_the_norm(p):
    def on_rank(group):
        model = parts(CONFIG, group, sequence=True)
        model(*batch()).backward()
        return float(model.grad_norm(p))

    _, gradients = plain(trained(CONFIG), *batch())
    wanted = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients.values()]), p)
    assert launch(on_rank, 3, transport="local").results == pytest.approx([float(wanted)] * 3, rel=1e-5)


class Recorded:
    """`F.dropout` that keeps its masks, or takes them from a list."""

    def __init__(self, masks=None):
        self.masks, self.replay, self.real = [], masks, F.dropout

    def __call__(self, x, p=0.5, training=True):
        if not training or not p:
            return x
        mask = self.real(torch.ones_like(x), p) if self.replay is None else self.replay.pop(0)
        self.masks.append(mask.detach())
        return x * mask

    def __enter__(self):
        F.dropout = self
        return self

    def __exit__(self, *exc):
        F.dropout = self.real


DROPPING = GPTConfig(vocab=61, context=16, layers=2, heads=12, width=48, dropout=0.3)


@pytest.mark.parametrize("size", [2, 3])
def test_with_dropout_the_masks_make_one_model(size):
    """All ranks drop the same outside of regions, not inside; with the joined masks the plain model agrees."""

    def on_rank(group):
        found = {}
        for sequence in (False, True):
            for again in (False, True):
                torch.manual_seed(11)
                model = parts(DROPPING, group, sequence=sequence)
                if again:
                    checkpoint_blocks(model)
                with Recorded() as recorded:
                    loss = model(*batch())
                    masks = list(recorded.masks)
                    loss.backward()
                after = torch.rand(3)
                found[sequence, again] = [masks, loss.item(), model.whole_gradients(), after]
        return found

    results = launch(on_rank, size, transport="local").results
    for case in results[0]:
        each = [found[case][0] for found in results]
        assert len(each[0]) == 1 + 3 * DROPPING.layers
        joined = []
        for masks in zip(*each, strict=True):
            if masks[0].dim() == 4:  # attention weights, cut by heads
                assert not torch.equal(masks[0], masks[1])
                joined.append(torch.cat(masks, 1))
            elif case[0]:
                shape = min(m.shape[1] for m in masks)
                assert not torch.equal(masks[0][:, :shape], masks[1][:, :shape])
                joined.append(torch.cat(masks, 1))
            else:
                assert all(torch.equal(m, masks[0]) for m in masks)
                joined.append(masks[0])
        assert (
            0.2
            < 1 - float(torch.cat([m.flatten() for m in joined]).count_nonzero()) / sum(map(torch.numel, joined))
            < 0.4
        )
        with Recorded(joined):
            loss, gradients = plain(trained(DROPPING), *batch())
        for found in results:
            assert abs(found[case][1] - loss) < 1e-6 and furthest(found[case][2], gradients) < 1e-6, case
            assert torch.equal(found[case][3], results[0][case][3]), "the ranks go on with the same random numbers"


def test_dropout_needs_one_random_state_and_evaluation_drops_nothing():
    def on_rank(group):
        model = TensorParallelGPT(DROPPING, group)
        torch.manual_seed(5 if group.rank < 2 else 6)
        x, y = batch()
        try:
            model(x, y)
        except ValueError as error:
            words = str(error)
        model.eval()
        return words, model(x).detach()

    x, _ = batch()
    for words, logits in launch(on_rank, 4 - 1, transport="local").results:
        assert "the random state of rank 2 is not that of rank 0" in words and "torch.manual_seed" in words
        assert (logits - GPT(DROPPING).eval()(x)).abs().max() < 1e-5


def test_data_parallel_over_tensor_parallel_is_the_plain_model_on_the_whole_batch():
    def on_rank(group):
        mesh = Mesh(group, {"dp": 2, "tp": 2})
        found = []
        for ways in ({}, {"sequence": True}):
            model = parts(CONFIG, mesh["tp"], **ways)
            wrapped = DataParallel(model, mesh["dp"])
            mine = slice(0, 2) if mesh.coordinates["dp"] == 0 else slice(2, 4)
            wrapped(*batch(rows=mine)).backward()
            found.append(model.whole_gradients())
        return found

    _, wanted = plain(trained(CONFIG), *batch())
    for found in launch(on_rank, 4, transport="local").results:
        assert [furthest(g, wanted) < 1e-6 for g in found] == [True, True]


@pytest.mark.parametrize("transport", few(TRANSPORTS))
def test_on_either_clock_and_wire_with_accumulated_gradients(transport):
    def on_rank(group):
        model = parts(CONFIG, group, sequence=True)
        for rows in (slice(0, 2), slice(2, 4)):
            (model(*batch(rows=rows)) / 2).backward()
        return model.whole_gradients()

    _, wanted = plain(trained(CONFIG), *batch())
    for options in ({}, {"clock": "virtual", "network": Network(2, 2)}):
        for found in launch(on_rank, 4, transport=transport, **options).results:
            assert furthest(found, wanted) < 1e-6
