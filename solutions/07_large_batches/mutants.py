"""The zoo of the exercises of chapter 7: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import math

import torch

from labkit import collectives
from labkit.grading.checks.zoo import mutant, slip, variant
from labkit.optim import signal_and_noise

# The schedule ---------------------------------------------------------------------------------------------------


@mutant("schedule", "my_rates", says="The warmup begins at zero")
def begins_at_zero(group, steps, lr, base_batch, per_rank, passes, warm, decay_at):
    batch = group.size * per_rank * passes
    full = lr * batch / base_batch
    found = [full * (min(1, t / warm) if warm else 1) / (10 if t * batch >= decay_at else 1) for t in range(steps)]
    return torch.tensor(found, dtype=torch.float64)


counts_updates_from_one = slip("schedule", "my_rates", says="Update 0 is a step too high", change="""
-        rate = full if t >= warm else lr + (full - lr) * t / warm
+        rate = full if t + 1 >= warm else lr + (full - lr) * (t + 1) / warm
""")  # fmt: skip


scales_by_the_ranks_once_more = slip("schedule", "my_rates", says="The ranks count twice", change="""
-    full = lr * batch / base_batch
+    full = lr * batch / base_batch * group.size
""")  # fmt: skip


forgets_the_passes = slip("schedule", "my_rates", says="The passes do not count", change="""
-    batch = group.size * per_rank * passes
+    batch = group.size * per_rank

-        found.append(rate / 10 if t * batch >= decay_at else rate)
+        found.append(rate / 10 if t * batch * passes >= decay_at else rate)
""")  # fmt: skip


takes_the_root = slip("schedule", "my_rates", says="That is the square root rule", change="""
-    full = lr * batch / base_batch
+    full = lr * math.sqrt(batch / base_batch)
""")  # fmt: skip


@mutant("schedule", "my_rates", says="There is no warmup")
def at_once(group, steps, lr, base_batch, per_rank, passes, warm, decay_at):
    batch = group.size * per_rank * passes
    full = lr * batch / base_batch
    found = [full / (10 if t * batch >= decay_at else 1) for t in range(steps)]
    return torch.tensor(found, dtype=torch.float64)


@mutant("schedule", "my_rates", says="Count samples")
def decays_after_as_many_updates(group, steps, lr, base_batch, per_rank, passes, warm, decay_at):
    full = lr * group.size * per_rank * passes / base_batch
    found = []
    for t in range(steps):
        rate = full if t >= warm else lr + (full - lr) * t / warm
        found.append(rate / 10 if t * base_batch >= decay_at else rate)
    return torch.tensor(found, dtype=torch.float64)


@mutant("schedule", "my_rates", says="ZeroDivisionError", at=2)
def divides_by_no_warmup(group, steps, lr, base_batch, per_rank, passes, warm, decay_at):
    batch = group.size * per_rank * passes
    full = lr * batch / base_batch
    found = [lr + (full - lr) * min(1, t / warm) for t in range(steps)]
    found = [rate / 10 if t * batch >= decay_at else rate for t, rate in enumerate(found)]
    return torch.tensor(found, dtype=torch.float64)


@mutant("schedule", "my_rates", says="each of them can know the rates")
def rank_0_tells_the_others(group, steps, lr, base_batch, per_rank, passes, warm, decay_at):
    batch = group.size * per_rank * passes
    full = lr * batch / base_batch
    t = torch.arange(steps, dtype=torch.float64)
    found = torch.full((steps,), full, dtype=torch.float64)
    found[:warm] = lr + (full - lr) * t[:warm] / max(1, warm)
    found[t * batch >= decay_at] /= 10
    return collectives.broadcast(found, group, 0)


@variant("schedule", "my_rates")
def with_tensors(group, steps, lr, base_batch, per_rank, passes, warm, decay_at):
    t = torch.arange(steps, dtype=torch.float64)
    batch = group.size * per_rank * passes
    part = (t / warm).clamp(max=1) if warm else torch.ones_like(t)
    found = torch.lerp(torch.full_like(t, lr), torch.full_like(t, lr * batch / base_batch), part)
    return torch.where(t * batch >= decay_at, 0.1 * found, found)


@variant("schedule", "my_rates", at=4)
def by_what_is_added_each_time(group, steps, lr, base_batch, per_rank, passes, warm, decay_at):
    found, rate, read = torch.empty(steps, dtype=torch.float64), lr, 0
    full = lr * group.size * per_rank * passes / base_batch
    for t in range(steps):
        if t >= warm:
            rate = full
        found[t] = rate * (0.1 if read >= decay_at else 1)
        rate += (full - lr) / max(1, warm)
        read += group.size * per_rank * passes
    return found


# Two norms ------------------------------------------------------------------------------------------------------


@mutant("two-norms", "my_noise_scale", says="mean of the steps' ratios")
def mean_of_ratios(gradients, group, per_rank):
    own = collectives.all_reduce(gradients.square().sum(1), group, "avg", algorithm="ring")
    averages = collectives.all_reduce(gradients.clone(), group, "avg", algorithm="ring")
    norms = zip(own.tolist(), averages.square().sum(1).tolist(), strict=True)
    steps = [signal_and_noise(*pair, per_rank, per_rank * group.size) for pair in norms]
    signal, noise = (sum(values) / len(steps) for values in zip(*steps, strict=True))
    scale = sum(s / g for g, s in steps) / len(steps)
    return {"averages": averages, "signal": signal, "noise": noise, "scale": scale if signal > 0 else None}


@mutant("two-norms", "my_noise_scale", says="The small norm was taken after the average")
def norms_after_the_average(gradients, group, per_rank):
    collectives.all_reduce(gradients, group, "avg", algorithm="ring")
    own = collectives.all_reduce(gradients.square().sum(1), group, "avg", algorithm="ring")
    norms = zip(own.tolist(), gradients.square().sum(1).tolist(), strict=True)
    steps = [signal_and_noise(*pair, per_rank, per_rank * group.size) for pair in norms]
    signal, noise = (sum(values) / len(steps) for values in zip(*steps, strict=True))
    return {"averages": gradients, "signal": signal, "noise": noise, "scale": noise / signal if signal > 0 else None}


@mutant("two-norms", "my_noise_scale", says="The two batch sizes are exchanged")
def batches_exchanged(gradients, group, per_rank):
    own = collectives.all_reduce(gradients.square().sum(1), group, "avg", algorithm="ring").mean().item()
    averages = collectives.all_reduce(gradients.clone(), group, "avg", algorithm="ring")
    both, b, B = averages.square().sum(1).mean().item(), per_rank * group.size, per_rank
    signal, noise = (B * both - b * own) / (B - b), (own - both) / (1 / b - 1 / B)
    return {"averages": averages, "signal": signal, "noise": noise, "scale": noise / signal if signal > 0 else None}


@mutant("two-norms", "my_noise_scale", says="own small norm. Average it over the ranks", at=2)
def keeps_its_own_norm(gradients, group, per_rank):
    own = gradients.square().sum(1)
    averages = collectives.all_reduce(gradients.clone(), group, "avg", algorithm="ring")
    norms = zip(own.tolist(), averages.square().sum(1).tolist(), strict=True)
    steps = [signal_and_noise(*pair, per_rank, per_rank * group.size) for pair in norms]
    signal, noise = (sum(values) / len(steps) for values in zip(*steps, strict=True))
    return {"averages": averages, "signal": signal, "noise": noise, "scale": noise / signal if signal > 0 else None}


@mutant("two-norms", "my_noise_scale", says="Norms are not squared")
def plain_lengths(gradients, group, per_rank):
    own = collectives.all_reduce(gradients.norm(dim=1), group, "avg", algorithm="ring")
    averages = collectives.all_reduce(gradients.clone(), group, "avg", algorithm="ring")
    norms = zip(own.tolist(), averages.norm(dim=1).tolist(), strict=True)
    steps = [signal_and_noise(*pair, per_rank, per_rank * group.size) for pair in norms]
    signal, noise = (sum(values) / len(steps) for values in zip(*steps, strict=True))
    return {"averages": averages, "signal": signal, "noise": noise, "scale": noise / signal if signal > 0 else None}


@mutant("two-norms", "my_noise_scale", says="Count samples")
def counts_ranks_as_samples(gradients, group, per_rank):
    own = collectives.all_reduce(gradients.square().sum(1), group, "avg", algorithm="ring")
    averages = collectives.all_reduce(gradients.clone(), group, "avg", algorithm="ring")
    norms = zip(own.tolist(), averages.square().sum(1).tolist(), strict=True)
    steps = [signal_and_noise(*pair, 1, group.size) for pair in norms]
    signal, noise = (sum(values) / len(steps) for values in zip(*steps, strict=True))
    return {"averages": averages, "signal": signal, "noise": noise, "scale": noise / signal if signal > 0 else None}


@mutant("two-norms", "my_noise_scale", says="Steps with a negative signal are left out")
def keeps_the_lucky_steps(gradients, group, per_rank):
    own = collectives.all_reduce(gradients.square().sum(1), group, "avg", algorithm="ring")
    averages = collectives.all_reduce(gradients.clone(), group, "avg", algorithm="ring")
    norms = zip(own.tolist(), averages.square().sum(1).tolist(), strict=True)
    signals, noises = zip(*(signal_and_noise(*pair, per_rank, per_rank * group.size) for pair in norms), strict=True)
    lucky = [one for one in signals if one > 0] or [0.0]
    signal, noise = sum(lucky) / len(lucky), sum(noises) / len(noises)
    return {"averages": averages, "signal": signal, "noise": noise, "scale": noise / signal if signal > 0 else None}


@mutant("two-norms", "my_noise_scale", says="Does every rank gather the gradients of all?")
def gathers_all_gradients(gradients, group, per_rank):
    everyone = collectives.all_gather(gradients, group).view(group.size, *gradients.shape)
    averages = everyone.mean(0)
    own = everyone.square().sum(2).mean(0)
    norms = zip(own.tolist(), averages.square().sum(1).tolist(), strict=True)
    steps = [signal_and_noise(*pair, per_rank, per_rank * group.size) for pair in norms]
    signal, noise = (sum(values) / len(steps) for values in zip(*steps, strict=True))
    return {"averages": averages, "signal": signal, "noise": noise, "scale": noise / signal if signal > 0 else None}


@mutant("two-norms", "my_noise_scale", says="Do the gradients travel twice?")
def squares_travel_entry_by_entry(gradients, group, per_rank):
    own = collectives.all_reduce(gradients.square(), group, "avg", algorithm="ring").sum(1)
    averages = collectives.all_reduce(gradients.clone(), group, "avg", algorithm="ring")
    norms = zip(own.tolist(), averages.square().sum(1).tolist(), strict=True)
    steps = [signal_and_noise(*pair, per_rank, per_rank * group.size) for pair in norms]
    signal, noise = (sum(values) / len(steps) for values in zip(*steps, strict=True))
    return {"averages": averages, "signal": signal, "noise": noise, "scale": noise / signal if signal > 0 else None}


@mutant("two-norms", "my_noise_scale", says="it should be None", at=2)
def always_has_a_scale(gradients, group, per_rank):
    own = collectives.all_reduce(gradients.square().sum(1), group, "avg", algorithm="ring").mean().item()
    averages = collectives.all_reduce(gradients.clone(), group, "avg", algorithm="ring")
    together = averages.square().sum(1).mean().item()
    signal, noise = signal_and_noise(own, together, per_rank, per_rank * group.size)
    return {"averages": averages, "signal": signal, "noise": noise, "scale": noise / signal}


@variant("two-norms", "my_noise_scale")
def one_message_a_step(gradients, group, per_rank):
    flat = torch.cat([gradients, gradients.square().sum(1, keepdim=True)], dim=1)
    for row in flat:
        collectives.all_reduce(row, group, "sum", algorithm="ring")
    flat /= group.size
    averages, small, n = flat[:, :-1], flat[:, -1].mean().item(), group.size
    large = averages.square().sum(1).mean().item()
    signal, noise = (n * large - small) / (n - 1), per_rank * n * (small - large) / (n - 1)
    return {"averages": averages, "signal": signal, "noise": noise, "scale": noise / signal if signal > 0 else None}


@variant("two-norms", "my_noise_scale", at=2)
def norms_first(gradients, group, per_rank):
    own = torch.linalg.vector_norm(gradients, dim=1).square() / group.size
    collectives.all_reduce(own, group, "sum")
    averages = gradients / group.size
    collectives.all_reduce(averages, group, "sum", algorithm="ring")
    signals, noises = [], []
    for small, g in zip(own, averages, strict=True):
        one = signal_and_noise(small.item(), torch.dot(g, g).item(), per_rank, group.size * per_rank)
        signals.append(one[0])
        noises.append(one[1])
    scale = sum(noises) / sum(signals) if sum(signals) > 0 else None
    steps = len(signals)
    return {"averages": averages, "signal": sum(signals) / steps, "noise": sum(noises) / steps, "scale": scale}


# LARS over shards -----------------------------------------------------------------------------------------------


@mutant("lars-shards", "my_lars", says="The lengths are those of a rank's shard")
def lengths_of_my_shard(layers, group, lr, trust, decay):
    new = []
    for w, g in zip(layers["w"], layers["g"], strict=True):
        length, below = w.norm(), g.norm() + decay * w.norm()
        local = trust * length / below if length > 0 and below > 0 else 1.0
        new.append(w - lr * local * (g + decay * w))
    return new


adds_up_lengths = slip("lars-shards", "my_lars", says="The lengths of the shards are added up", change="""
-    squares = torch.stack([torch.stack([x.square().sum() for x in layers[name]]) for name in ("w", "g")])
-    collectives.all_reduce(squares, group, "sum", algorithm="ring")
-    lengths = squares.sqrt()
+    lengths = torch.stack([torch.stack([x.norm() for x in layers[name]]) for name in ("w", "g")])
+    collectives.all_reduce(lengths, group, "sum", algorithm="ring")
""")  # fmt: skip


@mutant("lars-shards", "my_lars", says="The weight decay is missing at the bottom")
def no_decay_below(layers, group, lr, trust, decay):
    squares = torch.stack([torch.stack([x.square().sum() for x in layers[name]]) for name in ("w", "g")])
    collectives.all_reduce(squares, group, "sum", algorithm="ring")
    new = []
    for w, g, length, slope in zip(layers["w"], layers["g"], *squares.sqrt(), strict=True):
        local = trust * length / slope if length > 0 and slope > 0 else 1.0
        new.append(w - lr * local * (g + decay * w))
    return new


@mutant("lars-shards", "my_lars", says="The weight decay is missing in the step itself")
def decay_only_below(layers, group, lr, trust, decay):
    squares = torch.stack([torch.stack([x.square().sum() for x in layers[name]]) for name in ("w", "g")])
    collectives.all_reduce(squares, group, "sum", algorithm="ring")
    new = []
    for w, g, length, slope in zip(layers["w"], layers["g"], *squares.sqrt(), strict=True):
        below = slope + decay * length
        local = trust * length / below if length > 0 and below > 0 else 1.0
        new.append(w - lr * local * g)
    return new


@mutant("lars-shards", "my_lars", says="The lengths are those of all layers together")
def one_rate_for_all(layers, group, lr, trust, decay):
    squares = torch.stack([sum(x.square().sum() for x in layers[name]) for name in ("w", "g")])
    length, slope = collectives.all_reduce(squares, group, "sum", algorithm="ring").sqrt()
    below = slope + decay * length
    local = trust * length / below if length > 0 and below > 0 else 1.0
    return [w - lr * local * (g + decay * w) for w, g in zip(layers["w"], layers["g"], strict=True)]


@mutant("lars-shards", "my_lars", says="A layer of zeros never leaves zero")
def zero_length_zero_step(layers, group, lr, trust, decay):
    squares = torch.stack([torch.stack([x.square().sum() for x in layers[name]]) for name in ("w", "g")])
    collectives.all_reduce(squares, group, "sum", algorithm="ring")
    new = []
    for w, g, length, slope in zip(layers["w"], layers["g"], *squares.sqrt(), strict=True):
        local = trust * length / (slope + decay * length + 1e-12)
        new.append(w - lr * local * (g + decay * w))
    return new


@mutant("lars-shards", "my_lars", says="a weight became nan")
def divides_by_zero(layers, group, lr, trust, decay):
    squares = torch.stack([torch.stack([x.square().sum() for x in layers[name]]) for name in ("w", "g")])
    length, slope = collectives.all_reduce(squares, group, "sum", algorithm="ring").sqrt()
    local = torch.where(length > 0, trust * length / (slope + decay * length), 1.0)
    pairs = zip(layers["w"], layers["g"], local, strict=True)
    return [w - lr * rate * (g + decay * w) for w, g, rate in pairs]


@mutant("lars-shards", "my_lars", says="Do whole shards travel?")
def gathers_the_layers(layers, group, lr, trust, decay):
    new = []
    for w, g in zip(layers["w"], layers["g"], strict=True):
        counts = torch.zeros(group.size, dtype=torch.int64)
        counts[group.rank] = len(w)
        collectives.all_reduce(counts, group, "sum")
        whole = torch.zeros(2, int(counts.sum()), dtype=w.dtype)
        begin = int(counts[: group.rank].sum())
        whole[0, begin : begin + len(w)], whole[1, begin : begin + len(w)] = w, g
        collectives.all_reduce(whole, group, "sum")
        length, slope = whole.norm(dim=1)
        below = slope + decay * length
        local = trust * length / below if length > 0 and below > 0 else 1.0
        new.append(w - lr * local * (g + decay * w))
    return new


@mutant("lars-shards", "my_lars", says="Does every number travel by itself?")
def an_all_reduce_a_layer(layers, group, lr, trust, decay):
    new = []
    for w, g in zip(layers["w"], layers["g"], strict=True):
        both = torch.stack([w.square().sum(), g.square().sum()])
        length, slope = collectives.all_reduce(both, group, "sum", algorithm="ring").sqrt()
        below = slope + decay * length
        local = trust * length / below if length > 0 and below > 0 else 1.0
        new.append(w - lr * local * (g + decay * w))
    return new


@variant("lars-shards", "my_lars")
def means_of_squares(layers, group, lr, trust, decay):
    squares = torch.tensor(
        [[float(w.dot(w)), float(g.dot(g))] for w, g in zip(layers["w"], layers["g"], strict=True)],
        dtype=torch.float64,
    )
    collectives.all_reduce(squares, group, "avg", algorithm="ring")  # the quotient of two lengths is the same
    length, slope = squares.sqrt().unbind(1)
    below = slope + decay * length
    local = torch.where((length > 0) & (below > 0), trust * length / below, 1.0)
    pairs = zip(layers["w"], layers["g"], local.tolist(), strict=True)
    return [w.mul(1 - lr * rate * decay).sub(g, alpha=lr * rate) for w, g, rate in pairs]


@variant("lars-shards", "my_lars", at=4)
def squares_of_everyone(layers, group, lr, trust, decay):
    own = torch.stack([x.square().sum() for x in layers["w"] + layers["g"]])
    everyone = collectives.all_gather(own, group).view(group.size, -1)
    length, slope = everyone.sum(0).sqrt().chunk(2)
    new = []
    for number, (w, g) in enumerate(zip(layers["w"], layers["g"], strict=True)):
        step = g + decay * w
        below = slope[number] + decay * length[number]
        if length[number] > 0 and below > 0:
            step *= trust * length[number] / below
        new.append(w - lr * step)
    return new


# LAMB over shards -----------------------------------------------------------------------------------------------


@mutant("lamb-shards", "my_lamb", says="The lengths are those of a rank's shard")
def stretches_my_shard(state, group, t, lr, decay, adapt):
    new, ms, vs = [], [], []
    for w, g, m, v, yes in zip(state["w"], state["g"], state["m"], state["v"], adapt, strict=True):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        u = m / (1 - 0.9**t) / ((v / (1 - 0.99**t)).sqrt() + 1e-6) + decay * w
        factor = w.norm() / u.norm() if yes and w.norm() > 0 and u.norm() > 0 else 1.0
        new.append(w - lr * factor * u)
        ms.append(m)
        vs.append(v)
    return new, ms, vs


@mutant("lamb-shards", "my_lamb", says="The averages are not corrected")
def without_correction(state, group, t, lr, decay, adapt):
    m = [0.9 * old + 0.1 * g for old, g in zip(state["m"], state["g"], strict=True)]
    v = [0.99 * old + 0.01 * g * g for old, g in zip(state["v"], state["g"], strict=True)]
    u = [a / (b.sqrt() + 1e-6) + decay * w for a, b, w in zip(m, v, state["w"], strict=True)]
    squares = torch.stack([x.square().sum() for pair in zip(state["w"], u, strict=True) for x in pair])
    lengths = collectives.all_reduce(squares, group, "sum", algorithm="ring").sqrt().view(-1, 2)
    factor = [a / b if yes and a > 0 and b > 0 else 1.0 for (a, b), yes in zip(lengths, adapt, strict=True)]
    return [w - lr * f * step for w, f, step in zip(state["w"], factor, u, strict=True)], m, v


@mutant("lamb-shards", "my_lamb", says="The length below is the gradient's")
def stretches_like_lars(state, group, t, lr, decay, adapt):
    m = [0.9 * old + 0.1 * g for old, g in zip(state["m"], state["g"], strict=True)]
    v = [0.99 * old + 0.01 * g * g for old, g in zip(state["v"], state["g"], strict=True)]
    by = (1 - 0.9**t, 1 - 0.99**t)
    u = [a / by[0] / ((b / by[1]).sqrt() + 1e-6) + decay * w for a, b, w in zip(m, v, state["w"], strict=True)]
    squares = torch.stack([x.square().sum() for pair in zip(state["w"], state["g"], strict=True) for x in pair])
    lengths = collectives.all_reduce(squares, group, "sum", algorithm="ring").sqrt().view(-1, 2)
    factor = [a / b if yes and a > 0 and b > 0 else 1.0 for (a, b), yes in zip(lengths, adapt, strict=True)]
    return [w - lr * f * step for w, f, step in zip(state["w"], factor, u, strict=True)], m, v


@mutant("lamb-shards", "my_lamb", says="The length below leaves the weight decay out")
def decay_after_the_length(state, group, t, lr, decay, adapt):
    m = [0.9 * old + 0.1 * g for old, g in zip(state["m"], state["g"], strict=True)]
    v = [0.99 * old + 0.01 * g * g for old, g in zip(state["v"], state["g"], strict=True)]
    by = (1 - 0.9**t, 1 - 0.99**t)
    r = [a / by[0] / ((b / by[1]).sqrt() + 1e-6) for a, b in zip(m, v, strict=True)]
    squares = torch.stack([x.square().sum() for pair in zip(state["w"], r, strict=True) for x in pair])
    lengths = collectives.all_reduce(squares, group, "sum", algorithm="ring").sqrt().view(-1, 2)
    factor = [a / b if yes and a > 0 and b > 0 else 1.0 for (a, b), yes in zip(lengths, adapt, strict=True)]
    return [w - lr * f * (x + decay * w) for w, f, x in zip(state["w"], factor, r, strict=True)], m, v


@mutant("lamb-shards", "my_lamb", says="the new m of layer 0 is wrong")
def decay_in_the_gradient(state, group, t, lr, decay, adapt):
    slopes = [g + decay * w for g, w in zip(state["g"], state["w"], strict=True)]
    m = [0.9 * old + 0.1 * g for old, g in zip(state["m"], slopes, strict=True)]
    v = [0.99 * old + 0.01 * g * g for old, g in zip(state["v"], slopes, strict=True)]
    by = (1 - 0.9**t, 1 - 0.99**t)
    u = [a / by[0] / ((b / by[1]).sqrt() + 1e-6) for a, b in zip(m, v, strict=True)]
    squares = torch.stack([x.square().sum() for pair in zip(state["w"], u, strict=True) for x in pair])
    lengths = collectives.all_reduce(squares, group, "sum", algorithm="ring").sqrt().view(-1, 2)
    factor = [a / b if yes and a > 0 and b > 0 else 1.0 for (a, b), yes in zip(lengths, adapt, strict=True)]
    return [w - lr * f * step for w, f, step in zip(state["w"], factor, u, strict=True)], m, v


@mutant("lamb-shards", "my_lamb", says="Every layer is stretched")
def stretches_biases_too(state, group, t, lr, decay, adapt):
    m = [0.9 * old + 0.1 * g for old, g in zip(state["m"], state["g"], strict=True)]
    v = [0.99 * old + 0.01 * g * g for old, g in zip(state["v"], state["g"], strict=True)]
    by = (1 - 0.9**t, 1 - 0.99**t)
    u = [a / by[0] / ((b / by[1]).sqrt() + 1e-6) + decay * w for a, b, w in zip(m, v, state["w"], strict=True)]
    squares = torch.stack([x.square().sum() for pair in zip(state["w"], u, strict=True) for x in pair])
    lengths = collectives.all_reduce(squares, group, "sum", algorithm="ring").sqrt().view(-1, 2)
    factor = [a / b if a > 0 and b > 0 else 1.0 for a, b in lengths]
    return [w - lr * f * step for w, f, step in zip(state["w"], factor, u, strict=True)], m, v


@mutant("lamb-shards", "my_lamb", says="never leaves zero")
def stays_at_zero(state, group, t, lr, decay, adapt):
    m = [0.9 * old + 0.1 * g for old, g in zip(state["m"], state["g"], strict=True)]
    v = [0.99 * old + 0.01 * g * g for old, g in zip(state["v"], state["g"], strict=True)]
    by = (1 - 0.9**t, 1 - 0.99**t)
    u = [a / by[0] / ((b / by[1]).sqrt() + 1e-6) + decay * w for a, b, w in zip(m, v, state["w"], strict=True)]
    squares = torch.stack([x.square().sum() for pair in zip(state["w"], u, strict=True) for x in pair])
    lengths = collectives.all_reduce(squares, group, "sum", algorithm="ring").sqrt().view(-1, 2)
    factor = [a / (b + 1e-12) if yes else 1.0 for (a, b), yes in zip(lengths, adapt, strict=True)]
    return [w - lr * f * step for w, f, step in zip(state["w"], factor, u, strict=True)], m, v


@mutant("lamb-shards", "my_lamb", says="Does every number travel by itself?")
def asks_layer_by_layer(state, group, t, lr, decay, adapt):
    new, ms, vs = [], [], []
    for w, g, m, v, yes in zip(state["w"], state["g"], state["m"], state["v"], adapt, strict=True):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        u = m / (1 - 0.9**t) / ((v / (1 - 0.99**t)).sqrt() + 1e-6) + decay * w
        factor = 1.0
        if yes:
            both = torch.stack([w.square().sum(), u.square().sum()])
            a, b = collectives.all_reduce(both, group, "sum", algorithm="ring").sqrt()
            factor = a / b if a > 0 and b > 0 else 1.0
        new.append(w - lr * factor * u)
        ms.append(m)
        vs.append(v)
    return new, ms, vs


@variant("lamb-shards", "my_lamb")
def means_of_the_squares(state, group, t, lr, decay, adapt):
    m = [torch.lerp(old, g, 0.1) for old, g in zip(state["m"], state["g"], strict=True)]
    v = [torch.lerp(old, g.square(), 0.01) for old, g in zip(state["v"], state["g"], strict=True)]
    root = math.sqrt(1 - 0.99**t)
    u = [a / (1 - 0.9**t) / (b.sqrt() / root + 1e-6) for a, b in zip(m, v, strict=True)]
    u = [step + decay * w for step, w in zip(u, state["w"], strict=True)]
    rows = [[float(w.dot(w)), float(x.dot(x))] for w, x, yes in zip(state["w"], u, adapt, strict=True) if yes]
    squares = torch.tensor(rows, dtype=torch.float64)
    collectives.all_reduce(squares, group, "avg", algorithm="ring")
    factors = iter([math.sqrt(a / b) if a > 0 and b > 0 else 1.0 for a, b in squares.tolist()])
    new = [w - lr * (next(factors) if yes else 1.0) * step for w, step, yes in zip(state["w"], u, adapt, strict=True)]
    return new, m, v


@variant("lamb-shards", "my_lamb", at=4)
def in_place(state, group, t, lr, decay, adapt):
    squares, steps = torch.zeros(2, len(adapt), dtype=torch.float64), []
    for layer, (w, g, m, v) in enumerate(zip(*(state[name] for name in "wgmv"), strict=True)):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        u = (m / (1 - 0.9**t)).div_((v / (1 - 0.99**t)).sqrt_().add_(1e-6)).add_(w, alpha=decay)
        squares[:, layer] = torch.tensor([float(w.square().sum()), float(u.square().sum())])
        steps.append(u)
    kept = torch.tensor(adapt)
    some = squares[:, kept].contiguous()
    collectives.all_reduce(some, group, "sum")
    length, step = some.sqrt()
    factors = torch.ones(len(adapt), dtype=torch.float64)
    factors[kept] = torch.where((length > 0) & (step > 0), length / step, 1.0)
    for w, u, factor in zip(state["w"], steps, factors.tolist(), strict=True):
        w.sub_(u, alpha=lr * factor)
    return state["w"], state["m"], state["v"]


# A batch that grows ---------------------------------------------------------------------------------------------


looks_at_one_update = slip("growing-batch", "my_growing_batch", says="has passes", change="""
-    told, updates, signals, noises = [], [], 0.0, 0.0
-    begin, passes = 0, first
+    told, updates, begin, passes = [], [], 0, first

-        begin, signals, noises = begin + passes, signals + signal, noises + noise
-        if noises > batch * signals:
+        begin += passes
+        if noise > batch * signal:
""")  # fmt: skip


@mutant("growing-batch", "my_growing_batch", says="has finished while others wait for it", at=2)
def each_rank_decides_by_itself(pieces, group, per_piece, first, most):
    told, updates, signals, noises, begin, passes = [], [], 0.0, 0.0, 0, first
    while begin + passes <= len(pieces):
        mine = pieces[begin : begin + passes]
        average = collectives.all_reduce(mine.mean(0), group, "avg", algorithm="ring")
        batch = group.size * passes * per_piece
        small = float(mine.square().sum(1).mean())
        signal, noise = signal_and_noise(small, float(average.square().sum()), per_piece, batch)
        told.append(passes)
        updates.append(average)
        begin, signals, noises = begin + passes, signals + signal, noises + noise
        if noises > batch * signals:
            passes = min(2 * passes, most)
    return {"passes": told, "updates": updates}


@mutant("growing-batch", "my_growing_batch", says="Does every piece travel?")
def sends_every_piece(pieces, group, per_piece, first, most):
    told, updates, signals, noises, begin, passes = [], [], 0.0, 0.0, 0, first
    while begin + passes <= len(pieces):
        mine = pieces[begin : begin + passes]
        small = collectives.all_reduce(mine.square().sum(1).mean().view(1), group, "avg", algorithm="ring")
        together = torch.stack([collectives.all_reduce(row.clone(), group, "avg", algorithm="ring") for row in mine])
        batch, average = group.size * passes * per_piece, together.mean(0)
        signal, noise = signal_and_noise(float(small), float(average.square().sum()), per_piece, batch)
        told.append(passes)
        updates.append(average)
        begin, signals, noises = begin + passes, signals + signal, noises + noise
        if noises > batch * signals:
            passes = min(2 * passes, most)
    return {"passes": told, "updates": updates}


sums_the_pieces = slip("growing-batch", "my_growing_batch", says="The pieces are summed", change="""
-    told, updates, signals, noises = [], [], 0.0, 0.0
-    begin, passes = 0, first
+    told, updates, signals, noises, begin, passes = [], [], 0.0, 0.0, 0, first

-        flat = torch.cat([mine.mean(0), mine.square().sum(1).mean().view(1)])
+        flat = torch.cat([mine.sum(0), mine.square().sum(1).mean().view(1)])

-        batch = group.size * passes * per_piece
-        signal, noise = signal_and_noise(float(flat[-1]), float(flat[:-1].square().sum()), per_piece, batch)
+        batch, average = group.size * passes * per_piece, flat[:-1] / passes
+        signal, noise = signal_and_noise(float(flat[-1]), float(average.square().sum()), per_piece, batch)
""")  # fmt: skip


takes_the_ranks_gradient_for_a_piece = slip("growing-batch", "my_growing_batch", says="has passes", change="""
-    told, updates, signals, noises = [], [], 0.0, 0.0
-    begin, passes = 0, first
+    told, updates, signals, noises, begin, passes = [], [], 0.0, 0.0, 0, first

-        mine = pieces[begin : begin + passes]
-        flat = torch.cat([mine.mean(0), mine.square().sum(1).mean().view(1)])
+        own = pieces[begin : begin + passes].mean(0)  # of passes x per_piece samples
+        flat = torch.cat([own, own.square().sum().view(1)])
""")  # fmt: skip


grows_without_end = slip("growing-batch", "my_growing_batch", says="has passes [2, 4, 8", at=2, change="""
-    told, updates, signals, noises = [], [], 0.0, 0.0
-    begin, passes = 0, first
+    told, updates, signals, noises, begin, passes = [], [], 0.0, 0.0, 0, first

-            passes = min(2 * passes, most)
+            passes *= 2
""")  # fmt: skip


forgets_the_ranks_in_the_batch = slip("growing-batch", "my_growing_batch", says="has passes", change="""
-    told, updates, signals, noises = [], [], 0.0, 0.0
-    begin, passes = 0, first
+    told, updates, signals, noises, begin, passes = [], [], 0.0, 0.0, 0, first

-        batch = group.size * passes * per_piece
+        batch = passes * per_piece
""")  # fmt: skip


@variant("growing-batch", "my_growing_batch")
def with_two_all_reduces(pieces, group, per_piece, first, most):
    told, updates, signals, noises, passes = [], [], [], [], first
    rest = list(pieces)
    while len(rest) >= passes:
        mine, rest = rest[:passes], rest[passes:]
        total, small = torch.zeros_like(mine[0]), torch.zeros(1, dtype=torch.float64)
        for piece in mine:
            total += piece
            small += piece.dot(piece)
        collectives.all_reduce(total, group, "sum", algorithm="ring")
        collectives.all_reduce(small, group, "sum")
        count = group.size * passes
        total, small = total / count, small.item() / count
        signal, noise = signal_and_noise(small, total.dot(total).item(), per_piece, count * per_piece)
        signals.append(signal)
        noises.append(noise)
        told.append(passes)
        updates.append(total)
        passes = min(2 * passes, most) if sum(noises) > count * per_piece * sum(signals) else passes
    return {"passes": told, "updates": updates}


@variant("growing-batch", "my_growing_batch", at=2)
def with_running_means(pieces, group, per_piece, first, most):
    told, updates, mean, begin, passes = [], [], torch.zeros(2, dtype=torch.float64), 0, first
    while begin + passes <= len(pieces):
        mine, begin = pieces[begin : begin + passes], begin + passes
        flat = torch.cat([mine.square().sum().view(1), mine.sum(0)]) / (passes * group.size)
        collectives.all_reduce(flat, group, "sum", algorithm="ring")
        told.append(passes)
        updates.append(flat[1:].clone())
        large, n = float(flat[1:].norm() ** 2), passes * group.size
        now = torch.tensor([(n * large - flat[0]) / (n - 1), per_piece * n * (flat[0] - large) / (n - 1)])
        mean += (now - mean) / len(told)
        if float(mean[1]) > n * per_piece * float(mean[0]):
            passes = min(2 * passes, most)
    return {"passes": told, "updates": updates}
