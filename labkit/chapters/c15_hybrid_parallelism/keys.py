"""Keys of chapter 15, hybrid parallelism. Numbers come from labkit.cost; every slip is one that people make."""

from __future__ import annotations

from labkit import cost
from labkit.cost.units import DAY, GB
from labkit.grading.answers import Listing, Number, Several
from labkit.parallel import Layout

# A rank of four axes ------------------------------------------------------------------------------------------------


def coordinates(dp: int, pp: int, cp: int, tp: int, rank: int) -> Listing:
    """[dp, pp, cp, tp] of a rank."""
    sizes = {"dp": dp, "pp": pp, "cp": cp, "tp": tp}
    layout, backwards = Layout(sizes), Layout(dict(reversed(sizes.items())))
    keys = []
    for axis, right in layout.coordinates(rank).items():
        over = rank // layout.stride(axis)
        slips = [
            (backwards.coordinates(rank)[axis], "That has the first axis innermost. The last one is: its stride is 1."),
            (over, f"Divided by the stride it is {over}: take what is left modulo the size of the axis."),
            (rank % sizes[axis], "That is rank % size, right for the last axis alone. Divide by the stride first."),
        ]
        keys.append(Number.count(right, slips))
    return Listing(keys)


def next_stage(dp: int, pp: int, cp: int, tp: int, rank: int) -> Number:
    """The rank to which it sends its activations, the first stage after the last."""
    layout = Layout({"dp": dp, "pp": pp, "cp": cp, "tp": tp})
    at = layout.coordinates(rank)
    right = layout.rank(**{**at, "pp": (at["pp"] + 1) % pp})
    slips = [
        (rank + 1, "That is its neighbour along tp, which holds other columns of the same layers."),
        (rank + tp, "That is its neighbour along cp. The stride of pp is the product of all axes behind it."),
        (rank + pp, "pp is how many stages there are. How far apart are two of them?"),
        (rank + pp * cp * tp, "That is the stride of dp: it counts the stages themselves as well."),
    ]
    return Number.count(right, slips)


def gradient_ranks(dp: int, pp: int, cp: int, tp: int, rank: int) -> Number:
    """Ranks among which a gradient is summed, this one included."""
    slips = [
        (dp, "Ranks along cp hold the same weights too, and each has seen only a part of every sequence."),
        (dp * cp - 1, "This rank itself is one of them."),
        (dp * cp * tp, "Ranks along tp hold other columns: they have nothing to sum."),
        (dp * pp * cp * tp, "Only ranks that hold the same weights sum their gradients."),
        (pp * tp, "That is how many different parts of the model there are."),
    ]
    return Number.count(dp * cp, slips)


def gradient_groups(dp: int, pp: int, cp: int, tp: int, rank: int) -> Number:
    """How many such groups there are."""
    slips = [
        (dp * cp, "That is how many ranks are in each of them."),
        (pp * cp * tp, "Ranks along cp are in the same group: they hold the same weights."),
        (1, "Each part of the model has a group of its own."),
        (tp, "The ranks of another stage hold other layers."),
        (pp, "The ranks along tp hold other columns."),
    ]
    return Number.count(pp * tp, slips)


# What the first stage holds -----------------------------------------------------------------------------------------

PARAMS, LAYERS, WIDTH, SEQUENCE, TENSOR = 70e9, 80, 8192, 8192, 8  # the model of the question, and its tp


def _state(p: int, d: int) -> float:
    """GB of training state with ZeRO-1 over d replicas."""
    return cost.zero_state_bytes(PARAMS / (TENSOR * p), d, 1) / GB


def _kept(b: float, strategy: str = "selective") -> float:
    """GB of activations on the first stage: p microbatches of 1/p of the layers are those of the whole model."""
    return cost.kept_activation_bytes(1, SEQUENCE, WIDTH, LAYERS, 64, strategy) * b / TENSOR / GB


def state_gb(p: int, d: int, b: int) -> Number:
    """GB of training state on a GPU of the first stage."""
    own = PARAMS / (TENSOR * p) / GB
    slips = [
        (16 * own, "ZeRO-1 cuts the 12 bytes of the optimizer among the d replicas."),
        (16 * own / d, "ZeRO-1 cuts the optimizer alone: weights and gradients, 4 bytes, stay whole."),
        (12 * own / d, "Weights and gradients are held as well, 4 bytes a parameter."),
        ((2 + 14 / d) * own, "That is ZeRO-2, which cuts the gradients too."),
        ((4 + 12 / d) * own * p, "A stage has one p-th of the layers."),
        ((4 + 12 / d) * own * TENSOR, "A GPU has one eighth of each layer."),
    ]
    return Number.of(_state(p, d), "GB", slips)


def activations_gb(p: int, d: int, b: int) -> Number:
    """GB of activations on a GPU of the first stage at the most."""
    right = _kept(b)
    slips = [
        (right / p, "That is one microbatch. How many are in flight on the first stage of 1F1B?"),
        (right * (p - 1) / p, "One more forward comes before the first backward: p microbatches are in flight."),
        (right * TENSOR, "With sequence parallelism a GPU keeps one eighth of it."),
        (right / b, "A microbatch has b sequences."),
        (right * p, "A stage has one p-th of the layers."),
    ]
    return Number.of(right, "GB", slips)


def with_twice_the_stages(p: int, d: int, b: int) -> Number:
    """GB in all with 2p stages and d/2 replicas."""
    before = _state(p, d) + _kept(b)
    slips = [
        (before, "The state changes: a stage has half of the layers."),
        (before / 2, "Activations stay as they are: twice as many microbatches of half as many layers."),
        (_state(p, d) / 2 + _kept(b), "There are half as many replicas now, so each cuts less off the optimizer."),
        (_state(2 * p, d // 2) + _kept(b) / 2, "2p microbatches are in flight now, each of half as many layers."),
        (_state(2 * p, d // 2), "Activations count as well."),
    ]
    return Number.of(_state(2 * p, d // 2) + _kept(b), "GB", slips, 0.002)


def which_make_it_fit() -> Several:
    """Of four changes, those after which a GPU holds at most 80 GB."""
    why = {
        "a": "you have computed it: which of the two parts gets smaller with more stages?",
        "b": "each microbatch in flight is half as large then.",
        "c": "ZeRO-3 cuts what is left of the state. Which part is the large one here?",
        "d": "2 s b h bytes instead of 34 s b h are kept for each layer, and one layer is whole for a moment.",
        "e": "the activations of a rank belong to its own sequences. Do other replicas make them fewer?",
    }
    return Several("bd", why)


# Two kinds of utilization -------------------------------------------------------------------------------------------

GPUS, BATCH, PEAK = 256, 512, 989e12  # of the run of the question; sequences, operations a second


def _flops() -> float:
    """Operations of the model in one step, forward and backward: 6 N + 12 L h s a token."""
    return (6 * PARAMS + 12 * LAYERS * WIDTH * SEQUENCE) * BATCH * SEQUENCE


def mfu(seconds: int, share: int, trillions: int) -> Number:
    """Model FLOPs utilization in percent."""
    right = 100 * _flops() / (GPUS * PEAK * seconds)
    slips = [
        (right * 4 / 3, "What is computed again is no work of the model: MFU leaves it out."),
        (100 * 6 * PARAMS * BATCH * SEQUENCE / (GPUS * PEAK * seconds), "Attention's own products count as well."),
        (right / 3, "That is the forward pass alone. The backward pass takes twice as many operations."),
        (right * GPUS, "All GPUs together have 256 times the peak of one."),
        (right / SEQUENCE, "The batch is in sequences. How many tokens has each?"),
    ]
    return Number.of(right, "%", slips)


def hfu(seconds: int, share: int, trillions: int) -> Number:
    """Hardware FLOPs utilization in percent, every layer computed twice."""
    right = mfu(seconds, share, trillions).answer * 4 / 3
    slips = [
        (right * 3 / 4, "That is MFU. The GPUs also compute every forward pass a second time."),
        (right * 3 / 2, "Only the forward pass is done again, one third of the work, and not all of it."),
        (right * 5 / 4, "A forward pass is one third of the model's work, so one third is added."),
    ]
    return Number.of(right, "%", slips)


def mfu_if_kept(seconds: int, share: int, trillions: int) -> Number:
    """MFU in percent if nothing were computed again and all else took as long."""
    before = mfu(seconds, share, trillions).answer
    slips = [
        (before * 4 / 3, "That would be so if the GPUs computed all the time. Here they compute for a part of it."),
        (before, "The step gets shorter by what is computed again, and the model's work stays."),
        (before / (1 - share / 300), "Of four parts of computing one is done again, not one of three."),
        (before / (1 - share / 100), "Only a quarter of the computing goes away."),
        (before * (1 - share / 400), "The step is shorter, so the MFU is larger."),
    ]
    return Number.of(before / (1 - share / 400), "%", slips, 0.005)


def days(seconds: int, share: int, trillions: int) -> Number:
    """Days of the whole run, as it is now."""
    right = trillions * 1e12 / (BATCH * SEQUENCE) * seconds / DAY
    slips = [
        (right * SEQUENCE, "A step trains on 512 sequences of 8,192 tokens each."),
        (right / GPUS, "The step's time is that of all GPUs at once."),
        (right * 24, "Those are hours."),
        (right * (1 - share / 400), "That is the step in which nothing is computed again."),
    ]
    return Number.of(right, "days", slips)


# Find the error: fewer bytes ----------------------------------------------------------------------------------------

FLEET, DOMAIN, TOKENS = 64, 8, 4096  # GPUs, GPUs of a node, tokens of a sequence
INSIDE, ACROSS = 450.0, 50.0  # GB/s


def _gradients(h: int, layers: int) -> float:
    """GB of all gradients in 16 bits: 12 L h^2 parameters."""
    return 2 * 12 * layers * h * h / GB


def _sums(h: int, layers: int, batch: int) -> float:
    """GB that a GPU sends in a step for tensor parallelism over a node."""
    return layers * cost.tensor_parallel_bytes(batch // (FLEET // DOMAIN), TOKENS, h, 1, DOMAIN) / GB


def bytes_of_data(h: int, layers: int, batch: int) -> Number:
    """GB that a GPU sends in a step, data parallelism of 64."""
    whole = _gradients(h, layers)
    slips = [
        (whole, "A ring all-reduce sends nearly twice its tensor."),
        (whole * 63 / 64, "That is half of an all-reduce: a reduce-scatter, or an all-gather."),
        (2 * whole * 63 / 64 * FLEET, "That is what all GPUs send together."),
        (cost.ring_all_reduce_bytes(whole, FLEET) * 2, "A gradient of 16 bits has 2 bytes."),
        (cost.ring_all_reduce_bytes(whole, FLEET) / 8, "Here no GPU holds a part of a layer: it has all gradients."),
    ]
    return Number.of(cost.ring_all_reduce_bytes(whole, FLEET), "GB", slips, 0.003)


def bytes_of_both(h: int, layers: int, batch: int) -> Number:
    """GB that a GPU sends in a step, tensor parallelism of 8 and data parallelism of 8."""
    sums, data = _sums(h, layers, batch), cost.ring_all_reduce_bytes(_gradients(h, layers) / DOMAIN, 8)
    slips = [
        (sums, "The gradients of its part of the model are summed as well."),
        (data, "The sums inside the layers count as well."),
        (sums + 8 * data, "A GPU has the gradients of one eighth of the model."),
        (sums * 8 + data, "A replica works on an eighth of the batch."),
        (sums / 2 + data, "A layer has four sums: two forward, and two backward."),
        (sums / 2 + data / 2, "A ring all-reduce sends its tensor nearly twice."),
    ]
    return Number.of(sums + data, "GB", slips)


def times_as_long(h: int, layers: int, batch: int) -> Number:
    """Time of the messages of the first plan over that of the second."""
    first = cost.ring_all_reduce_bytes(_gradients(h, layers), FLEET)
    sums, data = _sums(h, layers, batch), cost.ring_all_reduce_bytes(_gradients(h, layers) / DOMAIN, 8)
    second = sums / INSIDE + data / ACROSS
    right = first / ACROSS / second
    slips = [
        (1 / right, "Upside down."),
        (first / (sums + data), "That compares bytes. The sums inside a node travel nine times as fast."),
        (first / ACROSS / ((sums + data) / ACROSS), "The sums inside the layers stay in their node, at 450 GB/s."),
        (first / ACROSS / ((sums + data) / INSIDE), "The gradients of the second plan leave their node as well."),
        (first / INSIDE / second, "A group of 64 does not fit into a node, so its gradients leave it."),
    ]
    return Number.of(right, "times", slips)


def sequences_where_equal(h: int, layers: int, batch: int) -> Number:
    """Sequences of a batch with which both plans' messages take equally long."""
    first = cost.ring_all_reduce_bytes(_gradients(h, layers), FLEET)
    data = cost.ring_all_reduce_bytes(_gradients(h, layers) / DOMAIN, 8)
    each = _sums(h, layers, batch) / batch
    right = (first - data) / ACROSS / each * INSIDE
    slips = [
        (first / ACROSS / each * INSIDE, "The second plan sends gradients too: take their time off first."),
        ((first - data) / each, "Then they send equally many bytes. Which links carry them?"),
        (right / 8, "That is the part of one replica. How many sequences has the whole batch?"),
        (batch * times_as_long(h, layers, batch).answer, "Only the sums inside the layers grow with the batch."),
    ]
    return Number.of(right, "", slips)


# How many plans -----------------------------------------------------------------------------------------------------

MICROBATCHES = (1, 2, 4, 8)  # sequences in a microbatch


def _products(gpus: int) -> list[tuple[int, int, int]]:
    """All (t, p, d) whose product is `gpus`."""
    parts = [n for n in range(1, gpus + 1) if gpus % n == 0]
    return [(t, p, gpus // t // p) for t in parts for p in parts if gpus % (t * p) == 0]


def _possible(gpus: int, heads: int, layers: int) -> list[tuple[int, int, int]]:
    """Those that a model with so many heads and layers can be cut into, on nodes of 8."""
    return [(t, p, d) for t, p, d in _products(gpus) if t <= 8 and heads % t == 0 and layers % p == 0]


def all_products(gpus: int, heads: int, layers: int, batch: int) -> Number:
    """Products of three sizes, in order."""
    every = _products(gpus)
    slips = [
        (len({tuple(sorted(one)) for one in every}), "4 x 8 x 16 and 8 x 4 x 16 are two plans: t is not p."),
        (len([n for n in range(1, gpus + 1) if gpus % n == 0]), "That is how many divisors it has: the choices of t."),
        (len([one for one in every if all(n & (n - 1) == 0 for n in one)]), "Sizes need not be powers of two."),
        (len([one for one in every if min(one) > 1]), "A size of 1 is allowed: that axis is not used."),
    ]
    return Number.count(len(every), slips)


def cuts_that_divide(gpus: int, heads: int, layers: int, batch: int) -> Number:
    """Those with t of at most 8 that divides the heads, and p that divides the layers."""
    every = _products(gpus)
    slips = [
        (len([c for c in every if heads % c[0] == 0 and layers % c[1] == 0]), "t must stay in a node of 8 GPUs."),
        (len([c for c in every if c[0] <= 8 and heads % c[0] == 0]), "p must divide the layers."),
        (len([c for c in every if c[0] <= 8 and layers % c[1] == 0]), "t must divide the heads."),
        (len(every), "That is without any condition."),
        (len([c for c in every if c[0] <= 8 and heads % c[0] == 0 and c[1] <= layers]), "p must divide the layers, "
         "and not only be as many at most."),
    ]  # fmt: skip
    return Number.count(len(_possible(gpus, heads, layers)), slips)


def cuts_that_share(gpus: int, heads: int, layers: int, batch: int) -> Number:
    """Of these, those whose replicas share the batch evenly."""
    cuts = _possible(gpus, heads, layers)
    slips = [
        (len([c for c in cuts if c[2] <= batch]), "d must divide the batch, and not only be no larger."),
        (len([c for c in cuts if batch % (c[0] * c[2]) == 0]), "Ranks along tp read the same sequences."),
        (len(cuts), "Is there no cut whose replicas cannot share the batch?"),
        (len([c for c in _products(gpus) if batch % c[2] == 0]), "The conditions on t and p still hold."),
    ]
    return Number.count(len([c for c in cuts if batch % c[2] == 0]), slips)


def plans_in_all(gpus: int, heads: int, layers: int, batch: int) -> Number:
    """Plans: each of these cuts with its sizes of a microbatch, 2 kinds of sharding and 3 of computing again."""
    cuts = [c for c in _possible(gpus, heads, layers) if batch % c[2] == 0]
    sizes = sum(batch // d % b == 0 for _, _, d in cuts for b in MICROBATCHES)
    slips = [
        (6 * 4 * len(cuts), "Not every replica has enough sequences for every size of a microbatch."),
        (sizes, "That is cuts and sizes of a microbatch. Multiply by the other choices."),
        (5 * sizes, "Choices multiply: 2 kinds of sharding with each of 3 ways to compute again."),
        (6 * len(cuts), "The size of a microbatch is a choice as well."),
    ]
    return Number.count(6 * sizes, slips)
