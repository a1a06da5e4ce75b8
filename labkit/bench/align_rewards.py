"""PPO, GRPO and DPO on the tiny task: does the known truth rise, and what the reward model thinks meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import Any

import labkit
from labkit import Group
from labkit.align.fleet import GRPO, PPO, DPOConfig, Fleet, Placement, Report, dpo_step, grpo_step, ppo_step
from labkit.align.rollout import Sampling
from labkit.align.task import END, ROOM, Task, mean_truth, prepared, prompts
from labkit.cost import Estimate
from labkit.models.threads import one_thread

RATES = {"policy": 1e-3, "critic": 2e-3}
Numbers = dict[str, float]


def ppo(task: Task, group: Group, seed: int, steps: int, beta: float) -> Numbers:
    """Truth before and after `steps` steps of 32 prompts, and reward and KL of the last step."""
    fleet = Fleet(Placement.colocated(group.size), group, task.make, rates=RATES)
    return _steps(fleet, steps, seed, lambda n, how: ppo_step(fleet, prompts(32, n), how, PPO(beta=beta)))


def grpo(task: Task, group: Group, seed: int, steps: int, beta: float) -> Numbers:
    """The same with 8 responses to each of 4 prompts."""
    fleet = Fleet(Placement.colocated(group.size, critic=False), group, task.make, rates=RATES)
    return _steps(fleet, steps, seed, lambda n, how: grpo_step(fleet, prompts(4, n), how, GRPO(beta=beta)))


def dpo(task: Task, group: Group, seed: int, steps: int, beta: float) -> Numbers:
    """The same with the pairs that the reward model learned from, 32 a step, as many steps as they suffice for."""
    every = tuple(range(group.size))
    fleet = Fleet(Placement(every, every), group, task.make, rates=RATES)
    before = mean_truth(task.policy, seed=seed)
    pairs = [(pair.prompt, pair.chosen, pair.rejected) for pair in task.pairs]
    for start in range(0, min(32 * steps, len(pairs)), 32):
        dpo_step(fleet, pairs[start : start + 32], DPOConfig(beta=beta))
    return {"before": before, "after": mean_truth(fleet.models["policy"], seed=seed)}  # type: ignore[arg-type]


def _steps(fleet: Fleet, steps: int, seed: int, step: Callable[[int, Sampling], Report]) -> Numbers:
    before, how = mean_truth(fleet.models["policy"], seed=seed), Sampling(ROOM, END)  # type: ignore[arg-type]
    told = [step(1000 * seed + n, replace(how, seed=1000 * seed + n)) for n in range(steps)]
    after = mean_truth(fleet.models["policy"], seed=seed)  # type: ignore[arg-type]
    return {
        "before": before, "after": after, "reward before": told[0].reward, "reward after": told[-1].reward,
        "KL": told[-1].kl,
    }  # fmt: skip


WAYS: dict[str, tuple[Callable[..., Numbers], float]] = {
    "PPO, beta 0.05": (ppo, 0.05), "PPO, beta 0.2": (ppo, 0.2), "PPO, no KL": (ppo, 0.0),
    "GRPO, beta 0.04": (grpo, 0.04), "GRPO, beta 0.2": (grpo, 0.2), "DPO, beta 0.1": (dpo, 0.1),
}  # fmt: skip


def measured(way: str, seed: int, steps: int) -> Numbers:
    """One way with one seed of everything: language model, preferences, reward model and training."""
    function, beta = WAYS[way]

    def work(group: Group, task: Task) -> Numbers:
        with one_thread():
            return function(task, group, seed, steps, beta)

    numbers: Numbers = labkit.launch(work, 1, prepared(seed), transport="local").results[0]
    return numbers


def runs(seeds: int, steps: int) -> list[dict[str, Any]]:
    """A row for each way and seed."""
    found = []
    for way, (_, beta) in WAYS.items():
        for seed in range(seeds):
            numbers = {name: float(f"{x:.4g}") for name, x in measured(way, seed, steps).items()}
            found.append({"way": way, "beta": beta, "seed": seed} | numbers)
        print(f"{way}: {seeds} runs done", flush=True)
    return found


def rewards(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds; of the rise of the truth also its standard error."""
    rows = []
    for way in dict.fromkeys(run["way"] for run in found):
        mine = [run for run in found if run["way"] == way]
        rise = [run["after"] - run["before"] for run in mine]
        row: dict[str, Any] = {"": way}
        for name in ("before", "after", "reward before", "reward after", "KL"):
            row[name] = mean(run[name] for run in mine) if name in mine[0] else ""
        rows.append(row | {"rise": str(Estimate.of(rise)) if len(mine) > 1 else rise[0]})
    return rows
