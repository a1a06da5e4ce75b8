"""What chapter 15 runs: its kept ranks and the cuts that they try, and the job that its planners are asked about."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import labkit
from labkit import book
from labkit.chapters.c15_hybrid_parallelism import panels, pictures, same, small
from labkit.cost import planner
from labkit.cost.planner import MODELS, Calibration, Cluster, Estimate, MeasuredStep, Plan, Search
from labkit.parallel import HybridConfig

GPT3 = MODELS["GPT-3 175B"]
LINKS = small.network(8, nodes=4)  # of the eight ranks: four nodes of two


def allowed(world_size: int, transport: str, tokens: float) -> None:
    """Raises ParameterError for parameters with which the chapter makes no sense, before anything is started."""
    book.allow({
        f"world_size={world_size!r}: take a number from 2 to 8": world_size in range(2, 9),
        f'transport={transport!r}: it is "local" or "gloo"': transport in ("local", "gloo"),
        f"tokens={tokens!r}: take a positive number of tokens": isinstance(tokens, int | float) and tokens > 0,
    })  # fmt: skip


class Ranks:
    """The reader's own ranks, and eight that are kept, joined by `LINKS`. A cut that has run there is kept, too.

    sizes: of the reader's mesh. cut: its (tp, pp).
    """

    def __init__(self, world_size: int, eight: Any, transport: str, seed: int) -> None:
        tp, pp = small.usual(world_size)
        self.cut, self.sizes = (tp, pp), {"pp": pp, "dp": world_size // (tp * pp), "tp": tp}
        self.launch = functools.partial(labkit.launch, transport=transport)
        self._eight = eight
        self.two_steps = functools.cache(functools.partial(self._eight.run, small.two_steps))
        self._size, self._seed = world_size, seed

    def errors(self, program: Callable[..., Any]) -> str:
        """The first line of the error in which four ranks end: without asking each other first, and with."""
        return "\n\n".join(self._error(program, ask_first) for ask_first in (False, True))

    def _error(self, program: Callable[..., Any], ask_first: bool) -> str:
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # gloo has many words of its own
                self.launch(program, 4, ask_first)
        except labkit.RankFailed as failed:
            return str(failed).partition("\n")[0]
        return "no error"

    def steps(self, cuts: Mapping[str, HybridConfig]) -> dict[str, Any]:
        """name -> run of `small.two_steps` on the eight ranks."""
        return {name: self.two_steps(cuts[name]) for name in book.in_turn([*cuts], "two steps, {}")}

    def each_replica_8(self, t: int, p: int, d: int) -> Any:
        """A run of `small.two_steps` on t x p x d ranks, with 8 sequences for each replica, and rings."""
        cut = small.cut(t * p * d, t, p, 2, algorithm="ring")
        if cut.size == 8:
            return self.two_steps(cut, small.GPT, 8 * d)
        return self.launch(small.two_steps, cut.size, cut, small.GPT, 8 * d, clock="virtual")

    def by_hand(self, step: Callable[..., Any]) -> same.Signals:
        """The signals of three of the reader's steps on the reader's own mesh."""
        cut = small.cut(self._size, *self.cut, 2)
        found: same.Signals = self.launch(same.train_by_hand, self._size, cut, self._seed, step).results[0]
        return found

    def with_mistakes(self, mistakes: Iterable[str]) -> dict[str, panels.Checked]:
        """mistake -> run of three steps on 2 x 2 x 2 ranks; and one without, before them."""
        cut = small.cut(8, 2, 2, 2)
        return {
            mistake: panels.Checked(self._eight.run(same.train, cut, mistake, self._seed), self._seed)
            for mistake in book.in_turn(["none", *mistakes], "three steps, mistake: {}")
        }

    def held(self, cuts: Iterable[HybridConfig]) -> dict[str, tuple[dict[str, float], float]]:
        """name -> bytes of training state on the fullest rank, by part; and all of them by the planner."""
        named = {pictures.cut_name(cut): cut for cut in cuts}
        return {
            name: (small.fullest(self._eight.run(small.holding, named[name])), small.state_of(named[name]))
            for name in book.in_turn([*named], "what ranks hold with {}")
        }

    def timed(self, cuts: Iterable[HybridConfig]) -> dict[str, MeasuredStep]:
        """name -> the step that was measured, with its plan."""
        runs = self.steps({pictures.cut_name(cut): cut for cut in cuts})
        return {name: small.measured(run, LINKS) for name, run in runs.items()}


SHEET = {"products": 0.55, "across": 0.8}  # of what the data sheet of the little cluster promises, what there is


def by_the_data_sheet(timed: Mapping[str, MeasuredStep]) -> dict[str, MeasuredStep]:
    """The same runs, of a planner that knows the machine from its data sheet only: the peak of matrix products and the
    bandwidth between nodes are higher there than they are (`SHEET`). How fast attention is, it knows."""
    return {name: replace(one, cluster=_promised(one.cluster)) for name, one in timed.items()}


def _promised(cluster: Cluster) -> Cluster:
    *inner, outer = cluster.topology.levels
    levels = (*inner, replace(outer, bandwidth=outer.bandwidth / SHEET["across"]))
    peaks = tuple((dtype, flops / SHEET["products"]) for dtype, flops in cluster.gpu.peaks)
    return Cluster(
        replace(cluster.topology, levels=levels), replace(cluster.gpu, peaks=peaks),
        replace(cluster.efficiency, attention=SHEET["products"]),
    )  # fmt: skip


def fitted(runs: Mapping[str, MeasuredStep], seen: Iterable[str]) -> Calibration:
    """Two parameters fitted to the plans of these names: of its peak what matrix products reach, and of their bandwidth
    what the links between nodes reach. runs: `by_the_data_sheet`."""
    ignorant = planner.Efficiency(0.3, SHEET["products"], 1.0, 1.0, 0.3, overlaps=small.OVERLAPS)
    return planner.calibrated([runs[name] for name in seen], ["products", "across"], start=ignorant)


def gpt3(t: int, p: int, d: int, microbatches: int, sharding: str = "plain") -> Estimate:
    """What the planner says of GPT-3 on t x p x d H100s."""
    plan = Plan(t, p, data=d, microbatches=microbatches, sharding=sharding)
    return planner.estimate(GPT3, planner.h100_cluster(t * p * d), plan)


class Job:
    """A model to be trained on H100s, with a batch: what a search asks of each cut, with ZeRO-1 and `selective`.

    fits, seconds: of a cut (t, p, d).
    """

    def __init__(self, model: str, gpus: int, batch: int) -> None:
        self.model, self.gpus, self.batch = MODELS[model], gpus, batch
        self.heads, self.layers = self.model.heads, self.model.layers
        self._cluster = planner.h100_cluster(gpus)
        self.of = functools.cache(self._of)

    def _of(self, t: int, p: int, d: int) -> Estimate:
        plan = Plan(t, p, data=d, microbatches=self.batch // d, sharding="zero1", recompute="selective")
        return planner.estimate(self.model, self._cluster, plan)

    def fits(self, t: int, p: int, d: int) -> bool:
        return self.batch % d == 0 and self.of(t, p, d).fits

    def seconds(self, t: int, p: int, d: int) -> float:
        return self.of(t, p, d).seconds

    def all_cuts(self) -> dict[tuple[int, int], float | None]:
        """(t, p) -> seconds of a step of each possible cut, None where it does not fit."""
        cuts = [(t, p, self.gpus // (t * p)) for t in range(1, self.heads + 1) for p in range(1, self.layers + 1)
                if self.heads % t == 0 and self.gpus % (t * p) == 0]  # fmt: skip
        return {(t, p): self.seconds(t, p, d) if self.fits(t, p, d) else None for t, p, d in cuts}

    def activations(self, t: int, p: int, d: int) -> float:
        """Bytes of the fullest GPU beside its state: activations, logits and buffers."""
        held = self.of(t, p, d).held
        return float(held.total - held.parameters - held.gradients - held.optimizer)

    def ingredients(self, t: int, p: int, d: int) -> dict[str, float]:
        """What the reader's `step_seconds` asks for beside the degrees: the seconds of a layer on one GPU alone, of the
        all-reduces of a layer in a microbatch, and of what the data axis exchanges in a step."""
        plan = self.of(t, p, d).plan
        return small.layer_of(self.model, self._cluster, plan) | {"gradients": self.of(t, p, d).parts["data"]}

    def with_tensor(self, t: int) -> list[Estimate]:
        """All cuts with so many tensor ranks that fit."""
        stages = [p for p in range(1, self.layers + 1) if self.gpus % (t * p) == 0]
        cuts = [(t, p, self.gpus // (t * p)) for p in stages]
        return [self.of(*cut) for cut in cuts if self.fits(*cut)]

    @functools.cached_property
    def found(self) -> Search:
        """The planner's search over everything that it may vary."""
        return panels.search(self.model, self._cluster, self.batch)


TRILLION = planner.MEGATRON_2021[-1].model
