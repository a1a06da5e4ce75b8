"""What chapter 16 trains: the task with a known truth, and what is seen of it, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, pstdev
from typing import Any

import torch
from torch import Tensor, nn

import labkit
from labkit import Group, book
from labkit.align import PolicyLoss, masked_sums, token_logprobs
from labkit.align.batching import padded
from labkit.align.fleet import GRPO, Fleet, Report
from labkit.align.rollout import Sampling
from labkit.align.task import END, PROMPT, ROOM, Pair, Task, accuracy, mean_truth, preferences, prepared, truth
from labkit.align.task.reward_model import rewards_of_pairs
from labkit.book.drawing.tables import Row
from labkit.cost import Estimate
from labkit.data.runs import AlignmentRun, alignment
from labkit.models.threads import one_thread

RATES = {"policy": 1e-3, "critic": 2e-3}  # of Adam
BATCH = 16  # prompts of a step


NEW_PAIRS = 96


def _prepare(group: Group, seed: int) -> tuple[Task, list[Pair]]:
    task = prepared(seed)
    return task, preferences(task.policy, NEW_PAIRS, seed=1_000 + seed)


def prepare(seed: int) -> labkit.Job:
    """Begin with `prepared`, and with pairs that no model learns from, on a rank of its own: nobody has to wait for it
    until the models are needed."""
    return labkit.start(_prepare, 1, seed, transport="local")


def how(step: int) -> Sampling:
    """At most `ROOM` bytes, a sentence at most; other draws in each step."""
    return Sampling(ROOM, END, seed=step)


@dataclass(frozen=True)
class Seen:
    """Of a step, on one rank: the mean reward, the KL in nats, the truth of each response of this rank, and some of
    the responses."""

    reward: float
    kl: float
    truths: tuple[float, ...]
    shown: tuple[str, ...] = ()


def seen(report: Report) -> Seen:
    truths = tuple(truth(s.tokens, ROOM) for s in report.samples)
    return Seen(report.reward, report.kl, truths, tuple(_shown(s.tokens) for s in report.samples[:2]))


def truths(results: Sequence[Sequence[Seen]]) -> list[float]:
    """The mean truth of all ranks' responses, by step."""
    return [mean(t for one in step for t in one.truths) for step in zip(*results, strict=True)]


def with_loss(clipped_loss: Callable[..., Tensor]) -> Callable[..., PolicyLoss]:
    """The reader's loss as `ppo_step` takes one. What it tells beside it is not known, so it is 0."""

    def loss(logprobs_bt: Tensor, old_bt: Tensor, a_bt: Tensor, mask_bt: Tensor, tokens: float, clip: float) -> Any:
        nothing = torch.zeros(())
        return PolicyLoss(clipped_loss(logprobs_bt, old_bt, a_bt, mask_bt, tokens, clip), nothing, nothing)

    return loss


@dataclass(frozen=True)
class Beginning:
    """Of the responses that were judged, before any PPO: mean reward, mean truth, and the deviation of the truth. The
    reward model is scaled so that the deviation of its rewards is 1."""

    reward: float
    truth: float
    deviation: float

    @classmethod
    def of(cls, task: Task) -> Beginning:
        with torch.no_grad(), one_thread():
            rewards_p2 = rewards_of_pairs(task.rewards, task.pairs)
        found = [truth(answer, ROOM) for pair in task.pairs for answer in (pair.chosen, pair.rejected)]
        return cls(float(rewards_p2.mean()), mean(found), pstdev(found))

    def rewards(self, run: Any) -> list[float]:
        """By step, in standard deviations above the beginning."""
        return [step.reward - self.reward for step in run.results[0]]

    def truths(self, run: Any) -> list[float]:
        """By step, in standard deviations above the beginning."""
        return [(t - self.truth) / self.deviation for t in truths(run.results)]


def at_the_end(line: Sequence[float]) -> float:
    """The mean of the last three steps, to one digit more than is said of it."""
    return round(mean(line[-3:]), 2) + 0.0


def learned_said(run: Any, begin: Beginning) -> str:
    """Rewards, the truth and the KL in the end."""
    reward, true = (at_the_end(line) for line in (begin.rewards(run), begin.truths(run)))
    kl = run.results[0][-1].kl
    return (
        f"In the last three steps the reward is **{reward:+.2f}** standard deviations above the beginning, and the "
        f"truth **{true:+.2f}**. A response is {kl:.1f} nats away from the reference."
    )


def learned(run: Any, begin: Beginning) -> book.Figure:
    """What the reward model says, and what is true, step by step."""
    lines = {"reward": begin.rewards(run), "truth": begin.truths(run)}
    return book.lines(lines, x="step", y="standard deviations above the beginning", badge="measured",
                      title="What the reward model says, and what is true", sentence=_by_step(lines))  # fmt: skip


def written(run: Any) -> book.Table | str:
    """Some responses of the last step, and how good they truly are."""
    last = [one[-1] for one in run.results]
    rows: list[Row] = [
        {"response": text, "truth": f"{true:.2f}"}
        for one in last for text, true in zip(one.shown, one.truths, strict=False)
    ]  # fmt: skip
    return book.Table(rows, caption="What the policy writes in the last step (measured)") if rows else ""


def _by_step(lines: Mapping[str, Sequence[float]]) -> str:
    most = {name: max(range(len(line)), key=line.__getitem__) for name, line in lines.items()}
    return (
        ". ".join(f"The {name} is highest in step {k + 1}, at {lines[name][k]:+.2f}" for name, k in most.items()) + "."
    )


GRPO_STEPS = 12
FOUR_EACH = GRPO(responses=4, beta=0.1)  # responses to a prompt


def side_by_side(runs: Mapping[str, Any], task: Task) -> book.Figure:
    """The truth by step, a line for each run."""
    begin = Beginning.of(task)
    lines = {name: begin.truths(run) for name, run in runs.items()}
    ends = ", ".join(f"{name} {at_the_end(line):+.1f}" for name, line in lines.items())
    return book.lines(lines, x="step", y="truth, in standard deviations above the beginning", badge="measured",
                      title="GRPO with two kinds of advantages",
                      sentence=f"How far the truth has risen in the end, by advantage: {ends}.")  # fmt: skip


# Pairs, and a model that learned from them ---------------------------------------------------------------------------


def judged(task: Task, count: int = 4) -> book.Table:
    """Some pairs as they were judged: both responses, the truth, and what the reward model says."""
    found = task.pairs[:count]
    with torch.no_grad(), one_thread():
        rewards_p2 = rewards_of_pairs(task.rewards, found).tolist()
    rows: list[Row] = []
    for pair, (chosen, rejected) in zip(found, rewards_p2, strict=True):
        for what, answer, reward in (("chosen", pair.chosen, chosen), ("rejected", pair.rejected, rejected)):
            rows.append({"prompt": _shown(pair.prompt), "response": _shown(answer), "": what,
                         "truth": f"{truth(answer, ROOM):.2f}", "reward": f"{reward:+.2f}"})  # fmt: skip
    return book.Table(rows, caption="Pairs of responses, as they were judged")


def _shown(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("ascii").replace("\n", "\u21b5")


@dataclass(frozen=True)
class Judges:
    """Shares of the pairs: in which the chosen response is truly better (people), has the higher reward (chosen), and
    in which the truly better one has (truth). pairs: new ones that the model has not learned from, without ties."""

    pairs: int
    people: float
    chosen: float
    truth: float


def judges(task: Task, fresh: Sequence[Any]) -> Judges:
    """How often people and the reward model are right, on pairs that it did not learn from."""
    fresh = [p for p in fresh if truth(p.chosen, ROOM) != truth(p.rejected, ROOM)]
    with torch.no_grad(), one_thread():
        rewards_p2 = rewards_of_pairs(task.rewards, fresh)
    higher = (rewards_p2[:, 0] > rewards_p2[:, 1]).tolist()
    better = [truth(p.chosen, ROOM) > truth(p.rejected, ROOM) for p in fresh]
    return Judges(len(fresh), mean(better), accuracy(task.rewards, fresh),
                  mean(a == b for a, b in zip(higher, better, strict=True)))  # fmt: skip


# What breaks a step -----------------------------------------------------------------------------------------------


JUDGES = ("sound", "NaN on one rank")


def break_judge(fleet: Fleet, judge: str) -> None:
    """Let the reward model of the last rank return NaN, if that is what is asked for."""
    if judge != JUDGES[0] and fleet.group.rank == fleet.group.size - 1:
        torch.nn.init.constant_(fleet.models["reward"].lm_head.bias, float("nan"))  # type: ignore[union-attr, arg-type]


# PPO's loss, and DPO ------------------------------------------------------------------------------------------------


def clip_curve(clipped_loss: Callable[..., Tensor], clip: float = 0.2) -> book.Figure | str:
    """What the reader's loss gives for one token, by its ratio, for a good and for a bad advantage."""
    lines = {}
    for name, advantage in (("advantage +1", 1.0), ("advantage -1", -1.0)):
        points = []
        for n in range(25, 176, 5):
            ratio, one = n / 100, torch.ones(1)
            given = torch.log(ratio * one), torch.zeros(1), advantage * one, one > 0, 1, clip
            try:
                points.append((ratio, -float(clipped_loss(*given))))
            except Exception:  # a reader's, that is not right yet: the check has said what is wrong
                return "A function that returns no number cannot be drawn."
        lines[name] = points
    good, bad = map(_course, lines.values())
    said = f"With a good advantage the objective {good}. With a bad one it {bad}."
    return book.lines(lines, x="ratio of the probabilities, now over before", y="what is to become larger",
                      title="PPO's objective for one token", badge="simulated", sentence=said)  # fmt: skip


def _course(line: Sequence[tuple[float, float]]) -> str:
    """Where a curve rises, falls and is flat, in words."""
    parts: list[list[Any]] = []
    for (x, a), (to, b) in pairwise(line):
        how = "is flat" if abs(a - b) < 1e-6 else "rises" if b > a else "falls"
        if parts and parts[-1][0] == how:
            parts[-1][2] = to
        else:
            parts.append([how, x, to])
    return ", then ".join(f"{how} from {x:g} to {to:g}" for how, x, to in parts)


DPO_STEPS, PAIRS = 24, 32  # steps, and pairs in each of them on all ranks together


def pairs_of(task: Task, group: Group) -> Iterator[tuple[Tensor, Tensor]]:
    """Step by step this rank's pairs: tokens (2 p, t) with the chosen responses first, and which of them are judged."""
    for step in range(DPO_STEPS):
        mine = task.pairs[step * PAIRS + group.rank : (step + 1) * PAIRS : group.size]
        rows = [torch.tensor(p.prompt + answer) for which in ("chosen", "rejected") for p in mine
                for answer in (getattr(p, which),)]  # fmt: skip
        tokens_bt, mask_bt = padded(rows)
        mask_bt[:, :PROMPT] = False
        yield tokens_bt, mask_bt


def both(model: nn.Module, tokens_bt: Tensor, mask_bt: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the chosen and of the rejected responses, (p,) each."""
    sums_b = masked_sums(token_logprobs(model(tokens_bt), tokens_bt), mask_bt)
    chosen_p, rejected_p = sums_b.chunk(2)
    return chosen_p, rejected_p


def truth_of(policy: Any, seed: int) -> float:
    """The mean truth of 128 new responses."""
    with one_thread():
        return mean_truth(policy, seed=seed)


# Many runs, recorded -------------------------------------------------------------------------------------------------


def recorded(*methods: str) -> book.Table:
    """How the truth and the reward model's opinion have moved in recorded runs of these methods."""
    kept = alignment()
    caption = f"{kept.steps} steps of 32 responses: means over seeds, with their standard errors [recorded]"
    if "DPO" in methods:
        caption = caption.replace(" of 32 responses", f" ({DPO_STEPS} of DPO, which has then read every pair once)")
    rows: list[Row] = []
    for way in dict.fromkeys(run.way for run in kept.runs if run.way.startswith(methods)):
        runs = kept.of(way)
        rose, kl = [_rise(run) for run in runs if run.kl is not None], [run.kl for run in runs if run.kl is not None]
        rows.append({
            "": way, "runs": len(runs), "KL (nats)": f"{mean(kl):.1f}" if kl else "-",
            "truth, at first": f"{mean(run.before for run in runs):.3f}",
            "its rise": _told(Estimate.of([run.after - run.before for run in runs]), 3),
            "rise of the reward": _told(Estimate.of(rose), 1) if rose else "-",
        })  # fmt: skip
    return book.Table(rows, caption=caption)


def _told(found: Estimate, digits: int) -> str:
    return f"{found.mean:+.{digits}f} ± {found.error:.{digits}f}"


def _rise(run: AlignmentRun) -> float:
    """Of the reward, from the first step to the last."""
    assert run.reward_after is not None and run.reward_before is not None
    return run.reward_after - run.reward_before


def rises(way: str) -> float:
    """The mean rise of the truth."""
    return mean(run.after - run.before for run in alignment().of(way))


def hacked() -> dict[str, float]:
    """Of the recorded runs without a KL penalty: how many there are, in how many the reward rose and the truth fell,
    the mean rise of the reward, and how far the last responses are from the reference, without a penalty and with 0.05.
    """
    free, held = alignment().of("PPO, no KL"), alignment().of("PPO, beta 0.05")
    rose, truer = [_rise(run) for run in free], [run.after - run.before for run in free]
    far, near = (mean(run.kl for run in runs if run.kl is not None) for runs in (free, held))
    return {
        "runs": len(free), "hacked": sum(a > 0 > b for a, b in zip(rose, truer, strict=True)), "reward": mean(rose),
        "begin": mean(run.before for run in free), "far": far, "near": near,
    }  # fmt: skip
