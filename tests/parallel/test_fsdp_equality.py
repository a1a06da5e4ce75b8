"""`FullyShard` trains as the plain model does on the whole batch, whoever shards with whom."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from slices import TRANSPORTS, few
from torch import nn
from torch.utils.checkpoint import checkpoint

from labkit import Network, launch
from labkit.models import CNN, GPT, MLP, CNNConfig, GPTConfig, MLPConfig, next_token_loss
from labkit.parallel import DataParallel, FullyShard, checkpoint_blocks

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=16, layers=3, width=36, heads=4, vocab=61)  # 61 * 36 and others do not divide by 4
ROWS = 12  # a multiple of every world size here
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard")
TOKENS = torch.arange(ROWS * 17).reshape(ROWS, 17) * 7 % 61


def batch(group=None, rows=slice(None)):
    """(inputs, targets) of a rank, or of all."""
    mine = TOKENS[rows] if group is None else TOKENS[rows].tensor_split(group.size)[group.rank]
    return mine[:, :-1], mine[:, 1:]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5)


def plain_gradients(model, loss):
    loss(model).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def furthest(a, b):
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    return max(float((a[k].double() - b[k].double()).abs().max()) for k in a)


@pytest.mark.parametrize("size", few([3, 1, 2, 4]))
def test_gradients_and_weights_are_those_of_the_plain_model(size):
    def on_rank(group):
        found = {}
        for strategy in STRATEGIES:
            for prefetch in (0, 1, 2):
                x, y = batch(group)
                model = FullyShard(GPT(CONFIG), group, strategy=strategy, prefetch=prefetch)
                next_token_loss(model(x), y).backward()
                found[strategy, prefetch] = [model.gradients()]
                model = FullyShard(GPT(CONFIG).double(), group, strategy=strategy, prefetch=prefetch)
                optimizer = adamw(model)
                for _ in range(4):
                    optimizer.zero_grad()
                    next_token_loss(model(x), y).backward()
                    optimizer.step()
                found[strategy, prefetch].append(model.state_dict())
        return found

    plain = GPT(CONFIG)
    x, y = batch()
    gradients = plain_gradients(plain, lambda m: next_token_loss(m(x), y))
    plain = GPT(CONFIG).double()
    optimizer = adamw(plain)
    for _ in range(4):
        optimizer.zero_grad()
        next_token_loss(plain(x), y).backward()
        optimizer.step()
    for found in launch(on_rank, size, transport="local").results:
        for case, (theirs, weights) in found.items():
            assert furthest(theirs, gradients) < 1e-6, case
            assert furthest(weights, plain.state_dict()) < 1e-10, case


@pytest.mark.parametrize("transport", few(TRANSPORTS))
def test_hybrid_shards_in_a_node_and_copies_across(transport):
    def on_rank(group):
        by_node = FullyShard(GPT(CONFIG), group, strategy="hybrid")
        pair, across = group.split(group.rank % 2), group.split(group.rank // 2)
        crossed = FullyShard(GPT(CONFIG), pair, strategy="hybrid", replicate_group=across)
        for model in (by_node, crossed):
            x, y = batch(group)
            next_token_loss(model(x), y).backward()
        return by_node.gradients(), crossed.gradients(), [p.numel() for p in by_node.parameters()]

    x, y = batch()
    gradients = plain_gradients(GPT(CONFIG), lambda m: next_token_loss(m(x), y))
    run = launch(on_rank, 4, transport=transport, clock="virtual", network=Network(2, 2))
    for by_node, crossed, sizes in run.results:
        assert furthest(by_node, gradients) < 1e-6 and furthest(crossed, gradients) < 1e-6
        assert abs(sum(sizes) - CONFIG.num_parameters / 2) <= len(sizes)


@pytest.mark.parametrize("size", few([3, 2]))
def test_other_models_other_units_and_more_ranks_than_elements(size):
    def tiny():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 2, bias=False), nn.BatchNorm1d(2), nn.Linear(2, 1))

    def shared():
        """Two units with one weight, which belongs to neither."""
        torch.manual_seed(6)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
        model[2].weight = model[0].weight
        return model

    x, images = torch.randn(ROWS, 3), torch.randn(ROWS, 1, 8, 8)
    cases = {
        "mlp": (lambda: MLP(MLPConfig((64, 7, 5, 10))), images.flatten(1), {}),
        "cnn": (lambda: CNN(CNNConfig()), images, {}),
        "one unit": (lambda: MLP(), images, {"units": []}),
        "pairs": (lambda: MLP(), images, {"units": lambda name, m: isinstance(m, nn.Linear)}),
        "names": (lambda: GPT(CONFIG), None, {"units": ["blocks.?", "blocks.?.feed_forward"]}),
        "tiny": (lambda: tiny().eval(), x, {}),
        "shared": (shared, x, {}),
    }

    def loss(model, x, group=None):
        if x is None:
            x, y = batch(group)
            return next_token_loss(model(x), y)
        x = x if group is None else x.tensor_split(group.size)[group.rank]
        return model(x).square().mean()

    def on_rank(group):
        found = {}
        for name, (make, x, options) in cases.items():
            model = FullyShard(make(), group, **options)
            loss(model, x, group).backward()
            found[name] = model.gradients(), len(model.units)
            adamw(model).step()
        return found

    found = launch(on_rank, size, transport="local").results[0]
    for name, (make, x, _) in cases.items():
        assert furthest(found[name][0], plain_gradients(make(), lambda m, x=x: loss(m, x))) < 1e-6, name
    assert found["shared"][1] == 4
    assert found["one unit"][1] == 1 and found["pairs"][1] == 4 and found["names"][1] == 1 + 2 * CONFIG.layers


class Odd(nn.Module):
    """Frozen, used twice, not used at all, not used by the output: everything at once."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(5))
        self.layers[1].requires_grad_(False)  # a frozen unit between two trained ones
        self.layers[2].bias.requires_grad_(False)  # a unit of both kinds
        self.spare = nn.Linear(2, 2)

    def forward(self, x):
        x = torch.tanh(self.layers[0](self.frozen(x)))
        for i in (1, 2, 0, 3):  # unit 0 a second time; unit 4 never
            x = x + torch.tanh(self.layers[i](x))
        return x


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_frozen_parameters_units_used_twice_and_units_not_used(strategy):
    x = torch.randn(ROWS, 6)

    def on_rank(group):
        model = FullyShard(Odd(), group, strategy=strategy)
        for _ in range(2):  # in the second step the first one's order is known
            model.zero_grad()
            model(x.tensor_split(group.size)[group.rank]).square().mean().backward()
        gathered = [flat.whole is not None for flat in model.flat_params if flat.flat.size > 1]
        return model.gradients(), [n for n, p in model.named_parameters() if not p.requires_grad], any(gathered)

    wanted = plain_gradients(Odd(), lambda m: m(x).square().mean())
    found, frozen, left = launch(on_rank, 3, transport="local").results[0]
    assert len(frozen) == 3 and not left
    assert not any(found.pop(name).any() for name in ("spare.weight", "spare.bias") if name in found)
    assert furthest(found, wanted) < 1e-6


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_block_is_computed_again_with_the_weights_of_its_unit(reentrant):
    class Checkpointed(GPT):
        def forward(self, tokens_bt):
            x_btd = self.tokens(tokens_bt) + self.positions(torch.arange(tokens_bt.shape[1]))
            for block in self.blocks:
                x_btd = checkpoint(block, x_btd, use_reentrant=reentrant)
            return self.lm_head(self.norm(x_btd))

    def on_rank(group):
        x, y = batch(group)
        model = FullyShard(Checkpointed(CONFIG), group)
        group.step(1)
        next_token_loss(model(x), y).backward()
        group.step(2)
        return model.gradients()

    x, y = batch()
    wanted = plain_gradients(GPT(CONFIG), lambda m: next_token_loss(m(x), y))
    assert furthest(launch(on_rank, 2, transport="local").results[1], wanted) < 1e-6


def test_two_forwards_before_backward_and_no_forward_changes_the_weights():
    def on_rank(group):
        model = FullyShard(GPT(CONFIG), group)
        with torch.no_grad():
            before = model(batch()[0])
        (x1, y1), (x2, y2) = batch(group, slice(0, 6)), batch(group, slice(6, 12))
        (next_token_loss(model(x1), y1) / 2 + next_token_loss(model(x2), y2) / 2).backward()
        return model.gradients(), before

    x, y = batch()
    plain = GPT(CONFIG)
    wanted = plain_gradients(plain, lambda m: next_token_loss(m(x), y))
    for found, before in launch(on_rank, 3, transport="local").results:
        assert furthest(found, wanted) < 1e-6
        assert torch.equal(before, plain(x))


@pytest.mark.parametrize("size", few([3, 2]))
def test_against_fully_shard_of_pytorch(size):
    def on_rank(group):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        x, y = batch(group)
        theirs, mesh = GPT(CONFIG).double(), init_device_mesh("cpu", (group.size,))
        for block in theirs.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(theirs, mesh=mesh)
        ours = FullyShard(GPT(CONFIG).double(), group)
        norms = []
        for model, clip in (
            (theirs, lambda p: nn.utils.clip_grad_norm_(p, 0.1)),
            (ours, lambda p: ours.clip_grad_norm_(0.1)),
        ):
            optimizer = adamw(model)
            for _ in range(3):
                optimizer.zero_grad()
                next_token_loss(model(x), y).backward()
                norm = clip(list(model.parameters()))
                norms.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
                optimizer.step()
        whole = {k: v.full_tensor() for k, v in theirs.state_dict().items()}
        return whole, ours.state_dict(), norms

    for theirs, ours, norms in launch(on_rank, size, transport="gloo").results:
        assert furthest(theirs, ours) < 1e-10
        assert norms[:3] == pytest.approx(norms[3:], rel=1e-9) and min(norms) > 0.1


class Chosen(nn.Module):
    """Encoder layers of PyTorch; each forward runs those that it is told."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = lambda: nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)  # noqa: E731
        self.blocks = nn.ModuleList(layer().double() for _ in range(2))

    def forward(self, x, which):
        for i in which:
            x = self.blocks[i](x)
        return x


def test_parameter_groups_are_those_of_the_plain_model():
    x = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1)).double()

    def groups(model):
        one = [p for p in model.parameters() if p.dim() == 1]
        return [{"params": one, "weight_decay": 0.0, "lr": 0.05}]  # the others are in no group

    def trained(model, optimizer, x):
        for _ in range(3):
            optimizer.zero_grad()
            model(x, [0, 1]).sin().mean().backward()
            optimizer.step()
        return model.state_dict()

    def on_rank(group):
        plain = Chosen()
        model = FullyShard(plain, group, param_groups=groups(plain))
        given = torch.optim.AdamW(model.param_groups, lr=1e-2, weight_decay=0.3)
        mine = x.tensor_split(group.size)[group.rank]
        return [len(g["params"]) for g in given.param_groups], trained(model, given, mine)

    plain = Chosen()
    rest = [p for p in plain.parameters() if p.dim() > 1]
    optimizer = torch.optim.AdamW([*groups(plain), {"params": rest}], lr=1e-2, weight_decay=0.3)
    expected = trained(plain, optimizer, x)
    for shards, weights in launch(on_rank, 2).results:
        assert furthest(weights, expected) < 1e-9 and shards == [2, 2]  # one of each kind in each of two blocks


def test_no_sync_reduces_units_that_the_last_microbatch_did_not_use_as_fully_shard_does():
    x = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1)).double()
    microbatches = [[0], [1, 0], [1]]  # the units of each; only the last one reduces

    def on_rank(group):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mine = x.tensor_split(group.size)[group.rank]
        theirs, mesh = Chosen(), init_device_mesh("cpu", (group.size,))
        for part in (*theirs.blocks, theirs):
            fully_shard(part, mesh=mesh)
        ours = FullyShard(Chosen(), group)
        for i, which in enumerate(microbatches):
            last = i == len(microbatches) - 1
            theirs.set_requires_gradient_sync(last)
            theirs.set_is_last_backward(last)
            theirs(mine, which).square().sum().backward()
            with contextlib.nullcontext() if last else ours.no_sync():
                ours(mine, which).square().sum().backward()
        torch.optim.SGD(ours.parameters(), lr=0.1).step()
        return {n: p.grad.full_tensor() for n, p in theirs.named_parameters()}, ours.gradients()

    for theirs, ours in launch(on_rank, 2, transport="gloo").results:
        assert furthest(ours, theirs) < 1e-12


def test_16_bits_on_the_wire_are_added_up_in_32():
    """256 on one rank, 1 on the others: who rounds 256 + 1 to 16 bits has 256 again, and never comes to 259."""

    def on_rank(group):
        model = FullyShard(nn.Linear(6, 5, bias=False), group, param_dtype=torch.bfloat16, output_dtype=torch.float32)
        x = torch.full((1, 6), 1.0 if group.rank else 256.0)
        out = model(x)
        (out.sum() * group.size).backward()  # the average of these is the sum of the inputs
        narrow = FullyShard(nn.Linear(6, 5, bias=False), group, reduce_dtype=torch.bfloat16, check_nan=True)
        (narrow(x).sum() * group.size).backward()
        grads = model.gradients()["weight"], narrow.gradients()["weight"]
        return out.dtype, [p.dtype for p in model.parameters()], grads

    for out, kept, (wide, narrow) in launch(on_rank, 4, transport="local").results:
        assert out == torch.float32 and kept == [torch.float32]
        exact = torch.full((5, 6), 259.0).bfloat16().float()  # one rounding, at the end
        assert torch.equal(wide, exact) and torch.equal(narrow, exact)


def test_mixed_precision_is_that_of_the_plain_model_in_16_bits():
    def on_rank(group):
        x, y = batch(group)
        model = FullyShard(GPT(CONFIG), group, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        logits = model(x)
        next_token_loss(logits.float(), y).backward()
        return logits, model.gradients()

    plain = GPT(CONFIG).bfloat16()
    x, y = batch()
    wanted = plain_gradients(plain, lambda m: next_token_loss(m(x).float(), y))
    run = launch(on_rank, 2, transport="local")
    assert torch.equal(torch.cat([r[0] for r in run.results]), GPT(CONFIG).bfloat16()(x))
    for _, found in run.results:
        assert furthest(found, wanted) < 0.02 * max(float(g.abs().max()) for g in wanted.values())


def test_weights_count_examples_and_an_empty_batch_counts_nothing():
    counts = [5, 0, 7]

    def on_rank(group):
        start = sum(counts[: group.rank])
        x, y = batch(rows=slice(start, start + counts[group.rank]))
        model = FullyShard(GPT(CONFIG), group, average="weights", check_nan=True)
        with model.weighted(len(x)):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())  # NaN on rank 1
            loss.backward()
        return float(loss), model.gradients()

    x, y = batch()
    wanted = plain_gradients(GPT(CONFIG), lambda m: next_token_loss(m(x), y))
    results = launch(on_rank, 3, transport="local").results
    assert results[1][0] != results[1][0]
    assert all(furthest(found, wanted) < 1e-6 for _, found in results)


class SmallCNN(nn.Module):
    """As one would write it, with nothing of this repository: convolutions, group norms, and a linear head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU())
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


@pytest.mark.parametrize("average", ["examples", "ranks"])
@pytest.mark.parametrize("wrap", [FullyShard, DataParallel])
def test_uneven_batches_count_by_their_examples_and_ranks_end_at_different_steps(average, wrap):
    rows = [[4, 3, 1], [2], [1, 5]]  # of each rank, by step
    made = torch.Generator().manual_seed(3)
    data = [[torch.randn(n, 1, 8, 8, generator=made).double() for n in mine] for mine in rows]

    def step(model, optimizer, loss=None):
        if loss is not None:
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()

    def answers(x):
        return x.sum((1, 2, 3)).abs().long() % 5

    def on_rank(group):
        model = wrap(SmallCNN().double(), group, average=average)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5)
        with model.join(lambda: step(model, optimizer)):
            for x in data[group.rank]:
                step(model, optimizer, F.cross_entropy(model(x), answers(x)))
        return (model if wrap is FullyShard else model.module).state_dict()

    plain = SmallCNN().double()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=1e-5)
    for number in range(3):
        batches = [mine[number] for mine in data if number < len(mine)]
        losses = [F.cross_entropy(plain(x), answers(x)) for x in batches]
        everything = torch.cat(batches)
        whole = F.cross_entropy(plain(everything), answers(everything))
        step(plain, optimizer, whole if average == "examples" else sum(losses) / len(rows))
    for weights in launch(on_rank, 3).results:
        assert furthest(weights, plain.state_dict()) < 1e-10


def test_gradients_of_a_rank_that_counts_nothing_are_zeros_whatever_they_were():
    def on_rank(group):
        x, y = batch(rows=slice(0, 5))
        model = FullyShard(GPT(CONFIG), group, average="weights", check_nan=True)
        with model.weighted(len(x) if group.rank == 0 else 0):  # padding only, say
            (next_token_loss(model(x), y) * (1.0 if group.rank == 0 else float("nan"))).backward()
        return model.gradients()

    x, y = batch(rows=slice(0, 5))
    wanted = plain_gradients(GPT(CONFIG), lambda m: next_token_loss(m(x), y))
    assert all(furthest(found, wanted) < 1e-6 for found in launch(on_rank, 2, transport="local").results)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_forward_without_backward_leaves_no_old_weights_behind(strategy):
    def on_rank(group):
        x, y = batch()
        model = FullyShard(GPT(CONFIG), group, strategy=strategy)
        sgd = torch.optim.SGD(model.parameters(), lr=0.5)
        next_token_loss(model(x), y).backward()
        model(x)  # gathers, and nobody asks for its gradients
        sgd.step()
        plain = GPT(CONFIG)
        plain.load_state_dict(model.state_dict())
        return float((model(x) - plain(x)).abs().max())

    assert max(launch(on_rank, 2, transport="local").results) < 1e-5


@pytest.mark.parametrize("units", few([["blocks.*.attention"], None, []]))
@pytest.mark.parametrize("theirs", [False, True])
def test_blocks_that_were_checkpointed_before_wrapping_are_computed_again_with_gathered_weights(units, theirs):
    def on_rank(group):
        x, y = batch(group)
        plain = GPT(CONFIG)
        if theirs:
            for block in plain.blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        else:
            checkpoint_blocks(plain)
        model = FullyShard(plain, group, units=units)
        next_token_loss(model(x), y).backward()
        gone = all(p.is_meta for m in model.module.modules() for p in vars(m).values() if isinstance(p, torch.Tensor))
        return model.gradients(), gone and not any(s.whole is not None for s in model.flat_params)

    x, y = batch()
    wanted = plain_gradients(GPT(CONFIG), lambda m: next_token_loss(m(x), y))
    for found, gone in launch(on_rank, 2, transport="local").results:
        assert furthest(found, wanted) < 1e-6 and gone
