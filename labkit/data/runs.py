"""Runs that were made once, many times over, and are shipped with where they come from.

A chapter that needs hundreds of trainings reads them here and makes one of them again. Each file in the folder
`runs` was written by a command that it names; nothing in it was typed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "runs"
BUSY_TRIALS = str(FOLDER / "fleet_trials_busy.json")  # for `fleet_trials`


@dataclass(frozen=True)
class Provenance:
    """What made a file, and when. machine: in plain words. versions: of Python and the packages that count."""

    command: str
    date: str
    machine: str
    versions: dict[str, str]
    cpu_seconds: float
    note: str

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        took = f"{self.cpu_seconds:.0f} s of one core"
        return f"`{self.command}`, {self.date}, {self.machine}; {versions}; {took}. {self.note}"


@dataclass(frozen=True)
class StepsRow:
    """Training with `batch` and `lr` reached the target after `steps`; None: not within the limit."""

    batch: int
    lr: float
    seed: int
    steps: int | None


@dataclass(frozen=True)
class NoiseRow:
    """At weights with training loss `loss`: the true |G|^2 and tr(Sigma), and the estimate from two batch sizes."""

    loss: float
    seed: int
    signal: float
    noise: float
    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class RecipeRow:
    """One training by a named recipe. loss and worst are infinite where a loss overflowed."""

    recipe: str
    optimizer: str
    batch: int
    lr: float
    warm: float
    seed: int
    loss: float
    accuracy: float
    worst: float


@dataclass(frozen=True)
class LargeBatches:
    """target: the training loss, in nats, that `steps` count to. tuning, rates: other seeds, for choosing rates.

    steps: every batch at the rate that tuning chose. recipes: 16 epochs by each recipe. rates: the same network at
    many rates, with and without warmup. rounding: the largest change when fp64 takes the place of fp32, by quantity.
    """

    provenance: Provenance
    target: float
    tuning: list[StepsRow]
    steps: list[StepsRow]
    noise: list[NoiseRow]
    recipes: list[RecipeRow]
    rates: list[RecipeRow]
    rounding: dict[str, float]

    def steps_by_batch(self) -> dict[int, list[int]]:
        """Steps to the target of all seeds that reached it, by batch size."""
        found: dict[int, list[int]] = {}
        for row in self.steps:
            if row.steps is not None:
                found.setdefault(row.batch, []).append(row.steps)
        return found


@dataclass(frozen=True)
class AccuracyRow:
    """One training with replicas away: `lost` of them in two outages of `length` steps; 0: without faults.

    order: another order of the same samples. losses: on the validation text, in nats a byte, after each of `steps`,
    when `samples` samples were trained.
    """

    lost: int
    length: int
    intervention: str
    order: int
    seed: int
    steps: tuple[int, ...]
    samples: tuple[int, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class RecoveryAccuracy:
    """planned: steps without faults. rate: of the optimizer, the best of `tuning` (rate -> losses, on other seeds)."""

    provenance: Provenance
    replicas: int
    planned: int
    rate: float
    tuning: dict[float, tuple[float, ...]]
    runs: list[AccuracyRow]


@cache
def recovery_accuracy(path: str | None = None) -> RecoveryAccuracy:
    """The runs of chapter 19, from `labkit bench recovery-accuracy`. path: another file of the same form."""
    raw = json.loads((Path(path) if path else FOLDER / "recovery_accuracy.json").read_text())
    return RecoveryAccuracy(
        provenance=Provenance(**raw["provenance"]),
        replicas=raw["replicas"],
        planned=raw["planned"],
        rate=raw["rate"],
        tuning={row["rate"]: tuple(row["losses"]) for row in raw["tuning"]},
        runs=accuracy_rows(raw["runs"]),
    )


def accuracy_rows(groups: list[dict[str, Any]]) -> list[AccuracyRow]:
    """In the file, the seeds of a setting share a line; here each has a row."""
    fixed = [group | {"steps": tuple(group["steps"]), "samples": tuple(group["samples"])} for group in groups]
    return [AccuracyRow(**row) for row in _each(fixed, "losses", wrap=tuple)]


@dataclass(frozen=True)
class FleetTrial:
    """A small fleet with failures at random, by the wall clock. Times in seconds. measured: effective part of the time.

    own_step: the median step of this run. load: of the computer before it. strikes: (time, replica) of its failures.
    replicas, step, repair, time, every: of the setting. usual, recovery, stall, rejoin: measured of the system before.
    """

    policy: str
    seed: int
    measured: float
    own_step: float
    load: float
    strikes: tuple[tuple[float, int], ...]
    replicas: int
    step: float
    repair: float
    time: float
    every: float
    usual: float
    recovery: float
    stall: float
    rejoin: float


@dataclass(frozen=True)
class FleetTrials:
    """The runs of chapter 21 that check the simulator of a failing fleet."""

    provenance: Provenance
    runs: list[FleetTrial]

    def of(self, policy: str) -> list[FleetTrial]:
        """All runs of one policy."""
        return [run for run in self.runs if run.policy == policy]


@cache
def fleet_trials(path: str | None = None) -> FleetTrials:
    """The runs of chapter 21, from `labkit bench fleet-trials`, on a quiet computer.

    path: another file of the same form. `BUSY_TRIALS` is an earlier one: 12 runs of each policy while others worked.
    """
    raw = json.loads((Path(path) if path else FOLDER / "fleet_trials.json").read_text())
    return FleetTrials(Provenance(**raw["provenance"]), fleet_trial_rows(raw))


def fleet_trial_rows(raw: dict[str, Any]) -> list[FleetTrial]:
    """In the file, setting and times stand once; here each run has them."""
    times = {row["policy"]: {k: v for k, v in row.items() if k != "policy"} for row in raw["times"]}
    return [
        FleetTrial(
            row["policy"], row["seed"], row["measured"], row["own_step"], row["load"],
            tuple((at, replica) for at, replica in row["strikes"]),
            **raw["setting"], **times[row["policy"]],
        )
        for row in raw["runs"]
    ]  # fmt: skip


@dataclass(frozen=True)
class AlignmentRun:
    """before, after: mean known truth of responses, before training and after it. reward: of the reward model in the
    first and in the last step, and the KL to the reference in the last one, in nats a response; None for DPO, which
    generates nothing."""

    way: str
    beta: float
    seed: int
    before: float
    after: float
    reward_before: float | None = None
    reward_after: float | None = None
    kl: float | None = None


@dataclass(frozen=True)
class AlignmentRuns:
    """The runs of chapter 16: PPO, GRPO and DPO on a task whose truth is known. steps: of each, of 32 responses."""

    provenance: Provenance
    steps: int
    runs: list[AlignmentRun]

    def of(self, way: str) -> list[AlignmentRun]:
        return [run for run in self.runs if run.way == way]


@cache
def alignment(path: str | None = None) -> AlignmentRuns:
    """The runs of chapter 16, from `labkit bench align --parts rewards`. path: another file of the same form."""
    raw = json.loads((Path(path) if path else FOLDER / "alignment.json").read_text())
    rows = [{name.replace(" ", "_").lower(): x for name, x in row.items()} for row in raw["runs"]]
    return AlignmentRuns(Provenance(**raw["provenance"]), raw["setting"]["steps"], [AlignmentRun(**r) for r in rows])


@cache
def large_batches(path: str | None = None) -> LargeBatches:
    """The runs of chapter 7, from `labkit bench large-batches`. path: another file of the same form."""
    raw = json.loads((Path(path) if path else FOLDER / "large_batches.json").read_text())
    return LargeBatches(
        provenance=Provenance(**raw["provenance"]),
        target=raw["target"],
        tuning=[StepsRow(**row) for row in _each(raw["tuning"], "steps")],
        steps=[StepsRow(**row) for row in _each(raw["steps"], "steps")],
        noise=[NoiseRow(**row) for row in raw["noise"]],
        recipes=_recipes(raw["recipes"]),
        rates=_recipes(raw["rates"]),
        rounding=raw["rounding"],
    )


def _each(
    groups: list[dict[str, Any]], *columns: str, wrap: Callable[[Any], Any] = lambda x: x
) -> list[dict[str, Any]]:
    """In the file, runs that differ in their seed share a line; here each has a row."""
    rows = []
    for group in groups:
        common = {name: value for name, value in group.items() if name not in (*columns, "seeds")}
        for i, seed in enumerate(group["seeds"]):
            rows.append({**common, "seed": seed, **{column: wrap(group[column][i]) for column in columns}})
    return rows


def _recipes(groups: list[dict[str, Any]]) -> list[RecipeRow]:
    def number(x: float | None) -> float:
        return float("inf") if x is None else x  # JSON has no infinity

    return [RecipeRow(**row) for row in _each(groups, "loss", "accuracy", "worst", wrap=number)]
