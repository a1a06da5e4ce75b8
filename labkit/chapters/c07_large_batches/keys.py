"""Keys of chapter 7, large batches. Numbers come from labkit.cost; every slip is one that people really make."""

from __future__ import annotations

from math import sqrt

from labkit import cost
from labkit.grading.answers import Choice, Number, Symbolic

PER_WORKER, ONE_WORKER_STEPS = 32, 100_000  # the textbook's runs: samples of a worker, and steps of one alone
QUOTED = {8: (12_800, 0.15), 64: (1_720, 0.45)}  # workers: steps to the target, overhead of communication
GOYAL_BATCH, GOYAL_RATE, GOYAL_EPOCHS = 256, 0.1, 5
ADAM_RATE = 0.001


def steps_below(least: int, C: int, parts: int) -> Number:
    """Steps with a batch of C / parts samples."""
    right = cost.steps_to_target(C / parts, least, C)
    slips = [
        (least * parts, "That is the part which the noise costs. The least steps come on top of it."),
        (least * (1 + 1 / parts), "The fraction stands upside down: that is the law for samples."),
        (2 * least, "So many it takes at the critical batch itself."),
    ]
    return Number(right, "", slips=[slip for slip in slips if slip[0] != right])


def percent_below(least: int, C: int, parts: int) -> Number:
    """Percent of the samples that count, with a batch of C / parts samples."""
    slips = [
        (50, "That is the share at the critical batch. This one is smaller."),
        (100 / (1 + parts), "Upside down: a smaller batch wastes fewer samples, not more."),
        (100 / parts, "That is the batch in critical batches. Which part of the samples would the least have been?"),
        (100, "Every batch has some waste: only the smallest comes near 100 %."),
    ]
    right = 100 * cost.sample_efficiency(C / parts, C)
    return Number(right, "%", slips=[slip for slip in slips if slip[0] != right])


def best_for_samples() -> Choice:
    """Where each sample brings most."""
    why = {
        "a": "At the critical batch half of the samples are lost, compared with a tiny batch.",
        "c": "The largest batch takes the fewest steps, and by far the most samples.",
        "d": "Compare your two numbers: the share falls all the way, also below the critical batch.",
    }
    return Choice("b", why)


def times_fewer_steps(t: int) -> Number:
    """Steps at t critical batches, over steps at 2 t."""
    slips = [
        (2, "That would be a free doubling. It holds far below the critical batch only."),
        (1, "Nearly, far above the critical batch. But the steps fall all the way to their least number."),
        ((1 + 2 * t) / (1 + t), "That is how the samples grow. What do the steps do?"),
        (1 - (1 + 1 / (2 * t)) / (1 + 1 / t), "That is the share of steps that is saved. How many times fewer?"),
    ]
    return Number((1 + 1 / t) / (1 + 1 / (2 * t)), "times", 0.005, slips)


def times_more_samples(t: int) -> Number:
    """Samples at 2 t critical batches, over samples at t."""
    slips = [
        (2, "That would be twice the batch and as many steps. The steps do fall, by a little."),
        (2 * (1 + 1 / t) / (1 + 1 / (2 * t)), "More than twice the samples would need *more* steps than before."),
        ((1 + t) / (1 + 2 * t), "Upside down: that is the share of the samples that still counts."),
    ]
    return Number((1 + 2 * t) / (1 + t), "times", 0.005, slips)


def at_most_sooner(t: int) -> Number:
    """How many times fewer steps any batch can take, compared with one of t critical batches."""
    slips = [
        (1, "The textbook says so. By the law the steps fall until they are the least."),
        (1 + t, "The fraction stands upside down."),
        (2, "So much is left at the critical batch itself."),
        ((1 + 1 / t) / (1 + 1 / (2 * t)), "That is one doubling. Take as many workers as you like."),
    ]
    return Number(1 + 1 / t, "times", 0.005, slips)


HOURS, FEWER_HOURS = 18, 19  # of 1,024 and of 512 GPUs, as the textbook has them


def critical_batches() -> Number:
    """The batch of the smaller run, in critical batches."""
    q = HOURS / FEWER_HOURS  # (1 + 1 / (2 t)) / (1 + 1 / t) = q
    right = (q - 0.5) / (1 - q)
    slips = [
        (2 * right, "That is the batch of the larger run."),
        (1 / right, "Upside down: that is the critical batch in batches of the run."),
        (FEWER_HOURS / HOURS, "That is how much sooner the larger run is there. For which t does the law say that?"),
        (right + 0.5, "Check it: put it into the law at both batches."),
    ]
    return Number(right, "", slips=slips)


def _quoted_share(workers: int) -> float:
    return ONE_WORKER_STEPS / workers / QUOTED[workers][0]


def percent_by_the_law(critical: int) -> Number:
    """Percent of the samples that count with 64 workers, relative to one worker's batches."""
    batch = 64 * PER_WORKER
    slips = [
        (100 * _quoted_share(64), "That is the textbook's share, from its steps. What does the law say?"),
        (100 * cost.sample_efficiency(batch, critical), "Relative to one worker: its batches of 32 lose a little too."),
        (
            100 * cost.sample_efficiency(8 * PER_WORKER, critical, base=PER_WORKER),
            "That is the run with 8 workers.",
        ),
        (100 * batch / critical, "That is the batch in critical batches."),
    ]
    right = 100 * cost.sample_efficiency(batch, critical, base=PER_WORKER)
    return Number(right, "%", 0.004, slips)


def critical_needed(critical: int) -> Number:
    """The critical batch at which 64 workers have the share that follows from the textbook's steps."""
    share, batch = _quoted_share(64), 64 * PER_WORKER
    slips = [
        (critical, "With that one the law gives your first number."),
        (
            cost.critical_batch_from(8 * PER_WORKER, _quoted_share(8), base=PER_WORKER),
            "That is for the 8 workers and their 97.7 %. The two do not even agree with each other.",
        ),
        (batch * (1 - share) / share, "Upside down: a high share needs a high critical batch."),
    ]
    return Number(cost.critical_batch_from(batch, share, base=PER_WORKER), "", 0.02, slips)


def speedup_by_the_law(critical: int) -> Number:
    """How many times sooner 64 workers are there than one, with the law's share and the textbook's overhead."""
    overhead = QUOTED[64][1]
    share = cost.sample_efficiency(64 * PER_WORKER, critical, base=PER_WORKER)
    slips = [
        (64 * _quoted_share(64) / (1 + overhead), "That is the textbook's 40.1, with its steps. Take the law's share."),
        (64 * share, "That is the share of steps alone. A step also takes 45 % longer."),
        (64 / (1 + overhead), "That is hardware alone. Which part of the samples counts?"),
        (64 * share * (1 - overhead), "45 % longer is a division by 1.45, not a product with 0.55."),
    ]
    return Number(64 * share / (1 + overhead), "times", slips=slips)


def full_rate(N: int, epoch: int) -> Number:
    """The rate of N GPUs with 32 samples each, by the linear rule."""
    k = N * PER_WORKER / GOYAL_BATCH
    slips = [
        (GOYAL_RATE * N, "The rate follows the batch, not the number of GPUs: 0.1 was tuned with 256 samples."),
        (GOYAL_RATE * sqrt(k), "That is the square root rule."),
        (GOYAL_RATE, "That is the rate of the small batch."),
        (GOYAL_RATE / k, "A larger batch allows a larger rate, not a smaller one."),
    ]
    return Number(GOYAL_RATE * k, "", 0.005, slips)


def rate_on_the_way(N: int, epoch: int) -> Number:
    """The rate after `epoch` epochs of a warmup that begins at the old rate."""
    full, part = GOYAL_RATE * N * PER_WORKER / GOYAL_BATCH, epoch / GOYAL_EPOCHS
    slips = [
        (part * full, "That warmup begins at zero. This one begins at the old rate."),
        (full, "That is the full rate, when the warmup is over."),
        (GOYAL_RATE, "That is where it begins."),
        (GOYAL_RATE + part * full, "It ends at the full rate, so it rises by the *difference* of the two."),
    ]
    return Number(GOYAL_RATE + part * (full - GOYAL_RATE), "", 0.005, slips)


def adam_rate(N: int, epoch: int) -> Number:
    """The rate that the square root rule proposes for Adam, tuned to 0.001 with batches of 256."""
    k = N * PER_WORKER / GOYAL_BATCH
    slips = [
        (ADAM_RATE * k, "That is the linear rule."),
        (ADAM_RATE / sqrt(k), "A larger batch allows a larger rate, not a smaller one."),
        (ADAM_RATE * sqrt(N), "The root is of how many times the batch grew, not of the number of GPUs."),
    ]
    return Number(ADAM_RATE * sqrt(k), "", 0.005, slips)


def beta_then(k: int, beta: float, decay: float) -> Number:
    """The beta whose average remembers as many samples, when a step has k times as many."""
    slips = [
        (beta, "That remembers as many steps, so k times as many samples."),
        (1 - (1 - beta) / k, "Should the memory be longer in steps, or shorter?"),
        (beta / k, "Think of the memory: about 1 / (1 - beta) steps."),
    ]
    return Number(1 - k * (1 - beta), "", 0.0045, slips)


def decay_then(k: int, beta: float, decay: float) -> Number:
    """The weight decay that keeps rate x decay x steps, with k times the batch and the square root rule."""
    slips = [
        (decay, "That would be right with the linear rule: k times the rate, and 1/k of the steps."),
        (decay * k, "The steps are k times fewer. But the rate has grown as well."),
        (decay / sqrt(k), "Fewer steps shrink the weights fewer times. What makes up for that?"),
        (decay * k * sqrt(k), "The larger rate works for you here, not against you."),
    ]
    return Number(decay * sqrt(k), "", 0.005, slips)


def _single(b: int, N: int, small: float, large: float) -> tuple[float, float]:
    """Signal and noise of one step, as in section 4 of the chapter."""
    B = N * b
    return (B * large - b * small) / (B - b), (small - large) / (1 / b - 1 / B)


def _steps(b: int, N: int, own1: int, all1: int, own2: int, all2: int) -> tuple[list[float], list[float]]:
    signals, noises = zip(_single(b, N, own1, all1), _single(b, N, own2, all2), strict=True)
    return list(signals), list(noises)


def signal(b: int, N: int, own1: int, all1: int, own2: int, all2: int) -> Number:
    """The estimate of |G|^2 from both steps."""
    signals, _ = _steps(b, N, own1, all1, own2, all2)
    slips = [
        (signals[0], "That leaves the second step out. The estimate is right on average only if all steps count."),
        ((all1 + all2) / 2, "That is the norm of the averaged gradients. It still has the noise of B samples in it."),
        ((signals[0] + abs(signals[1])) / 2, "The second step's value is negative, and counts as it is."),
        (sum(signals), "Take the mean of the two steps."),
        (signals[0] / 2, "A negative value is not a zero. Only the mean of all is unbiased."),
    ]
    return Number(sum(signals) / 2, "", slips=slips)


def noise(b: int, N: int, own1: int, all1: int, own2: int, all2: int) -> Number:
    """The estimate of tr(Sigma) from both steps."""
    _, noises = _steps(b, N, own1, all1, own2, all2)
    right = sum(noises) / 2
    slips = [
        (noises[0], "That leaves the second step out."),
        (sum(noises), "Take the mean of the two steps."),
        ((own1 - all1 + own2 - all2) / 2, "That is the difference of the norms. Divide it by 1/b - 1/B."),
        (-right, "The sign: a small batch has the larger norm."),
        (right / b, "That is the noise of one rank's gradient. tr(Sigma) belongs to a single sample."),
    ]
    return Number(right, "", slips=[slip for slip in slips if slip[0] != right])


def scale(b: int, N: int, own1: int, all1: int, own2: int, all2: int) -> Number:
    """The gradient noise scale from both steps."""
    signals, noises = _steps(b, N, own1, all1, own2, all2)
    ratios = [s / g for s, g in zip(noises, signals, strict=True)]
    slips = [
        (sum(ratios) / 2, "That is the mean of the ratios. Average signal and noise each by itself, and divide then."),
        (ratios[0], "That is the first step alone."),
        (sum(signals) / sum(noises), "Upside down: noise over signal."),
    ]
    return Number(sum(noises) / sum(signals), "samples", slips=slips)


def step_share(percent: int, w: int, g: int, lr: float) -> Number:
    """The length of the printed step, as a part of the layer's length, without weight decay."""
    slips = [
        (lr * w, "That is the length of the step. How much is it of the layer's length?"),
        (lr * w / g, "That is the layer's rate. The step is that rate times a gradient of length g."),
        (lr * g / w, "That is the step of plain SGD."),
        (lr * 0.001, "So it would be with a trust factor of 0.001. The printed formula has none."),
    ]
    return Number(lr, "times", slips=slips)


def trust_needed(percent: int, w: int, g: int, lr: float) -> Number:
    """The trust factor with which a step is `percent` percent of the layer's length."""
    right = percent / 100 / lr
    slips = [
        (percent / lr, "In percent. Give the plain factor."),
        (percent / 100, "That would be right with a rate of 1."),
        (percent / 100 * lr, "A larger rate needs a smaller factor."),
        (percent / 100 / lr * g / w, "The lengths of layer and gradient are divided out already."),
    ]
    return Number(right, "", slips=slips)


def layer_rate(percent: int, w: int, g: int, lr: float) -> Number:
    """The rate of a layer with trust 0.001 and a weight decay of 0.01."""
    trust, decay = 0.001, 0.01
    slips = [
        (lr * trust * w / g, "The decay is missing at the bottom: it pulls at the weights as well."),
        (lr * w / (g + decay * w), "The trust factor is missing."),
        (trust * w / (g + decay * w), "That is the layer's own factor. The rate multiplies it."),
        (lr * trust * w / (g + decay), "The decay multiplies the length of the weights."),
        (lr * trust * g / (g + decay * w), "The layer's length stands on top, not the gradient's."),
    ]
    return Number(lr * trust * w / (g + decay * w), "", 0.004, slips)


def printed_rate() -> Choice:
    """The rate that makes the printed bound smallest."""
    why = {
        "b": "That is what the textbook concludes. Which term of its own formula would grow if the rate fell?",
        "c": "The second term grows with the rate.",
        "d": "The printed bound does depend on the rate, in one term.",
    }
    return Choice("a", why)


def smallest_bound() -> Symbolic:
    """The smallest value of a / (eta K) + c eta / B over all rates."""
    slips = [
        ("sqrt(a*c/(B*K))", "That is one of the two terms. At the best rate they are equal, so there are two of them."),
        ("sqrt(a*B/(c*K))", "That is the best rate. Put it into the bound."),
        ("a/K + c/B", "That is the bound at a rate of 1."),
        ("2*sqrt(a*c/B*K)", "More steps should make the bound smaller: K stands at the bottom too."),
        ("2*a*c/(B*K)", "The root is missing: put the best rate into both terms."),
    ]
    return Symbolic("2*sqrt(a*c/(B*K))", "a c B K", slips)


def rate_times(k: int) -> Number:
    """How the best rate of the bound grows, with k times the batch and the same samples."""
    slips = [
        (sqrt(k), "That is with as many steps as before. The same samples are k times fewer steps."),
        (1, "Batch and steps both change, and both have a part in the best rate."),
        (1 / k, "Fewer steps need longer ones."),
        (k * k, "The root is over both: batch and steps."),
    ]
    return Number(k, "times", 0.005, slips)


def bound_times(k: int) -> Number:
    """How the smallest bound changes, with k times the batch and the same samples."""
    slips = [
        (1 / sqrt(k), "That is with as many steps as before."),
        (sqrt(k), "The steps are fewer, and the batch is larger. Multiply the two."),
        (1 / k, "Steps times batch are the samples. They stay as they were."),
        (k, "Steps times batch are the samples. They stay as they were."),
    ]
    return Number(1.0, "times", 0.005, slips)
