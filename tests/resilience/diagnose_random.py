"""Programs drawn by a seed whose ranks have unequal roles, one fault in each, and whom the diagnosis names.

A program is data: what happens in a step, in an order that all ranks follow, so it cannot stand still by itself. A
fault changes what one rank does at one place. What the verdict must say is that rank; where two ranks disagree and
nothing else tells who is right, it may say both, but never that it is sure of the other one.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass, replace

import cloudpickle
import torch

import labkit
from labkit import Drop, Hang, Kill, Raise, collectives
from labkit.resilience.diagnose import Detector, Verdict

from .diagnose_worlds import QUIET, settle

STEPS = 6
FAMILIES = ("nodes", "mesh", "pipeline", "ring", "star", "uneven")
FAULTS = ("skip", "extra", "recv", "send", "shape", "dtype", "op", "peer", "order", "hang", "sleep", "kill", "raise",
          "drop")  # fmt: skip
REDUCE = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True)
class Act:
    """One thing that a rank does. kind: a collective's name, "send", "recv", "isend", "exchange" or "compute".

    ranks: world ranks of the group, or the peer: (to,), (from,), or (to, from) of an exchange. every: only in each so
    manyth step.
    """

    kind: str
    ranks: tuple[int, ...] = ()
    n: int = 8
    dtype: str = "float32"
    op: str = "sum"
    every: int = 1

    @property
    def message(self) -> bool:
        return self.kind in ("send", "recv", "isend", "exchange")


@dataclass(frozen=True)
class Program:
    """acts: by rank, those of one step. marks: whether it calls `group.step`. splits: colors of a `group.split`."""

    family: str
    size: int
    acts: tuple[tuple[Act, ...], ...]
    marks: bool
    splits: tuple[int, ...] = ()


# -- programs ------------------------------------------------------------------------------------------------------


def draw(seed: int) -> Program:
    """A program of a family that follows from the seed."""
    dice = random.Random(f"program {seed}")
    family = FAMILIES[seed % len(FAMILIES)]
    size, events = {"nodes": _nodes, "mesh": _mesh, "pipeline": _pipeline, "ring": _ring, "star": _star,
                    "uneven": _uneven}[family](dice)  # fmt: skip
    acts: list[list[Act]] = [[] for _ in range(size)]
    for event in events:
        for rank, act in event:
            acts[rank].append(act)
            if dice.random() < 0.1:
                acts[rank].append(Act("compute"))
    splits = tuple(r // 2 for r in range(size)) if dice.random() < 0.3 else ()
    return Program(family, size, tuple(map(tuple, acts)), dice.random() < 0.75, splits)


def _call(dice, ranks, every=1):
    """All of `ranks` call the same collective."""
    kind = dice.choice(["all_reduce"] * 4 + ["all_gather", "broadcast", "barrier", "reduce_scatter"])
    n = 4 * len(ranks) * dice.randint(1, 3)
    return [(r, Act(kind, tuple(ranks), n, every=every)) for r in ranks]


def _pass(dice, a, b, n=None, every=1, soft=False):
    """`a` sends to `b`."""
    n = n or 4 * dice.randint(1, 3)
    return [(a, Act("isend" if soft else "send", (b,), n, every=every)), (b, Act("recv", (a,), n, every=every))]


def _every(dice):
    return dice.choice([1, 1, 1, 1, 2, 3])


def _nodes(dice):
    """Groups of groups: in the node, among the leaders, and all."""
    nodes, each = dice.choice([(2, 2), (2, 3), (3, 2), (2, 4), (3, 3)])
    node = [tuple(range(k * each, (k + 1) * each)) for k in range(nodes)]
    leaders, world = tuple(n[0] for n in node), tuple(range(nodes * each))
    events = []
    for _ in range(dice.randint(1, 2)):
        events += [_call(dice, ranks) for ranks in node]
        events.append(_call(dice, leaders, _every(dice)))
        if dice.random() < 0.5:
            events += [[(r, Act("broadcast", ranks, 8)) for r in ranks] for ranks in node]
    if dice.random() < 0.8:
        events.append(_call(dice, world, _every(dice)))
    return len(world), events


def _mesh(dice):
    """Data and tensor parallelism: the same along each axis, and now and then the whole world."""
    dp, tp = dice.choice([(2, 2), (2, 3), (3, 2), (2, 4), (4, 2)])
    rows = [tuple(range(k * tp, (k + 1) * tp)) for k in range(dp)]
    columns = [tuple(range(k, dp * tp, tp)) for k in range(tp)]
    events = []
    for groups in [rows] * dice.randint(1, 2) + [columns]:
        one = _call(dice, groups[0])[0][1]
        events += [[(r, replace(one, ranks=ranks, n=4 * len(ranks))) for r in ranks] for ranks in groups]
    if dice.random() < 0.5:
        events.append(_call(dice, tuple(range(dp * tp)), _every(dice)))
    return dp * tp, events


def _pipeline(dice):
    """Stages that hand microbatches on, forth and back, and replicas of them."""
    dp, pp = dice.choice([(1, 3), (1, 4), (2, 2), (2, 3)])
    soft, events = dice.random() < 0.5, []
    for _ in range(dice.randint(1, 3)):
        for replica in range(dp):
            stages = range(replica * pp, (replica + 1) * pp)
            events += [_pass(dice, s, s + 1, 8, soft=soft) for s in stages[:-1]]
            events += [_pass(dice, s + 1, s, 8, soft=soft) for s in reversed(stages[:-1])]
    if dp > 1:
        events += [_call(dice, tuple(range(s, dp * pp, pp))) for s in range(pp)]
    elif dice.random() < 0.5:
        events.append(_call(dice, tuple(range(pp))))
    if dp * pp > 2 and dice.random() < 0.3:  # the embedding is shared by the first stage and the last
        events += [_call(dice, (k * pp, k * pp + pp - 1)) for k in range(dp)]
    return dp * pp, events


def _ring(dice):
    """Everybody hands on to the next one; sometimes two rings, joined by their first ranks."""
    rings = dice.choice([[range(3)], [range(4)], [range(5)], [range(3), range(3, 6)], [range(2), range(2, 4)]])
    events = []
    for _ in range(dice.randint(1, 3)):
        for ring in rings:
            n, size = 4 * dice.randint(1, 3), len(ring)
            events.append([(r, Act("exchange", (ring[(k + 1) % size], ring[k - 1]), n)) for k, r in enumerate(ring)])
        if len(rings) > 1:
            events.append(_call(dice, tuple(ring[0] for ring in rings), _every(dice)))
    size = sum(map(len, rings))
    if dice.random() < 0.4:
        events.append(_call(dice, tuple(range(size)), _every(dice)))
    return size, events


def _star(dice):
    """A server that hears from everybody and answers."""
    size = dice.randint(3, 6)
    events = [_pass(dice, r, 0, 8) for r in range(1, size)] + [_pass(dice, 0, r, 8) for r in range(1, size)]
    if size > 3 and dice.random() < 0.6:
        events.append(_call(dice, tuple(range(1, size))))
    return size, events


def _uneven(dice):
    """Anything between anybody."""
    size = dice.randint(3, 7)
    events = []
    for _ in range(dice.randint(4, 8)):
        some = tuple(sorted(dice.sample(range(size), dice.randint(2, size))))
        a, b = dice.sample(range(size), 2)
        events.append(_call(dice, some, _every(dice)) if dice.random() < 0.6 else _pass(dice, a, b, every=_every(dice)))
    return size, events


# -- what ranks do -------------------------------------------------------------------------------------------------


def play(group, program, steps, change=None):
    """The program, but for one rank, which at step `change[1]` has another list to do."""
    if program.splits:
        group.split(program.splits[group.rank])
    world = {(): group, tuple(range(group.size)): group}
    for n in range(steps):
        if program.marks:
            group.step(n)
        mine = [(i, a) for i, a in enumerate(program.acts[group.rank]) if n % a.every == a.every - 1]
        if change is not None and change[:2] == (group.rank, n):
            mine = [(-1, a) for a in change[2]]
        sent = []
        for _, act in mine:
            if act.kind == "here":
                with group.span("here"):
                    time.sleep(act.n)
            elif act.kind == "compute":
                group.compute(0.001)
            else:
                sent += _do(group, act, world)
        for handle in sent:
            handle.wait()


def _do(group, act, groups):
    x = torch.ones(act.n, dtype=getattr(torch, act.dtype))
    if act.kind == "exchange":
        group.exchange(x, act.ranks[0], torch.empty_like(x), act.ranks[1])
    elif act.kind == "isend":
        return [group.isend(x, act.ranks[0])]
    elif act.message:
        (group.send if act.kind == "send" else group.recv)(x, act.ranks[0])
    else:
        if act.ranks not in groups:
            groups[act.ranks] = group.subgroup(act.ranks)
        options = {"op": act.op} if act.kind in REDUCE else {}
        x = () if act.kind == "barrier" else (x,)
        getattr(collectives, act.kind)(*x, groups[act.ranks], **options)
    return []


# -- faults --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    program: Program
    kind: str
    rank: int
    step: int
    acts: tuple[Act, ...]  # what it does in that step instead
    transport: str
    check: bool
    seed: int

    def __str__(self) -> str:
        p = self.program
        usual = [a for a in p.acts[self.rank] if self.step % a.every == a.every - 1]
        return (f"case {self.seed}: {p.family} of {p.size}, {self.transport}, check={self.check}, marks={p.marks}: "
                f"{self.kind} on rank {self.rank} at step {self.step}\n    usually {_brief(usual)}\n    now     "
                f"{_brief(self.acts)}")  # fmt: skip


def _brief(acts):
    return ", ".join(f"{a.kind}{a.dtype[5:] if a.dtype != 'float32' else ''}[{a.n}]{list(a.ranks)}"
                     f"{'' if a.op == 'sum' else a.op}" for a in acts if a.kind != "compute")  # fmt: skip


def case(seed: int) -> Case:
    """A fault in a program, both drawn. Whether it does anything is not known before it is tried."""
    dice = random.Random(f"case {seed}")
    program = draw(dice.randrange(10**6) * len(FAMILIES) + seed % len(FAMILIES))
    while True:
        kind, rank, step = dice.choice(FAULTS), dice.randrange(program.size), dice.randrange(STEPS)
        usual = [a for a in program.acts[rank] if step % a.every == a.every - 1]
        acts = _changed(dice, kind, program, rank, list(usual))
        if acts is not None and acts != usual:
            return Case(program, kind, rank, step, tuple(acts), dice.choice(["local", "local", "gloo"]),
                        dice.random() < 0.4, seed)  # fmt: skip


def _changed(dice, kind, program, rank, acts):
    """The acts of a step with something wrong; None where this fault has no place there."""
    told = [i for i, a in enumerate(acts) if a.kind != "compute"]
    calls = [i for i in told if not acts[i].message]
    if not told:
        return None
    place, at = dice.randint(0, len(acts)), dice.choice(told)
    peer = dice.choice([r for r in range(program.size) if r != rank])
    if kind == "skip":
        return acts[:at] + acts[at + 1 :]
    if kind == "extra":
        known = [a for a in program.acts[rank] if a.kind != "compute" and not a.message]
        one = replace(dice.choice(known), n=dice.choice([8, 16, 24])) if known else None
        return None if one is None else [*acts[:place], one, *acts[place:]]
    if kind in ("recv", "send"):
        return [*acts[:place], Act(kind, (peer,), dice.choice([8, 4])), *acts[place:]]
    if kind == "shape":
        one = replace(acts[at], n=acts[at].n + 4 * len(acts[at].ranks))
        return None if one.kind in ("all_gather", "barrier") else [*acts[:at], one, *acts[at + 1 :]]
    if kind == "dtype":
        one = replace(acts[at], dtype="float64")
        return None if one.kind == "barrier" else [*acts[:at], one, *acts[at + 1 :]]
    if kind == "op":
        calls = [i for i in calls if acts[i].kind in REDUCE]
        at = dice.choice(calls) if calls else None
        return None if at is None else [*acts[:at], replace(acts[at], op="max"), *acts[at + 1 :]]
    if kind == "peer":
        moves = [i for i in told if acts[i].kind in ("send", "recv", "isend")]
        at = dice.choice(moves) if moves else None
        return None if at is None else [*acts[:at], replace(acts[at], ranks=(peer,)), *acts[at + 1 :]]
    if kind == "order":
        pairs = [(i, j) for i, j in zip(told, told[1:], strict=False) if acts[i].ranks != acts[j].ranks]
        i, j = dice.choice(pairs) if pairs else (0, 0)
        acts[i], acts[j] = acts[j], acts[i]
        return acts
    if kind == "drop":
        return [*acts[:place], Act("drop"), *acts[place:]]
    return [*acts[:place], Act("here", n=60 if kind == "sleep" else 0), *acts[place:]]


@dataclass(frozen=True)
class Told:
    """One case and its verdict; `verdict` is None where the fault had no effect."""

    case: Case
    verdict: Verdict | None

    @property
    def named(self) -> bool:
        return self.verdict is not None and self.verdict.suspects == (self.case.rank,)

    @property
    def among(self) -> bool:
        return self.verdict is not None and self.case.rank in self.verdict.suspects

    @property
    def falsely(self) -> bool:
        """Somebody is accused, and it is not the culprit."""
        return self.verdict is not None and bool(self.verdict.suspects) and not self.among

    @property
    def sure_and_wrong(self) -> bool:
        return self.verdict is not None and self.verdict.kind != "nothing" and self.verdict.exact and not self.named


def tell(case: Case) -> Told:
    """Run it until it stands still or has failed; the verdict."""
    program, change, faults = case.program, (case.rank, case.step, case.acts), []
    if case.kind == "drop":
        change = None
        run = labkit.launch(play, program.size, program, STEPS, transport=case.transport)
        where = [m for m in sorted((m.index, m.step) for m in run.trace.sends if m.src == case.rank)]
        if not where:
            return Told(case, None)
        faults = [Drop(case.rank, message=random.Random(case.seed).randint(1, len(where)))]
    elif case.kind in ("hang", "kill", "raise"):
        faults = [{"hang": Hang, "kill": Kill, "raise": Raise}[case.kind](case.rank, at="here")]
    job = labkit.start(play, program.size, program, STEPS, change, transport=case.transport, check=case.check,
                       faults=faults, on_failure="continue", timeout=40)  # fmt: skip
    try:
        detector = Detector(job, QUIET)
        job._started.wait(20)
        settle(job)
        verdict = detector.wait(10)
        if verdict.kind == "nothing" and job.over:  # all was well, or as good as
            return Told(case, None)
        return Told(case, verdict)
    finally:
        job.stop()


def table(found: list[Told], key) -> str:
    """A line for each kind."""
    lines = [f"{'':12} {'cases':>6} {'named':>6} {'among':>6} {'falsely':>8} {'sure+wrong':>11}"]
    told = [t for t in found if t.verdict is not None]
    for name in [*sorted({key(t) for t in told}), "all"]:
        some = [t for t in told if name in ("all", key(t))]
        lines.append(f"{name:12} {len(some):6} {sum(t.named for t in some):6} "
                     f"{sum(t.among and not t.named for t in some):6} {sum(t.falsely for t in some):8} "
                     f"{sum(t.sure_and_wrong for t in some):11}")  # fmt: skip
    return "\n".join(lines)


cloudpickle.register_pickle_by_value(sys.modules[__name__])
