"""What chapter 12 asks its reader to write: the router, the way there and back, capacity, two averages, a bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.chapters.c12_experts.layers import all_to_all, waiting_line
from labkit.collectives import all_reduce
from labkit.grading.checks.student import NotRight, StudentError
from labkit.grading.writing import Reader, you_write
from labkit.models import MoEConfig
from labkit.models.moe import MoE
from labkit.parallel import ExpertParallel
from labkit.wire import Group

Compute = Callable[[Tensor, Tensor], Tensor]

# 1: the router ---------------------------------------------------------------------------------------------------


def the_best_are_taken(student: Reader) -> str:
    draw = torch.Generator().manual_seed(student.seed)
    for k in (2, 3, 1):
        logits = torch.randn(6, 32, generator=draw)  # so many that an unstable sort does move equal ones
        logits[4] = logits[4].round()  # some logits are equal
        logits[5] = 0  # all are
        try:
            ((got, kept),) = student.through("route", 1, [(logits, k)], _routed).results
        except StudentError as error:
            if "must match the size of tensor" not in f"{error} {error.detail}":
                raise
            hint = "Does the sum keep its dimension? Write `.sum(-1, keepdim=True)`."
            raise StudentError(f"{error} {hint}", error.detail) from None
        student.expect(torch.equal(kept, logits), "`logits_ne` has changed: the caller still needs it, so leave it be.")
        student.expect(
            isinstance(got, (tuple, list)) and len(got) == 2 and all(isinstance(x, Tensor) for x in got),
            "Return two tensors, `experts_nk` and `weights_nk`.",
        )
        experts, weights = got
        student.expect(
            not (experts.is_floating_point() and not weights.is_floating_point()),
            "These are the weights first. Return the experts first, and then their weights.",
        )
        for name, x in (("experts", experts), ("weights", weights)):
            student.expect(tuple(x.shape) == (6, k), "With 6 tokens and k = {k} there should be 6 x {k} {name}, and "
                           "not {shape}.", k=k, name=name, shape=" x ".join(map(str, x.shape)))  # fmt: skip
        _the_experts(student, experts, logits, k)
        _the_weights(student, experts, weights, logits, k)
    ((learns,),) = student.through("route", 1, [(logits, 2)], _learns).results
    student.expect(learns, "The weights are right, but no gradient goes through them, so this router could never "
                   "learn. Do not cut them off with `detach` or `no_grad`.")  # fmt: skip
    return (
        "For 1, 2 and 3 choices you take the best experts, with equal logits by their number, and gate weights that "
        "add up to 1."
    )


def _the_experts(student: Reader, experts: Tensor, logits: Tensor, k: int) -> None:
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    right, clear = order[:, :k], slice(0, 4)
    if torch.equal(experts, right):
        return
    if torch.equal(experts[clear], logits.argsort(dim=-1)[clear, :k]):
        raise NotRight("These are the experts with the *lowest* logits: sort with `descending=True`.")
    by_token = logits.softmax(0).sort(dim=-1, descending=True, stable=True).indices[:, :k]
    if torch.equal(experts[clear], by_token[clear]):
        raise NotRight("The softmax runs over the tokens. It should run over the experts of one token: `softmax(-1)`.")
    if torch.equal(experts[clear].sort(-1).values, right[clear].sort(-1).values):
        if not torch.equal(experts[clear], right[clear]):
            raise NotRight("These are the right experts, but not the best one first, which a capacity will need.")
        raise NotRight(
            "Where several logits are equal, you do not take the expert with the lower number first. `sort(..., "
            "stable=True)` does; `topk` and an unstable sort promise nothing, so two ranks may disagree."
        )
    token = int((experts != right).any(-1).nonzero()[0])
    raise NotRight(
        f"Token {token} should choose {right[token].tolist()}, and you chose {experts[token].tolist()}. Which "
        "dimension has the experts?"
    )


def _the_weights(student: Reader, experts: Tensor, weights: Tensor, logits: Tensor, k: int) -> None:
    chosen = logits.gather(1, experts)
    right, probs = chosen.softmax(-1), logits.softmax(-1).gather(1, experts)

    def near(x: Tensor) -> bool:
        return torch.allclose(weights.float(), x, atol=1e-5)

    if near(right):
        return
    total = float(weights[0].sum())
    slips: list[tuple[Tensor, str]] = [
        (probs, f"The weights of token 0 add up to {total:.2f}: divide them by their sum, so that it is 1."),
        (chosen, "These are logits, and may be negative. Turn them into probabilities with a softmax first."),
        (torch.full_like(right, 1 / k), "All choices count alike. A weight should come from its own probability."),
        (chosen.sigmoid() / chosen.sigmoid().sum(-1, keepdim=True), "These are sigmoids. Take a softmax over the "
         "experts."),
        (right / right.sum(), "The weights of *all* tokens together add up to 1: sum over the last dimension, with "
         "`sum(-1, keepdim=True)`."),
        (probs / probs.sum(), "The weights of *all* tokens together add up to 1: sum over the last dimension, with "
         "`sum(-1, keepdim=True)`."),
        (probs / probs.sum(0), "You divided by a sum over the tokens. Each token has its own: `sum(-1, "
         "keepdim=True)`."),
    ]  # fmt: skip
    for wrong, why in slips:
        if near(wrong):
            raise NotRight(why)
    raise NotRight(
        f"The experts are right, but token 0 has weights {_short(weights[0])}, where {_short(right[0])} are expected: "
        "the probabilities of its own experts, over their sum."
    )


def _routed(fn: Callable[..., Any], given: tuple[Tensor, int], group: Group) -> tuple[Any, Tensor]:
    """What it returned, and what has become of its input."""
    logits = given[0].clone()
    return _data(fn(logits, given[1])), logits


def _learns(fn: Callable[..., Any], given: tuple[Tensor, int], group: Group) -> tuple[bool]:
    """Whether the weights pass a gradient back to the logits."""
    leaf = given[0].clone().requires_grad_()
    _, weights = fn(leaf * 1, given[1])
    return (bool(weights.requires_grad and torch.autograd.grad(weights[:, 0].sum(), leaf)[0].abs().sum() > 0),)


def _data(got: Any) -> Any:
    if isinstance(got, (tuple, list)):
        return [x.detach() if isinstance(x, Tensor) else x for x in got]
    return got.detach() if isinstance(got, Tensor) else got


def _short(x: Tensor) -> str:
    return ", ".join(f"{v:.2f}" for v in x.tolist())


@you_write(the_best_are_taken)
def route(logits_ne: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best experts of each token, best first, and their gate weights."""
    probs_ne = logits_ne.softmax(-1)
    best_ne = probs_ne.sort(dim=-1, descending=True, stable=True).indices
    experts_nk = best_ne[:, :k]
    weights_nk = probs_ne.gather(1, experts_nk)
    return experts_nk, weights_nk / weights_nk.sum(-1, keepdim=True)


# 2: to the experts and back --------------------------------------------------------------------------------------


def there_and_back(student: Reader) -> str:
    per_rank, width = 2, 3
    for n in (2, 3):
        draw = torch.Generator().manual_seed(student.seed + n)
        inputs = []
        for rank in range(n):
            rows = 5 + 2 * rank
            expert = torch.randint(per_rank * n - 1, (rows,), generator=draw)  # the last expert gets nothing
            expert[:3] = torch.tensor([per_rank * n - 2, 1, 0])  # never sorted, and the first one for the last rank
            if rank == 0 and n == 3:
                expert %= per_rank * (n - 1)  # nothing for the last rank
            x = 1 + torch.arange(rows * width).view(rows, width).float() + 100 * rank
            inputs.append((x, expert))

        def call(fn: Callable[..., Any], mine: tuple[Tensor, Tensor], group: Group, every: Any = inputs) -> Any:
            compute = _experts(group, per_rank, mine, every)
            return fn(mine[0].clone(), mine[1].clone(), compute, group, per_rank)

        try:
            run = student.through("through_experts", n, inputs, call)
        except StudentError as error:
            hint = _likely(f"{error} {error.detail}")
            if student.uses("through_experts", "all_gather"):
                hint = "`all_gather` sends every row to every rank. Send a row to its own rank alone, by `all_to_all`."
            raise StudentError(f"{error} {hint}".rstrip(), error.detail) from None
        extra = [name for name in run.library if name not in ("all_to_all",)]
        student.expect(not extra, "`{name}` sends everything to everybody. Use `all_to_all`, so that a row goes to its "
                       "own rank alone.", name=extra and extra[0])  # fmt: skip
        for rank, (got, (x, expert)) in enumerate(zip(run.results, inputs, strict=True)):
            why = _what_came_back(got, x, expert)
            student.expect(not why, "With {n} ranks, on rank {rank}: {why}", n=n, rank=rank, why=why)
        most = [_bytes_at_most(inputs, rank, per_rank, 4 * width) for rank in range(n)]
        over = [rank for rank in range(n) if run.bytes_sent[rank] > most[rank]]
        student.expect(
            not over,
            "The results are right. But with {n} ranks rank {rank} sent {sent} bytes, and its counts, rows and their "
            "experts are {most}: does anything travel that nobody needs?",
            n=n, rank=over and over[0], sent=over and run.bytes_sent[over[0]], most=over and most[over[0]],
        )  # fmt: skip
    _gradients_come_back(student, inputs, per_rank)
    return (
        "With 2 and 3 ranks every row went through its own expert and came home to its place, also where an expert got "
        "nothing. And in the backward pass its gradient took the same way back."
    )


def _gradients_come_back(student: Reader, inputs: Sequence[tuple[Tensor, Tensor]], per_rank: int) -> None:
    """The backward pass sends each row's gradient home."""

    def call(fn: Callable[..., Any], mine: tuple[Tensor, Tensor], group: Group) -> Any:
        x = mine[0].requires_grad_()
        result = fn(x, mine[1], _experts(group, per_rank), group, per_rank)
        if result.requires_grad:
            result.sum().backward()
        return x.grad

    fresh = [(x.clone(), expert + 0) for x, expert in inputs]
    fresh[0][0][0] += 1  # other inputs than before: these are run again
    run = student.through("through_experts", len(inputs), fresh, call)
    for rank, (got, (x, expert)) in enumerate(zip(run.results, inputs, strict=True)):
        right = (2.0 + expert[:, None]).expand_as(x)
        student.expect(
            isinstance(got, Tensor) and torch.equal(got, right),
            "The results are right, but in the backward pass the gradients do not come home to rank {rank}. Send rows "
            "and results by the `all_to_all` of this chapter's setup cell, and do not cut them off.", rank=rank,
        )  # fmt: skip


def _experts(
    group: Group, per_rank: int, mine: tuple[Tensor, Tensor] | None = None, every: Sequence[tuple[Tensor, Tensor]] = ()
) -> Compute:
    """Experts that take no row of another rank's expert. mine: the rank's rows and their experts, as they are at home;
    every: those of all ranks."""
    true = {float(row[0]): int(e) for x, expert in every for row, e in zip(x, expert, strict=True)}

    def compute(rows_md: Tensor, expert_m: Tensor) -> Tensor:
        own = mine[0] if mine else rows_md[:0]
        if mine and rows_md.shape == own.shape and torch.equal(rows_md.sort(0).values, own.sort(0).values):
            raise LookupError("these are the rank's own rows")
        strangers = [e for e in expert_m.tolist() if e // per_rank != group.rank]
        here = [true.get(row[0], -1) - group.rank * per_rank for row in rows_md.detach().tolist()]
        if strangers and all(e in range(per_rank) for e in here) and expert_m.tolist() == here:
            raise LookupError("the numbers of the experts are places on this rank")
        right = sum(e // per_rank == group.rank for e in true.values())
        if mine and strangers and all(e in range(per_rank) for e in here):
            home = torch.equal(expert_m.sort().values, mine[1].sort().values)
            raise LookupError("the numbers have not left home" if home else "the numbers came in another order")
        came = [(row[0] // 100, true.get(row[0], -1)) for row in rows_md.detach().tolist()]  # where from, expert
        astray = any(e >= 0 and e // per_rank != group.rank for _, e in came)
        if mine and astray and (came != sorted(came) or len(rows_md) == right):
            raise LookupError("rows that were not sorted" if came != sorted(came) else "rows of another rank's experts")
        if strangers:
            raise LookupError(f"a row for expert {strangers[0]}, of rank {strangers[0] // per_rank}, came to this rank")
        return rows_md * (2 + expert_m[:, None])

    return compute


def _bytes_at_most(inputs: Sequence[tuple[Tensor, Tensor]], rank: int, per_rank: int, row: int) -> int:
    out = sum(int((e // per_rank != rank).sum()) for r, (_, e) in enumerate(inputs) if r == rank)
    into = sum(int((e // per_rank == rank).sum()) for r, (_, e) in enumerate(inputs) if r != rank)
    return 8 * (len(inputs) - 1) + (row + 8) * out + row * into


def _what_came_back(got: Any, x: Tensor, expert: Tensor) -> str:
    """What is wrong with the results of a rank; "" if nothing is."""
    right = x * (2 + expert[:, None])
    if not isinstance(got, Tensor):
        return (
            "nothing was returned. Return one result for each row." if got is None else "return one tensor of results."
        )
    if got.shape != x.shape:
        return (
            f"{len(got)} rows were returned for {len(x)}. Do the results travel back, with the counts the other way "
            "round?"
        )
    if torch.equal(got, right):
        return ""
    if torch.equal(got, x):
        return "no row has gone through an expert: the results are the rows themselves."
    order = expert.sort(stable=True).indices
    if torch.equal(got, right[order]):
        return (
            "every result is right, but they are still sorted by expert. Put result i of the sorted ones at `order[i]`."
        )
    if torch.equal(got, right[order][order]):
        return "the results are sorted a second time. To undo a sorting, write `result[order] = y`, not `y[order]`."
    factor = (got / x).round(decimals=3)
    if bool((factor == factor[0, 0]).all()):
        return (
            f"every row was multiplied by {float(factor[0, 0]):g}, whatever its expert. Send the rows to their "
            "experts, and call `compute` there."
        )
    if bool((factor == factor[:, :1]).all()):
        i = int((factor[:, 0] != expert + 2).nonzero()[0])
        return (
            f"row {i} is of expert {int(expert[i])} and was computed by expert {int(factor[i, 0]) - 2}. Do the numbers "
            "of the experts travel in the same order as the rows?"
        )
    return "results stand at the wrong rows. Is what was sorted put back by the same `order`?"


def _likely(said: str) -> str:
    if "own rows" in said:
        return "No row has left its rank yet: send the rows with `all_to_all` first, then compute those that arrive."
    if "are places on this rank" in said:
        return "`compute` wants the numbers of `expert_m`, counted over all ranks, and not places on this rank."
    if "one number of rows for each" in said and "not tensor" in said:
        return "The two counts must be lists: call `.tolist()`."
    if "not left home" in said:
        return (
            "The rows are right, but `compute` got the numbers of this rank's own rows. Send `expert_m` with the same "
            "two lists, and give `compute` what arrives."
        )
    if "in another order" in said:
        return "The rows are right, but the numbers came in another order. Sort them as the rows before they leave."
    if "were not sorted" in said:
        return "Rows came whose experts are elsewhere. Sort the rows by their expert before they leave."
    if "another rank's experts" in said:
        return (
            "Sort the rows by their expert before they leave, and count by rank: expert e is on rank `e // per_rank`."
        )
    if "LookupError" in said:
        return "More rows came than belong here, or fewer. Count by rank: expert e is on rank `e // per_rank`."
    if "has finished" in said:
        return (
            "Has it left without an `all_to_all` that the others make? And every rank needs a count for every other, "
            "also where it is 0: `bincount(minlength=group.size)`."
        )
    if "int64[" in said or "one number of rows for each" in said:  # whichever rank stops first
        return "Every rank needs a count for every other, also where it is 0: `bincount(minlength=group.size)`."
    if "counts" in said or "rows" in said or "split" in said or "shape" in said:
        return (
            "`all_to_all(x, group, out, into)` gets two lists of whole numbers: how many rows leave for each rank, and "
            "how many come from it. On the way back the two lists change places."
        )
    return ""


@you_write(there_and_back)
def through_experts(x_md: Tensor, expert_m: Tensor, compute: Compute, group: Group, per_rank: int) -> Tensor:
    """Each row through its expert, on rank expert // per_rank. Results in order."""
    order = expert_m.sort(stable=True).indices
    counts = (expert_m // per_rank).bincount(minlength=group.size)
    out, into = counts.tolist(), all_to_all(counts, group).tolist()
    rows_md = all_to_all(x_md[order], group, out, into)
    which_m = all_to_all(expert_m[order], group, out, into)
    back_md = all_to_all(compute(rows_md, which_m), group, into, out)
    result_md = torch.empty_like(back_md)
    result_md[order] = back_md
    return result_md


# 3: capacity -----------------------------------------------------------------------------------------------------


def the_first_are_kept(student: Reader) -> str:
    for slots, seed in ((12, 2), (3, 5), (40, 7)):
        line = waiting_line(seed=seed + student.seed % 1000)
        experts = int(line.max()) + 1
        (got,) = student.through(
            "within_capacity", 1, [(line, experts, slots)], lambda fn, x, group: fn(x[0].clone(), *x[1:])
        ).results
        place = torch.tensor([int((line[:i] == e).sum()) for i, e in enumerate(line)])
        student.expect(isinstance(got, Tensor), "Return one True or False for each choice, as a tensor.")
        student.expect(got.shape == line.shape, "There are {m} choices, so {m} answers are expected, and not "
                       "{shape}.", m=len(line), shape=" x ".join(map(str, got.shape)))  # fmt: skip
        student.expect(not torch.equal(got, place), "These are the places. Compare them with `slots`.")
        student.expect(got.dtype == torch.bool, "Return True and False, and not numbers.")
        right = place < slots
        behind = torch.tensor([int((line[i + 1 :] == e).sum()) for i, e in enumerate(line)])
        slips = (
            (place <= slots, "One choice too many is kept of each full expert: places begin with 0, so the last one is "
             "slots - 1."),
            (place + 1 < slots, "One choice too few is kept of each full expert: does your first place have the number "
             "1? `cumsum` counts the choice itself too."),
            (torch.arange(len(line)) < slots, "You count all choices together. Each expert has a queue of its own."),
            (~right, "It is the other way round: True is for those that are kept."),
            (behind < slots, "You keep the *last* ones of each queue. Who comes first is kept."),
            (line.bincount()[line] <= slots, "You drop *all* choices of an expert that is too full. The first ones of "
             "its queue are kept."),
            (torch.ones_like(right), "Nobody is dropped, although expert 0 has more choices than slots. Each "
             "expert has a queue of its own: compare a choice's place in it with `slots`."),
        )  # fmt: skip
        for wrong, why in slips if not torch.equal(got, right) else ():
            student.expect(not torch.equal(got, wrong), why)
        off = int((got != right).nonzero()[0]) if not torch.equal(got, right) else -1
        student.expect(
            off < 0, "With {slots} slots, choice {i} is number {place} in the queue of expert {e}, counted from 0, and "
            "should be {word}.", slots=slots, i=off, place=int(place[off]), e=int(line[off]),
            word="kept" if right[off] else "dropped",
        )  # fmt: skip
    return "With 3, 12 and 40 slots, exactly the first choices of each expert are kept."


@you_write(the_first_are_kept)
def within_capacity(expert_m: Tensor, experts: int, slots: int) -> Tensor:
    """True for each choice that finds a place: an expert takes its first `slots`."""
    wants_me = F.one_hot(expert_m, experts)
    place_me = wants_me.cumsum(0) - 1
    place_m = place_me.gather(1, expert_m[:, None])[:, 0]
    return place_m < slots


# 4: whose gradient is averaged with whose -------------------------------------------------------------------------


def two_kinds_of_gradients(student: Reader) -> str:
    for n, across in ((6, 3), (3, 3)):
        run = student.through("average_gradients", n, list(range(n)), _averaged(across))
        for rank, (shared, expert) in enumerate(run.results):
            replicas = range(rank % across, n, across)
            own, everybody = float(10**rank), sum(10.0**r for r in range(n))
            total = sum(10.0**r for r in replicas)
            why = _of_shared(shared, own, everybody, total, n) or _of_expert(
                expert, own, everybody, total, n, len(replicas)
            )
            student.expect(
                not why, "With {n} ranks, of which {k} hold the same experts, on rank {rank}: {why}",
                n=n, k=len(replicas), rank=rank, why=why,
            )  # fmt: skip
    return (
        "With 6 ranks (each expert on two of them) and with 3, the gradients of experts and of all other parameters "
        "are those of one device."
    )


def _averaged(across: int) -> Callable[..., Any]:
    def call(fn: Callable[..., Any], mine: int, group: Group) -> tuple[float, float]:
        row = group.rank // across * across
        layer = ExpertParallel(group.subgroup(range(row, row + across))).into(MoE(4, MoEConfig(2 * across, 1)))
        for p in layer.parameters():
            p.grad = torch.full_like(p, 10.0**group.rank)
        fn(layer, group, group.subgroup(range(group.rank % across, group.size, across)))
        named = dict(layer.named_parameters())
        experts = next(p for name, p in named.items() if name.startswith("experts"))
        return _of(named["router.gate.weight"]), _of(experts)

    return call


def _of(p: nn.Parameter) -> float:
    return float(p.grad.flatten()[0]) if p.grad is not None else float("nan")


def _is(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-4 * max(1.0, abs(b))


def _of_shared(got: float, own: float, everybody: float, replicas: float, n: int) -> str:
    if _is(got, everybody / n):
        return ""
    slips = {
        own: "the router's gradient is still this rank's own. It must be averaged over `group`: assign in place.",
        everybody: "the router's gradient is the sum over all ranks: divide by `group.size`.",
        own / n: "the router's gradient was divided, but never summed over the ranks.",
        replicas
        / n: "the router's gradient was summed over `replicas` alone. All ranks have the router, so sum over `group`.",
        everybody / n / n: "the router's gradient is divided twice.",
    }
    far = f"the router's gradient is {got / own:.3g} times its own; the average is {everybody / n / own:.3g} times."
    return next((why for wrong, why in slips.items() if _is(got, wrong)), far)


def _of_expert(got: float, own: float, everybody: float, replicas: float, n: int, k: int) -> str:
    if _is(got, replicas / n):
        return ""
    slips = {
        everybody
        / n: f"an expert's gradient was summed over all ranks, and {n - k} of the {n} hold other experts. Sum it over "
        "`replicas`.",
        own / n: "an expert's gradient was divided, but not summed over `replicas`, which saw other tokens.",
        replicas: "an expert's gradient is a sum over the tokens of all ranks, and was not divided: `/= group.size`.",
        own: "an expert's gradient is as it was. Sum it over `replicas`, and divide it by `group.size`.",
        replicas
        / k: f"an expert's gradient was divided by the {k} that hold it. After the sum it has the tokens of all "
        f"{n}, so divide by `group.size`.",
        replicas
        / (n // k): f"an expert's gradient was divided by {n // k}, the length of a row. It has the tokens of all "
        f"{n} ranks, so divide by `group.size`.",
        replicas / n / n: "an expert's gradient is divided twice.",
    }
    far = f"an expert's gradient is {got / own:.3g} times its own, and {replicas / n / own:.3g} times is right."
    return next((why for wrong, why in slips.items() if _is(got, wrong)), far)


@you_write(two_kinds_of_gradients)
def average_gradients(model: nn.Module, group: Group, replicas: Group) -> None:
    """Make each gradient that of one device. `replicas`: ranks with these experts."""
    for name, p in model.named_parameters():
        among = replicas if "experts" in name else group
        all_reduce(p.grad, among)  # type: ignore[arg-type]
        p.grad /= group.size  # type: ignore[assignment, operator]


# 5: the bias ------------------------------------------------------------------------------------------------------

RATE = 0.25


def the_bias_follows_the_load(student: Reader) -> str:
    for n in (2, 3):
        draw = torch.Generator().manual_seed(student.seed + n)
        bias = torch.randint(-4, 5, (4,), generator=draw) / 4.0
        every = ([5.0, 1, 3, 3], [6.0, 6, 5, 3], [0.0, 9, 4, 3])  # expert 2 has the mean
        loads = [torch.tensor(load) for load in every[:n]]

        def call(fn: Callable[..., Any], load_e: Tensor, group: Group, bias: Tensor = bias) -> Any:
            mine, load = bias.clone(), load_e.clone()
            fn(mine, load, group, RATE)
            return mine, load

        run = student.through("rebalance", n, loads, call)
        total = torch.stack(loads).sum(0)
        for rank, (got, load) in enumerate(run.results):
            why = _of_bias(got - bias, total, loads[rank])
            student.expect(not why, "With {n} ranks, on rank {rank}: {why}", n=n, rank=rank, why=why)
            student.expect(
                torch.equal(load, loads[rank]),
                "The bias is right, but `load_e` has changed: all_reduce sums in place, so give it `load_e.clone()`.",
            )
    return (
        "With 2 and 3 ranks each bias moved by `rate`: down where the load of all tokens is above the mean, and up "
        "where it is below. All ranks have the same bias."
    )


def _of_bias(moved: Tensor, total: Tensor, own: Tensor) -> str:
    """What is wrong with how far each bias has moved; "" if nothing is."""
    right = RATE * (total.mean() - total).sign()

    def is_(wrong: Tensor) -> bool:
        return torch.allclose(moved, wrong, atol=1e-5)

    if is_(right):
        return ""
    alone = RATE * (own.mean() - own).sign()
    slips = (
        (torch.zeros_like(moved), "no bias has moved. Change `bias_e` in place: `bias_e += ...`."),
        (-right, "the bias goes the wrong way: yours goes up where the load is above the mean. It must go down there, "
         "and up where the load is below."),
        (alone, "the bias follows the load of this rank's own tokens, so each rank would choose by another bias. First "
         "sum the load over all ranks."),
        (-alone, "the bias follows the load of this rank's own tokens, and goes the wrong way."),
        (RATE * (total.mean() - total), "the step grows with the load. It is always `rate`, up or down: use `sign()`."),
        (RATE * (total.mean() - own).sign(), "this rank's own load is compared with the mean over everybody's. Compare "
         "the sum of all ranks with its mean."),
        (right / RATE, "the step is 1, and should be `rate`."),
        (torch.where(total > total.mean(), -RATE, RATE), "expert 2 has just the mean load, so its bias stays: `sign()` "
         "gives 0."),
        (torch.where(total < total.mean(), RATE, -RATE), "expert 2 has just the mean load, so its bias stays: `sign()` "
         "gives 0."),
    )  # fmt: skip
    for wrong, why in slips:
        if is_(wrong):
            return why
    e = int((moved - right).abs().argmax())
    return (
        f"expert {e} has a load of {total[e]:g}, where the mean is {total.mean():g}. Its bias moved by {moved[e]:.3g}, "
        f"and should move by {right[e]:.3g}."
    )


@you_write(the_bias_follows_the_load)
def rebalance(bias_e: Tensor, load_e: Tensor, group: Group, rate: float) -> None:
    """Move the bias by `rate`: down for a load above the mean, up for one below it."""
    total_e = all_reduce(load_e.clone(), group)
    bias_e += rate * (total_e.mean() - total_e).sign()
