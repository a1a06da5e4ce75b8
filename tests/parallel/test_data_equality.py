"""DataParallel against one device on the same global batch, and against PyTorch's own wrapper."""

from __future__ import annotations

import itertools

import pytest
import torch
from slices import LONG
from torch import nn

import labkit
from labkit.data import digits
from labkit.models import CNN, GPT, MLP, GPTConfig, flat_gradient, next_token_loss
from labkit.parallel import DataParallel, bf16_hook

pytestmark = pytest.mark.ranks

SIZES = [1, 2, 3, 4] if LONG else [1, 3]
SMALL = {"bucket_bytes": 20_000, "first_bucket_bytes": 2_000}


def gpt(seed=0, tied=True):
    return GPT(GPTConfig(context=16, width=32, layers=2, tied=tied), seed=seed)


def tokens(step, rows=12):
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(0, 256, (rows, 17), generator=generator)
    return x[:, :-1], x[:, 1:]


def part(group, *tensors):
    return [x.tensor_split(group.size)[group.rank] for x in tensors]


def alone(model, steps, optimizer=None):
    """Gradients of each step on one device, on the global batch."""
    found = []
    for step in range(steps):
        model.zero_grad()
        x, y = tokens(step)
        next_token_loss(model(x), y).backward()
        found.append(flat_gradient(model))
        if optimizer is not None:
            optimizer.step()
    return found


def largest(a, b):
    return float((a - b).abs().max())


def test_gradients_are_those_of_one_device_on_the_global_batch():
    expected = alone(gpt(), 3)

    def work(group, options):
        model = DataParallel(gpt(seed=group.rank), group, **options)  # other weights on each rank: rank 0's count
        found = []
        for step in range(3):  # in the second step buckets have been rebuilt
            model.zero_grad(set_to_none=step != 1)
            x, y = part(group, *tokens(step))
            next_token_loss(model(x), y).backward()
            found.append(flat_gradient(model.module))
        views = [p.grad.untyped_storage().data_ptr() for p in model.parameters()]
        buckets = {b.flat.untyped_storage().data_ptr() for b in model._reducer.buffers}
        return found, set(views) == buckets, model.buckets

    orders = set()
    cases = [(size, SMALL) for size in SIZES] + [(2, {}), (3, SMALL | {"rebuild": False})]
    for size, options in cases:
        transport = "gloo" if size == 3 else "local"
        results = labkit.launch(work, size, options, transport=transport).results
        for found, views, buckets in results:
            assert views, "a gradient is not a view of its bucket"
            assert all(largest(f, e) <= 1e-6 for f, e in zip(found, expected, strict=True))
            assert all(torch.equal(f, g) for f, g in zip(found, results[0][0], strict=True)), "ranks differ"
            assert buckets == results[0][2]
        names = [name for bucket in results[0][2] for name in bucket.names]
        assert sorted(names) == sorted(name for name, _ in gpt().named_parameters())
        orders.add(tuple(names))
        assert (len(results[0][2]) > 3) == bool(options), "136 kB are less than the first bucket of 1 MiB"
    assert len(orders) == 2, "rebuilding follows arrival, which here is not the reverse of the declaration"


def test_weights_after_adamw_steps_are_those_of_one_device():
    def trained(model, step_of, precision, eps):
        model.to(precision)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=eps)
        for step in range(5):
            optimizer.zero_grad()
            step_of(model, step)
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    def single(model, step):
        x, y = tokens(step)
        next_token_loss(model(x), y).backward()

    def work(group, precision, eps):
        def parted(model, step):
            x, y = part(group, *tokens(step))
            next_token_loss(model(x), y).backward()

        module = gpt().to(precision)
        return trained(DataParallel(module, group, **SMALL), parted, precision, eps)

    for precision, eps in [(torch.float64, 1e-8), (torch.float32, 1e-5)]:
        expected = trained(gpt(), single, precision, eps)
        for size in SIZES:
            for weights in labkit.launch(work, size, precision, eps).results:
                assert largest(weights, expected) <= 1e-6


def test_equal_to_pytorchs_distributed_data_parallel():
    def work(group):
        mine, theirs = gpt(), gpt()
        ours = DataParallel(mine, group, **SMALL)
        torchs = nn.parallel.DistributedDataParallel(theirs)
        found = []
        for step in range(4):
            x, y = part(group, *tokens(step))
            for model in (ours, torchs):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                optimizer.zero_grad()
                if step == 2:
                    with model.no_sync():
                        next_token_loss(model(x[:1]), y[:1]).backward()
                next_token_loss(model(x), y).backward()
                optimizer.step()
            found.append(largest(flat_gradient(mine), flat_gradient(theirs)))
        return max(found), max(largest(a, b) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))

    for size in SIZES:
        for gradient, weight in labkit.launch(work, size).results:
            assert gradient <= 1e-6 and weight <= 1e-6


def test_accumulated_microbatches_are_one_batch_and_talk_once():
    expected = alone(gpt(), 1)[0]

    def work(group, none):
        model = DataParallel(gpt(), group, **SMALL)
        sent = []  # handles that exist before the last microbatch
        for step in range(3):
            model.zero_grad(set_to_none=none)
            group.step(step)
            x, y = part(group, *tokens(0))
            pairs = list(zip(x.split(1), y.split(1), strict=True))
            with model.no_sync():
                for a, b in pairs[:-1]:
                    (next_token_loss(model(a), b) / len(pairs)).backward()
            sent += model._reducer._handles
            (next_token_loss(model(pairs[-1][0]), pairs[-1][1]) / len(pairs)).backward()
        return flat_gradient(model.module), sent

    for size, none in itertools.product([2, 4], [True, False]):
        run = labkit.launch(work, size, none)
        for gradient, sent in run.results:
            assert largest(gradient, expected) <= 1e-6 and not sent
        reductions = [c for c in run.trace.collectives("all_reduce") if c.rank == 0 and c.step == 2]
        assert len(reductions) == len([c for c in run.trace.collectives("all_reduce") if c.rank == 0 and c.step == 1])
        assert sum(c.nbytes for c in reductions) == 4 * gpt().config.num_parameters


def test_other_models_on_images():
    images = digits()[0]

    def work(group):
        found = []
        x, y = images.x[:13], images.y[:13]  # 13 divide by no world: weights
        for make in (MLP, CNN):
            one, many = make(), DataParallel(make(), group, average="weights", **SMALL)
            nn.functional.cross_entropy(one(x), y).backward()
            a, b = part(group, x, y)
            with many.weighted(len(b)):
                nn.functional.cross_entropy(many(a), b).backward()
            found.append(largest(flat_gradient(one), flat_gradient(many.module)))
        return found

    for size in SIZES:
        for found in labkit.launch(work, size).results:
            assert max(found) <= 1e-6


def test_bf16_hook_is_near_and_half_the_bytes():
    expected = alone(gpt(), 1)[0]

    def work(group, hook):
        model = DataParallel(gpt(), group, hook=hook, algorithm="ring", **SMALL)
        x, y = part(group, *tokens(0))
        next_token_loss(model(x), y).backward()
        before = flat_gradient(model.module)
        model.zero_grad()
        group.step(1)
        next_token_loss(model(x), y).backward()
        return before

    for size in (2, 4):
        sent = {}
        for hook in (None, bf16_hook):
            run = labkit.launch(work, size, hook)
            sent[hook] = sum(c.nbytes for c in run.trace.collectives("all_reduce") if c.step == 1)
            error = max(largest(r, expected) for r in run.results)
            assert torch.equal(run.results[0], run.results[1])
        assert sent[bf16_hook] * 2 == sent[None]
        assert 0 < error <= size * 2**-8 * float(expected.abs().max())


def test_the_same_weights_used_several_times():
    """Tied weights, a layer called twice in one forward, and a model called twice before one backward."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            with torch.random.fork_rng():
                torch.manual_seed(3)
                self.inside, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.last(self.inside(self.inside(x).relu()))

    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))

    def loss_of(model, x):
        return (model(x) ** 2).mean() + (model(2 * x) ** 2).mean()

    one = Twice()
    loss_of(one, x).backward()
    expected = flat_gradient(one)

    def work(group, static):
        model = DataParallel(Twice(), group, static_graph=static, bucket_bytes=64, first_bucket_bytes=64)
        found = []
        for _ in range(3):
            model.zero_grad()
            loss_of(model, *part(group, x)).backward()
            found.append(flat_gradient(model.module))
        model.zero_grad()
        loss = loss_of(model, *part(group, x))
        (loss / 2).backward(retain_graph=True)
        (loss / 2).backward()  # a second backward from the same outputs is averaged, too
        return [*found, flat_gradient(model.module)]

    for size, static in itertools.product(SIZES, [False, True]):
        for found in labkit.launch(work, size, static).results:
            assert all(largest(f, expected) <= 1e-6 for f in found)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_inside(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = gpt(tied=False)

        def forward(self, tokens):
            x = self.inside.tokens(tokens)
            for block in self.inside.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.inside.lm_head(self.inside.norm(x))

    x, y = tokens(0)
    one = Checkpointed()
    one.inside.positions.requires_grad_(False)
    next_token_loss(one(x), y).backward()
    expected = flat_gradient(one)

    def work(group):
        module = Checkpointed()
        module.inside.positions.requires_grad_(False)  # frozen, and no part of it
        model = DataParallel(module, group, **SMALL)
        for _ in range(2):
            model.zero_grad()
            a, b = part(group, x, y)
            next_token_loss(model(a), b).backward()
        return flat_gradient(model.module)

    for size in (2, 3):
        assert all(largest(g, expected) <= 1e-6 for g in labkit.launch(work, size).results)


def test_a_state_dict_comes_back_at_another_world_size():
    def work(group, saved):
        model = DataParallel(gpt(seed=3), group, **SMALL)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-5)
        if saved is not None:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        for step in (0, 1) if saved is None else (2, 3):
            optimizer.zero_grad()
            x, y = part(group, *tokens(step))
            next_token_loss(model(x), y).backward()
            optimizer.step()
        return model.state_dict(), optimizer.state_dict()

    first = labkit.launch(work, 4, None).results[0]
    there = [labkit.launch(work, size, first).results[0][0] for size in (1, 2, 3)]
    for weights in there[1:]:
        assert all(largest(weights[name], there[0][name]) <= 1e-6 for name in weights)
    assert largest(there[0]["module.norm.weight"], first[0]["module.norm.weight"]) > 1e-4


@pytest.mark.parametrize("size", [2, 3])
def test_averages_weighted_by_tokens_are_those_over_all_tokens(size):
    """Every rank has another number of tokens, one none at all; the loss is a mean over this rank's tokens."""
    counts = [5, 0, 2][:size]
    x, y = tokens(0)
    one = gpt()
    next_token_loss(one(x[: sum(counts)]), y[: sum(counts)]).backward()
    expected = flat_gradient(one)

    def work(group):
        model = DataParallel(gpt(), group, average="weights", **SMALL)
        start = sum(counts[: group.rank])
        a, b = x[start:][: counts[group.rank]], y[start:][: counts[group.rank]]
        found = []
        for way in (0, 1, 2):
            model.zero_grad()
            if way:
                with model.weighted(b.numel()):
                    next_token_loss(model(a), b).backward()
            else:
                model.weight(b.numel())
                next_token_loss(model(a), b).backward()
            found.append(flat_gradient(model.module))
        return found

    for found in labkit.launch(work, size).results:
        assert all(largest(f, expected) <= 1e-6 for f in found)
