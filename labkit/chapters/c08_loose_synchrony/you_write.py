"""What chapter 8 asks its reader to write: SSP's rule, DiLoCo's outer step, a round of gossip, error feedback, and a
power step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import collectives
from labkit.chapters.c08_loose_synchrony import task
from labkit.grading.checks.student import Evidence, StudentError
from labkit.grading.writing import Reader, you_write
from labkit.optim.synchrony import graphs
from labkit.parallel.server import Client, largest_lead
from labkit.wire import Group

CASES: list[tuple[list[int], dict[int, int], int]] = [  # waiting, clocks, s
    ([1], {1: 0, 2: 0, 3: 0}, 0),
    ([1, 3], {1: 5, 2: 3, 3: 3}, 1),
    ([1, 3], {1: 5, 2: 3, 3: 6}, 2),
    ([1, 2, 3], {1: 5, 2: 3, 3: 4}, 1),
    ([2], {1: 9, 2: 7, 3: 8}, 0),
    ([1, 3], {1: 9, 2: 7, 3: 11}, 3),
    ([], {1: 1, 2: 4}, 2),
    ([1], {1: 2, 2: 2}, 1),
    ([1, 2], {1: 9, 2: 3, 3: 3}, 1),
]


def bound_is_kept(student: Reader) -> str:
    def call(fn: Callable[..., Any], cases: Any, group: Group) -> Any:
        found = [fn(list(waiting), dict(clocks), s) for waiting, clocks, s in cases]
        return [some if isinstance(some, list) else type(some).__name__ for some in found]

    try:
        got = student.through("answered", 1, [CASES], call).results[0]
    except StudentError as error:
        empty = "empty" in f"{error}"
        student.expect(not empty, "You took the slowest of those who *wait*, and sometimes nobody waits. The slowest "
                       "of all may still be computing, so look at all `clocks`.")  # fmt: skip
        raise
    for (waiting, _, _), found in zip(CASES, got, strict=True):
        student.expect(isinstance(found, list), "Return a list of workers: you returned {found}.", found=found)
        student.expect(set(found) <= set(waiting), "Your list has worker {odd}, who does not wait: choose among "
                       "`waiting`.", odd=min(set(found) - set(waiting), default=0))  # fmt: skip
    found = [sorted(some) for some in got]
    slips: list[tuple[Callable[[int, dict[int, int], int, list[int]], bool], str]] = [
        (lambda w, c, s, v: c[w] - min(c.values()) < s, "A worker who is ahead by exactly s may still go on, and yours "
         "has to wait: compare with `<=`. With s = 0 nobody would ever begin."),
        (lambda w, c, s, v: c[w] - min(c) <= s, "`min(clocks)` is the smallest *number of a worker*. The smallest "
         "clock is `min(clocks.values())`."),
        (lambda w, c, s, v: c[w] <= s, "Your rule compares the clock itself with s, so that everybody stops for good "
         "after s updates. What counts is how far a worker is ahead of the slowest."),
        (lambda w, c, s, v: max(c.values()) - c[w] <= s, "Your rule holds up the slow ones. Measure how far a worker "
         "is ahead of the *slowest*, not how far it is behind the fastest."),
        (lambda w, c, s, v: c[w] - min(c[x] for x in v) <= s, "You took the slowest of those who *wait*. The slowest "
         "of all may still be computing, so look at all `clocks`."),
        (lambda w, c, s, v: c[w] - sum(c.values()) / len(c) <= s, "You compared with the average clock. The promise is "
         "about the slowest worker."),
        (lambda w, c, s, v: True, "Your rule lets everybody go on, and that is ASP. If you compare with the fastest "
         "worker, or if the difference has the other sign, nobody ever waits: take this worker's clock minus the "
         "*slowest* one's."),
        (lambda w, c, s, v: False, "Your rule never lets anybody go on. Return the workers that may."),
        (lambda w, c, s, v: c[w] == min(c.values()), "Your rule lets only the slowest go on, whatever s is."),
    ]  # fmt: skip
    for rule, why in slips:
        as_found = [sorted(w for w in v if rule(w, c, s, v)) for v, c, s in CASES]
        student.expect(found != as_found, why)
    for (waiting, clocks, s), some in zip(CASES, found, strict=True):
        want = sorted(w for w in waiting if clocks[w] - min(clocks.values()) <= s)
        student.expect(some == want, "With the clocks {clocks} and s = {s}, of {waiting} these may go on: {want}. "
                       "Yours are {some}.", clocks=clocks, s=s, waiting=waiting, want=want, some=some)  # fmt: skip
    lead = student.through("answered", 4, [2] * 4, _served).results[0]
    student.expect(lead <= 2, "On real ranks a worker was {lead} clocks ahead, with s = 2.", lead=lead)
    return (
        "It answers exactly those who are at most s ahead of the slowest. On a real server with three workers, one of "
        f"them slow, nobody began a gradient more than {lead} ahead, and s was 2."
    )


def _served(fn: Callable[..., Any], s: int, group: Group) -> Any:
    """A server under the rule, and three workers, of which the last is slow. The largest lead."""
    weights = torch.zeros(3)
    if group.rank == 0:
        return largest_lead(task.serve_any(weights, group, task.ByRule(fn, s)), (1, 2, 3))
    with Client({"weights": weights}, group, [0]) as client:
        for _ in range(5):
            pulled = client.pull("weights")
            group.compute(0.02 if group.rank == 3 else 0.001)
            client.push("weights", pulled)
            client.tick()
    return None


@you_write(bound_is_kept)
def answered(waiting: list[int], clocks: dict[int, int], s: int) -> list[int]:
    """Who may have the weights now. clocks: worker -> updates it finished."""
    slowest = min(clocks.values())
    return [worker for worker in waiting if clocks[worker] - slowest <= s]


def pseudo_gradient_is_followed(student: Reader) -> str:
    g = torch.Generator().manual_seed(student.seed)
    begun, mean, velocity = (torch.randint(-9, 9, (6,), generator=g).double() for _ in range(3))
    mean, velocity = mean + 20, velocity + 40  # nothing is alike by chance
    lr, m = 0.5, 0.75

    def call(fn: Callable[..., Any], x: Any, group: Group) -> Any:
        own = [t.clone() for t in x[:3]]
        return fn(*own, *x[3:]), all(torch.equal(a, b) for a, b in zip(own, x[:3], strict=True))

    got, kept = student.through("outer_step", 1, [(begun, mean, velocity, lr, m)], call).results[0]
    pair = isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(x, Tensor) for x in got)
    student.expect(pair, "Return two tensors, the weights that the next round begins with and the new velocity: you "
                   "returned {got}.", got="None" if got is None else type(got).__name__)  # fmt: skip
    new, speed = got
    d = begun - mean
    v = m * velocity + d
    right, fast = begun - lr * (d + m * v), v
    slips = (
        (speed, right, "The two results have changed places: first the weights, then the velocity."),
        (speed, velocity, "The velocity came back as it was. It is momentum times the old one, plus the gradient."),
        (speed, m * velocity, "The gradient is missing from the velocity: momentum * velocity + gradient."),
        (speed, velocity + d, "The old velocity must fade: multiply it by `momentum` before you add the gradient."),
        (speed, m * velocity - d, "Your gradient points to where the ranks went. An optimizer *subtracts* a gradient, "
         "so it must point away from there: `begun - mean`."),
        (speed, m * velocity + lr * d, "The learning rate belongs to the step, not into the velocity."),
        (speed, m * velocity + (1 - m) * d, "This is a running average. PyTorch's momentum, and DiLoCo's, adds the "
         "whole gradient: momentum * velocity + gradient."),
        (new, mean, "You returned the average itself: that is plain local SGD, without an outer optimizer."),
        (new, begun - lr * d, "That step has no momentum. Add momentum * velocity to the gradient."),
        (new, begun - lr * v, "That is ordinary momentum. Nesterov's step is gradient + momentum * "
         "velocity, with the *new* velocity."),
        (new, begun - (d + m * v), "The learning rate is missing from the step."),
        (new, begun + lr * (d + m * v), "The step goes uphill: subtract it from `begun`."),
        (new, mean - lr * (d + m * v), "The step begins at the average. It begins where the *round* began, at "
         "`begun`, for the gradient is how far the ranks went from there."),
        (new, begun - lr * m * v, "The gradient is missing from the step: gradient + momentum * velocity."),
    )  # fmt: skip
    for found, wrong, why in slips:
        student.expect(found.shape != wrong.shape or not torch.allclose(found, wrong), why)
    student.expect(new.shape == right.shape and speed.shape == fast.shape, "Both results have the shape of `begun`.")
    student.expect(torch.allclose(speed, fast), "The velocity is not momentum * velocity + (begun - mean).")
    student.expect(torch.allclose(new, right), "The velocity is right, and the step is not: begun - lr * (gradient + "
                   "momentum * velocity).")  # fmt: skip
    student.expect(kept, "The result is right, but `begun`, `mean` or `velocity` was changed on the way: make new "
                   "tensors.")  # fmt: skip
    return "Your gradient leads back to where the round began, and your step is Nesterov's, as in DiLoCo's paper."


@you_write(pseudo_gradient_is_followed)
def outer_step(
    begun: Tensor, mean: Tensor, velocity: Tensor, lr: float, momentum: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The weights that the next round begins with, and the new velocity."""
    gradient = begun - mean
    velocity = momentum * velocity + gradient
    return begun - lr * (gradient + momentum * velocity), velocity


def neighbours_are_averaged(student: Reader) -> str:
    for n, name in ((3, "ring"), (5, "ring"), (5, "star"), (1, "ring")):
        w = graphs.ring(n) if name == "ring" else graphs.metropolis([(0, j) for j in range(1, n)], n)
        g = torch.Generator().manual_seed(student.seed + n)
        xs = [torch.randint(-9, 9, (4,), generator=g).double() + 100 * r for r in range(n)]
        _mixes(student, w, xs, name)
    return "On rings and on a star every rank holds its row's average, and only neighbours have sent anything."


def _mixes(student: Reader, w: Tensor, xs: Sequence[Tensor], name: str) -> None:
    n = len(xs)

    def call(fn: Callable[..., Any], x: Any, group: Group) -> Any:
        mine, left = x[0].clone(), _unwaited(group)
        return fn(mine, list(x[1]), group), bool(torch.equal(mine, x[0])), len(left)

    inputs = [(x, row) for x, row in zip(xs, w.tolist(), strict=True)]
    about = f"On a {name} of {n} rank{'s' * (n != 1)}"
    try:
        run: Evidence = student.through("mix_once", n, inputs, call)
    except StudentError as error:
        raise StudentError(f"{error} {_likely(str(error))}".rstrip(), error.detail) from None
    student.expect(not run.library, "A ready-made {name} did the work, and gossip has no collective. Use `group.isend` "
                   "and `group.recv` with the neighbours alone.", name=", ".join(run.library))  # fmt: skip
    for rank, (out, _, _) in enumerate(run.results):
        student.expect(isinstance(out, Tensor), "{about} rank {rank} returned {got}: return the average.",
                       about=about, rank=rank, got=type(out).__name__)  # fmt: skip
    for rank, row in enumerate(run.bytes_between):
        far = [to for to, nbytes in enumerate(row) if nbytes and not w[rank, to]]
        student.expect(not far, "{about} rank {rank} sent to rank {to}, whose weight is 0: it is no neighbour.",
                       about=about, rank=rank, to=far and far[0])  # fmt: skip
    student.expect(all(ok for _, ok, _ in run.results), "`x` was changed, perhaps before it had been sent. Leave it as "
                   "it is: receive into `torch.empty_like(x)`, and add into a new tensor.")  # fmt: skip
    for rank, (out, _, _) in enumerate(run.results):
        heard = graphs.heard(w, rank)
        row = w[rank].tolist()
        want = sum((row[j] * xs[j] for j in range(n)), torch.zeros_like(xs[0]))
        if out.shape == want.shape and torch.allclose(out, want):
            continue
        others = sum((row[j] * xs[j] for j in heard), torch.zeros_like(xs[0]))
        everyone = torch.stack([xs[rank], *(xs[j] for j in heard)])
        chained = xs[rank]
        for j in heard:
            chained = chained + row[j] * (xs[j] - chained)
        slips = (
            (xs[rank], "it still holds its own numbers. Add what came, each times its weight, and return that."),
            (row[rank] * xs[rank], "nothing has come from your neighbours: send them `x`, and receive theirs."),
            (others, "its own part is missing: begin with row[group.rank] * x."),
            (xs[rank] + others, "its own numbers count whole. They have a weight too: row[group.rank] * x."),
            (everyone.sum(0), "the numbers were added without their weights."),
            (everyone.mean(0), "all count alike. On a ring that is right, but here the weights differ: use `row`."),
            (row[rank] * xs[rank] + sum((xs[j] for j in heard), torch.zeros_like(xs[0])), "what came from the "
             "neighbours was not multiplied by its weight."),
            (row[rank] * xs[rank] + sum(row[j] for j in heard) * xs[heard[-1]] if heard else chained, "the numbers of "
             "one neighbour count for all. Has one `recv` written over another's tensor? Give each a tensor of its "
             "own."),
            (chained, "each neighbour was mixed into what was already mixed. Multiply all by their own weights, and "
             "add."),
        )  # fmt: skip
        why = next((said for wrong, said in slips if out.shape == wrong.shape and torch.allclose(out, wrong)), "")
        why = (
            why or f"the average should be {[round(v, 3) for v in want.tolist()]}. Multiply the x of rank j by row[j]."
        )
        student.expect(False, "{about}, rank {rank}: " + why, about=about, rank=rank)
    for rank, sent in enumerate(run.messages):
        student.expect(
            sent == len(graphs.heard(w, rank)),
            "The result is right, but {lower} rank {rank} sent {sent} messages to {need} neighbours: one to each is "
            "enough.", lower=about.lower(), rank=rank, sent=sent, need=len(graphs.heard(w, rank)),
        )  # fmt: skip

    for rank, (_, _, left) in enumerate(run.results):
        student.expect(not left, "The result is right, but {lower} rank {rank} never waited for {left} of its sends. "
                       "Keep what `group.isend` returns, and call `wait()` on each in the end: until then `x` may "
                       "still be on its way.", lower=about.lower(), rank=rank, left=left)  # fmt: skip


def _unwaited(group: Group) -> set[Any]:
    """The handles of sends that this rank begins from now on, without those it has waited for."""
    begin, left = group.isend, set[Any]()

    def isend(x: Tensor, to: int) -> Any:
        handle = begin(x, to)
        wait = handle.wait

        def waited() -> Any:
            left.discard(handle)
            return wait()

        handle.wait = waited  # type: ignore[method-assign]
        left.add(handle)
        return handle

    group.isend = isend  # type: ignore[method-assign]
    return left


def _likely(said: str) -> str:
    if "positional argument: 'source'" in said:
        return "`recv` needs a tensor to write into: `group.recv(torch.empty_like(x), j)`."
    if "wait for each other" in said or "deadlock" in said or "did not end" in said:
        return "All of them wait for somebody who waits. Begin every send with `group.isend`, and then receive."
    if "to itself" in said:
        return "A rank is no neighbour of itself: leave out j == group.rank."
    return ""


@you_write(neighbours_are_averaged)
def mix_once(x: Tensor, row: list[float], group: Group) -> Tensor:
    """The average of x over me and my neighbours; row[j]: the weight of rank j."""
    neighbours = [j for j, weight in enumerate(row) if weight and j != group.rank]
    sending = [group.isend(x, j) for j in neighbours]
    mixed = row[group.rank] * x
    for j in neighbours:
        mixed = mixed + row[j] * group.recv(torch.empty_like(x), j)
    for handle in sending:
        handle.wait()
    return mixed


def nothing_is_lost(student: Reader) -> str:
    g = torch.Generator().manual_seed(student.seed)
    before, *gradients = [torch.randint(-40, 40, (8,), generator=g).double() + 0.5 for _ in range(7)]

    def call(fn: Callable[..., Any], x: Any, group: Group) -> Any:
        residual, out = before, []
        for gradient in x:
            result = fn(gradient.clone(), residual.clone(), _largest_two)
            out.append(result)
            if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], Tensor)):
                break
            residual = result[1]
        return out

    got = student.through("with_feedback", 1, [gradients], call).results[0]
    for one in got:
        pair = isinstance(one, tuple | list) and len(one) == 2 and all(isinstance(x, Tensor) for x in one)
        student.expect(pair, "Return two tensors, what is sent and the new residual: you returned {one}.",
                       one="None" if one is None else type(one).__name__)  # fmt: skip
    for rule, why in SLIPS:
        walked, residual = [], before
        for gradient in gradients:
            sent, residual = rule(gradient, residual)
            walked += [sent, residual]
        found = [x for one in got for x in one]
        same = all(a.shape == b.shape and torch.allclose(a, b) for a, b in zip(found, walked, strict=True))
        student.expect(not same, why)
    kept = before
    for step, (gradient, (sent, residual)) in enumerate(zip(gradients, got, strict=True), 1):
        want = _largest_two(gradient + kept)
        student.expect(torch.allclose(sent, want), "In step {step} the wrong numbers were sent: compress the gradient "
                       "plus what was kept.", step=step)  # fmt: skip
        kept = gradient + kept - want
        student.expect(torch.allclose(residual, kept), "In step {step} sent and residual together are not the gradient "
                       "plus what was kept before.", step=step)  # fmt: skip
    total = sum(gradients, before)
    sent = sum((one[0] for one in got), torch.zeros(8, dtype=torch.float64))
    assert torch.allclose(sent + got[-1][1], total)
    return (
        "In each of six steps a fourth of the numbers was sent. Nothing was lost: what was sent and what is still kept "
        "add up exactly to all gradients."
    )


def _largest_two(x: Tensor) -> Tensor:
    places = x.abs().topk(2).indices
    return torch.zeros_like(x).index_put_((places,), x[places])


Rule = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
SLIPS: list[tuple[Rule, str]] = [
    (lambda g, r: (_largest_two(g), r), "Nothing is kept: the residual comes back as it was, so what is not sent is "
     "lost."),
    (lambda g, r: (_largest_two(g), torch.zeros_like(g)), "Nothing is kept: your residual is always 0."),
    (lambda g, r: (_largest_two(g + r), torch.zeros_like(g)), "You add the residual, but the new one is always 0. Keep "
     "what was wanted minus what was sent."),
    (lambda g, r: (_largest_two(g + r), r), "The residual comes back as it was. The new one is what was wanted minus "
     "what was sent."),
    (lambda g, r: (_largest_two(g), g - _largest_two(g)), "Only the last gradient's rest is kept, and it is never "
     "sent: compress gradient + residual, not the gradient alone."),
    (lambda g, r: (_largest_two(g), r + g - _largest_two(g)), "The residual is kept and never sent, so it grows "
     "without end: compress gradient + residual."),
    (lambda g, r: (_largest_two(g + r), g - _largest_two(g + r)), "What was kept before is missing from the new "
     "residual: subtract what was sent from gradient + *residual*."),
    (lambda g, r: (_largest_two(g + r), r + (g + r - _largest_two(g + r))), "The old residual counts twice: it is in "
     "what you wanted to send already."),
    (lambda g, r: (_largest_two(g + r), _largest_two(g + r) - g - r), "The new residual has the wrong sign: it is what "
     "was wanted minus what was sent."),
    (lambda g, r: (g + r, torch.zeros_like(g)), "You send everything, and nothing is compressed: send "
     "`compress(gradient + residual)`."),
    (lambda g, r: (_largest_two(g) + r, g - _largest_two(g)), "The residual is added after the compression, so it goes "
     "on the wire whole. Add it before."),
    (lambda g, r: (g + r, g + r - _largest_two(g + r)), "You compressed the sum, and then sent the sum itself: send "
     "what `compress` returned."),
    (lambda g, r: (_largest_two(g) + r, g + r - _largest_two(g)), "The residual is added after the compression, so it "
     "goes on the wire whole. Add it before."),
    (lambda g, r: (g + r - _largest_two(g + r), _largest_two(g + r)), "The two results have changed places: first what "
     "is sent, then what is kept."),
]  # fmt: skip


@you_write(nothing_is_lost)
def with_feedback(
    gradient: Tensor, residual: Tensor, compress: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What is sent of this gradient, and the residual that is kept for the next one."""
    wanted = gradient + residual
    sent = compress(wanted)
    return sent, wanted - sent


def thin_ones_are_averaged(student: Reader) -> str:
    n, generator = 3, torch.Generator().manual_seed(student.seed)
    ms = [torch.randn(24, 20, generator=generator, dtype=torch.float64) + 2 * r for r in range(n)]
    q = torch.randn(20, 2, generator=generator, dtype=torch.float64)

    def call(fn: Callable[..., Any], m: Any, group: Group) -> Any:
        own = m.clone(), q.clone()
        return fn(*own, group), torch.equal(own[0], m) and torch.equal(own[1], q)

    run = student.through("power_step", n, ms, call)
    for got, _ in run.results:
        pair = isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(x, Tensor) for x in got)
        student.expect(pair, "Return two tensors, P and the new Q: you returned {got}.",
                       got="None" if got is None else type(got).__name__)  # fmt: skip
    (p, new), *others = (got for got, _ in run.results)
    if p.shape == (20, 2) and new.shape == (24, 2):
        student.expect(False, "The two results have changed places: first P, with a row for each row of M, then Q.")
    for name, found, rows in (("P", p, 24), ("Q", new, 20)):
        student.expect(found.shape == (rows, 2), "{name} has the shape {shape}, and of an M of 24 x 20 and a Q of two "
                       "columns it should have {rows} rows and 2 columns.", name=name, shape=tuple(found.shape),
                       rows=rows)  # fmt: skip
    mean, local = torch.stack(ms).mean(0), [torch.linalg.qr(m @ q).Q for m in ms]
    student.expect(all(torch.allclose(p, one) for one, _ in others), "The ranks have different P. Average `m @ q` over "
                   "the group *before* you make its columns orthonormal.")  # fmt: skip
    student.expect(not torch.allclose(p, sum(local, torch.zeros_like(p)) / n), "You made the columns orthonormal "
                   "first, and averaged then. Only the average of all `m @ q` is the P of the averaged M.")  # fmt: skip
    for wrong in (mean @ q, n * mean @ q):
        student.expect(not torch.allclose(p, wrong), "The columns of your P are not orthonormal: "
                       "`torch.linalg.qr(p).Q` makes them so.")  # fmt: skip
    gram = p.T @ p
    one_long = torch.allclose(gram.diagonal(), torch.ones(2, dtype=p.dtype))
    student.expect(not one_long or torch.allclose(gram, torch.eye(2, dtype=p.dtype)), "The columns of your P have the "
                   "length 1, but they are not at right angles: `torch.linalg.qr(p).Q` makes them so.")  # fmt: skip
    want = torch.linalg.qr(mean @ q).Q
    student.expect(torch.allclose(p @ p.T, want @ want.T), "Your P has other directions than the averaged M times "
                   "Q.")  # fmt: skip
    student.expect(not torch.allclose(new, q), "Q came back as it was. The new one is the average of `m.T @ p`.")
    student.expect(all(torch.allclose(new, one) for _, one in others), "All ranks have the same P now, but each has a "
                   "Q of its own: average `m.T @ p`, too.")  # fmt: skip
    right = mean.T @ p
    student.expect(not torch.allclose(new, n * right), "Your Q is a sum over the ranks. Take the average, as for P.")
    student.expect(not torch.allclose(new, torch.linalg.qr(right).Q), "You made the columns of Q orthonormal, too, and "
                   "so lost how large M is. Only those of P are.")  # fmt: skip
    student.expect(torch.allclose(new, right), "P is right, and Q is not: the average of `m.T @ p`.")
    most = max(run.bytes_sent)
    student.expect(most < 2 * ms[0].nbytes / 3, "The result is right, but a rank sent {most:,} bytes, about as many as "
                   "for the whole M. Let only the thin matrices travel.", most=most)  # fmt: skip
    student.expect(all(kept for _, kept in run.results), "The result is right, but `m` or `q` was changed on the way: "
                   "make new tensors.")  # fmt: skip
    return (
        "On three ranks with different M, all have the same P and Q, and these are those of the averaged M. A rank "
        f"sent {most:,} bytes, and an all-reduce of M sends at least {round(4 * ms[0].nbytes / 3):,}."
    )


@you_write(thin_ones_are_averaged)
def power_step(m: Tensor, q: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """P with orthonormal columns and the new Q: p @ q.T is near the averaged m."""
    p = collectives.all_reduce(m @ q, group, "avg")
    p = torch.linalg.qr(p).Q  # orthonormal columns
    return p, collectives.all_reduce(m.T @ p, group, "avg")
