"""Rollouts that nobody waits for: GRPO with a trainer and workers, over its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any
from zlib import crc32

import labkit
from labkit import Group, Kill, book
from labkit.align.fleet import GRPO, Asynchronous, Learned, learn_asynchronously
from labkit.align.fleet.worker import flat_weights
from labkit.align.task import Task, prompts
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import seconds_text
from labkit.chapters.c16_alignment import learning
from labkit.chapters.c16_alignment.fleets import Bar, work
from labkit.chapters.c16_alignment.timelines import rows_of_bars
from labkit.cost import WorkSeconds
from labkit.models.threads import one_thread

UPDATES = 4
SECONDS = WorkSeconds(decode=2e-3, read=2e-5, train=1e-4)
HOW = GRPO(responses=4, beta=0.1, epochs=1, minibatches=1)
PHASES = ("generate", "policy", "reference", "reward", "train policy")


@dataclass(frozen=True)
class Told:
    """Of rank 0: ages of the responses by update, who wrote each chunk, who was lost, mean rewards, and a checksum of
    the policy's weights in the end."""

    ages: tuple[int, ...]
    made_by: tuple[tuple[int, ...], ...]
    lost: dict[int, str]
    rewards: tuple[float, ...]
    weights: str


def asked(update: int) -> Any:
    """Six prompts for each update."""
    return prompts(6, 500 + update)


def told(learned: Learned) -> Told:
    policy = learned.policy
    last = f"{crc32(flat_weights(policy).numpy().tobytes()):08x}" if policy else ""
    return Told(tuple(learned.ages), tuple(map(tuple, learned.made_by)), dict(learned.lost),
                tuple(r.reward for r in learned.reports), last)  # fmt: skip


def trained(group: Group, task: Task, plan: Asynchronous) -> Told:
    """GRPO with rank 0 as the trainer, on the virtual clock."""
    with one_thread():
        return told(learn_asynchronously(group, task.make, asked, learning.how(0), HOW, plan, seconds=SECONDS))


def go(fn: Any, task: Task, staleness: int, kill: int, writers: int = 3) -> labkit.Run:
    """A run in which rank `kill` dies while it writes for the second time: nobody where it is 0, and the last writer
    where it is -1."""
    kill = writers if kill < 0 else kill
    faults = [Kill(kill, at="generate", nth=2)] if kill else []
    return labkit.launch(fn, 1 + writers, task, staleness, faults=faults, clock="virtual", transport="local",
                         on_failure="continue" if kill else "raise")  # fmt: skip


def bars(run: Any) -> list[list[Bar]]:
    """By rank: phases in seconds."""
    return work(run.trace, PHASES)


AXIS = 0.25  # seconds: pictures end at a multiple of it, so that those of two runs can be compared


def with_deaths(run: Any) -> list[list[Bar]]:
    """`bars`, and after the last one of a lost rank that it is dead."""
    found, end = bars(run), seconds(run)
    for rank in run.results[0].lost:
        last = max((bar[2] for bar in found[rank]), default=0.0)
        found[rank].append(("dead", last, end))
    return found


def worked(run: Any) -> float:
    """The part of all ranks' time in which they work."""
    rows = bars(run)
    end = max(bar[2] for row in rows for bar in row)
    return sum(b - a for row in rows for _, a, b in row) / (len(rows) * end)


def seconds(run: Any) -> float:
    return max(bar[2] for row in bars(run) for bar in row)


def stale_said(run: Any) -> str:
    one: Told = run.results[0]
    lost = "".join(f" Rank {rank} was lost, and rank 0 wrote what it owed." for rank in one.lost)
    return (
        f"{len(one.ages)} updates took **{seconds_text(seconds(run))}**, and the ranks worked {worked(run):.0%} of it. "
        f"The responses of the updates were {_listed(one.ages)} versions old.{lost} In the end the checksum of the "
        f"policy's weights is {one.weights}."
    )


def _listed(numbers: Sequence[object]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def stale(run: Any) -> book.Figure:
    """Who writes and who learns, over time."""
    one: Told = run.results[0]
    said = "A row for each rank: rank 0 reads and learns, the others write. White is waiting."
    rows: list[Row] = [
        {"update": n, "versions old": age, "chunks written by ranks": ", ".join(map(str, by)), "mean reward": reward}
        for n, (age, by, reward) in enumerate(zip(one.ages, one.made_by, one.rewards, strict=True))
    ]
    svg = rows_of_bars(with_deaths(run), AXIS * ceil(seconds(run) / AXIS), said, title="Writing and learning")
    return book.Figure("Writing and learning", "emulated", said, rows, svg)
