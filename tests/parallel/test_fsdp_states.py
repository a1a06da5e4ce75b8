"""State dicts that move between worlds, models that are never whole, and norms of what no rank holds."""

from __future__ import annotations

import io

import pytest
import torch
from slices import few
from torch import nn

from labkit import Network, launch
from labkit.models import GPT, MLP, GPTConfig, next_token_loss
from labkit.parallel import FullyShard, deferred
from labkit.wire.sampler import resident_bytes

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=16, layers=3, width=36, heads=4, vocab=61)
TOKENS = torch.arange(12 * 17).reshape(12, 17) * 7 % 61


def train(model, optimizer, group, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        mine = TOKENS.tensor_split(group.size)[group.rank]
        next_token_loss(model(mine[:, :-1]), mine[:, 1:]).backward()
        optimizer.step()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5)


def saved(x):
    """What a file gives back."""
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(("before", "after"), few([(3, 2), (1, 3), (3, 4), (2, 1)]))
def test_training_goes_on_in_a_world_of_another_size(before, after):
    def begin(group):
        model = FullyShard(GPT(CONFIG).double(), group)
        optimizer = adamw(model)
        train(model, optimizer, group, 2)
        return model.state_dict(), saved(model.sharded_state_dict(optimizer))

    first = launch(begin, before, transport="local").results
    parts = [part for _, part in first][::-1]  # in any order

    def go_on(group):
        model = FullyShard(GPT(CONFIG, seed=9).double(), group, units=["blocks.?.attention"])  # and cut otherwise
        optimizer = adamw(model)
        model.load_sharded_state_dict(parts, optimizer)
        restored = model.state_dict()
        train(model, optimizer, group, 2)
        fresh = FullyShard(GPT(CONFIG, seed=9).double(), group)
        fresh.load_state_dict(first[0][0])
        return restored, model.state_dict(), fresh.state_dict()

    def without_break(group):
        model = FullyShard(GPT(CONFIG).double(), group)
        train(model, adamw(model), group, 4)
        return model.state_dict()

    wanted = launch(without_break, 1, transport="local").results[0]
    for restored, trained, fresh in launch(go_on, after, transport="local").results:
        assert same(restored, first[0][0]) and same(fresh, first[0][0])
        assert max(float((trained[k] - wanted[k]).abs().max()) for k in wanted) < 1e-10


def test_a_whole_state_dict_is_the_plain_models_tied_names_and_buffers_included():
    def plain():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))

    def on_rank(group):
        model = FullyShard(plain(), group, strategy="hybrid" if group.size == 4 else "full_shard")
        with torch.no_grad():
            model(torch.ones(2, 3))  # the running mean moves
        return FullyShard(GPT(CONFIG), group).state_dict(), model.state_dict(), model.sharded_state_dict()["size"]

    reference = plain()
    reference(torch.ones(2, 3))
    for size, network in ((2, None), (4, Network(2, 2))):
        run = launch(on_rank, size, transport="local", clock="virtual", network=network)
        for gpt, other, parts in run.results:
            assert same(gpt, GPT(CONFIG).state_dict()) and list(gpt) == list(GPT(CONFIG).state_dict())
            assert same(other, reference.state_dict()) and parts == 2
            GPT(CONFIG, seed=8).load_state_dict(gpt)


# -- what does not fit is refused by every rank, before anything is written ----------------------------------------


def refusals(run):
    assert len({type(r) for r in run.results}) == 1
    return run.results


def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_state_dict_of_another_model_or_number_of_shards_is_refused_by_all(hybrid):
    def on_rank(group):
        model = FullyShard(GPT(CONFIG), group, strategy="hybrid" if hybrid else "full_shard")
        before = model.state_dict()
        mine = model.sharded_state_dict()
        place = model.sharding.shard_group
        every = [None] * place.size
        every[place.rank] = mine
        other = GPT(GPTConfig(context=16, layers=3, width=40, heads=4, vocab=61)).state_dict()
        good = GPT(CONFIG, seed=7).state_dict()
        optimizer = adamw(model)
        twice = [mine | {"rank": 0}, mine | {"rank": 0}]
        right = [mine | {"rank": r} for r in range(place.size)]
        found = [
            refused(lambda: model.load_state_dict(other if group.rank == 1 else good)),  # one rank only
            refused(lambda: model.load_state_dict(MLP().state_dict())),
            refused(lambda: model.load_state_dict({k: v for k, v in good.items() if k != "norm.bias"})),
            refused(lambda: model.load_state_dict(good | {"extra": torch.zeros(1)})),
            refused(lambda: model.load_sharded_state_dict([mine])),
            refused(lambda: model.load_sharded_state_dict(twice)),
            refused(lambda: model.load_sharded_state_dict([mine, mine | {"size": 3, "rank": 1}])),
            refused(lambda: model.load_sharded_state_dict([] if group.rank else right)),
            refused(lambda: model.load_sharded_state_dict(right, optimizer)),
            refused(lambda: FullyShard(MLP(), group).load_sharded_state_dict(right)),
        ]
        return found, same(before, model.state_dict())

    network = Network(2, 2) if hybrid else None
    run = launch(on_rank, 4 if hybrid else 2, transport="local", clock="virtual", network=network)
    wanted = ["of another model: 'tokens.weight' is (61, 40), and (61, 36)", "has no 'tokens.weight'",
              "has no 'norm.bias'", "has 'extra', which this model has not", "saved by 2 ranks", "ranks 0, 0",
              "different sizes: 2, 3", "needs what sharded_state_dict returned", "without an optimizer's",
              "of another model"]  # fmt: skip
    for found, unchanged in run.results:
        assert unchanged
        for text, words in zip(found, wanted, strict=True):
            assert text is not None and words in text, (words, text)


# -- deferred ------------------------------------------------------------------------------------------------------


class Strange(nn.Module):
    """Draws in every way: views, truncated normals, orthogonal matrices, copies, a buffer, dropout of weights."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.empty(6, 5))
        self.b = nn.Parameter(torch.randn(4) * 2 + 1)
        self.c = nn.Parameter(torch.empty(5, 5))
        self.d = nn.Parameter(torch.zeros(3, 2))
        self.lstm = nn.LSTM(3, 4)
        self.conv = nn.Conv2d(2, 3, 3)
        self.register_buffer("table", torch.arange(6.0).view(2, 3) ** 2)
        nn.init.trunc_normal_(self.a, std=0.5)
        nn.init.orthogonal_(self.c)
        with torch.no_grad():
            self.a[1:3].uniform_(5, 6)
            self.d[:, 0] = self.b[1:]
            self.c.mul_(2)

    def forward(self, x):
        return x


@pytest.mark.parametrize("size", [1, 3])
def test_a_deferred_model_has_the_weights_of_the_plain_one_to_the_bit(size):
    def on_rank(group):
        torch.manual_seed(11)
        before = torch.get_rng_state()
        gpt = FullyShard(deferred(GPT, CONFIG, seed=3), group).state_dict()
        untied = FullyShard(deferred(GPT, GPTConfig(layers=1, tied=False), seed=4), group).state_dict()
        unchanged = torch.equal(before, torch.get_rng_state())
        strange = FullyShard(deferred(Strange), group).state_dict()
        return gpt, untied, strange, unchanged

    torch.manual_seed(11)
    strange = Strange()
    for gpt, untied, drawn, unchanged in launch(on_rank, size, transport="local").results:
        assert same(gpt, GPT(CONFIG, seed=3).state_dict()) and unchanged
        assert same(untied, GPT(GPTConfig(layers=1, tied=False), seed=4).state_dict())
        assert same(drawn, strange.state_dict())


def test_a_deferred_model_is_never_whole_and_trains_like_the_plain_one():
    config = GPTConfig(layers=6, width=64, vocab=61, context=16)
    largest = 4 * 64 * 64 * 4  # bytes of a matrix of a feed-forward part

    def on_rank(group):
        group.barrier()
        before, most = resident_bytes(), [0]
        take = torch.Tensor.copy_

        def watched(self, *args, **kwargs):
            most[0] = max(most[0], resident_bytes() - before)
            return take(self, *args, **kwargs)

        torch.Tensor.copy_ = watched
        model = FullyShard(deferred(GPT, config), group)
        torch.Tensor.copy_ = take
        plain = FullyShard(GPT(config), group)
        for m in (model, plain):
            train(m, adamw(m), group, 1)
        return most[0], sum(p.nbytes for p in model.parameters()), same(model.state_dict(), plain.state_dict())

    for most, shards, equal in launch(on_rank, 4, transport="local", memory="resident").results:
        assert equal
        assert 0 < most <= shards + 2 * largest < config.num_parameters * 4 / 2


def test_what_cannot_be_drawn_later_is_refused():
    def on_rank(group):
        class Undrawn(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.empty(4))

        with torch.device("meta"):
            bare = GPT(CONFIG)
        return [refused(lambda: FullyShard(deferred(Undrawn), group)), refused(lambda: FullyShard(bare, group))]

    for found in launch(on_rank, 2, transport="local").results:
        assert "'w'" in found[0] and "torch.nn.init" in found[0]
        assert "meta device" in found[1] and "deferred" in found[1]


# -- clipping ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", few([2.0, float("inf"), 1.0, 3.0], 2))
def test_gradients_are_clipped_by_the_norm_over_all_ranks(kind):
    def on_rank(group):
        found = []
        for strategy in ("full_shard", "no_shard", "hybrid"):
            for most in (0.01, 1e9):
                model = FullyShard(GPT(CONFIG).double(), group, strategy=strategy)
                mine = TOKENS.tensor_split(group.size)[group.rank]
                next_token_loss(model(mine[:, :-1]), mine[:, 1:]).backward()
                norm = float(model.clip_grad_norm_(most, kind))
                found.append((most, norm, model.gradients()))
        return found

    run = launch(on_rank, 4, transport="local", clock="virtual", network=Network(2, 2))
    for most, norm, gradients in run.results[3]:
        plain = GPT(CONFIG).double()
        next_token_loss(plain(TOKENS[:, :-1]), TOKENS[:, 1:]).backward()
        wanted = float(nn.utils.clip_grad_norm_(plain.parameters(), most, kind))
        assert norm == pytest.approx(wanted, rel=1e-9)
        assert max(float((p.grad - gradients[n]).abs().max()) for n, p in plain.named_parameters()) < 1e-10
