"""What `FullyShard` refuses, in which words, and that nothing ever hangs."""

from __future__ import annotations

import pytest
import torch
from leftovers import NEVER
from slices import SLOW_WIRES
from torch import nn

from labkit import RankFailed, launch
from labkit.models import GPT, MLP, GPTConfig, MLPConfig
from labkit.parallel import FullyShard

pytestmark = pytest.mark.ranks

WIDTHS = MLPConfig((8, 6, 5))


def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


def ends(on_rank, size=3, transport="local"):
    """The error of a run that must end by itself: no limit could end it."""
    with pytest.raises(RankFailed) as failure:
        launch(on_rank, size, transport=transport, timeout=NEVER)
    return str(failure.value)


def test_bad_options_are_refused_on_every_rank():
    def on_rank(group):
        make = lambda: MLP(WIDTHS)  # noqa: E731
        taken = MLP(WIDTHS)
        taken.shard = 1
        return [
            refused(lambda: FullyShard(make(), group, strategy="full-shard")),
            refused(lambda: FullyShard(make(), group, strategy="hybrid")),
            refused(lambda: FullyShard(make(), group, replicate_group=group)),
            refused(lambda: FullyShard(make(), group, units=["layers.7"])),
            refused(lambda: FullyShard(make(), group, units=["layers"])),
            refused(lambda: FullyShard(make(), group, prefetch=-1)),
            refused(lambda: FullyShard(make(), group, average="mean")),
            refused(lambda: FullyShard(make(), group, param_dtype=torch.int32)),
            refused(lambda: FullyShard(nn.ReLU(), group)),
            refused(lambda: FullyShard(FullyShard(make(), group), group)),
            refused(lambda: FullyShard([], group)),
            refused(lambda: FullyShard(taken, group, units=[])),
            refused(lambda: FullyShard(make(), group).weight(3)),
            refused(lambda: FullyShard(make(), group, average="weights")(torch.ones(1, 8))),
            refused(lambda: FullyShard(make(), group).clip_grad_norm_(-1)),
        ]

    wanted = ["did you mean 'full_shard'", "all on one node", "goes with strategy='hybrid'", "no submodule 'layers.7'",
              "no forward of its own", "prefetch=-1", "average='mean'", "param_dtype=torch.int32", "no parameters",
              "sharded already", "not list", "attribute 'shard' of its own", "average='weights'",
              "nobody said what this batch counts", "above 0"]  # fmt: skip
    for found in launch(on_rank, 2, transport="local").results:
        for text, words in zip(found, wanted, strict=True):
            assert text is not None and words in text, (words, text)


def test_models_that_differ_are_refused_on_every_rank_and_the_difference_is_named():
    def on_rank(group):
        odd = group.rank == 2

        def frozen():
            model = MLP(WIDTHS)
            model.layers[1].bias.requires_grad_(not odd)
            return model

        return [
            refused(lambda: FullyShard(MLP(MLPConfig((8, 7 if odd else 6, 5))), group)),
            refused(lambda: FullyShard(MLP(WIDTHS, seed=group.rank), group)),
            refused(lambda: FullyShard(frozen(), group)),
            refused(lambda: FullyShard(MLP(WIDTHS), group, units=[] if odd else None)),
            refused(lambda: FullyShard(MLP(WIDTHS), group, prefetch=group.rank)),
        ]

    for found in launch(on_rank, 3, transport="local").results:
        assert all(text is not None and "rank 2" in text for text in found), found
        assert "'layers.0.weight'" in found[0] and "(7, 8)" in found[0]
        assert "checksum" in found[1] and "seed" in found[1]
        assert "'layers.1.bias'" in found[2] and "not trained" in found[2]
        assert "unit" in found[3] and "prefetch=2" in found[4]


def test_parameters_replaced_or_shards_resized_after_wrapping_are_named():
    def on_rank(group):
        replaced = FullyShard(MLP(WIDTHS), group)
        replaced.module.layers[0].weight = nn.Parameter(torch.zeros(9, 8))
        return refused(lambda: replaced(torch.ones(1, 8)))

    for text in launch(on_rank, 2, transport="local").results:
        assert "'layers.0.weight' was replaced or resized" in text and "[9, 8]" in text

    def resized(group):
        model = FullyShard(MLP(WIDTHS), group)
        if group.rank == 1:
            model.module.layers[0].shard.data = torch.zeros(4)
        model(torch.ones(1, 8))

    text = ends(resized)
    assert "rank 1: the shard of unit 'layers.0' was resized from 18 elements to [4]" in text


def test_a_forward_that_raises_on_one_rank_ends_the_run_and_leaves_the_model_as_it_was():
    class Fragile(MLP):
        broken = False

        def forward(self, x):
            if self.broken:
                raise RuntimeError("this rank ran out of luck")
            return super().forward(x)

    def on_rank(group):
        model = FullyShard(Fragile(WIDTHS), group)
        model.module.broken = group.rank == 1
        model(torch.ones(1, 8))

    assert "rank 1 raised RuntimeError: this rank ran out of luck" in ends(on_rank)

    def all_ranks(group):
        model = FullyShard(Fragile(WIDTHS), group)
        model.module.broken = True
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 8))
        shapes = model.module.layers[0].weight.is_meta
        model.module.broken = False
        model(torch.ones(1, 8)).sum().backward()
        return shapes, model.gradients()

    plain = MLP(WIDTHS)
    plain(torch.ones(1, 8)).sum().backward()
    for shapes, gradients in launch(all_ranks, 2, transport="local").results:
        assert shapes
        assert all(torch.allclose(gradients[n], p.grad, atol=1e-6) for n, p in plain.named_parameters())


@pytest.mark.parametrize("bias", [False, True], ids=["other shapes", "equal shapes"])
@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_a_rank_that_goes_another_way_is_named(bias, transport):
    class Forked(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8, bias=bias)])

        def forward(self, x, way):
            return self.layers[way](x)

    text = ends(
        lambda group: FullyShard(Forked(), group, prefetch=0)(torch.ones(1, 8), int(group.rank == 1)),
        transport=transport,
    )
    assert "rank 1 called all_gather of 'layers.1'" in text and "ranks 0 and 2 called all_gather of 'layers.0'" in text


def test_a_backward_that_raises_can_be_followed_by_another_step():
    class Bomb(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("half way")

    class Bombed(MLP):
        armed = True

        def forward(self, x):
            x = self.layers[0](x)
            return self.layers[1](Bomb.apply(x) if self.armed else x)

    def on_rank(group):
        model = FullyShard(Bombed(WIDTHS), group)
        with pytest.raises(RuntimeError, match="half way"):
            model(torch.ones(1, 8)).sum().backward()
        model.zero_grad()
        model.module.armed = False
        model(torch.ones(1, 8)).sum().backward()
        return model.gradients()

    plain = Bombed(WIDTHS)
    plain.armed = False
    plain(torch.ones(1, 8)).sum().backward()
    for gradients in launch(on_rank, 2, transport="local").results:
        assert all(torch.allclose(gradients[n], p.grad, atol=1e-6) for n, p in plain.named_parameters())


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_a_step_with_no_sync_left_open_is_refused(optimizer):
    def on_rank(group):
        model = FullyShard(MLP(WIDTHS), group)
        step = optimizer(model.parameters(), lr=0.1)
        context = model.no_sync()
        context.__enter__()
        model(torch.ones(2, 8)).sum().backward()
        open_ = refused(step.step)
        context.__exit__(None, None, None)
        closed = refused(step.step)  # closed, but the microbatch that reduces never came
        model(torch.ones(2, 8)).sum().backward()
        after = refused(step.step)
        with model.no_sync():
            model(torch.ones(2, 8)).sum().backward()
        model.zero_grad()  # dropped on purpose
        return open_, closed, after, refused(step.step)

    for open_, closed, after, dropped in launch(on_rank, 2, transport="local").results:
        assert "no_sync" in open_ and "no_sync" in closed and after is None and dropped is None


def test_gradients_that_are_not_finite_are_named_before_they_spread():
    def on_rank(group):
        model = FullyShard(MLP(WIDTHS), group, check_nan=True)
        x = torch.ones(2, 8)
        x[:, 3] = torch.nan if group.rank == 1 else 1
        model(x).sum().backward()

    text = ends(on_rank)
    assert "rank 1" in text and "layers.1" in text and "NaN or infinite" in text


def test_an_empty_batch_is_refused_where_it_would_count():
    text = ends(lambda group: FullyShard(MLP(WIDTHS), group)(torch.ones(2 * (group.rank != 2), 8)))
    assert "rank 2: this batch is empty (shape (0, 8))" in text and "weighted" in text


def test_join_says_what_it_needs():
    def on_rank(group):
        model = FullyShard(MLP(WIDTHS), group)
        with model.join(lambda: None):
            found = refused(lambda: model.no_sync().__enter__()), refused(lambda: model.join(print).__enter__())
        return *found, refused(lambda: model.join(None)), refused(lambda: model.join(print, "ranks"))

    words = "no_sync() inside of join()", "inside of join() already", "such as optimizer.step", "divide='ranks'"
    for found in launch(on_rank, 2, transport="local").results:
        assert all(word in text for word, text in zip(words, found, strict=True)), found

    def without_a_batch(group):
        model = FullyShard(MLP(WIDTHS), group)
        with model.join(lambda: None):
            for _ in range(group.rank):
                model(torch.ones(1, 8)).sum().backward()

    assert "rank 0 had no batch at all inside of join()" in ends(without_a_batch, 2)


def test_weights_changed_between_forward_and_backward_are_noticed():
    def on_rank(group):
        model = FullyShard(MLP(WIDTHS), group)
        loss = model(torch.ones(2, 8)).sum()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(2)
        return refused(loss.backward)

    for text in launch(on_rank, 2, transport="local").results:
        assert "changed between forward and backward" in text


def test_weights_read_outside_of_forward_have_a_shape_and_no_values():
    def on_rank(group):
        model = FullyShard(GPT(GPTConfig()), group)
        model(torch.zeros(1, 4, dtype=torch.int64))
        w = model.module.blocks[1].attention.qkv.weight
        return tuple(w.shape), w.is_meta, [n for n, _ in model.named_parameters()]

    shape, meta, names = launch(on_rank, 2, transport="local").results[0]
    assert shape == (192, 64) and meta
    assert names == ["module.shard", "module.blocks.0.shard", "module.blocks.1.shard"]
