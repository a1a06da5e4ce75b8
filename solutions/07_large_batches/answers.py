"""What the programs of the exercises return, computed on one rank: what their checks compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.chapters.c07_large_batches.checks import Layers, shards
from labkit.optim import signal_and_noise


def rates(
    n: int, steps: int, lr: float, base_batch: int, per_rank: int, passes: int, warm: int, decay_at: int
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """The rate of each update with `n` ranks, and what known slips make of it, by the sentence that explains each."""
    batch = n * per_rank * passes
    k, falls = batch / base_batch, -(-decay_at // batch)

    def plan(times: float = k, begin: float = lr, early: int = 0, span: int = warm, falls: int = falls) -> Tensor:
        full = lr * times
        risen = [min(1.0, (t + early) / span) if span > 0 else 1.0 for t in range(steps)]
        rows = [(begin + (full - begin) * up) * (0.1 if t >= falls else 1) for t, up in enumerate(risen)]
        return torch.tensor(rows, dtype=torch.float64)

    wrong = {
        "The warmup begins at zero. It begins at the rate that was good for the small batch.": plan(begin=0.0),
        "Update 0 is a step too high already: it has the old rate.": plan(early=1),
        "The warmup is over one update early: update `warm` is the first at the full rate.": plan(span=warm - 1),
        "There is no warmup: update 0 has the old rate.": plan(span=0),
        "The ranks count twice: they are in the batch already.": plan(times=k * n),
        "The passes do not count: an update sees the samples of all of them.": plan(times=k / passes),
        "The rate follows the number of ranks. It should follow the batch.": plan(times=n),
        "That is the square root rule.": plan(times=math.sqrt(k)),
        "The rate falls after as many *updates* as before. Count samples.": plan(falls=-(-decay_at // base_batch)),
        "The rate never falls.": plan(falls=steps),
        "The rate falls one update late: before that update `decay_at` samples have been read.": plan(falls=falls + 1),
    }
    return plan(), {text: [rates] * n for text, rates in wrong.items()}


def noise_numbers(own: Sequence[Tensor], per_rank: int) -> tuple[Tensor, dict[str, float], dict[str, dict[str, float]]]:
    """From each rank's own gradients (steps x d): their averages, the numbers, and what known slips make of these.

    The numbers are "signal" and "noise", means over the steps, and "scale", their quotient.
    """
    n, averages = len(own), torch.stack(list(own)).mean(0)
    small = torch.stack([g.square().sum(1) for g in own])  # rank x step
    large = averages.square().sum(1)

    def numbers(small: Tensor, large: Tensor, b: int = per_rank, B: int = n * per_rank) -> dict[str, float]:
        signal, noise = ((B * large - b * small) / (B - b)).mean(), ((small - large) / (1 / b - 1 / B)).mean()
        return {"signal": float(signal), "noise": float(noise), "scale": float(noise / signal)}

    mean = small.mean(0)
    pairs = [signal_and_noise(b, a, per_rank, n * per_rank) for b, a in zip(mean.tolist(), large.tolist(), strict=True)]
    ratios = [s / g for g, s in pairs]
    right = numbers(mean, large)
    wrong = {
        "The small norm was taken after the average: then there is one batch size, not two.": numbers(large, large),
        "The two batch sizes are exchanged.": numbers(mean, large, n * per_rank, per_rank),
        "Norms are not squared.": numbers(small.sqrt().mean(0), large.sqrt()),
        "That is the square of the mean norm. Average the squares.": numbers(small.sqrt().mean(0).square(), large),
        "The batch sizes are those of ranks, 1 and N. Count samples.": numbers(mean, large, 1, n),
        "The small norms are added up over the ranks. Take their mean.": numbers(small.sum(0), large),
        "The large norm is that of the sum over the ranks, not of the average.": numbers(mean, large * n * n),
        "That is the mean of the steps' ratios. Divide the means.": right | {"scale": sum(ratios) / len(ratios)},
    }
    signals, noises = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    for text, seen in (
        ("Steps with a negative signal are left out. They are part of the mean.", signals[signals > 0]),
        ("A negative signal counts as it is: without its sign the mean is too large.", signals.abs()),
        ("A negative signal counts as it is, not as zero.", signals.clamp(min=0)),
    ):
        wrong[text] = right | {"signal": float(seen.mean()), "scale": float(noises.mean() / seen.mean())}
    for rank in range(n):
        wrong[f"That is rank {rank}'s own small norm. Average it over the ranks."] = numbers(small[rank], large)
    return averages, right, wrong


def lars(
    w: Sequence[Tensor], g: Sequence[Tensor], n: int, lr: float, trust: float, decay: float
) -> tuple[list[Layers], dict[str, list[Layers]]]:
    """By rank: its shards after a step of LARS on whole layers `w` with gradients `g`; and what known slips leave."""

    def step(of_shards: str = "", decay_below: float = decay, decay_above: float = decay) -> list[Layers]:
        out = []
        for w_r, g_r in zip(shards(w, n), shards(g, n), strict=True):
            row = []
            for layer, (a, b) in enumerate(zip(w_r, g_r, strict=True)):
                if of_shards == "own":
                    w2, g2 = _square(a), _square(b)
                elif of_shards == "lengths":
                    w2, g2 = (
                        sum(math.sqrt(_square(part)) for part in whole[layer].tensor_split(n)) ** 2 for whole in (w, g)
                    )
                elif of_shards == "all":
                    w2, g2 = sum(map(_square, w)), sum(map(_square, g))
                else:
                    w2, g2 = _square(w[layer]), _square(g[layer])
                below = math.sqrt(g2) + decay_below * math.sqrt(w2)
                local = trust * math.sqrt(w2) / below if w2 > 0 and below > 0 else 1.0
                row.append(a - lr * local * (b + decay_above * a))
            out.append(row)
        return out

    wrong = {
        "The lengths are those of a rank's shard. The layer's own need the squares of all ranks.": step("own"),
        "The lengths of the shards are added up. Add their squares, and take the root then.": step("lengths"),
        "The lengths are those of all layers together. Each layer has its own rate.": step("all"),
        "The weight decay is missing at the bottom of the rate.": step(decay_below=0.0),
        "The weight decay is missing in the step itself.": step(decay_above=0.0),
        "The weight decay is missing, at the bottom of the rate and in the step.": step("", 0.0, 0.0),
    }
    return step(), wrong


def _square(x: Tensor) -> float:
    return float(x.double().square().sum())


def lamb(
    state: dict[str, Layers], adapt: Sequence[bool], n: int, t: int, lr: float, decay: float
) -> tuple[list[tuple[Layers, Layers, Layers]], dict[str, list[Layers]]]:
    """By rank: its shards of weights and of both averages after step `t` of LAMB; and weights that known slips leave.

    state: whole layers "w", "g", "m" and "v". Betas are 0.9 and 0.99, eps is 1e-6. Where adapt is False, and where
    a length is zero, the step is Adam's.
    """
    w, g = state["w"], state["g"]
    m = [0.9 * a + 0.1 * b for a, b in zip(state["m"], g, strict=True)]
    v = [0.99 * a + 0.01 * b * b for a, b in zip(state["v"], g, strict=True)]

    def direction(layer: int, corrected: bool, decay: float) -> Tensor:
        by1, by2 = (1 - 0.9**t, 1 - 0.99**t) if corrected else (1.0, 1.0)
        return m[layer] / by1 / ((v[layer] / by2).sqrt() + 1e-6) + decay * w[layer]

    def step(
        lengths: str = "", corrected: bool = True, decay: float = decay, every: bool = False, none: bool = False
    ) -> list[Layers]:
        us = [direction(layer, corrected, decay) for layer in range(len(w))]
        out = []
        for rank in range(n):
            row = []
            for layer, u in enumerate(us):
                top, below = w[layer], g[layer] if lengths == "gradient" else u
                if lengths == "undecayed":
                    below = u - decay * w[layer]
                if lengths == "own":
                    top, below = (x.tensor_split(n)[rank] for x in (top, below))
                a, b = math.sqrt(_square(top)), math.sqrt(_square(below))
                stretch = a / b if (adapt[layer] or every) and not none and a > 0 and b > 0 else 1.0
                row.append((w[layer] - lr * stretch * u).tensor_split(n)[rank])
            out.append(row)
        return out

    wrong = {
        "The lengths are those of a rank's shard. The layer's own need the squares of all ranks.": step("own"),
        "The length below is the gradient's. LAMB stretches Adam's step.": step("gradient"),
        "The length below leaves the weight decay out: it is part of the step.": step("undecayed"),
        "The averages are not corrected for their start at zero.": step(corrected=False),
        "The weight decay is missing.": step(decay=0.0),
        "Every layer is stretched. Some take the plain step.": step(every=True),
        "No layer is stretched: that is AdamW.": step(none=True),
    }
    kept = zip(step(), shards(m, n), shards(v, n), strict=True)
    return [tuple(three) for three in kept], wrong  # type: ignore[misc]


def grown(own: Sequence[Tensor], per_piece: int, first: int, most: int) -> tuple[list[int], Layers]:
    """Passes of each update, and its averaged gradient, from each rank's pieces (pieces x d).

    After each update the passes double, up to `most`, where the noise scale of all updates so far is above the batch.
    """
    pieces = torch.stack(list(own))
    n, begin, passes = len(own), 0, first
    told, averages, signals, noises = [], [], [], []
    while begin + passes <= pieces.shape[1]:
        now = pieces[:, begin : begin + passes]
        averages.append(now.mean((0, 1)))
        batch = n * passes * per_piece
        small = float(now.square().sum(2).mean())
        signal, noise = signal_and_noise(small, float(averages[-1].square().sum()), per_piece, batch)
        signals.append(signal)
        noises.append(noise)
        told.append(passes)
        begin += passes
        if sum(noises) > batch * sum(signals):  # also where the signal is not above zero
            passes = min(2 * passes, most)
    return told, averages
