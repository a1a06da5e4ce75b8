"""What the workbenches of chapter 0 show: of a sum, and of a training run whose ranks return (losses, model)."""

from __future__ import annotations

from typing import Any

import torch

from labkit import book
from labkit.data import digits


def sums(run: Any) -> str:
    """Who lives, and what they hold after they have added up vectors of 1, 2, ...; results: (sum, who to kill)."""
    kill = run.results[0][1]
    nobody = "" if kill == "nobody" else f"There is no rank {kill} here, so nobody was killed. "
    size = len(run.results)
    alive = "0 and 1" if size == 2 else f"0 to {size - 1}"
    brought = ", ".join(str(1 + rank) for rank in range(size))
    held = ", ".join(f"{x[0]:g}" for x, _ in run.results)
    return f"{nobody}Ranks {alive} are alive. They brought {brought}, and now they hold {held}."


def circle(run: Any) -> book.Stepper:
    """The messages of the sum, around the circle of ranks."""
    return book.replay(run.trace, by="round", shape="circle")


class Diary(list[tuple[float, Any]]):
    """(loss, weights of the last layer) of each step; and marks for the timeline, put there by hooks.

    A step begins with the forward pass. The span "gradient" ends when every parameter has its gradient; "optimizer" is
    what its name says. A rank returns it as a plain list.
    """

    def __init__(self, group: Any, model: Any, optimizer: Any) -> None:
        super().__init__()
        self._group, self._model, self._parameters = group, model, list(model.parameters())
        self._span: Any = None
        self._due = 0
        model.register_forward_pre_hook(_Hook(self._begins))
        for p in self._parameters:
            p.register_post_accumulate_grad_hook(self._has_gradient)
        optimizer.register_step_pre_hook(lambda *_: self._open("optimizer"))
        optimizer.register_step_post_hook(lambda *_: self._close())

    def note(self, loss: Any) -> None:
        self.append((loss.item(), self._model.layers[-1].weight.detach().clone()))

    def _begins(self, *_: Any) -> None:
        self._group.step(len(self))
        self._due = len(self._parameters)
        self._open("gradient")

    def _has_gradient(self, _: Any) -> None:
        self._due -= 1
        if not self._due:
            self._close()

    def _open(self, name: str) -> None:
        self._span = self._group.span(name, kind="compute")
        self._span.__enter__()

    def _close(self) -> None:
        self._span.__exit__(None, None, None)

    def __reduce__(self) -> Any:
        return list, (list(self),)


class _Hook:
    """A hook that does nothing any more once its model has travelled to another process."""

    def __init__(self, does: Any = None) -> None:
        self._does = does

    def __call__(self, *about: Any) -> None:
        if self._does is not None:
            self._does(*about)

    def __reduce__(self) -> Any:
        return _Hook, ()


def diary(group: Any, model: Any, optimizer: Any) -> Diary:
    """See `Diary`."""
    return Diary(group, model, optimizer)


def parts_of_step(trace: Any, step: int) -> dict[str, float]:
    """compute: milliseconds that rank 0 computed in this step; part: of the whole step."""
    begin, end = trace.during_step(step)
    compute = trace.step_breakdown(step)[0]["compute"]
    return {"compute": 1e3 * compute, "part": compute / (end - begin)}


def ordinary_step(trace: Any, steps: int) -> int:
    """The step of median duration, without the first one, in which everything is done for the first time."""
    begin_and_end = {step: trace.during_step(step) for step in range(1, steps)}
    return sorted(begin_and_end, key=lambda step: begin_and_end[step][1] - begin_and_end[step][0])[(steps - 1) // 2]


def algorithms(trace: Any, step: int) -> list[str]:
    """The algorithm of each sum that rank 0 took part in, in this step."""
    calls = trace.collectives("all_reduce")
    return [c.algorithm for c in calls if c.rank == 0 and c.step == step and not c.nested]


def accuracy(model: Any) -> float:
    """The part of the test images that the model gets right."""
    images = digits()[1]
    with torch.no_grad():
        return (model(images.x).argmax(1) == images.y).float().mean().item()


def count_different(models: list[Any]) -> int:
    """How many of the models differ, in any bit."""
    return len({torch.nn.utils.parameters_to_vector(m.parameters()).detach().numpy().tobytes() for m in models})


def models(run: Any) -> str:
    """How many models the ranks have in the end, and how good they are."""
    ended = [model for _, model in run.results]
    count, best = count_different(ended), sorted(accuracy(model) for model in ended)
    ranks = f"{len(ended)} rank{'s' * (len(ended) > 1)}"
    if count == 1:
        return f"{ranks}, 1 model: it gets {best[0]:.1%} of the test images right."
    return f"{ranks}, {count} different models: they get {best[0]:.1%} to {best[-1]:.1%} of the test images right."


def curves(run: Any) -> book.Figure:
    """The loss on each rank, by step."""
    losses = {
        f"rank {rank}": {float(step): loss for step, (loss, _) in enumerate(log)}
        for rank, (log, _) in enumerate(run.results)
    }
    ends = sorted(list(line.values())[-1] for line in losses.values())
    first, last = losses["rank 0"][0], f"{ends[0]:.2g}" + f" to {ends[-1]:.2g}" * (len(ends) > 1)
    said = f"The loss begins near {first:.2g} and ends at {last}."
    return book.lines(losses, title="Loss on each rank", badge="measured", sentence=said)


def apart(run: Any) -> book.Figure:
    """How far the weights of each rank are from those of rank 0, by step."""
    weights = [[w for _, w in log] for log, _ in run.results]
    lines = {
        f"rank {rank}": {float(k): (w - weights[0][k]).norm().item() for k, w in enumerate(mine)}
        for rank, mine in enumerate(weights)
    }
    most = max(list(line.values())[-1] for line in lines.values())
    said = "All ranks have the same weights after every step: the lines lie on top of each other, at 0."
    if len(lines) == 1:
        said = "There is one rank, and so there is one model."
    if most:
        said = f"The ranks drift apart: in the end one of them is {most:.2g} away from rank 0, "
        said += f"whose weights have a norm of {weights[0][-1].norm():.2g}."
    y = "norm of the difference"
    return book.lines(
        lines, title="Distance from rank 0 after each step (last layer)", y=y, badge="measured", sentence=said
    )
