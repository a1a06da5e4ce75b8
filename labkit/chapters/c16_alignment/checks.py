"""What the checks of chapter 16 give to its first two programs, and how they judge what came back.

The policy of these programs is a table of logits, a row for each token that may stand before. Log-probabilities are
real ones, so that ratios, clips and estimates of the KL divergence are what they are in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit import cost
from labkit.grading.checks.student import Evidence, Slips, Student
from labkit.grading.known import Answers

answers = Answers("16_alignment")  # what only instructors can compute

Draw = Callable[..., Tensor]
Batch = dict[str, Any]


def ranks(n: int) -> str:
    return f"With {n} rank{'s' * (n != 1)}"


# Groups of unequal responses ------------------------------------------------------------------------------------------

SYMBOLS = 6
UPDATE_SLIPS = {
    "own": "every rank has the loss and the gradient of its own tokens. They are shares of one mean, so add them up.",
    "ranks": "that is the mean of the ranks' means. A token of a rank with few tokens counts for more there; divide by "
    "the tokens of all ranks.",
    "sequence": "each response counts the same, however long it is. Here each token counts the same.",
    "responses": "the sum over all tokens is divided by the number of responses, and not by that of tokens.",
    "population": "the standard deviation of a group of g divides by g. It should divide by g - 1.",
    "unscaled": "the advantages are not divided by the standard deviation of their group.",
    "batch": "a response is compared with all responses of its rank, and not with those to its own prompt.",
    "order": "a response is compared with those that stand beside it. `prompts` says which ones belong together.",
    "plain": "nothing was clipped.",
    "clamp": "the clipped ratio was taken everywhere. The smaller one of both objectives counts, or a bad token could "
    "never be unlearned.",
    "k1": "the KL divergence is estimated by k1, log policy - log reference. Take k3 here.",
    "turned": "k3 has the ratio upside down: it is reference / policy.",
    "reward": "the KL divergence has the wrong sign, so that it is sought.",
    "ascent": "the loss has the wrong sign. A larger advantage should make it smaller.",
}


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """log p of each token after the one before it, (r,); the first one comes after symbol 0. logits: (v, v)."""
    before = torch.cat([tokens.new_zeros(1), tokens[:-1]])
    return torch.log_softmax(logits, 1)[before, tokens]


def batches(draw: Draw, groups: Sequence[Sequence[int]]) -> tuple[list[Batch], Tensor]:
    """By rank its responses, and the logits of the policy. groups: by rank, how many responses each prompt has.

    Responses of different prompts stand in turn. In the last group of a rank all rewards are equal.
    """
    logits, old, reference = (draw(SYMBOLS, SYMBOLS) / 8 for _ in range(3))
    found: list[Batch] = []
    number = 0
    for rank, sizes in enumerate(groups):
        prompts = [number + i for turn in range(max(sizes, default=0)) for i, g in enumerate(sizes) if turn < g]
        number += len(sizes)
        lengths = [1 + (3 * i + rank) % 5 + 3 * rank for i in range(len(prompts))]
        tokens = [draw(r).long() % SYMBOLS for r in lengths]
        rewards = draw(len(prompts)) / 2
        rewards[[p == number - 1 for p in prompts]] = 1.7  # in float32 the mean of three of these is another number
        found.append({
            "tokens": tokens, "prompts": torch.tensor(prompts, dtype=torch.int64), "rewards": rewards,
            "old": [log_probabilities(old, x) for x in tokens],
            "reference": [log_probabilities(reference, x) for x in tokens],
        })  # fmt: skip
    return found, logits


def expect_update(
    student: Student, run: Evidence, inputs: Sequence[Batch], logits: Tensor, clip: float, beta: float
) -> None:  # fmt: skip
    """Every rank returned the loss of the whole batch and its gradient."""
    n = len(inputs)
    for rank, result in enumerate(run.results):
        fine = isinstance(result, list) and len(result) == 2 and all(isinstance(x, Tensor) for x in result)
        student.expect(fine, f"{ranks(n)}: rank {rank} returned no list of two tensors: loss, gradient.")
        finite = all(bool(x.isfinite().all()) for x in result)
        text = "{who}: rank {rank} returned a number that is not finite. A group whose rewards are all equal has a "\
               "standard deviation of 0, and a rank may have no response at all."  # fmt: skip
        student.expect(finite, text, who=ranks(n), rank=rank)
    told = [dict(mine) for mine in inputs]
    right = answers.updated(told, logits, clip, beta)
    slips: Slips = {
        f"{ranks(n)}: {why}": answers.updated(told, logits, clip, beta, mistake)
        for mistake, why in UPDATE_SLIPS.items()
    }
    equals = answers.updated(told, logits, clip, beta, "equals")
    why = "in a group whose rewards are all equal, what rounding left of reward - mean was divided by a tiny number. "\
          "Such a group has advantages of 0, exactly."  # fmt: skip
    student.expect_results(run, right, slips | {f"{ranks(n)}: {why}": equals}, within=1e-5)


def expect_one_gradient(student: Student, run: Evidence) -> None:
    """No rank sent more than a ring all-reduce of the gradient, and 64 bytes."""
    n = len(run.results)
    due = [nbytes + 64 for nbytes in cost.ring_all_reduce_bytes_by_rank(SYMBOLS**2, 4, n)]
    rank = max(range(n), key=lambda r: run.bytes_sent[r] - due[r])
    text = "{who} rank {rank} sent {got:bytes}; a ring all-reduce of the gradient, and 64 bytes for counts and the "\
           "loss, are {due:bytes}. Neither tokens nor rewards need to travel, and gradients only once."  # fmt: skip
    student.expect(run.bytes_sent[rank] <= due[rank], text, who=ranks(n), rank=rank, got=run.bytes_sent[rank],
                   due=due[rank])  # fmt: skip


# From one layout to another -------------------------------------------------------------------------------------------


def trained(draw: Draw, tensor: int, layers: Sequence[int], each: int) -> tuple[list[Tensor], Tensor]:
    """By rank its part of a stage, (layers of the stage, rows, 3), and the whole. each: rows of a rank's new part."""
    n = tensor * len(layers)
    whole = draw(sum(layers), n * each, 3)
    return [part.contiguous() for stage in whole.split(list(layers)) for part in stage.chunk(tensor, 1)], whole


def expect_new_parts(student: Student, run: Evidence, whole: Tensor) -> None:
    """Every rank has a part of all layers, and all ranks together have everything."""
    n = len(run.results)
    numbers = []
    for rank, result in enumerate(run.results):
        fine = isinstance(result, list) and [type(x) for x in result] == [int, Tensor]
        text = "{who}: rank {rank} returned no list of a whole number and a tensor: the number of its part, and the "\
               "part."  # fmt: skip
        student.expect(fine, text, who=ranks(n), rank=rank)
        numbers.append(result[0])
    text = "{who} the ranks took the parts {numbers}. Each of the parts 0 to {last} should be on one rank."
    student.expect(sorted(numbers) == list(range(n)), text, who=ranks(n), numbers=numbers, last=n - 1)
    parts = [part.contiguous() for part in whole.chunk(n, 1)]
    for rank, (number, got) in enumerate(run.results):
        other = next((i for i, part in enumerate(parts) if torch.equal(part, got)), number)
        text = "{who} rank {rank} says that it has part {number}, and it has part {other}."
        student.expect(other == number, text, who=ranks(n), rank=rank, number=number, other=other)
    student.expect_results(run, [[number, parts[number]] for number in numbers])


def received(run: Evidence) -> list[int]:
    """Bytes that each rank received."""
    return [sum(column) for column in zip(*run.bytes_between, strict=True)]


def expect_least_bytes(student: Student, run: Evidence, tensor: int, layers: Sequence[int], each: int) -> None:
    """No rank received what it had, and each took the part of which it had most."""
    n, pipeline = len(run.results), len(layers)
    cut = [4 * k * n * each * 3 for k in layers]
    least = [cost.reshard_bytes(cut, [0] * pipeline, tensor, n)[rank // tensor] for rank in range(n)]
    got = received(run)
    rank = max(range(n), key=lambda r: got[r] - least[r])
    numbers = [result[0] for result in run.results]
    mine = [range(r % tensor * pipeline, (r % tensor + 1) * pipeline) for r in range(n)]  # parts it has a bit of
    far = [r for r in range(n) if numbers[r] not in mine[r]]
    why = "It received numbers that it had, or that it does not keep."
    if far:
        why = f"Rank {far[0]} took part {numbers[far[0]]}, of which it has nothing in its own layers either. Which "\
              "parts lie in what it was trained with?"  # fmt: skip
    text = "{who} rank {rank} received {got:bytes}, and it lacks only {least:bytes}. {why}"
    student.expect(got[rank] <= least[rank], text, who=ranks(n), rank=rank, got=got[rank], least=least[rank], why=why)
