"""Whether the numbers that a reader's `masked` has sent are hidden, and still add up to the right sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.student import Evidence, StudentError
from labkit.grading.writing import Reader
from labkit.optim.synchrony.masking import stream
from labkit.wire import Group


def masks_cancel(student: Reader) -> str:
    for n in (2, 3, 5):
        g = torch.Generator().manual_seed(student.seed + n)
        numbers = [torch.randint(-1000, 1000, (6,), generator=g).int() for _ in range(n)]
        inputs = [(numbers[c], {p: _secret(student.seed, c, p) for p in range(n) if p != c}, c) for c in range(n)]
        try:
            run = student.through("masked", n, inputs, _masked)
        except StudentError as error:
            raw = ("buffer API", "cannot unpack", "'int' and 'bytes'")
            said = "`secrets` is a dict, partner -> secret: go through `secrets.items()`, which has both."
            student.expect(not any(words in f"{error}" for words in raw), said)
            student.expect("'Tensor' and 'bytes'" not in f"{error}", "A secret is not yet a mask: `stream(secret, "
                           "len(numbers))` makes the mask of it.")  # fmt: skip
            raise
        _masks_are_right(student, run, n, numbers, inputs)
    return "For 2, 3 and 5 clients what each sends looks like noise, and the sum is exact to the last bit."


def _secret(seed: int, a: int, b: int) -> bytes:
    return f"{seed} {min(a, b)} {max(a, b)}".encode()


def _masked(fn: Callable[..., Any], x: tuple[Tensor, Mapping[int, bytes], int], group: Group) -> Any:
    mine = x[0].clone()
    return fn(mine, dict(x[1]), x[2]), torch.equal(mine, x[0])


def _masks_are_right(student: Reader, run: Evidence, n: int, numbers: Sequence[Tensor], inputs: Sequence[Any]) -> None:
    about = f"With {n} clients"
    sent = []
    for c, (got, _) in enumerate(run.results):
        student.expect(isinstance(got, Tensor) and got.shape == numbers[c].shape, "{about} client {c} returned {got}: "
                       "return a tensor like `numbers`.", about=about, c=c, got=type(got).__name__)  # fmt: skip
        student.expect(not got.is_floating_point(), "{about} the result has floating point numbers. In them large "
                       "masks round the numbers away: compute in int32, which wraps around.", about=about)  # fmt: skip
        student.expect(got.dtype == torch.int32, "{about} the result is {got}, which does not wrap around at 32 bits "
                       "as the masks do: keep int32.", about=about, got=str(got.dtype))  # fmt: skip
        sent.append(got)
    total = torch.stack(sent).sum(0, dtype=torch.int32)
    right = torch.stack(list(numbers)).sum(0, dtype=torch.int32)

    def trial(sign: Callable[[int, int], int], own: bool = True) -> Tensor:
        out = torch.zeros_like(right)
        for c, (x, secrets, _) in enumerate(inputs):
            out += x * own
            for p, secret in secrets.items():
                out += sign(c, p) * stream(secret, len(x))
        return out

    slips = (
        (trial(lambda c, p: 1), "every client adds every mask, so each is in the sum twice. In a pair one must add it "
         "and the other take it away."),
        (trial(lambda c, p: -1), "every client takes every mask away, so none of them cancel. In a pair one must add."),
        (trial(lambda c, p: int(c < p)), "the lower client of a pair adds the mask, but the higher one does not take "
         "it away."),
        (trial(lambda c, p: (1 if c < p else -1) * (p == min(inputs[c][1]))), "each client has used the mask of its "
         "first partner only. Does your `return` stand inside the loop? Then it ends the function in the first round: "
         "move it to the left, below the loop."),
        (trial(lambda c, p: (1 if c < p else -1) * (p == max(inputs[c][1]))), "each client has used the mask of its "
         "last partner only. Does each round begin again with `numbers`? Add to what the round before has left."),
        (trial(lambda c, p: 0, own=False), "the masks cancel, but the numbers are missing: add the masks *to* them."),
    )  # fmt: skip
    if not torch.equal(total, right):
        why = next((said for wrong, said in slips if torch.equal(total, wrong)), "the masks do not cancel. Which of "
                   "two clients adds the mask of their pair?")  # fmt: skip
        student.expect(False, "{about} the sum of what was sent is not the sum of the numbers: " + why, about=about)
    for c, (x, secrets, _) in enumerate(inputs):
        student.expect(not torch.equal(sent[c], x), "{about} client {c} sends its numbers as they are: the server can "
                       "read them.", about=about, c=c)  # fmt: skip
        one = x + sum((1 if c < p else -1) * stream(secret, 1) for p, secret in secrets.items())
        student.expect(not torch.equal(sent[c], one), "{about} the sum is exact, but each mask is one number, the same "
                       "for all of `numbers`. Every number needs its own: `stream(secret, len(numbers))`.",
                       about=about)  # fmt: skip
        full = x.clone()
        for p, secret in secrets.items():
            full += (1 if c < p else -1) * stream(secret, len(x))
        down = x.clone()
        for p, secret in secrets.items():
            down += (-1 if c < p else 1) * stream(secret, len(x))
        student.expect(not torch.equal(sent[c], down) or n == 1, "{about} the sum is exact, but the signs are the "
                       "other way round. All must agree: the lower client adds.", about=about)  # fmt: skip
        student.expect(torch.equal(sent[c], full), "{about} the sum is exact, but client {c} has not used the mask of "
                       "every partner.", about=about, c=c)  # fmt: skip
    student.expect(all(kept for _, kept in run.results), "The sum is right, but `numbers` was changed: begin with "
                   "`numbers.clone()`.")  # fmt: skip
