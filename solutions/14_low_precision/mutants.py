"""The zoo of the exercises of chapter 14: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch

from labkit import collectives
from labkit.chapters.c14_low_precision.rounding import dice
from labkit.chapters.c14_low_precision.wires import pack, unpack
from labkit.grading.checks.zoo import mutant, slip, variant
from labkit.optim.precision import E4M3, round_to, scale_for

# Scales that remember -------------------------------------------------------------------------------------------------


knows_the_amax_of_this_step = slip("scales-that-remember", "my_scales", says="has seen the amax of the same", change="""
-        scales.append(torch.where(top > 0, largest / top, 1.0))

-            good.append(amaxes)
+            good.append(amaxes)
+            top = torch.stack(good[-history:]).amax(0)
+        scales.append(torch.where(top > 0, largest / top, 1.0))
""")  # fmt: skip


looks_at_its_own_shards = slip("scales-that-remember", "my_scales", says="looked at its own numbers only", change="""
-        collectives.all_reduce(amaxes, group, op="max", algorithm="ring")
-        taken.append(bool(amaxes.isfinite().all()))
+        every = collectives.all_reduce(amaxes.clone(), group, op="max", algorithm="ring")
+        taken.append(bool(every.isfinite().all()))
""")  # fmt: skip


decides_alone = slip("scales-that-remember", "my_scales", says="Ask all of them", change="""
-        collectives.all_reduce(amaxes, group, op="max", algorithm="ring")
-        taken.append(bool(amaxes.isfinite().all()))
+        taken.append(bool(amaxes.isfinite().all()))
+        collectives.all_reduce(amaxes, group, op="max", algorithm="ring")
""")  # fmt: skip


takes_every_step = slip("scales-that-remember", "my_scales", says="was taken, though rank", change="""
-        taken.append(bool(amaxes.isfinite().all()))
+        taken.append(True)
""")  # fmt: skip


an_infinity_is_remembered = slip("scales-that-remember", "my_scales", says="never gets into a history", change="""
-        if taken[-1]:
-            good.append(amaxes)
+        good.append(amaxes)
""")  # fmt: skip


a_spoilt_step_leaves_amaxes = slip("scales-that-remember", "my_scales", says="leave nothing behind", change="""
-        if taken[-1]:
-            good.append(amaxes)
+        good.append(torch.where(amaxes.isfinite(), amaxes, 0.0))
""")  # fmt: skip


never_forgets = slip("scales-that-remember", "my_scales", says="the history never forgets", change="""
-        top = torch.stack(good[-history:]).amax(0) if good else torch.zeros(len(tensors))
+        top = torch.stack(good).amax(0) if good else torch.zeros(len(tensors))
""")  # fmt: skip


divides_by_zero = slip("scales-that-remember", "my_scales", says="gives a scale of 1", change="""
-        scales.append(torch.where(top > 0, largest / top, 1.0))
+        scales.append(largest / top if good else torch.ones(len(tensors)))
""")  # fmt: skip


forgets_negative_numbers = slip("scales-that-remember", "my_scales", says="negative one may be larger", change="""
-        amaxes = torch.tensor([x.abs().max().item() if x.numel() else 0.0 for x in tensors])
+        amaxes = torch.tensor([max(x.max().item(), 0.0) if x.isfinite().all() else torch.inf for x in tensors])
""")  # fmt: skip


a_message_for_each_tensor = slip("scales-that-remember", "my_scales", says="travel together", at=4, change="""
-        collectives.all_reduce(amaxes, group, op="max", algorithm="ring")
+        for amax in amaxes:
+            collectives.all_reduce(amax, group, op="max", algorithm="ring")
""")  # fmt: skip


a_message_more_for_the_word = slip("scales-that-remember", "my_scales", says="messages in 9 steps", change="""
-        taken.append(bool(amaxes.isfinite().all()))
+        bad = torch.tensor([float(not amaxes.isfinite().all())])
+        collectives.all_reduce(bad, group, op="max", algorithm="ring")
+        taken.append(bad.item() == 0)
""")  # fmt: skip


trips_over_a_shard_without_numbers = slip("scales-that-remember", "my_scales", says="max()", at=5, change="""
-        amaxes = torch.tensor([x.abs().max().item() if x.numel() else 0.0 for x in tensors])
+        amaxes = torch.tensor([x.abs().max().item() for x in tensors])
""")  # fmt: skip


only_the_spoilt_rank_calls = slip("scales-that-remember", "my_scales", says="while others wait", change="""
-        collectives.all_reduce(amaxes, group, op="max", algorithm="ring")
+        if amaxes.isfinite().all():
+            collectives.all_reduce(amaxes, group, op="max", algorithm="ring")
""")  # fmt: skip


@variant("scales-that-remember", "my_scales")
def with_a_word_in_the_same_message(mine, group, history, largest):
    steps, tensors = len(mine), len(mine[0])
    ring = torch.zeros(history, tensors)  # the last amaxes, the oldest one is written over
    scales, taken, filled = torch.ones(steps, tensors), torch.zeros(steps, dtype=torch.bool), 0
    for step, own in enumerate(mine):
        top = ring.max(0).values
        scales[step][top > 0] = largest / top[top > 0]
        message = torch.zeros(tensors + 1)
        for i, x in enumerate(own):
            if len(x):
                message[i] = x.abs().max()
        message[-1] = 0.0 if message.isfinite().all() else 1.0
        message = message.nan_to_num(0.0, 0.0, 0.0)
        collectives.all_reduce(message, group, op="max", algorithm="ring")
        if message[-1] == 0:
            ring[filled % history] = message[:-1]
            taken[step] = True
            filled += 1
    return [scales, taken]


@variant("scales-that-remember", "my_scales")
def with_a_queue_for_each_tensor(mine, group, history, largest):
    queues = [[] for _ in mine[0]]
    rows, taken = [], []
    for own in mine:
        rows.append([largest / max(q) if q and max(q) > 0 else 1.0 for q in queues])
        norms = torch.stack([x.norm(p=torch.inf) if x.numel() else torch.tensor(0.0) for x in own])
        norms[norms.isnan()] = torch.inf
        norms = collectives.all_reduce(norms, group, op="max", algorithm="ring").tolist()
        taken.append(max(norms) < torch.inf)
        if taken[-1]:
            for queue, amax in zip(queues, norms, strict=True):
                queue.append(amax)
                del queue[:-history]
    return [torch.tensor(rows), torch.tensor(taken)]


# Parts of unequal length ----------------------------------------------------------------------------------------------


loses_what_was_lost = slip("parts-of-unequal-length", "my_parts", says="lost by rounding is forgotten", change="""
-        parts = (gradient + left).split(sizes)
+        parts = gradient.split(sizes)
""")  # fmt: skip


rounds_its_own_part = slip("parts-of-unequal-length", "my_parts", says="own part was packed as well", change="""
-        total = parts[group.rank].clone()
+        total = unpack(pack(parts[group.rank])) if own else parts[group.rank].clone()

-        left = torch.cat(owed)
+        owed[group.rank] = parts[group.rank] - (unpack(pack(parts[group.rank])) if own else 0)
+        left = torch.cat(owed)
""")  # fmt: skip


owes_with_the_wrong_sign = slip("parts-of-unequal-length", "my_parts", says="has the wrong sign", change="""
-        owed = [p - unpack(m) if m.numel() else torch.zeros_like(p) for p, m in zip(parts, messages, strict=True)]
+        owed = [unpack(m) - p if m.numel() else torch.zeros_like(p) for p, m in zip(parts, messages, strict=True)]
""")  # fmt: skip


owes_of_the_gradient_alone = slip(
    "parts-of-unequal-length", "my_parts", says="computed from the gradient alone", change="""
-        owed = [p - unpack(m) if m.numel() else torch.zeros_like(p) for p, m in zip(parts, messages, strict=True)]
+        fresh = gradient.split(sizes)
+        owed = [p - unpack(m) if m.numel() else torch.zeros_like(p) for p, m in zip(fresh, messages, strict=True)]
""")  # fmt: skip


sums_become_means = slip("parts-of-unequal-length", "my_parts", says="that is the average", change="""
-        sums.append(total)
+        sums.append(total / group.size)
""")  # fmt: skip


scales_without_numbers = slip("parts-of-unequal-length", "my_parts", says="has sent a scale", at=5, change="""
-    into = [4 + own if own and r != group.rank else 0 for r in range(group.size)]
+    into = [4 + own if r != group.rank else 0 for r in range(group.size)]

-        messages = [pack(p) if p.numel() and r != group.rank else none for r, p in enumerate(parts)]
+        messages = [pack(p) if r != group.rank else none for r, p in enumerate(parts)]
""")  # fmt: skip


@mutant("parts-of-unequal-length", "my_parts", says="The numbers travel in 32 bits")
def rounded_numbers_in_thirty_two_bits(mine, group, sizes):
    rank, left, sums = group.rank, torch.zeros(sum(sizes)), []
    for gradient in mine:
        due = gradient + left
        parts = list(due.split(sizes))
        wide = [unpack(pack(p)) if p.numel() else p for p in parts]
        wide[rank] = parts[rank]
        out = [0 if r == rank else size for r, size in enumerate(sizes)]
        into = [0 if r == rank else sizes[rank] for r in range(group.size)]
        away = torch.cat([w for r, w in enumerate(wide) if r != rank] or [due[:0]])
        came = collectives.all_to_all(away, group, out, into)
        sums.append(parts[rank] + came.view(group.size - 1, sizes[rank]).sum(0))
        left = due - torch.cat(wide)
    return [torch.stack(sums), left]


@mutant("parts-of-unequal-length", "my_parts", says="not rounded to 8 bits")
def a_whole_all_reduce(mine, group, sizes):
    begin = sum(sizes[: group.rank])
    sums = [collectives.all_reduce(g.clone(), group)[begin : begin + sizes[group.rank]] for g in mine]
    return [torch.stack(sums), torch.zeros(sum(sizes))]


@mutant("parts-of-unequal-length", "my_parts", says="Every part goes to every rank")
def everybody_gets_everything(mine, group, sizes):
    rank, left, sums = group.rank, torch.zeros(sum(sizes)), []
    lengths = [4 + size if size else 0 for size in sizes]
    for gradient in mine:
        due = gradient + left
        parts = due.split(sizes)
        packed = [pack(p) if p.numel() else torch.empty(0, dtype=torch.uint8) for p in parts]
        whole = collectives.all_gather(torch.cat(packed)[None], group, algorithm="ring")
        total = parts[rank].clone()
        for r, theirs in enumerate(whole):
            if r != rank and sizes[rank]:
                total += unpack(theirs.split(lengths)[rank])
        sums.append(total)
        wide = [unpack(m) if m.numel() and r != rank else p for r, (m, p) in enumerate(zip(packed, parts, strict=True))]
        left = due - torch.cat(wide)
    return [torch.stack(sums), left]


@mutant("parts-of-unequal-length", "my_parts", says="packed as a whole, with one scale")
def one_scale_for_the_gradient(mine, group, sizes):
    rank, left, sums = group.rank, torch.zeros(sum(sizes)), []
    begin = sum(sizes[:rank])
    for gradient in mine:
        due = gradient + left
        wide = unpack(pack(due))
        wide[begin : begin + sizes[rank]] = due[begin : begin + sizes[rank]]
        into = [sizes[rank]] * group.size
        came = collectives.all_to_all(wide, group, sizes, into)
        sums.append(came.view(group.size, -1).sum(0))
        left = due - wide
    return [torch.stack(sums), left]


@variant("parts-of-unequal-length", "my_parts")
def message_by_message(mine, group, sizes):
    rank, n = group.rank, group.size
    due, sums = [torch.zeros(size) for size in sizes], []
    for gradient in mine:
        due = [old + new for old, new in zip(due, gradient.split(sizes), strict=True)]
        total = due[rank]
        due[rank] = torch.zeros(sizes[rank])
        for hop in range(1, n):
            to, source = (rank + hop) % n, (rank - hop) % n
            into = torch.empty(4 + sizes[rank], dtype=torch.uint8)
            message = pack(due[to]) if sizes[to] else into
            if sizes[to] and sizes[rank]:
                into = group.exchange(message, to=to, like=into, source=source)
            elif sizes[to]:
                group.send(message, to)
            elif sizes[rank]:
                into = group.recv(into, source)
            if sizes[to]:
                due[to] = due[to] - unpack(message)
            if sizes[rank]:
                total = total + unpack(into)
        sums.append(total)
    return [torch.stack(sums), torch.cat(due)]


@variant("parts-of-unequal-length", "my_parts")
def sums_in_sixty_four_bits(mine, group, sizes):
    rank, left, sums = group.rank, torch.zeros(sum(sizes)), []
    goes = [r != rank and size > 0 for r, size in enumerate(sizes)]
    comes = [r != rank and sizes[rank] > 0 for r in range(group.size)]
    for gradient in mine:
        left = left + gradient
        parts = left.split(sizes)
        packed = [pack(p) for p, go in zip(parts, goes, strict=True) if go]
        out = [go * (4 + size) for go, size in zip(goes, sizes, strict=True)]
        flat = torch.cat(packed) if packed else torch.empty(0, dtype=torch.uint8)
        came = collectives.all_to_all(flat, group, out, [come * (4 + sizes[rank]) for come in comes])
        total = parts[rank].double()
        for message in came.view(-1, 4 + sizes[rank]):
            total += unpack(message)
        sums.append(total.float())
        parts[rank].zero_()
        for part, message in zip([p for p, go in zip(parts, goes, strict=True) if go], packed, strict=True):
            part -= unpack(message)
    return [torch.stack(sums), left]


# Up or down by chance -------------------------------------------------------------------------------------------------


to_the_nearest = slip("up-or-down-by-chance", "my_update", says="to the nearest whole step", at=4, change="""
-    total = rounded(gradient / step, seed, t, 0, group.rank).to(torch.int16)
+    total = (gradient / step).round().to(torch.int16)
""")  # fmt: skip


towards_zero = slip("up-or-down-by-chance", "my_update", says="no sums of neighbours", at=4, change="""
-    total = rounded(gradient / step, seed, t, 0, group.rank).to(torch.int16)
+    draw = torch.rand(gradient.shape, generator=dice(seed, t, 0, group.rank))
+    total = (gradient / step + draw).to(torch.int16)
""")  # fmt: skip


up_half_of_the_time = slip("up-or-down-by-chance", "my_update", says="steps off on average", at=4, change="""
-        up = torch.rand(x.shape, generator=dice(*numbers)) < x - x.floor()
+        up = (torch.rand(x.shape, generator=dice(*numbers)) < 0.5) & (x != x.floor())
""")  # fmt: skip


all_ranks_draw_alike = slip("up-or-down-by-chance", "my_update", says="do all ranks draw the same", at=4, change="""
-    total = rounded(gradient / step, seed, t, 0, group.rank).to(torch.int16)
+    total = rounded(gradient / step, seed, t, 0).to(torch.int16)
""")  # fmt: skip


weights_drift_apart = slip("up-or-down-by-chance", "my_update", says="other weights than rank 0", at=4, change="""
-    weights = rounded((weights - lr * mean) / grain, seed, t, 1) * grain
+    weights = rounded((weights - lr * mean) / grain, seed, t, 1, group.rank) * grain
""")  # fmt: skip


weights_to_the_nearest = slip("up-or-down-by-chance", "my_update", says="no weight has moved", at=4, change="""
-    weights = rounded((weights - lr * mean) / grain, seed, t, 1) * grain
+    weights = ((weights - lr * mean) / grain).round() * grain
""")  # fmt: skip


the_same_in_every_step = slip(
    "up-or-down-by-chance", "my_update", says="the gradients of rank 0 are rounded alike", at=2, change="""
-    total = rounded(gradient / step, seed, t, 0, group.rank).to(torch.int16)
+    total = rounded(gradient / step, seed, 0, group.rank).to(torch.int16)
""")  # fmt: skip


weights_unlucky_for_ever = slip(
    "up-or-down-by-chance", "my_update", says="the weights of rank 0 are rounded alike", at=2, change="""
-    weights = rounded((weights - lr * mean) / grain, seed, t, 1) * grain
+    weights = rounded((weights - lr * mean) / grain, seed, 1) * grain
""")  # fmt: skip


one_draw_for_all_numbers = slip("up-or-down-by-chance", "my_update", says="on average", at=4, change="""
-        up = torch.rand(x.shape, generator=dice(*numbers)) < x - x.floor()
+        up = torch.rand(1, generator=dice(*numbers)) < x - x.floor()
""")  # fmt: skip


uphill = slip("up-or-down-by-chance", "my_update", says="where the mean gradient takes it", at=4, change="""
-    weights = rounded((weights - lr * mean) / grain, seed, t, 1) * grain
+    weights = rounded((weights + lr * mean) / grain, seed, t, 1) * grain
""")  # fmt: skip


weights_always_down = slip("up-or-down-by-chance", "my_update", says="grains off on average", at=4, change="""
-    weights = rounded((weights - lr * mean) / grain, seed, t, 1) * grain
+    weights = ((weights - lr * mean) / grain).floor() * grain
""")  # fmt: skip


sums_in_thirty_two_bits = slip("up-or-down-by-chance", "my_update", says="travel in 32 bits", at=4, change="""
-    total = rounded(gradient / step, seed, t, 0, group.rank).to(torch.int16)
-    collectives.all_reduce(total, group, algorithm="ring")
+    total = rounded(gradient / step, seed, t, 0, group.rank)
+    total = collectives.all_reduce(total, group, algorithm="ring").to(torch.int16)
""")  # fmt: skip


rank_0_says_how = slip("up-or-down-by-chance", "my_update", says="rounds weights alike", at=4, change="""
-    weights = rounded((weights - lr * mean) / grain, seed, t, 1) * grain
+    weights = rounded((weights - lr * mean) / grain, seed, t, 1, group.rank) * grain
+    collectives.broadcast(weights, group, algorithm="tree")
""")  # fmt: skip


@variant("up-or-down-by-chance", "my_update", at=4)
def adds_chance_and_rounds_down(mine, group, lr, step, grain, seed, t):
    mine_alone, everyone = dice(seed, 2 * t, 1 + group.rank), dice(seed, 2 * t + 1)
    steps = mine["gradient"].double() / step
    total = (steps + torch.rand(steps.shape, generator=mine_alone)).floor().short()
    collectives.all_reduce(total, group, algorithm="ring")
    exact = (mine["weights"].double() - lr * step / group.size * total) / grain
    weights = (exact + torch.rand(exact.shape, generator=everyone)).floor() * grain
    return [total, weights.float()]


@variant("up-or-down-by-chance", "my_update", at=4)
def by_coins_that_are_not_fair(mine, group, lr, step, grain, seed, t):
    def one_of_two(x, generator):
        low = torch.floor(x)
        return low + torch.bernoulli((x - low).clamp(0, 1), generator=generator)

    total = one_of_two(mine["gradient"] / step, dice(t, seed, group.rank)).to(torch.int16)
    total = collectives.all_reduce(total, group, algorithm="ring")
    moved = mine["weights"] - lr * (total * step / group.size)
    return [total, one_of_two(moved / grain, dice(t, seed)) * grain]


# A block across the border --------------------------------------------------------------------------------------------


looks_at_its_own_numbers = slip(
    "a-block-across-the-border", "my_blocks", says="another scale on each of them", change="""
-                    amax[number - first] = max(amax[number - first].item(), value)
+                    pass
""")  # fmt: skip


asks_the_neighbours_only = slip("a-block-across-the-border", "my_blocks", says="only the neighbours", at=4, change="""
-        if lengths[rank]:
+        if lengths[rank] and abs(rank - group.rank) == 1:
""")  # fmt: skip


scales_that_are_no_powers_of_two = slip("a-block-across-the-border", "my_blocks", says="no powers of two", change="""
-    scales = scale_for(amax, E4M3, "e8m0-up")
+    scales = scale_for(amax, E4M3)
""")  # fmt: skip


scales_that_saturate = slip("a-block-across-the-border", "my_blocks", says="let numbers saturate", change="""
-    scales = scale_for(amax, E4M3, "e8m0-up")
+    scales = scale_for(amax, E4M3, "e8m0")
""")  # fmt: skip


trips_over_nothing = slip("a-block-across-the-border", "my_blocks", says="out of bounds", at=5, change="""
-    edges = amax[[0, -1]] if len(x) else torch.zeros(2)
+    edges = amax[[0, -1]]
""")  # fmt: skip


trusts_ranks_without_numbers = slip("a-block-across-the-border", "my_blocks", says="entries are wrong", at=5, change="""
-    edges = amax[[0, -1]] if len(x) else torch.zeros(2)
+    edges = amax[[0, -1]] if len(x) else torch.full((2,), 1e4)

-        if lengths[rank]:
+        if True:
""")  # fmt: skip


@mutant("a-block-across-the-border", "my_blocks", says="the blocks begin anew on each rank")
def counts_anew(x, group, lengths, block):
    own = torch.arange(len(x)) // block
    amax = torch.zeros(-(-len(x) // block)).scatter_reduce(0, own, x.abs(), "amax")
    scales = scale_for(amax, E4M3, "e8m0-up")
    return [round_to(x * scales[own], E4M3) / scales[own], scales]


@mutant("a-block-across-the-border", "my_blocks", says="can lie on others as well", at=4)
def an_all_reduce_of_all_blocks(x, group, lengths, block):
    begin = sum(lengths[: group.rank])
    own = (begin + torch.arange(len(x))) // block
    amax = torch.zeros(-(-sum(lengths) // block)).scatter_reduce(0, own, x.abs(), "amax")
    collectives.all_reduce(amax, group, op="max", algorithm="ring")
    scales = scale_for(amax, E4M3, "e8m0-up")
    return [round_to(x * scales[own], E4M3) / scales[own], scales[own.unique()]]


@mutant("a-block-across-the-border", "my_blocks", says="all blocks have the same scale")
def one_scale_for_the_tensor(x, group, lengths, block):
    begin = sum(lengths[: group.rank])
    amax = x.abs().max() if len(x) else torch.tensor(0.0)
    collectives.all_reduce(amax, group, op="max", algorithm="ring")
    scale = scale_for(amax, E4M3, "e8m0-up")
    blocks = ((begin + torch.arange(len(x))) // block).unique()
    return [round_to(x * scale, E4M3) / scale, scale.repeat(len(blocks))]


@variant("a-block-across-the-border", "my_blocks", at=4)
def all_reduce_of_the_blocks_on_borders(x, group, lengths, block):
    edges = torch.tensor([0, *lengths]).cumsum(0)
    inner = edges[1:-1]
    borders = (inner[inner % block != 0] // block).unique()  # the blocks with a border inside: at most N - 1
    number = (edges[group.rank] + torch.arange(len(x))) // block
    known = torch.zeros(len(borders))
    for i, border in enumerate(borders):
        if (number == border).any():
            known[i] = x[number == border].abs().max()
    if len(borders):
        collectives.all_reduce(known, group, op="max", algorithm="ring")
    narrow, scales = torch.zeros_like(x), []
    for b in number.unique():
        here = number == b
        amax = known[borders == b][0] if (borders == b).any() else x[here].abs().max()
        scales.append(scale_for(amax, E4M3, "e8m0-up"))
        narrow[here] = round_to(x[here] * scales[-1], E4M3) / scales[-1]
    return [narrow, torch.stack(scales) if scales else torch.zeros(0)]


@variant("a-block-across-the-border", "my_blocks", at=4)
def padded_to_whole_blocks(x, group, lengths, block):
    starts = [sum(lengths[:r]) for r in range(group.size + 1)]
    before = starts[group.rank] % block
    after = -starts[group.rank + 1] % block if len(x) else -before % block
    rows = torch.nn.functional.pad(x, (before, after)).view(-1, block)
    amax = rows.abs().amax(1) if len(x) else torch.zeros(0)
    mine = torch.cat([amax[:1], amax[-1:]]) if len(x) else torch.zeros(2)
    told = collectives.all_gather(mine, group, algorithm="ring").tolist()
    most = {}
    for r, length in enumerate(lengths):
        if length:
            for b, value in ((starts[r] // block, told[2 * r]), ((starts[r + 1] - 1) // block, told[2 * r + 1])):
                most[b] = max(most.get(b, 0.0), value)
    first = starts[group.rank] // block
    for i in {0, len(amax) - 1} if len(x) else ():
        amax[i] = most[first + i]
    scales = scale_for(amax, E4M3, "e8m0-up")
    if not len(x):
        return [x, scales]
    wide = round_to(rows * scales[:, None], E4M3) / scales[:, None]
    return [wide.flatten()[before : before + len(x)], scales]
