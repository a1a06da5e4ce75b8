"""The reading editions are short, and equal to the full library: the same weights, and the same bytes."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import labkit
from labkit import cost, parallel, pocket
from labkit.models import GPTConfig, seeded
from labkit.models.gpt import Attention, Block, FeedForward
from labkit.models.moe import MoE, MoEConfig
from labkit.optim.compression import Compressed, PowerSGD, TopK
from labkit.optim.precision import LossScaler, Recipe, low_precision
from labkit.optim.synchrony import SSP, LocalSGD, nesterov
from labkit.parallel import pipeline as full_pipelines
from labkit.parallel.context.parallel import ContextParallel
from labkit.parallel.embedding.optimizers import RowwiseAdagrad
from labkit.parallel.tensor.attention import TensorParallelAttention
from labkit.parallel.tensor.feed_forward import TensorParallelFeedForward
from labkit.pocket import (
    checkpointing,
    data_parallel,
    embedding,
    experts,
    fp8_linear,
    fsdp,
    ftar,
    local_sgd,
    loss_scaling,
    one_f_one_b,
    parameter_server,
    power_sgd,
    ring_attention,
    tensor_parallel,
    top_k,
    ulysses,
    zero_1,
    zero_2,
)  # fmt: skip
from labkit.resilience.ftar.exchange import ft_all_reduce

FILES = sorted(p for p in Path(pocket.__file__).parent.glob("*.py") if p.stem != "__init__")
ADAMW = {"lr": 1e-2, "weight_decay": 0.1, "eps": 0.1}  # a large eps: without it AdamW would not see a factor


def blocks(seed: int) -> nn.Module:
    with seeded(seed):
        return nn.Sequential(
            nn.Sequential(nn.Linear(10, 33), nn.ReLU()), nn.Sequential(nn.Linear(33, 9), nn.ReLU()), nn.Linear(9, 7)
        )


def train(group: Any, wrap: Any, steps: int = 3) -> list[torch.Tensor]:
    """Some steps on this rank's own data; the weights. wrap(module, group): what is called, what steps, and these."""
    model, optimizer, weights = wrap(blocks(group.rank), group)  # the ranks begin with different weights
    generator = torch.Generator().manual_seed(group.rank)
    for step in range(steps):
        group.step(step + 1)
        x = torch.randn(5, 10, generator=generator)
        F.cross_entropy(model(x), torch.randint(7, (5,), generator=generator)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in weights]


def bytes_of_steps(run: labkit.Run) -> list[list[int]]:
    """Bytes that each rank sent in each step but what came before them."""
    sent = [[0] * run.trace.world_size for _ in range(3)]
    for m in run.trace.sends:
        if m.step > 0:
            sent[m.step - 1][m.src] += int(m.nbytes)
    return sent


def ddp(wrapper: Any, **options: Any) -> Any:
    def wrap(module: Any, group: Any) -> Any:
        model = wrapper(module, group, bucket_bytes=500, **options)
        return (
            model,
            torch.optim.SGD(module.parameters(), lr=0.1),
            list(module.parameters()),
        )  # Adam would not see a factor

    return wrap


def zero(wrapper: Any, **options: Any) -> Any:
    def wrap(module: Any, group: Any) -> Any:
        return module, wrapper(module, group, **ADAMW, **options), list(module.parameters())

    return wrap


def full_zero(wrapper: Any, bucket_bytes: int) -> Any:
    def wrap(module: Any, group: Any) -> Any:
        model = wrapper(module, group, parallel.AdamW(**ADAMW), bucket_bytes=bucket_bytes)
        return model, model, list(module.parameters())

    return wrap


def fsdp_of(wrapper: Any, **options: Any) -> Any:
    def wrap(module: Any, group: Any) -> Any:
        module.load_state_dict(blocks(0).state_dict())  # the full one refuses ranks that begin with different weights
        model = wrapper(module, group, **options)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), list(model.parameters())

    return wrap


class Averaged:
    """An optimizer that first averages gradients by compressed messages."""

    def __init__(self, average: Any, module: nn.Module) -> None:
        self.average, self.sgd = average, torch.optim.SGD(module.parameters(), lr=0.1)
        self.zero_grad = self.sgd.zero_grad

    def step(self) -> None:
        self.average()
        self.sgd.step()


def compressed(edition: Any, **options: Any) -> Any:
    def wrap(module: Any, group: Any) -> Any:
        return module, Averaged(edition(module, group, **options).average, module), list(module.parameters())

    return wrap


def hooked(hook: Any) -> Any:
    """The full one, with all gradients in one bucket; `hook` makes its hook."""

    def wrap(module: Any, group: Any) -> Any:
        return ddp(parallel.DataParallel, first_bucket_bytes=1 << 20, hook=hook(), rebuild=False)(module, group)

    return wrap


class SameStart(PowerSGD):
    """Begins with the Q that the reading edition begins with."""

    def dice(self, name: str, step: int, rank: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(0)


def stages(group: Any, microbatches: int, make: Any, steps: int = 3) -> list[torch.Tensor]:
    """Some steps of a pipeline; the weights of this rank's stage. make(stage, group): what does a step."""
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(group.size)]
    with seeded(group.rank):
        stage = layers[group.rank]
        for p in stage.parameters():
            nn.init.normal_(p)
    sgd, do = torch.optim.SGD(stage.parameters(), lr=0.1), make(stage, group)
    for step in range(steps):
        group.step(step + 1)
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(12, 6, generator=generator), torch.randn(12, 6, generator=generator)
        do(x, y, microbatches)
        sgd.step()
        sgd.zero_grad()
    return [p.detach().clone() for p in stage.parameters()]


def pocket_pipeline(stage: Any, group: Any) -> Any:
    def do(x: torch.Tensor, y: torch.Tensor, microbatches: int) -> None:
        like = torch.empty(12 // microbatches, 6)
        one_f_one_b.Pipeline(stage, group, F.mse_loss, like).step(x, y, microbatches)

    return do


def full_pipeline(stage: Any, group: Any) -> Any:
    whole = full_pipelines.Pipeline(stage, group, F.mse_loss)

    def do(x: torch.Tensor, y: torch.Tensor, microbatches: int) -> None:
        whole.execute(full_pipelines.one_f_one_b(group.size, microbatches), x, y)

    return do


@pytest.mark.ranks
@pytest.mark.parametrize(("size", "microbatches"), [(3, 4), (1, 3), (2, 1), (4, 2)])
def test_a_pipeline_is_equal_to_the_full_one_in_weights_and_in_the_bytes_between_stages(
    size: int, microbatches: int
) -> None:
    ours, full = (
        labkit.launch(stages, size, microbatches, make, transport="local") for make in (pocket_pipeline, full_pipeline)
    )
    for mine, theirs in zip(ours.results, full.results, strict=True):
        assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(mine, theirs, strict=True))
    sent = [
        [sum(int(m.nbytes) for m in run.trace.sends if m.src == r and m.collective < 0) for r in range(size)]
        for run in (ours, full)
    ]
    assert sent[0] == sent[1] and (size == 1 or min(sent[0]) > 0)


SAME = {
    "data_parallel": (
        ddp(data_parallel.DataParallel),
        ddp(parallel.DataParallel, first_bucket_bytes=500, rebuild=False, broadcast_buffers=False),
    ),
    "fsdp": (fsdp_of(fsdp.FSDP), fsdp_of(parallel.FullyShard, units=["0", "1", "2"])),
    "power_sgd": (compressed(power_sgd.PowerSGD, rank=2), hooked(lambda: SameStart(2))),
    "top_k": (compressed(top_k.TopK, share=0.1), hooked(lambda: Compressed(TopK(0.1)))),
    "zero_1": (zero(zero_1.ZeRO1), full_zero(parallel.ZeRO1, 1 << 20)),
    "zero_2": (zero(zero_2.ZeRO2, bucket_bytes=500), full_zero(parallel.ZeRO2, 500)),
}  # fmt: skip


def layers(group: Any, made: Any, steps: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Some steps of a layer that is cut; what it then gives for an input, and the gradient of that input."""
    torch.manual_seed(0)  # the whole layer is the same on every rank
    layer = made(group)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(steps):
        group.step(step + 1)
        x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(step)).requires_grad_()
        layer(x).square().mean().backward()
        sgd.step()
        sgd.zero_grad()
    group.step(0)
    with torch.no_grad():
        return layer(torch.ones(1, 3, 24)), x.grad


CONFIG = GPTConfig(width=24, heads=6)
CUT = {
    "mlp": (
        lambda group: tensor_parallel.TensorParallelMLP(FeedForward(CONFIG), group),
        lambda group: TensorParallelFeedForward(CONFIG, group),
    ),
    "attention": (
        lambda group: tensor_parallel.TensorParallelAttention(Attention(CONFIG), group),
        lambda group: TensorParallelAttention(CONFIG, group),
    ),
}


@pytest.mark.ranks
@pytest.mark.parametrize("size", [3, 1, 2])
@pytest.mark.parametrize("name", CUT)
def test_a_layer_that_is_cut_is_equal_to_the_full_one_in_what_it_learns_and_in_bytes(name: str, size: int) -> None:
    ours, full = (labkit.launch(layers, size, made, transport="local") for made in CUT[name])
    whole = labkit.launch(layers, 1, CUT[name][1], transport="local").results[0]
    for mine, theirs in zip(ours.results, full.results, strict=True):
        for a, b, c in zip(mine, theirs, whole, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-6) and torch.allclose(a, c, rtol=0, atol=1e-5)
    assert bytes_of_steps(ours) == bytes_of_steps(full) and (size == 1 or min(map(min, bytes_of_steps(ours))) > 0)


def over_the_ring(q: Any, k: Any, v: Any, group: Any) -> Any:
    positions = [ring_attention.zigzag(r, group.size, 24) for r in range(group.size)]
    return ring_attention.ring_attention(q, k, v, positions, group)


ATTENTION = {"ring_attention": (over_the_ring, 1), "ulysses": (ulysses.ulysses_attention, 0)}


def attended(group: Any, name: str, full: bool) -> list[torch.Tensor]:
    """The result on this rank's positions, and the gradients of its queries, keys and values."""
    pocketed, ring = ATTENTION[name]
    context = ContextParallel(group, layout="zigzag" if ring else "contiguous", ulysses=1 if ring else group.size)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        context.cut(torch.randn(2, 6, 24, 4, generator=generator).double(), 2).requires_grad_() for _ in range(3)
    )
    y = context.attention(q, k, v) if full else pocketed(q, k, v, group)
    y.square().sum().backward()
    return [y.detach(), q.grad, k.grad, v.grad]


@pytest.mark.ranks
@pytest.mark.parametrize("size", [3, 1, 2])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_over_ranks_is_equal_to_the_full_one_in_gradients_and_bytes(name: str, size: int) -> None:
    ours, full = (labkit.launch(attended, size, name, way, transport="local") for way in (False, True))
    for mine, theirs in zip(ours.results, full.results, strict=True):
        assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(mine, theirs, strict=True))
    assert ours.trace.bytes_sent() == full.trace.bytes_sent() and (size == 1 or min(ours.trace.bytes_sent()) > 0)


def mixed(group: Any, full: bool) -> dict[str, torch.Tensor]:
    """Results, the balancing loss and all gradients of a layer of experts, of which some get no token."""
    whole = MoE(8, MoEConfig(6, 2, hidden=1.5, balance=1.0))
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(p.shape, generator=generator) for name, p in whole.named_parameters()}
    x = torch.randn(5 + group.rank, 8, generator=torch.Generator().manual_seed(group.rank)).requires_grad_()
    layer: Any = parallel.ExpertParallel(group).into(whole) if full else experts.Experts(8, 12, 6, 2, group)
    names = {name.removeprefix("router."): p for name, p in layer.named_parameters()}
    for name, p in names.items():
        p.data = weights[name if name in weights else f"router.{name}"].clone()
    y = layer(x)
    y, balance = (y, layer.routing.losses) if full else y
    (y.square().sum() + balance).backward()
    found = {"y": y.detach(), "balance": balance.detach(), "x": x.grad}
    return found | {name: p.grad for name, p in names.items()}


@pytest.mark.ranks
@pytest.mark.parametrize("size", [3, 1, 2])
def test_experts_are_equal_to_the_full_ones_in_gradients_and_bytes(size: int) -> None:
    ours, full = (labkit.launch(mixed, size, way, transport="local") for way in (False, True))
    for mine, theirs in zip(ours.results, full.results, strict=True):
        assert mine.keys() == theirs.keys() and len(mine) == 4 + 4 * 6 // size
        assert all(torch.allclose(mine[name], theirs[name], rtol=0, atol=1e-5) for name in mine)
    assert ours.trace.bytes_sent() == full.trace.bytes_sent() and (size == 1 or min(ours.trace.bytes_sent()) > 0)


def looked_up(group: Any, full: bool) -> Any:
    """Three steps of a table on this rank's own ids; the rows that this rank holds."""
    options = {"dtype": torch.float64, "average": False, "by": "modulo", "init": first_rows}
    table: Any = (
        parallel.ShardedEmbedding(31, 4, group, RowwiseAdagrad(0.1), **options)
        if full
        else embedding.Embedding(31, 4, group, lr=0.1, init=first_rows)
    )
    generator = torch.Generator().manual_seed(group.rank)
    for step in range(3):
        group.step(step + 1)
        y = table(torch.randint(31, (5 + group.rank, 3), generator=generator))
        y.tanh().square().sum().backward()
        table.step()
    return table.table.store.all()[:, :4] if full else table.rows


def first_rows(ids: torch.Tensor) -> torch.Tensor:
    return torch.sin(ids[:, None] * 4.0 + torch.arange(4)).double()


@pytest.mark.ranks
@pytest.mark.parametrize("size", [3, 1, 2])
def test_a_cut_table_is_equal_to_the_full_one_but_for_the_word_by_which_ranks_agree(size: int) -> None:
    ours, full = (labkit.launch(looked_up, size, way, transport="local") for way in (False, True))
    for mine, theirs in zip(ours.results, full.results, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)
        assert (mine - first_rows(torch.arange(31))[: len(mine)]).abs().max() > 0.01
    agreed = 2 * (size - 1) * cost.ID_BYTES
    assert [[n + agreed for n in step] for step in bytes_of_steps(ours)] == bytes_of_steps(full)


def kept_by(call: Any, block: nn.Module) -> tuple[int, list[torch.Tensor]]:
    """Bytes that autograd keeps of a call, and all gradients after its backward. (Parameters are kept anyway.)"""
    kept, mine = {}, {p.data_ptr() for p in block.parameters()}
    x = torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in mine:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = call(block, x)
    y.square().mean().backward()
    return sum(kept.values()), [x.grad, *(p.grad for p in block.parameters())]


def test_checkpointing_keeps_the_input_alone_and_gives_the_same_gradients() -> None:
    found = {}
    for name, call in (("plain", lambda block, x: block(x)), ("pocket", checkpointing.checkpoint),
                       ("full", parallel.checkpoint)):  # fmt: skip
        with seeded(0):
            found[name] = kept_by(call, Block(CONFIG))
    for name in ("pocket", "full"):
        assert all(torch.equal(a, b) for a, b in zip(found[name][1], found["plain"][1], strict=True))
    assert found["pocket"][0] == 3 * 5 * 24 * 4 < found["plain"][0] / 10


def test_every_edition_is_compared_and_fits_on_two_screens() -> None:
    """Compared: a test in one of the files of this folder takes something of it."""
    tests = [ast.parse(path.read_text()) for path in Path(__file__).parent.glob("test_*.py")]
    taken = {n.value.id for test in tests for n in ast.walk(test)
             if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}  # fmt: skip
    assert len(FILES) > 20 and {path.stem for path in FILES} <= taken
    for path in FILES:
        assert len(path.read_text().splitlines()) <= 150, path.name
        places = {n.module.partition(".")[0] for n in ast.walk(ast.parse(path.read_text()))
                  if isinstance(n, ast.ImportFrom) and n.module}  # fmt: skip
        assert places <= {"__future__", "typing", "torch", "labkit", "collections"}
        assert "labkit.parallel import" not in path.read_text()


def stale(group: Any, s: int, full: bool, steps: int = 4) -> Any:
    """Workers of different pace; on rank 0 the weights and (worker, clock) of each update."""
    weights = torch.linspace(-1, 1, 7)
    if group.rank == 0 and full:
        server = parallel.Server({"w": weights}, group, [0], policy=SSP(s), optimizer=partial(torch.optim.SGD, lr=0.3))
        return [(u.worker, u.clock) for u in server.serve()], server.parameters["w"]
    if group.rank == 0:
        return parameter_server.serve(weights, group, s, lr=0.3), weights
    worker: Any = parallel.Client({"w": weights}, group, [0]) if full else parameter_server.Worker(group)
    for step in range(steps):
        weights = worker.pull("w" if full else weights)
        group.compute((1 + (2 * group.rank + step) % 3) * group.rank)
        if full:
            worker.push("w", weights.sin() * group.rank)
            worker.tick()
        else:
            worker.push(weights.sin() * group.rank)
    worker.end()
    return None


@pytest.mark.ranks
@pytest.mark.parametrize("s", [1, 0])
def test_a_parameter_server_is_equal_to_the_full_one_in_its_log_its_weights_and_all_bytes_but_heads(s: int) -> None:
    ours, full = (labkit.launch(stale, 4, s, way, transport="local", clock="virtual") for way in (False, True))
    assert ours.results[0][0] == full.results[0][0] and len(ours.results[0][0]) == 3 * 4
    assert torch.equal(ours.results[0][1], full.results[0][1])
    bodies = [
        [[m.nbytes for m in run.trace.sends if m.src == r and m.collective < 0 and m.nbytes == 28] for r in range(4)]
        for run in (ours, full)
    ]
    assert bodies[0] == bodies[1] and [len(sent) for sent in bodies[0]] == [12, 4, 4, 4]
    assert sum(ours.trace.bytes_sent()) == 28 * 24 + 24 * 3 * (2 * 4 + 1)  # a pull and a push each step, and an end


@pytest.mark.ranks
@pytest.mark.parametrize("size", [3, 1, 2])
@pytest.mark.parametrize("name", SAME)
def test_an_edition_is_equal_to_the_full_one_in_weights_and_bytes(name: str, size: int) -> None:
    ours, full = (labkit.launch(train, size, wrap, transport="local") for wrap in SAME[name])
    for mine, theirs in zip(ours.results, full.results, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-6)
    alike = name != "fsdp"  # there each rank has its own shards
    assert all(torch.equal(a, b) for r in ours.results for a, b in zip(r, ours.results[0], strict=True) if alike)
    assert bytes_of_steps(ours) == bytes_of_steps(full) and (size == 1 or min(map(min, bytes_of_steps(ours))) > 0)


def alone_for_a_while(make: Any) -> Any:
    """make(module, group, inner): what steps, with rounds of two steps."""

    def wrap(module: Any, group: Any) -> Any:
        inner = torch.optim.AdamW(module.parameters(), **ADAMW)
        stepping = make(module, group, inner)
        stepping.zero_grad = inner.zero_grad
        return module, stepping, list(module.parameters())

    return wrap


@pytest.mark.ranks
@pytest.mark.parametrize("size", [3, 1])
def test_diloco_is_equal_to_the_full_one_in_weights_and_bytes(size: int) -> None:
    ours, full = (
        labkit.launch(train, size, alone_for_a_while(make), 5, transport="local")
        for make in (
            lambda module, group, inner: local_sgd.DiLoCo(module, group, inner, 2),
            lambda module, group, inner: LocalSGD(module, group, inner, 2, nesterov()),
        )
    )
    for mine, theirs in zip(ours.results, full.results, strict=True):
        assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(mine, theirs, strict=True))
    sent = [[sum(m.nbytes for m in run.trace.sends if m.step == s) for s in range(1, 6)] for run in (ours, full)]
    assert sent[0] == sent[1] and [n > 0 for n in sent[0]] == [False, size > 1, False, size > 1, False]


CHUNKS = {"chunk_bytes": 400, "chunks": 3}  # several rounds of the ring, and a last one that is not full


@pytest.mark.ranks
@pytest.mark.parametrize("numel", [1, 3, 1000, 4001])
def test_the_fault_tolerant_all_reduce_sends_what_the_full_one_sends_and_gives_the_same_bits(numel):
    def total(group, all_reduce):
        generator = torch.Generator().manual_seed(group.rank)
        return all_reduce(torch.randn(numel, generator=generator), group, **CHUNKS)

    mine, full = (labkit.launch(total, 4, way, transport="local") for way in (ftar.ft_all_reduce, ft_all_reduce))
    assert all(torch.equal(a, b) for a, b in zip(mine.results, full.results, strict=True))
    assert mine.trace.bytes_sent() == full.trace.bytes_sent() == cost.ring_all_reduce_bytes_by_rank(numel, 4, 4)


@pytest.mark.ranks
@pytest.mark.parametrize("message", [1, 4])
def test_who_is_left_begins_again_with_the_gradients_that_it_has(message):
    def work(group):
        gradient = torch.full((1000,), 10.0**group.rank)
        mean, now = ftar.average(gradient, group, lambda epoch: [0, 1, 3])
        again, same = ftar.average(gradient, now, lambda epoch: [])
        return mean.unique().tolist(), now.size, torch.equal(again, mean) and same is now

    job = labkit.start(work, 4, transport="local", on_failure="continue", faults=[labkit.Kill(2, message=message)])
    run = job.wait()
    assert [run.results[r] for r in (0, 1, 3)] == [([pytest.approx(337.0)], 3, True)] * 3


def eight_bits(group: Any, full: bool) -> list[Any]:
    """Two layers in 8 bits for three steps, on different data; outputs, weights and amaxes."""
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            p.copy_(torch.linspace(-1, 1 + n, p.numel()).view_as(p))
    if full:
        agree: list[Any] = [low_precision(model, Recipe(), group=group).spoilt]
    else:
        model[0], model[2] = fp8_linear.Fp8Linear(model[0]), fp8_linear.Fp8Linear(model[2])
        agree = [partial(model[n].agree, group) for n in (0, 2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(3):
        optimizer.zero_grad()
        x = torch.linspace(-1, 2, 24).view(2, 2, 6) * (1 + group.rank + 2 * step)
        y = model(x)
        y.square().mean().backward()
        seen.append(y.detach())
        for one in agree:
            one()
        optimizer.step()
    return [*seen, *(p.detach() for p in model.parameters())]


@pytest.mark.ranks
def test_a_layer_in_eight_bits_is_that_of_the_library() -> None:
    short, full = (labkit.launch(eight_bits, 2, full, transport="local").results for full in (False, True))
    for a, b in zip(short, full, strict=True):
        for mine, theirs in zip(a, b, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-5)


def scaled(group: Any, full: bool) -> list[tuple[bool, float, float]]:
    """Five steps, of which one rank cannot take the third: whether each was taken, the scale, a weight."""
    p = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([p], lr=0.1)
    short, long = loss_scaling.LossScaler(group, 64.0, 2), LossScaler(64.0, interval=2, group=group)
    told = []
    for step in range(5):
        p.grad = torch.full((3,), (short, long)[full].scale)
        if step == 2 and group.rank == 1:
            p.grad[1] = torch.inf
        if full:
            taken = long.unscale([p])
            optimizer.step() if taken else None
        else:
            taken = short.step(optimizer)
        told.append((taken, (short, long)[full].scale, float(p[0])))
    return told


@pytest.mark.ranks
def test_a_scaled_loss_is_that_of_the_library() -> None:
    short, full = (labkit.launch(scaled, 2, full, transport="local") for full in (False, True))
    assert short.results == full.results and short.results[0] == short.results[1]
    assert [taken for taken, *_ in short.results[0]] == [True, True, False, True, True]
    assert short.trace.bytes_sent() == full.trace.bytes_sent()
