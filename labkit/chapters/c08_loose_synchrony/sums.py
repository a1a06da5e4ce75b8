"""What the checks of chapter 8 compare with where ranks add up without a collective: push-sum, and sums under masks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.chapters.c08_loose_synchrony.checks import Draw, Inputs, answers, ranks
from labkit.grading.checks.student import Evidence, Slips, Student

# Arrows that go one way -----------------------------------------------------------------------------------------------

Arrows = list[list[int]]


def arrows(n: int, extra: int = 0) -> Arrows:
    """By rank, to whom it sends: always to the next one, and some ranks to one or two others as well."""
    found = []
    for r in range(n):
        others = {(r + 1) % n} | ({(r + 2) % n} if (r + extra) % 3 == 0 else set())
        others |= {(r + 3) % n} if (r + extra) % 4 == 0 else set()
        found.append(sorted(others - {r}))
    return found


def shares(out: Arrows, rule: str = "") -> Tensor:
    """(n, n): which part of what rank j has goes to rank i, or what a well-known mistake makes of it."""
    n = len(out)
    joined = torch.eye(n, dtype=torch.float64)
    for j, others in enumerate(out):
        joined[others, j] = 1
    if rule == "rows":
        return joined / joined.sum(1, keepdim=True)
    if rule == "nothing kept":
        bare = joined - torch.eye(n, dtype=torch.float64)
        return bare / bare.sum(0).clamp(min=1)
    if rule == "all kept":
        return joined / joined.sum(0) + torch.diag(1 - 1 / joined.sum(0))
    if rule == "thirds":
        return joined / 3
    return joined / joined.sum(0)


def expect_push_sum(student: Student, run: Evidence, xs: Sequence[Tensor], out: Arrows, rounds: int) -> None:
    """Every rank returned its estimate of the mean, and behind it its weight."""
    n = len(xs)

    def after(rule: str = "", count: int = rounds, divided: bool = True, weighed: bool = True) -> list[Tensor]:
        state = torch.cat([torch.stack(list(xs)), torch.ones(n, 1, dtype=torch.float64)], 1)
        for _ in range(count):
            state = shares(out, rule) @ state
        x, w = state[:, :-1], state[:, -1:] if weighed else torch.ones(n, 1, dtype=torch.float64)
        return list(torch.cat([x / w if divided else x, w], 1))

    told = f"{ranks(n)} and {rounds} rounds"
    causes = {
        "each rank takes the mean of what it hears. Then a rank that many hear counts more, and the mean moves. Divide "
        "what you *send*, by one more than the number of those to whom you send.": after("rows"),
        "a rank gives everything away and keeps no share for itself.": after("nothing kept"),
        "a rank keeps all that it has and sends shares of it besides. Its own share is one like the others.": after(
            "all kept"
        ),
        "every share is a third. How many shares there are depends on the rank.": after("thirds"),
        "this is x alone. The estimate is x divided by the weight that has travelled with it.": after(divided=False),
        "the weight never changes. It is divided and sent like x.": after(weighed=False),
        "one round is missing.": after(count=max(0, rounds - 1)),
        "that is one round too many.": after(count=rounds + 1),
    }
    right = after()
    slips: Slips = {f"{told}: {why}": wrong for why, wrong in causes.items()}
    student.expect_results(run, right, slips, within=1e-9)


def expect_along_the_arrows(student: Student, run: Evidence, out: Arrows, rounds: int, numbers: int) -> None:
    """One message a round along each arrow, with x and the weight, and nothing else."""
    n = len(out)
    text = "{who} {name} was called. Push-sum has no collective: send to those on your list alone."
    student.expect(not run.library, text, who=ranks(n), name=" and ".join(run.library))
    for rank, row in enumerate(run.bytes_between):
        far = [to for to, nbytes in enumerate(row) if nbytes and to not in out[rank]]
        text = "{who} rank {rank} sent to rank {to}, and its list is {out}. No arrow goes there."
        student.expect(not far, text, who=ranks(n), rank=rank, to=far and far[0], out=out[rank])
    due = [rounds * len(others) for others in out]
    text = "{who} rank {rank} sent {got} messages in {rounds} rounds, in place of {expected}: x and weight are one."
    student.expect_by_rank(run.messages, due, text, who=ranks(n), rounds=rounds)
    text = "{who} rank {rank} sent {got:bytes} in {rounds} rounds, in place of {expected:bytes}."
    student.expect_by_rank(run.bytes_sent, [8 * (numbers + 1) * count for count in due], text, who=ranks(n),
                           rounds=rounds)  # fmt: skip


# A sum under masks ----------------------------------------------------------------------------------------------------


def stream(secret: int, n: int) -> Tensor:
    """n numbers of 32 bits that look random to whoever does not know the secret, int32."""
    generator = torch.Generator().manual_seed(secret)
    return torch.randint(-(2**31), 2**31, (n,), generator=generator).to(torch.int32)


def clients(draw: Draw, n: int, numbers: int, lost: Sequence[int]) -> Inputs:
    """For the server (rank 0) the clients that will never answer; for each client its numbers, and its secrets by rank.

    A secret is the same on both sides of a pair. A client that is lost knows it, as `gone`.
    """
    high, low = draw(n, n, dtype=torch.int64).abs(), draw(n, n, dtype=torch.int64).abs()
    place = torch.arange(n)
    pair = torch.minimum(place[:, None], place) * n + torch.maximum(place[:, None], place)  # no two pairs are alike
    secrets = 1000 * (pair + 1) + 10 * (high + high.T) + (low + low.T) % 10
    secrets[0] = 0
    secrets[:, 0] = 0
    secrets.fill_diagonal_(0)
    found: Inputs = [{"lost": torch.tensor(list(lost), dtype=torch.int64), "like": torch.zeros(numbers).int()}]
    for r in range(1, n):
        found.append({"numbers": draw(numbers, dtype=torch.int32) * 1000, "secrets": secrets[r],
                      "gone": torch.tensor(r in lost)})  # fmt: skip
    return found


def expect_masked_sum(student: Student, run: Evidence, inputs: Inputs) -> None:
    """The server has the sum of those that came, and saw their numbers under masks only."""
    n, lost = len(inputs), inputs[0]["lost"].tolist()
    there = [r for r in range(1, n) if r not in lost]
    told = f"{ranks(n)}, without {lost or 'losses'}"
    result = run.results[0]
    fine = isinstance(result, (list, tuple)) and len(result) == 2 and all(isinstance(x, Tensor) for x in result)
    student.expect(fine, f"{told}: rank 0 returned no list of two tensors: total, came.")
    total, came = result
    shape = (len(there), len(inputs[0]["like"]))
    right_shape = tuple(came.shape) == shape
    text = "{told}: `came` has the shape {got}. It has a row for each of the clients {there}: {want}."
    student.expect(right_shape, text, told=told, got=tuple(came.shape), there=there, want=shape)
    student.expect(total.dtype == came.dtype == torch.int32, f"{told}: both results are int32, which wraps around.")
    causes = {
        "plain": "sent its numbers as they are, so the server can read them.",
        "all added": "adds all of its masks. Of each pair one adds and the other subtracts, or they do not cancel.",
        "turned": "subtracts towards higher ranks. Add the mask with a higher rank, and subtract the others.",
        "knowing": "has left out the masks with the clients that are lost. When it sends, it cannot know them yet.",
    }
    for row, r in zip(came, there, strict=True):
        mine = inputs[r]
        right = answers.masked(mine["numbers"], mine["secrets"], r)
        for mistake, why in causes.items():
            wrong = answers.masked(mine["numbers"], mine["secrets"], r, mistake, lost)
            student.expect(torch.equal(wrong, right) or not torch.equal(row, wrong), f"{told}: client {r} {why}")
        student.expect(torch.equal(row, right), f"{told}: what came from client {r} is not its numbers plus its masks.")
    want = torch.stack([inputs[r]["numbers"] for r in there]).sum(0, dtype=torch.int32)
    left = came.sum(0, dtype=torch.int32)
    rest = left - want
    slips = [
        (left, "the masks that survivors shared with lost clients are still in the sum."),
        (left + rest, "the masks of lost clients were added once more. Take away what the survivor had added."),
    ]
    for wrong, why in slips:
        student.expect(torch.equal(wrong, want) or not torch.equal(total, wrong), f"{told}: {why}")
    off = int((total != want).sum())
    text = "{told}: {off} of {all} sums are wrong, though what came is right. Which masks are left when all have been "
    text += "added up? Those between two survivors are gone, and those between two lost clients never came."
    student.expect(off == 0 and total.shape == want.shape, text, told=told, off=off, all=len(want))


def expect_few_secrets(student: Student, run: Evidence, inputs: Inputs) -> None:
    """Survivors send numbers and the secrets with lost clients; the server says who is lost; lost ones nothing."""
    n, lost = len(inputs), inputs[0]["lost"].tolist()
    numbers, told = len(inputs[0]["like"]), f"{ranks(n)}, without {lost or 'losses'}"
    text = "{told}: {name} was called. Clients speak with the server only, by plain messages."
    student.expect(not run.library, text, told=told, name=" and ".join(run.library))
    for rank in range(1, n):
        due = 0 if rank in lost else 4 * numbers + 8 * len(lost)
        why = f"It is {len(lost)} secret{'s' * (len(lost) != 1)} of 8 bytes, and {numbers} numbers of 4 bytes."
        if rank in lost:
            why = "It is gone, and sends nothing."
        elif run.bytes_sent[rank] >= 4 * numbers + 8 * (n - 2):
            why = "It has told all of its secrets. With those the server can read its numbers."
        text = "{told}: client {rank} sent {got:bytes}, in place of {due:bytes}. {why}"
        student.expect(
            run.bytes_sent[rank] == due, text, told=told, rank=rank, got=run.bytes_sent[rank], due=due, why=why
        )
        others = [to for to, nbytes in enumerate(run.bytes_between[rank]) if nbytes and to]
        text = "{told}: client {rank} sent to client {to}. Clients speak with the server only."
        student.expect(not others, text, told=told, rank=rank, to=others and others[0])
    due = (n - 1 - len(lost)) * 8 * n
    text = (
        "{told}: the server sent {got:bytes}, in place of {due:bytes}: a row of {n} numbers to each client that came."
    )
    student.expect(run.bytes_sent[0] == due, text, told=told, got=run.bytes_sent[0], due=due, n=n)
