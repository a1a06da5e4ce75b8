"""Replicas whose gradients are averaged, and replicas whose gradients are not: where their weights go."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import SERIES
from labkit.book.drawing.svg import Svg, number

Replica = tuple[Tensor, Tensor]  # a matrix after each step (steps, weights), and all weights in the end


def drift(together: Sequence[Replica], apart: Sequence[Replica], badge: str = "measured") -> book.Player:
    """A matrix of each rank after each step, in the plane in which its weights differ most.

    How far two ranks are apart is the root mean square over the weights, as is the size of a weight beside it.
    """
    points = torch.stack([path for path, _ in (*together, *apart)]).double()
    flat = points.flatten(0, 1)
    _, _, axes = torch.linalg.svd(flat - points[0, 0], full_matrices=False)
    axes = axes[:2] * axes[:2].sum(1, keepdim=True).sign()  # a plane has no left and right: let the sums be positive
    places = (points - points[0, 0]) @ axes.T
    low, high = places.flatten(0, 1).min(0).values, places.flatten(0, 1).max(0).values
    unit = torch.where(high > low, high - low, torch.ones(2).double())
    n, sides = len(together), {"gradients averaged": places[: len(together)], "not averaged": places[len(together) :]}
    spread = {name: [_furthest(p[:, k]) for k in range(p.shape[1])] for name, p in
              {"gradients averaged": points[:n], "not averaged": points[n:]}.items()}  # fmt: skip
    equal = {name: all(torch.equal(all_of[0][1], weights) for _, weights in all_of)
             for name, all_of in zip(sides, (together, apart), strict=True)}  # fmt: skip
    ends = {name: f"{name}: in the end {'all weights are equal, bit for bit' if same else 'the weights differ'}"
            for name, same in equal.items()}  # fmt: skip
    frames = []
    for k in range(points.shape[1]):
        size = float(points[:, k].square().mean().sqrt())
        differs = " and ".join(f"by {far[k]:.2g} ({name})" for name, far in spread.items())
        said = (
            f"After {k} step{'s' * (k != 1)} a typical weight of this matrix is {size:.2g}. Between the two ranks that "
            f"are furthest apart it differs {differs} (root mean squares)."
        )
        svg = Svg(WIDTH, "Where the replicas go", said)
        top = heading(svg, badge, said)
        top = legend(svg, top, [(f"rank {r}", SERIES[r].colour, SERIES[r].hatch, "") for r in range(n)]) + 4
        for side, (name, paths) in enumerate(sides.items()):
            _paths(svg, 16 + side * 372, top, ends[name], ((paths[:, : k + 1] - low) / unit).tolist())
        frames.append(
            (svg.render(top + 300), f"{said} {' '.join(f'{end[0].upper()}{end[1:]}.' for end in ends.values())}")
        )
    rows = [
        {"step": k} | {f"{name}: furthest apart": far[k] for name, far in spread.items()} for k in range(len(frames))
    ]
    return book.play(frames, title="Where the replicas go", badge=badge, rows=rows, begin=len(frames) - 1)


def _furthest(weights: Tensor) -> float:
    """The largest distance between two of the ranks, as the root mean square of a weight's difference."""
    if torch.equal(weights, weights[:1].expand_as(weights)):
        return 0.0
    return float(torch.cdist(weights, weights).max()) / weights.shape[1] ** 0.5


def _paths(svg: Svg, left: float, top: float, name: str, paths: list[list[list[float]]]) -> None:
    """Each rank's way so far, in a square; the place where it is now has the rank's marker."""
    wide, high = 356.0, 270.0
    svg.text(left, top + 12, name, bold=True)
    svg.rect(left, top + 20, wide, high)

    def at(place: list[float]) -> tuple[float, float]:
        return left + 16 + (wide - 32) * place[0], top + 20 + high - 16 - (high - 32) * place[1]

    for rank, path in enumerate(paths):
        d = "M" + " L".join(f"{number(x)} {number(y)}" for x, y in map(at, path))
        svg.path(d, colour=SERIES[rank].colour, width=2)
    for rank, path in enumerate(paths):
        svg.marker(
            *at(path[-1]), SERIES[rank].marker, SERIES[rank].colour, 6 + min(1.5, 6 / len(paths)) * (len(paths) - rank)
        )
    svg.marker(*at(paths[0][0]), "circle", "#ffffff", 4)
    svg.text(at(paths[0][0])[0] + 8, at(paths[0][0])[1] - 6, "start", 11)
