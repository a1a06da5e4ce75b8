"""The zoo of the exercises of chapter 6: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import math

import torch

from labkit import collectives, cost
from labkit.grading.checks.zoo import mutant, slip, variant

# Efficiency from profiles ---------------------------------------------------------------------------------------


@mutant("efficiency-from-profiles", "my_efficiency", says="divided by its own step")
def mean_of_the_ranks_own_efficiencies(records, group):
    boxes = torch.cat([records["computing"], records["messages"]])
    lines = torch.zeros(2, int(boxes.max()), dtype=torch.bool)
    for line, kind in zip(lines, ("computing", "messages"), strict=True):
        for begin, end in records[kind].tolist():
            line[begin:end] = True
    own = lines[0].sum() / (boxes.max() - boxes.min()).double()
    sums = torch.stack([own, lines[1].sum().double(), (lines[0] & lines[1]).sum().double()])
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    return torch.stack([sums[0] / group.size, sums[2] / sums[1] if sums[1] else torch.ones_like(own)])


busy_is_not_useful = slip("efficiency-from-profiles", "my_efficiency", says="counts messages as work", change="""
-    computing, sending = lines
-    sums = torch.stack([computing.sum(), sending.sum(), (computing & sending).sum()]).double()
+    sums = torch.stack([(lines[0] | lines[1]).sum(), lines[1].sum(), (lines[0] & lines[1]).sum()]).double()
""")  # fmt: skip


@mutant("efficiency-from-profiles", "my_efficiency", says="a microsecond is counted twice")
def adds_up_all_boxes(records, group):
    computing, messages = records["computing"], records["messages"]
    boxes = torch.cat([computing, messages])
    ends = torch.stack([boxes.max(), -boxes.min()])
    begins = torch.maximum(computing[:, None, 0], messages[None, :, 0])
    both = (torch.minimum(computing[:, None, 1], messages[None, :, 1]) - begins).clamp(min=0).sum()
    sums = torch.stack([(computing[:, 1] - computing[:, 0]).sum(), (messages[:, 1] - messages[:, 0]).sum(), both])
    sums = sums.double()
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    collectives.all_reduce(ends, group, "max", algorithm="ring")
    hidden = sums[2] / sums[1] if sums[1] else torch.ones_like(sums[1])
    return torch.stack([sums[0] / group.size / ends.sum(), hidden])


@mutant("efficiency-from-profiles", "my_efficiency", says="Every rank returns its own part")
def each_rank_for_itself(records, group):
    boxes = torch.cat([records["computing"], records["messages"]])
    lines = torch.zeros(2, int(boxes.max()), dtype=torch.bool)
    for line, kind in zip(lines, ("computing", "messages"), strict=True):
        for begin, end in records[kind].tolist():
            line[begin:end] = True
    computing, sending, both = lines[0].sum().double(), lines[1].sum(), (lines[0] & lines[1]).sum()
    hidden = both / sending.double() if sending else torch.ones_like(computing)
    return torch.stack([computing / (boxes.max() - boxes.min()), hidden])


mean_of_the_hidden_parts = slip(
    "efficiency-from-profiles", "my_efficiency", says="mean of the ranks' parts", at=4, change="""
-    computing, sending = lines
-    sums = torch.stack([computing.sum(), sending.sum(), (computing & sending).sum()]).double()
+    computing, sending, both = lines[0].sum().double(), lines[1].sum(), (lines[0] & lines[1]).sum()
+    sums = torch.stack([computing, both / sending.double() if sending else torch.ones_like(computing)])

-    hidden = sums[2] / sums[1] if sums[1] else torch.ones_like(sums[1])
-    return torch.stack([sums[0] / group.size / ends.sum(), hidden])
+    return torch.stack([sums[0] / ends.sum(), sums[1]]) / group.size
""")  # fmt: skip


@mutant("efficiency-from-profiles", "my_efficiency", says="does not begin at 0 of the clock")
def forgets_when_the_step_begins(records, group):
    boxes = torch.cat([records["computing"], records["messages"]])
    last = boxes.max()
    lines = torch.zeros(2, int(last), dtype=torch.bool)
    for line, kind in zip(lines, ("computing", "messages"), strict=True):
        for begin, end in records[kind].tolist():
            line[begin:end] = True
    sums = torch.stack([lines[0].sum(), lines[1].sum(), (lines[0] & lines[1]).sum()]).double()
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    collectives.all_reduce(last, group, "max", algorithm="ring")
    hidden = sums[2] / sums[1] if sums[1] else torch.ones_like(sums[1])
    return torch.stack([sums[0] / group.size / last, hidden])


@mutant("efficiency-from-profiles", "my_efficiency", says="Do profiles travel?")
def gathers_the_profiles(records, group):
    length = 20_000
    totals = torch.zeros(3, dtype=torch.float64)
    first, last = [], []
    both_kinds = [collectives.all_gather(records[k][None], group, algorithm="ring") for k in ("computing", "messages")]
    for computing, messages in zip(*both_kinds, strict=True):
        lines = torch.zeros(2, 3 * length, dtype=torch.bool)
        for line, boxes in zip(lines, (computing, messages), strict=True):
            for begin, end in boxes.tolist():
                line[begin:end] = True
                first.append(begin)
                last.append(end)
        totals += torch.stack([lines[0].sum(), lines[1].sum(), (lines[0] & lines[1]).sum()])
    hidden = totals[2] / totals[1] if totals[1] else torch.ones_like(totals[1])
    return torch.stack([totals[0] / group.size / (max(last) - min(first)), hidden])


@variant("efficiency-from-profiles", "my_efficiency")
def merged_boxes_and_one_gather(records, group):
    computing = records["computing"].tolist()
    merged = []
    for begin, end in sorted(records["messages"].tolist()):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    both = sum(max(0, min(d, e) - max(b, c)) for b, d in computing for c, e in merged)
    every = computing + merged
    mine = [min(b for b, _ in every), max(e for _, e in every), sum(e - b for b, e in computing)]
    mine += [sum(e - b for b, e in merged), both]
    table = collectives.all_gather(torch.tensor([mine], dtype=torch.float64), group, algorithm="ring")
    step = table[:, 1].max() - table[:, 0].min()
    sums = table[:, 2:].sum(0)
    hidden = sums[2] / sums[1] if sums[1] > 0 else torch.ones_like(step)
    return torch.stack([sums[0] / (group.size * step), hidden])


@variant("efficiency-from-profiles", "my_efficiency", at=4)
def sweeps_over_the_ends(records, group):
    events = []
    for kind in ("computing", "messages"):
        for begin, end in records[kind].tolist():
            events += [(begin, kind, 1), (end, kind, -1)]
    open_now = {"computing": 0, "messages": 0}
    spent = torch.zeros(3, dtype=torch.float64)
    before = 0
    for moment, kind, change in sorted(events):
        work, sends = open_now["computing"] > 0, open_now["messages"] > 0
        spent += (moment - before) * torch.tensor([work, sends, work and sends], dtype=torch.float64)
        open_now[kind] += change
        before = moment
    limits = torch.tensor([max(events)[0], -min(events)[0]], dtype=torch.float64)
    collectives.all_reduce(spent, group, "sum")
    collectives.all_reduce(limits, group, "max")
    part = spent[2] / spent[1] if spent[1] > 0 else torch.tensor(1.0, dtype=torch.float64)
    return torch.stack([spent[0] / limits.sum() / group.size, part])


# Waiting or moving ----------------------------------------------------------------------------------------------


believes_the_clocks = slip("waiting-or-moving", "my_waiting", says="The clocks do not agree", change="""
-    begin, end = (records["all_reduce"] - records["barrier"]).unbind(1)
+    begin, end = records["all_reduce"].unbind(1)
""")  # fmt: skip


@mutant("waiting-or-moving", "my_waiting", says="Waiting is over when the last one has begun")
def until_the_last_has_ended(records, group):
    begin, end = (records["all_reduce"] - records["barrier"]).unbind(1)
    begins = collectives.all_gather(begin[None].clone(), group, algorithm="ring")
    ends = end.clone()
    collectives.all_reduce(ends, group, "max", algorithm="ring")
    latest = begins.topk(min(2, group.size), dim=0)
    lost = torch.zeros(group.size, dtype=torch.int64)
    lost.index_add_(0, latest.indices[0], latest.values[0] - latest.values[-1])
    return torch.stack([(ends - begin).sum(), (end - latest.values[0]).sum(), lost.argmax()])


@mutant("waiting-or-moving", "my_waiting", says="the others waited for it, not it for them")
def later_than_the_first(records, group):
    begin, end = (records["all_reduce"] - records["barrier"]).unbind(1)
    begins = collectives.all_gather(begin[None].clone(), group, algorithm="ring")
    first = begins.min(0).values
    latest = begins.topk(min(2, group.size), dim=0)
    lost = torch.zeros(group.size, dtype=torch.int64)
    lost.index_add_(0, latest.indices[0], latest.values[0] - latest.values[-1])
    return torch.stack([(begin - first).sum(), (end - begin).sum(), lost.argmax()])


all_of_it_is_moving = slip("waiting-or-moving", "my_waiting", says="with the waiting in it", change="""
-    return torch.stack([(last - begin).sum(), (end - last).sum(), lost.argmax()])
+    return torch.stack([(last - begin).sum(), (end - begin).sum(), lost.argmax()])
""")  # fmt: skip


@mutant("waiting-or-moving", "my_waiting", says="began last most often, but by little")
def blames_the_most_frequent(records, group):
    begin, end = (records["all_reduce"] - records["barrier"]).unbind(1)
    begins = collectives.all_gather(begin[None].clone(), group, algorithm="ring")
    last = begins.max(0).values
    return torch.stack([(last - begin).sum(), (end - last).sum(), begins.argmax(0).mode().values])


@mutant("waiting-or-moving", "my_waiting", says="A victim is not guilty", at=4)
def blames_the_longest_all_reduce(records, group):
    begin, end = (records["all_reduce"] - records["barrier"]).unbind(1)
    last = begin.clone()
    collectives.all_reduce(last, group, "max", algorithm="ring")
    took = collectives.all_gather((end - begin).sum()[None], group, algorithm="ring")
    return torch.stack([(last - begin).sum(), (end - last).sum(), took.argmax()])


@mutant("waiting-or-moving", "my_waiting", says="it is late together with another one", at=4)
def blames_the_one_that_waits_least(records, group):
    begin, end = (records["all_reduce"] - records["barrier"]).unbind(1)
    begins = collectives.all_gather(begin[None].clone(), group, algorithm="ring")
    waits = (begins.max(0).values - begins).sum(1)
    return torch.stack([waits[group.rank], (end - begin).sum() - waits[group.rank], waits.argmin()])


@mutant("waiting-or-moving", "my_waiting", says="Is there a collective for each step?")
def a_gather_for_each_step(records, group):
    waited = moved = 0
    lost = torch.zeros(group.size, dtype=torch.int64)
    for begin, end in (records["all_reduce"] - records["barrier"]).tolist():
        begins = collectives.all_gather(torch.tensor([begin]), group, algorithm="ring").sort()
        last = int(begins.values[-1])
        waited, moved = waited + last - begin, moved + end - last
        lost[begins.indices[-1]] += last - begins.values[-min(2, group.size)]
    return torch.tensor([waited, moved, int(lost.argmax())])


@variant("waiting-or-moving", "my_waiting")
def two_reductions(records, group):
    begin, end = (records["all_reduce"] - records["barrier"]).unbind(1)
    table = torch.zeros(len(begin), group.size, dtype=torch.int64)
    table[:, group.rank] = begin
    collectives.all_reduce(table, group, "sum")
    lost = [0] * group.size
    waited = 0
    for mine, row in zip(begin.tolist(), table.tolist(), strict=True):
        before, last = ([row[0]] + sorted(row))[-2:]
        lost[row.index(last)] += last - before
        waited += last - mine
    return torch.tensor([waited, int((end - begin).sum()) - waited, lost.index(max(lost))])


@variant("waiting-or-moving", "my_waiting", at=4)
def by_hand_around_the_ring(records, group):
    own = records["all_reduce"] - records["barrier"]
    begins = {group.rank: own[:, 0].clone()}
    for step in range(group.size - 1):
        out = begins[(group.rank - step) % group.size]
        to, source = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        begins[(source - step) % group.size] = group.exchange(out, to=to, like=torch.empty_like(out), source=source)
    rows = torch.stack([begins[r] for r in range(group.size)])
    last = rows.max(0).values
    lost = []
    for r in range(group.size):
        others = torch.cat([rows[:r], rows[r + 1 :]])
        lost.append(int((rows[r] - others.max(0).values).clamp(min=0).sum()) if group.size > 1 else 0)
    return torch.tensor([int((last - own[:, 0]).sum()), int((own[:, 1] - last).sum()), lost.index(max(lost))])


# Shares for slow ranks ------------------------------------------------------------------------------------------


@mutant("shares-for-slow-ranks", "my_shares", says="All ranks have as many samples")
def equal_shares(ms, group, samples):
    return torch.tensor([len(part) for part in torch.arange(samples).tensor_split(group.size)])


@mutant("shares-for-slow-ranks", "my_shares", says="is a speed turned upside down?")
def more_for_the_slow(ms, group, samples):
    speeds = collectives.all_gather(torch.tensor([ms]), group, algorithm="ring")
    shares = speeds * samples // speeds.sum()
    shares[-1] += samples - shares.sum()
    return shares


@mutant("shares-for-slow-ranks", "my_shares", says="Together the shares")
def rounds_down(ms, group, samples):
    rates = 1 / collectives.all_gather(torch.tensor([ms]), group, algorithm="ring").double()
    return (samples * rates / rates.sum() + 1e-9).long()


@mutant("shares-for-slow-ranks", "my_shares", says="Who gets what is left over?")
def the_rest_to_rank_0(ms, group, samples):
    rates = 1 / collectives.all_gather(torch.tensor([ms]), group, algorithm="ring").double()
    shares = (samples * rates / rates.sum() + 1e-9).long()
    shares[0] += samples - shares.sum()
    return shares


@mutant("shares-for-slow-ranks", "my_shares", says="Who gets what is left over?")
def rounds_each_share(ms, group, samples):
    rates = 1 / collectives.all_gather(torch.tensor([ms]), group, algorithm="ring").double()
    shares = (samples * rates / rates.sum()).round().long()
    shares[-1] += samples - shares.sum()
    return shares


@mutant("shares-for-slow-ranks", "my_shares", says="then samples are read twice, or never")
def knows_only_itself_and_the_mean(ms, group, samples):
    mean = torch.tensor([float(ms)])
    collectives.all_reduce(mean, group, "avg", algorithm="ring")
    others = mean.item()
    shares = torch.full((group.size,), round(samples / group.size * ms / others))
    shares[group.rank] = round(samples / group.size * others / ms)
    shares[-1] += samples - shares.sum()
    return shares


@mutant("shares-for-slow-ranks", "my_shares", says="When every rank knows every speed")
def asks_before_each_sample(ms, group, samples):
    shares = torch.zeros(group.size, dtype=torch.int64)
    for _ in range(samples):
        ready = collectives.all_gather((shares[group.rank : group.rank + 1] + 1) * ms, group, algorithm="ring")
        shares[ready.argmin()] += 1
    return shares


@variant("shares-for-slow-ranks", "my_shares")
def searches_for_the_step(ms, group, samples):
    speeds = torch.zeros(group.size, dtype=torch.int64)
    speeds[group.rank] = ms
    collectives.all_reduce(speeds, group, "sum")
    low, high = 0, int(speeds.max()) * samples
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if int((middle // speeds).sum()) >= samples else (middle + 1, high)
    shares = low // speeds
    for rank in range(group.size):
        over = min(int(shares[rank]), int(shares.sum()) - samples)
        shares[rank] -= over
    return shares


@variant("shares-for-slow-ranks", "my_shares", at=4)
def in_proportion_and_then_one_by_one(ms, group, samples):
    speeds = collectives.all_gather(torch.tensor([ms]), group, algorithm="bruck").tolist()
    rate = sum(1 / s for s in speeds)
    shares = [max(0, int(samples / s / rate) - 1) for s in speeds]
    while sum(shares) < samples:
        ready = [(s + 1) * speed for s, speed in zip(shares, speeds, strict=True)]
        shares[len(ready) - 1 - ready[::-1].index(min(ready))] += 1
    return torch.tensor(shares)


# A ring that stays at home --------------------------------------------------------------------------------------


@mutant("a-ring-that-stays-at-home", "my_short_ring", says="In the order of the ranks", at=4)
def in_the_order_of_the_ranks(x, group, nodes):
    return collectives.all_reduce(x, group, "sum", algorithm="ring")


@mutant("a-ring-that-stays-at-home", "my_short_ring", says="the sum of its own node", at=4)
def never_leaves_the_node(x, group, nodes):
    home = group.subgroup([r for r in range(group.size) if nodes[r] == nodes[group.rank]])
    return collectives.all_reduce(x, home, "sum", algorithm="ring")


@mutant("a-ring-that-stays-at-home", "my_short_ring", says="Does one rank work for its whole node", at=4)
def a_leader_for_each_node(x, group, nodes):
    members = [r for r in range(group.size) if nodes[r] == nodes[group.rank]]
    home = group.subgroup(members)
    leaders = [nodes.index(node) for node in sorted(set(nodes))]
    if group.rank == members[0]:
        for r in range(1, home.size):
            x += home.recv(torch.empty_like(x), source=r)
        collectives.all_reduce(x, group.subgroup(leaders), "sum", algorithm="ring")
        for r in range(1, home.size):
            home.send(x, to=r)
        return x
    home.send(x, to=0)
    return home.recv(x, source=0)


@mutant("a-ring-that-stays-at-home", "my_short_ring", says="whole tensors between nodes", at=6)
def everything_to_everybody(x, group, nodes):
    order = sorted(range(group.size), key=lambda rank: nodes[rank])
    return collectives.all_gather(x[None], group.subgroup(order), algorithm="ring").sum(0).to(x.dtype)


@mutant("a-ring-that-stays-at-home", "my_short_ring", says="are enough", at=4)
def takes_blocks_of_ranks_for_nodes(x, group, nodes):
    k = 2 if group.size % 2 == 0 else 1
    home = group.subgroup([group.rank - group.rank % k + i for i in range(k)])
    across = group.subgroup(list(range(group.rank % k, group.size, k)))
    sizes = [len(part) for part in x.flatten().tensor_split(k)]
    part = collectives.ring_reduce_scatter(x.flatten(), home)
    collectives.ring_all_reduce(part, across)
    return collectives.ring_all_gather(part, home, sizes=sizes).view(x.shape)


@mutant("a-ring-that-stays-at-home", "my_short_ring", says="needs different ranks", at=4)
def sorts_the_nodes_and_not_the_ranks(x, group, nodes):
    order = [nodes.index(node) for node in sorted(nodes)]
    return collectives.all_reduce(x, group.subgroup(order), "sum", algorithm="ring")


@variant("a-ring-that-stays-at-home", "my_short_ring", at=4)
def node_after_node_backwards(x, group, nodes):
    order = []
    for node in dict.fromkeys(reversed(nodes)):
        order += [r for r in reversed(range(group.size)) if nodes[r] == node]
    ring = group.subgroup(order)
    part = collectives.ring_reduce_scatter(x.flatten(), ring)
    sizes = [len(piece) for piece in x.flatten().tensor_split(ring.size)]
    return collectives.ring_all_gather(part, ring, sizes=sizes).view(x.shape)


@variant("a-ring-that-stays-at-home", "my_short_ring", at=6)
def by_hand_in_the_right_order(x, group, nodes):
    order = sorted(range(group.size), key=lambda rank: (-nodes[rank], rank))
    n, me = group.size, order.index(group.rank)
    to, source = order[(me + 1) % n], order[(me - 1) % n]
    chunks = list(x.flatten().tensor_split(n))
    if n == 1:
        return x
    for step in range(2 * (n - 1)):
        out, into = (me - step) % n, (me - step - 1) % n
        came = group.exchange(chunks[out], to=to, like=torch.empty_like(chunks[into]), source=source)
        chunks[into] = chunks[into] + came if step < n - 1 else came
    return torch.cat(chunks).view(x.shape)


@variant("a-ring-that-stays-at-home", "my_short_ring", at=4)
def two_levels_where_nodes_are_equal(x, group, nodes):
    homes = [[r for r in range(group.size) if nodes[r] == node] for node in sorted(set(nodes))]
    if len({len(home) for home in homes}) > 1:
        ring = group.subgroup([r for home in homes for r in home])
        return collectives.ring_all_reduce(x, ring)
    mine = next(home for home in homes if group.rank in home)
    place = mine.index(group.rank)
    inside, across = group.subgroup(mine), group.subgroup([home[place] for home in homes])
    sizes = [len(part) for part in x.flatten().tensor_split(len(mine))]
    part = collectives.ring_reduce_scatter(x.flatten(), inside)
    collectives.ring_all_reduce(part, across)
    return collectives.ring_all_gather(part, inside, sizes=sizes).view(x.shape)


# Forecast -------------------------------------------------------------------------------------------------------


@mutant("forecast", "my_forecast", says="forecasts from its own rows")
def each_rank_has_its_own_forecast(log, group, sizes, target):
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for row, size in zip(sums, sizes, strict=True):
        ms = log[log[:, 0] == size, 1]
        row += torch.stack([torch.tensor(float(len(ms))), ms.sum(), (ms**2).sum()])
    number, total, squares = sums.unbind(1)
    mean = total / number
    error = ((squares - total * mean) / (number - 1) / number).sqrt()
    points = [cost.Measured(*p) for p in zip(sizes, mean.tolist(), error.tolist(), strict=True)]
    law = cost.fit_scaling(points[:2], "weak", "bytes")
    return torch.tensor([law.seconds(target), law.error(target), law.misses(points[2])], dtype=torch.float64)


@mutant("forecast", "my_forecast", says="a fit of the mean of the ranks' means")
def mean_of_the_means(log, group, sizes, target):
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for row, size in zip(sums, sizes, strict=True):
        ms = log[log[:, 0] == size, 1]
        row += torch.stack([torch.tensor(float(len(ms))), ms.sum(), (ms**2).sum()])
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    number, total, squares = sums.unbind(1)
    mean = total / number
    own = torch.stack([log[log[:, 0] == size, 1].mean() for size in sizes])
    error = ((squares - total * mean) / (number - 1) / number).sqrt()
    mean = collectives.all_reduce(own, group, "avg", algorithm="ring")
    points = [cost.Measured(*p) for p in zip(sizes, mean.tolist(), error.tolist(), strict=True)]
    law = cost.fit_scaling(points[:2], "weak", "bytes")
    return torch.tensor([law.seconds(target), law.error(target), law.misses(points[2])], dtype=torch.float64)


@mutant("forecast", "my_forecast", says="Keep the third out of it")
def all_three_sizes_in_the_fit(log, group, sizes, target):
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for row, size in zip(sums, sizes, strict=True):
        ms = log[log[:, 0] == size, 1]
        row += torch.stack([torch.tensor(float(len(ms))), ms.sum(), (ms**2).sum()])
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    number, total, squares = sums.unbind(1)
    mean = total / number
    error = ((squares - total * mean) / (number - 1) / number).sqrt()
    points = [cost.Measured(*p) for p in zip(sizes, mean.tolist(), error.tolist(), strict=True)]
    law = cost.fit_scaling(points, "weak", "bytes")
    return torch.tensor([law.seconds(target), law.error(target), law.misses(points[2])], dtype=torch.float64)


@mutant("forecast", "my_forecast", says="the law by messages", at=4)
def by_messages_of_a_ring(log, group, sizes, target):
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for row, size in zip(sums, sizes, strict=True):
        ms = log[log[:, 0] == size, 1]
        row += torch.stack([torch.tensor(float(len(ms))), ms.sum(), (ms**2).sum()])
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    number, total, squares = sums.unbind(1)
    mean = total / number
    error = ((squares - total * mean) / (number - 1) / number).sqrt()
    points = [cost.Measured(*p) for p in zip(sizes, mean.tolist(), error.tolist(), strict=True)]
    law = cost.fit_scaling(points[:2], "weak", "messages")
    return torch.tensor([law.seconds(target), law.error(target), law.misses(points[2])], dtype=torch.float64)


@mutant("forecast", "my_forecast", says="comes from the spread of single steps")
def the_spread_of_single_steps(log, group, sizes, target):
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for row, size in zip(sums, sizes, strict=True):
        ms = log[log[:, 0] == size, 1]
        row += torch.stack([torch.tensor(float(len(ms))), ms.sum(), (ms**2).sum()])
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    number, total, squares = sums.unbind(1)
    mean = total / number
    error = ((squares - total * mean) / (number - 1)).sqrt()
    points = [cost.Measured(*p) for p in zip(sizes, mean.tolist(), error.tolist(), strict=True)]
    law = cost.fit_scaling(points[:2], "weak", "bytes")
    return torch.tensor([law.seconds(target), law.error(target), law.misses(points[2])], dtype=torch.float64)


@mutant("forecast", "my_forecast", says="Divide the squares by one less")
def divides_by_all(log, group, sizes, target):
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for row, size in zip(sums, sizes, strict=True):
        ms = log[log[:, 0] == size, 1]
        row += torch.stack([torch.tensor(float(len(ms))), ms.sum(), (ms**2).sum()])
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    number, total, squares = sums.unbind(1)
    mean = total / number
    error = ((squares - total * mean) / number / number).sqrt()
    points = [cost.Measured(*p) for p in zip(sizes, mean.tolist(), error.tolist(), strict=True)]
    law = cost.fit_scaling(points[:2], "weak", "bytes")
    return torch.tensor([law.seconds(target), law.error(target), law.misses(points[2])], dtype=torch.float64)


@mutant("forecast", "my_forecast", says="the law stretches their errors", at=4)
def nothing_is_stretched(log, group, sizes, target):
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for row, size in zip(sums, sizes, strict=True):
        ms = log[log[:, 0] == size, 1]
        row += torch.stack([torch.tensor(float(len(ms))), ms.sum(), (ms**2).sum()])
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    number, total, squares = sums.unbind(1)
    mean = total / number
    error = ((squares - total * mean) / (number - 1) / number).sqrt()
    points = [cost.Measured(*p) for p in zip(sizes, mean.tolist(), error.tolist(), strict=True)]
    law = cost.fit_scaling(points[:2], "weak", "bytes")
    flat = math.hypot(points[0].error, points[1].error)
    return torch.tensor([law.seconds(target), flat, law.misses(points[2])], dtype=torch.float64)


@mutant("forecast", "my_forecast", says="Independent errors add up as squares")
def errors_add_up_as_they_are(log, group, sizes, target):
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for row, size in zip(sums, sizes, strict=True):
        ms = log[log[:, 0] == size, 1]
        row += torch.stack([torch.tensor(float(len(ms))), ms.sum(), (ms**2).sum()])
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    number, total, squares = sums.unbind(1)
    mean = total / number
    error = ((squares - total * mean) / (number - 1) / number).sqrt()
    grows = [2 * (n - 1) / n for n in (*sizes, target)]
    w = [(g - grows[0]) / (grows[1] - grows[0]) for g in grows]
    ahead, third = ((1 - w[i]) * mean[0] + w[i] * mean[1] for i in (3, 2))
    errors = [abs(1 - w[i]) * error[0] + w[i] * error[1] for i in (3, 2)]
    return torch.stack([ahead, errors[0], (mean[2] - third) / torch.hypot(error[2], errors[1])])


@mutant("forecast", "my_forecast", says="The prediction for the third size has an error as well")
def only_the_measured_error(log, group, sizes, target):
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for row, size in zip(sums, sizes, strict=True):
        ms = log[log[:, 0] == size, 1]
        row += torch.stack([torch.tensor(float(len(ms))), ms.sum(), (ms**2).sum()])
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    number, total, squares = sums.unbind(1)
    mean = total / number
    error = ((squares - total * mean) / (number - 1) / number).sqrt()
    points = [cost.Measured(*p) for p in zip(sizes, mean.tolist(), error.tolist(), strict=True)]
    law = cost.fit_scaling(points[:2], "weak", "bytes")
    misses = (points[2].seconds - law.seconds(sizes[2])) / points[2].error
    return torch.tensor([law.seconds(target), law.error(target), misses], dtype=torch.float64)


@mutant("forecast", "my_forecast", says="Do rows of the log travel?")
def the_whole_log_to_everyone(log, group, sizes, target):
    most = torch.tensor([len(log)])
    collectives.all_reduce(most, group, "max", algorithm="ring")
    own = torch.zeros(int(most), 2, dtype=torch.float64)
    own[: len(log)] = log
    every = collectives.all_gather(own, group, algorithm="ring")
    points = [cost.Measured.of(size, every[every[:, 0] == size, 1].tolist()) for size in sizes]
    law = cost.fit_scaling(points[:2], "weak", "bytes")
    return torch.tensor([law.seconds(target), law.error(target), law.misses(points[2])], dtype=torch.float64)


@mutant("forecast", "my_forecast", says="raised")
def needs_rows_on_every_rank(log, group, sizes, target):
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for row, size in zip(sums, sizes, strict=True):
        ms = log[log[:, 0] == size, 1]
        ms = ms - 0 * ms.max()
        row += torch.stack([torch.tensor(float(len(ms))), ms.sum(), (ms**2).sum()])
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    number, total, squares = sums.unbind(1)
    mean = total / number
    error = ((squares - total * mean) / (number - 1) / number).sqrt()
    points = [cost.Measured(*p) for p in zip(sizes, mean.tolist(), error.tolist(), strict=True)]
    law = cost.fit_scaling(points[:2], "weak", "bytes")
    return torch.tensor([law.seconds(target), law.error(target), law.misses(points[2])], dtype=torch.float64)


@variant("forecast", "my_forecast")
def with_the_fit_of_the_book(log, group, sizes, target):
    sums = torch.zeros(3, 3, dtype=torch.float64)
    for row, size in zip(sums, sizes, strict=True):
        ms = log[log[:, 0] == size, 1]
        row += torch.stack([torch.tensor(float(len(ms))), ms.sum(), (ms**2).sum()])
    collectives.all_reduce(sums, group, "sum", algorithm="ring")
    number, total, squares = sums.unbind(1)
    mean = total / number
    error = ((squares - total * mean) / (number - 1) / number).sqrt()
    points = [cost.Measured(*p) for p in zip(sizes, mean.tolist(), error.tolist(), strict=True)]
    law = cost.fit_scaling(points[:2], "weak", "bytes")
    return torch.tensor([law.seconds(target), law.error(target), law.misses(points[2])], dtype=torch.float64)


@variant("forecast", "my_forecast", at=4)
def two_passes(log, group, sizes, target):
    own = [log[log[:, 0] == size, 1] for size in sizes]
    sums = torch.tensor([[len(ms), ms.sum()] for ms in own], dtype=torch.float64)
    collectives.all_reduce(sums, group, "sum")
    number, mean = sums[:, 0], sums[:, 1] / sums[:, 0]
    squares = torch.stack([((ms - m) ** 2).sum() for ms, m in zip(own, mean, strict=True)])
    collectives.all_reduce(squares, group, "sum")
    error = (squares / (number - 1) / number).sqrt().tolist()
    grows = [2 - 2 / n for n in (*sizes, target)]
    slope = (mean[1] - mean[0]) / (grows[1] - grows[0])
    said = []
    for place in (3, 2):
        w = (grows[place] - grows[0]) / (grows[1] - grows[0])
        value = mean[0] + slope * (grows[place] - grows[0])
        said += [float(value), math.sqrt(((1 - w) * error[0]) ** 2 + (w * error[1]) ** 2)]
    misses = (float(mean[2]) - said[2]) / math.sqrt(error[2] ** 2 + said[3] ** 2)
    return torch.tensor([said[0], said[1], misses], dtype=torch.float64)
