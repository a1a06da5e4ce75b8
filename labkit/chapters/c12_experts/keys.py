"""Keys of chapter 12, experts. Numbers come from labkit.cost; every slip is one that people make."""

from __future__ import annotations

from labkit import cost
from labkit.chapters.c12_experts.shapes import WIDTH_AND_HIDDEN
from labkit.cost.units import GB, MB
from labkit.grading.answers import Choice, Number, Several

# Held, and used -----------------------------------------------------------------------------------------------------

WIDTH, HIDDEN = WIDTH_AND_HIDDEN["DeepSeekMoE 16B"]
AN_EXPERT = 3 * WIDTH * HIDDEN / 1e9  # billions of parameters
DENSE, SHARED, BYTES, ROOM = 1.0, 2, 16, 80  # billions outside of experts; experts; bytes a parameter; GB of a GPU


def held_billions(X: int, k: int, L: int, ep: int) -> Number:
    """Billions of parameters of the whole model."""
    slips = [
        (DENSE + L * X * AN_EXPERT, "You left out the shared experts. They are held as well."),
        (L * (X + SHARED) * AN_EXPERT, "You left out what is not in an expert."),
        (DENSE + (X + SHARED) * AN_EXPERT, "That is one layer of experts. There are several."),
        (DENSE + L * (X + SHARED) * AN_EXPERT * 2 / 3, "A gated expert has three matrices, and not two."),
        (DENSE + L * (k + SHARED) * AN_EXPERT, "That is what one token uses."),
    ]
    return Number.of(DENSE + L * (X + SHARED) * AN_EXPERT, "", slips)


def used_billions(X: int, k: int, L: int, ep: int) -> Number:
    """Billions of parameters that one token uses."""
    slips = [
        (DENSE + L * k * AN_EXPERT, "The shared experts compute every token, besides the chosen ones."),
        (L * (k + SHARED) * AN_EXPERT, "Every token also uses what is not in an expert."),
        ((DENSE + L * (X + SHARED) * AN_EXPERT) * k / X, "Only the routed experts are used in part. The rest is used "
         "in full."),
        (DENSE + L * (X + SHARED) * AN_EXPERT, "That is the whole model."),
        (DENSE + (k + SHARED) * AN_EXPERT, "That is one layer of experts. There are several."),
    ]  # fmt: skip
    return Number.of(DENSE + L * (k + SHARED) * AN_EXPERT, "", slips)


def _gigabytes(X: int, L: int, ep: float) -> float:
    return BYTES * (DENSE + L * (X / ep + SHARED) * AN_EXPERT)


def gigabytes_each(X: int, k: int, L: int, ep: int) -> Number:
    """GB of training state on each of `ep` GPUs."""
    slips = [
        (_gigabytes(X, L, 1) / ep, "You shared out everything. Shared experts and the dense part are on every GPU."),
        (BYTES * (DENSE / ep + L * (X / ep + SHARED) * AN_EXPERT), "The dense part is on every GPU."),
        (BYTES * (DENSE + L * (X + SHARED) / ep * AN_EXPERT), "The shared experts are on every GPU."),
        (BYTES * (DENSE + L * (k / ep + SHARED) * AN_EXPERT), "A GPU holds its experts whether a token chooses them or "
         "not."),
        (_gigabytes(X, L, ep) / 8, "That is the weights in 16 bits alone. Training takes 16 bytes a parameter."),
        (_gigabytes(X, L, 1), "That is one GPU that holds all experts."),
    ]  # fmt: skip
    return Number.of(_gigabytes(X, L, ep), "GB", slips)


def fewest_gpus(X: int, k: int, L: int, ep: int) -> Number:
    """The smallest power of two of GPUs on which the state fits into 80 GB each."""
    right = next(2**i for i in range(12) if _gigabytes(X, L, 2**i) <= ROOM)
    everything = next(2**i for i in range(12) if _gigabytes(X, L, 1) / 2**i <= ROOM)
    slips = [
        (everything, "You shared out everything. What is on every GPU does not become less."),
        (right // 2, "With so many it does not fit yet."),
        (2 * right, "It fits on fewer."),
        (4 * right, "It fits on fewer."),
    ]
    return Number.count(right, slips)


# Find the error: divided by the degree --------------------------------------------------------------------------------


def rows_claimed(n: int, k: int, ep: int, each: int, hot: int) -> Number:
    """Rows that a GPU's experts compute, as the claim has it."""
    slips = [
        (float(n * k), "That is what really happens. What does the claim say?"),
        (n / ep, "Each token makes k choices, and each choice is a row."),
        (n * k / each, "The claim divides by the number of GPUs, not by the experts of one."),
    ]
    return Number.of(n * k / ep, "", slips)


def rows_really(n: int, k: int, ep: int, each: int, hot: int) -> Number:
    """Rows that a GPU's experts compute if all experts are chosen alike."""
    slips = [
        (n * k / ep, "That is the claim. How many tokens do all GPUs have together, and who computes their choices?"),
        (float(n), "Each token makes k choices, and each choice is a row."),
        (float(n * k * ep), "That is all GPUs together."),
        (n * k / each, "That is one expert. A GPU holds several."),
    ]
    return Number.of(float(n * k), "", slips)


def rows_with_hot(n: int, k: int, ep: int, each: int, hot: int) -> Number:
    """Rows of the GPU that holds an expert with `hot` times its fair share; the others share the rest evenly."""
    experts, choices = ep * each, ep * n * k
    own = hot * choices / experts
    others = (each - 1) * (choices - own) / (experts - 1)
    slips = [
        (hot * n * k, "Only one of its experts is hot. The GPU's others get less than their fair share."),
        (own, "That is the hot expert alone. Its GPU holds others, too."),
        (own + (each - 1) * choices / experts, "What the hot expert gets more, all others get less."),
        (n * k, "That is the mean of all GPUs."),
        (own + (each - 1) * (choices - own) / experts, "Nearly: the rest is shared by one expert fewer."),
    ]
    return Number.of(own + others, "", slips, 0.002)


def why_not_divided() -> Choice:
    """Why activations are not divided."""
    why = {
        "a": "They are kept for the backward pass like all others.",
        "c": "It is small, and it has nothing to do with the rows of experts.",
        "d": "They send it there, and it is freed at home. Count what has come instead.",
    }
    return Choice("b", why)


# Full, and empty ------------------------------------------------------------------------------------------------------


def percent_dropped(X: int, hot: int, C: float) -> Number:
    """Percent of all choices that are dropped: two experts have `hot` times their fair share."""
    right = 100 * 2 * (hot - C) / X
    slips = [
        (right / 2, "That is one hot expert. There are two."),
        (100 * (hot - C) / hot, "That is the part of the hot experts' own choices. Compare with all choices."),
        (100 * 2 * (hot - 1) / X, "That is without the capacity factor."),
        (100 * 2 * hot / X, "That is what the hot experts are offered. They take C times the fair share of it."),
        (0.0, "There are free places at the others, but a choice may not go to another expert."),
    ]
    return Number.of(right, "%", slips)


def percent_empty(X: int, hot: int, C: float) -> Number:
    """Percent of all places that stay empty."""
    dropped = 2 * (hot - C) / X
    slips = [
        (100 * (1 - 1 / C), "That is without the drops. Those choices fill no place."),
        (100 * (C - 1 + dropped), "That compares with the choices. There are C times as many places."),
        (100 * (1 - dropped) / C, "That is the part that is full."),
        (100 * dropped, "That is what is dropped. Which places stay empty?"),
    ]
    return Number.of(100 * (1 - (1 - dropped) / C), "%", slips)


def factor_for_all(X: int, hot: int, C: float) -> Number:
    """The smallest capacity factor with which nothing is dropped."""
    slips = [
        (2.0 * hot, "Each of the two has a place in its own queue: they need not share."),
        (C * hot, "The factor counts fair shares already."),
        (float(X), "That is enough if one expert gets everything. Here none does."),
    ]
    return Number.of(float(hot), "", slips)


def empty_for_all(X: int, hot: int, C: float) -> Number:
    """Percent of places that stay empty with that factor."""
    slips = [
        (100 / hot, "That is the part that is full."),
        (100 * (1 - 1 / C), "That is with the first factor."),
        (100 * (1 - 2 / X), "All experts but two are not empty: they get less than the fair share, and have room for "
         "more."),
    ]  # fmt: skip
    return Number.of(100 * (1 - 1 / hot), "%", slips)


# The value of the loss ------------------------------------------------------------------------------------------------


def _loss(load: list[float], probabilities: list[float]) -> float:
    return cost.balance_loss(load, probabilities)


def even_value(X: int, p: int, q: int) -> Number:
    """X sum f P, all experts alike."""
    slips = [(1 / X, "That is the sum. The loss multiplies it by X."), (0.0, "Its smallest value is not 0: add up."),
             (float(X), "That is when one expert gets everything, with certainty.")]  # fmt: skip
    return Number.of(_loss([1.0] * X, [1 / X] * X), "", slips)


def collapsed_value(X: int, p: int, q: int) -> Number:
    """One expert is chosen by all, and has p percent of the probability on average."""
    right = _loss([1.0] + [0.0] * (X - 1), [p / 100] + [(1 - p / 100) / (X - 1)] * (X - 1))
    slips = [
        (p / 100, "That is the sum. The loss multiplies it by X."),
        (
            float(X),
            "That would be with certainty. P is the mean of the router's probabilities, and not of its choices.",
        ),
        (X * (p / 100) ** 2, "f is the share of the choices, and all tokens choose this expert: f = 1."),
        (1.0, "That is an even load."),
    ]
    return Number.of(right, "", slips)


def half_value(X: int, p: int, q: int) -> Number:
    """Half of the experts get all choices, evenly, and have q percent of the probability together."""
    half = X // 2
    right = _loss([1.0] * half + [0.0] * half, [q / 100 / half] * half + [(1 - q / 100) / half] * half)
    slips = [
        (2.0, "That would be with certainty: the other half still has some probability."),
        (q / 100, "Each chosen expert has f = 2/X. The loss multiplies the sum by X."),
        (right / X, "That is the sum. The loss multiplies it by X."),
        (X * q / 100, "That is when one expert gets everything."),
        (1.0, "That is an even load."),
    ]
    return Number.of(right, "", slips)


def blind_value(X: int, p: int, q: int) -> Number:
    """One expert is chosen by all, by a hair: the mean probabilities are all alike."""
    slips = [
        (float(X), "f is 1 for that expert. What is its P?"),
        (1 / X, "That is the sum. The loss multiplies it by X."),
        (0.0, "One term of the sum is left: f = 1 and P = 1/X."),
    ]
    return Number.of(_loss([1.0] + [0.0] * (X - 1), [1 / X] * X), "", slips)


def what_the_bias_changes() -> Several:
    """What is true of the bias that takes the place of the loss."""
    why = {
        "a": "the gate weights come from the logits without the bias.",
        "b": "what decides which experts are the best k?",
        "c": "who computes the gradient of the bias? And what else is added to the loss of the task?",
        "d": "it moves by one small, fixed amount in a step.",
        "e": "a rank's own tokens may be unlike those of the others. Whose load does an expert have?",
    }
    return Several("bce", why)


# Once to a node -------------------------------------------------------------------------------------------------------

V3_WIDTH, ON_A_NODE = 7168, 8  # width of a token; GPUs of a node


def _payload(n: int, copies: float) -> float:
    return copies * cost.dispatch_payload_bytes(n, V3_WIDTH)


def four_all_to_alls(n: int, k: int, nodes: int, M: int) -> Number:
    """GB that a rank sends for one layer in a forward and a backward pass."""
    size = ON_A_NODE * nodes
    right = 4 * _payload(n, k) * (size - 1) / size / GB
    slips = [
        (right / 2, "That is the forward pass. The gradients of all rows take both ways again."),
        (right / 4, "That is one all-to-all. There are two in the forward pass, and two in the backward pass."),
        (right / k, "Each of the k choices is a row of its own."),
        (4 * _payload(n, k) * (nodes - 1) / nodes / GB, "That is what leaves the node. Here it is what leaves the "
         "GPU."),
        (2 * right, "16 bits are 2 bytes."),
    ]  # fmt: skip
    return Number.of(right, "GB", slips, 0.005)


def across_each(n: int, k: int, nodes: int, M: int) -> Number:
    """MB of the forward dispatch that leave a rank's node, a row for each choice."""
    size = ON_A_NODE * nodes
    right = _payload(n, k) * (nodes - 1) / nodes / MB
    slips = [
        (_payload(n, k) * (size - 1) / size / MB, "That is what leaves the GPU. The others of its node are near."),
        (_payload(n, k) / MB, "One of the nodes is its own."),
        (right / k, "Each of the k choices is a row of its own."),
        (2 * right, "That is there and back, or with 4 bytes a number. Here it is one way, in 16 bits."),
    ]
    return Number.of(right, "MB", slips, 0.005)


def _touched(nodes: int, k: int) -> float:
    """Nodes besides its own that k independent choices of a token touch, on average."""
    return (nodes - 1) * (1 - (1 - 1 / nodes) ** k)


def across_once(n: int, k: int, nodes: int, M: int) -> Number:
    """MB of the same, if a token's row goes to each node once."""
    each = _payload(n, 1) / MB
    slips = [
        (each * k * (nodes - 1) / nodes, "That is a row for each choice."),
        (each * (nodes - 1), "That is every token to every node. Some nodes have none of its experts."),
        (each * nodes * (1 - (1 - 1 / nodes) ** k), "One of the nodes is its own."),
        (each * (nodes - 1) * (1 - 1 / nodes) ** k, "That is the chance that a node has *none* of its experts."),
        (each * min(k, nodes - 1), "That is the worst case. Some of the k choices lie on the same node."),
    ]
    return Number.of(each * _touched(nodes, k), "MB", slips, 0.005)


def across_at_most(n: int, k: int, nodes: int, M: int) -> Number:
    """MB of the same at the most, if a token takes experts of at most M nodes."""
    each = _payload(n, 1) / MB
    slips = [
        (each * k, "That is a row for each choice. Now it goes to each node once."),
        (each * M * (nodes - 1) / nodes, "That is a mean. At the most none of the M nodes is its own."),
        (each * (M - 1), "At the most none of the M nodes is its own."),
        (each * M * k, "Once to a node, however many of its experts the token takes there."),
    ]
    return Number.of(each * M, "MB", slips, 0.005)
