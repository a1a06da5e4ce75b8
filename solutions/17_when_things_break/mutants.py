"""The zoo of the exercises of chapter 17: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch

from labkit import collectives
from labkit.grading.checks.zoo import mutant, slip, variant

# Who waits least ----------------------------------------------------------------------------------------------------


@mutant("who-waits-least", "my_stragglers", says="That is who waits most", at=6)
def who_is_most_in_calls(mine, group):
    own = mine[mine[:, 0] == 0]
    two = torch.stack([(own[:, 3] - own[:, 2]).sum(), own[:, 3].max() - own[:, 2].min()])
    table = collectives.all_gather(two.view(1, 2), group).tolist()
    spent, window = [row[0] for row in table], max(row[1] for row in table)
    if max(spent) - min(spent) < 0.05 * window:
        return []
    return [spent.index(max(spent))]


@mutant("who-waits-least", "my_stragglers", says="Is the gap 5 % of the time", at=6)
def somebody_is_always_slow(mine, group):
    own = mine[mine[:, 0] == 0]
    spent = collectives.all_gather((own[:, 3] - own[:, 2]).sum().view(1), group).tolist()
    return [spent.index(min(spent))] if group.size > 1 else []


calls_inside_calls_count_again = slip("who-waits-least", "my_stragglers", says="Count no call twice", at=6, change="""
-    own = mine[mine[:, 0] == 0]
-    two = torch.stack([(own[:, 3] - own[:, 2]).sum(), own[:, 3].max() - own[:, 2].min()])
+    two = torch.stack([(mine[:, 3] - mine[:, 2]).sum(), mine[:, 3].max() - mine[:, 2].min()])
""")  # fmt: skip


@mutant("who-waits-least", "my_stragglers", says="Clocks of different ranks do not agree", at=6)
def who_comes_last_by_its_own_clock(mine, group):
    own = mine[mine[:, 0] == 0]
    three = torch.stack([(own[:, 3] - own[:, 2]).sum(), own[:, 3].max() - own[:, 2].min(), own[:, 3].max()])
    table = collectives.all_gather(three.view(1, 3), group).tolist()
    spent, window = [row[0] for row in table], max(row[1] for row in table)
    if max(spent) - min(spent) < 0.05 * window:
        return []
    last = [row[2] for row in table]
    return [last.index(max(last))]


@mutant("who-waits-least", "my_stragglers", says="Two numbers of each rank are enough", at=6)
def sends_the_whole_trace(mine, group):
    tables = collectives.all_gather(mine.view(1, -1).contiguous(), group).view(group.size, -1, 4)
    spent, window = [], 0
    for table in tables:
        own = table[table[:, 0] == 0]
        spent.append(int((own[:, 3] - own[:, 2]).sum()))
        window = max(window, int(own[:, 3].max() - own[:, 2].min()))
    order = sorted(range(group.size), key=lambda rank: spent[rank])
    gaps = [spent[order[k + 1]] - spent[order[k]] for k in range(group.size // 2)]
    if not gaps or max(gaps) < 0.05 * window:
        return []
    return sorted(order[: gaps.index(max(gaps)) + 1])


the_lowest_one_only = slip(
    "who-waits-least", "my_stragglers", says="all of them below the largest gap", at=5, change="""
-    if not gaps or max(gaps) < 0.05 * window:
-        return []
-    return sorted(order[: gaps.index(max(gaps)) + 1])
+    return [] if not gaps or max(gaps) < 0.05 * window else order[:1]
""")  # fmt: skip


@variant("who-waits-least", "my_stragglers", at=6)
def two_reductions_and_numpy(mine, group):
    own = mine[mine[:, 0] == 0]
    spent = torch.zeros(group.size, dtype=torch.int64)
    spent[group.rank] = (own[:, 3] - own[:, 2]).sum()
    spent = collectives.all_reduce(spent, group)
    window = collectives.all_reduce((own[:, 3].max() - own[:, 2].min()).view(1), group, op="max")
    order = torch.argsort(spent)
    gaps = spent[order].diff()[: group.size // 2]
    if not len(gaps) or int(gaps.max()) < 0.05 * int(window):
        return []
    return torch.sort(order[: int(gaps.argmax()) + 1]).values.tolist()


@variant("who-waits-least", "my_stragglers", at=6)
def one_rank_judges_for_all(mine, group):
    own = mine[mine[:, 0] == 0]
    two = torch.stack([(own[:, 3] - own[:, 2]).sum(), own[:, 3].max() - own[:, 2].min()])
    slow = torch.zeros(group.size, dtype=torch.int64)
    if group.rank:
        group.send(two, to=0)
    else:
        table = [two.tolist()] + [group.recv(torch.empty_like(two), source=r).tolist() for r in range(1, group.size)]
        order = sorted(range(group.size), key=lambda rank: table[rank][0])
        best, at = -1, 0
        for k in range(group.size // 2):
            gap = table[order[k + 1]][0] - table[order[k]][0]
            if gap > best:
                best, at = gap, k + 1
        if best >= 0.05 * max(row[1] for row in table):
            slow[order[:at]] = 1
    return torch.nonzero(collectives.broadcast(slow, group)).flatten().tolist()


# The leaf -----------------------------------------------------------------------------------------------------------


@mutant("the-leaf", "my_leaf", says="has joined every call that waits for no other one", at=6)
def everybody_outside_is_at_fault(mine, group, members):
    row = torch.cat([torch.tensor([mine["inside"], mine["waits_for"]]), mine["calls"]])
    table = collectives.all_gather(row.view(1, -1), group).tolist()
    inside, begun = [look[0] for look in table], [look[2:] for look in table]
    absent = {}
    for g in set(inside) - {-1}:
        most = max(begun[rank][g] for rank in members[g])
        absent[g] = [rank for rank in members[g] if begun[rank][g] < most]
    waits = {(g, inside[rank]) for g in absent for rank in absent[g] if inside[rank] >= 0}
    outside = [rank for rank in range(group.size) if inside[rank] < 0]
    stuck = [rank for rank in range(group.size) if inside[rank] >= 0 and table[rank][1] < 0]
    return [[list(edge) for edge in sorted(waits)], outside or stuck]


@mutant("the-leaf", "my_leaf", says="it has joined this call before, and left it", at=6)
def who_is_not_inside_has_not_joined(mine, group, members):
    row = torch.cat([torch.tensor([mine["inside"], mine["waits_for"]]), mine["calls"]])
    table = collectives.all_gather(row.view(1, -1), group).tolist()
    inside = [look[0] for look in table]
    absent = {g: [rank for rank in members[g] if inside[rank] != g] for g in set(inside) - {-1}}
    waits = {(g, inside[rank]) for g in absent for rank in absent[g] if inside[rank] >= 0}
    culprits = set()
    for g in set(absent) - {of for of, _ in waits}:
        stuck = [rank for rank in members[g] if inside[rank] == g and table[rank][1] < 0]
        culprits.update(absent[g] or stuck)
    return [[list(edge) for edge in sorted(waits)], sorted(culprits)]


@mutant("the-leaf", "my_leaf", says="waits itself, in the call of group", at=6)
def whoever_is_late_anywhere(mine, group, members):
    row = torch.cat([torch.tensor([mine["inside"], mine["waits_for"]]), mine["calls"]])
    table = collectives.all_gather(row.view(1, -1), group).tolist()
    inside, begun = [look[0] for look in table], [look[2:] for look in table]
    waits, culprits = set(), set()
    for g in set(inside) - {-1}:
        most = max(begun[rank][g] for rank in members[g])
        for rank in members[g]:
            if begun[rank][g] < most:
                culprits.add(rank)
                if inside[rank] >= 0:
                    waits.add((g, inside[rank]))
    return [[list(edge) for edge in sorted(waits)], sorted(culprits)]


@mutant("the-leaf", "my_leaf", says="Who waits for nobody there", at=6)
def no_look_inside(mine, group, members):
    row = torch.cat([torch.tensor([mine["inside"], mine["waits_for"]]), mine["calls"]])
    table = collectives.all_gather(row.view(1, -1), group).tolist()
    inside, begun = [look[0] for look in table], [look[2:] for look in table]
    absent = {}
    for g in set(inside) - {-1}:
        most = max(begun[rank][g] for rank in members[g])
        absent[g] = [rank for rank in members[g] if begun[rank][g] < most]
    waits = {(g, inside[rank]) for g in absent for rank in absent[g] if inside[rank] >= 0}
    leaves = set(absent) - {of for of, _ in waits}
    return [[list(edge) for edge in sorted(waits)], sorted({rank for g in leaves for rank in absent[g]})]


@mutant("the-leaf", "my_leaf", says="an arrow is missing on rank", at=6)
def no_arrows_and_only_ranks(mine, group, members):
    row = torch.tensor([[mine["inside"], mine["waits_for"]]])
    table = collectives.all_gather(row, group).tolist()
    ends = set()
    for rank in range(group.size):
        for _ in range(group.size):
            if table[rank][0] < 0 or table[rank][1] < 0:
                ends.add(rank)
                break
            rank = table[rank][1]
    return [[], sorted(ends)]


a_circle_is_a_leaf_too = slip("the-leaf", "my_leaf", says="wait for each other in a circle", at=6, change="""
-    inside, waits_for = [look[0] for look in table], [look[1] for look in table]
-    begun = [look[2:] for look in table]
+    inside, begun = [look[0] for look in table], [look[2:] for look in table]

     waits = {(g, inside[rank]) for g in absent for rank in absent[g] if inside[rank] >= 0}
+    leaves = set(absent) - {of for of, _ in waits} or set(absent)

-    for g in set(absent) - {of for of, _ in waits}:
-        stuck = [rank for rank in members[g] if inside[rank] == g and waits_for[rank] < 0]
+    for g in leaves:
+        stuck = [rank for rank in members[g] if inside[rank] == g and table[rank][1] < 0]
""")  # fmt: skip


one_culprit_is_enough = slip("the-leaf", "my_leaf", says="at fault is", at=6, change="""
-    inside, waits_for = [look[0] for look in table], [look[1] for look in table]
-    begun = [look[2:] for look in table]
+    inside, begun = [look[0] for look in table], [look[2:] for look in table]

-        stuck = [rank for rank in members[g] if inside[rank] == g and waits_for[rank] < 0]
+        stuck = [rank for rank in members[g] if inside[rank] == g and table[rank][1] < 0]

-    return [[list(edge) for edge in sorted(waits)], sorted(culprits)]
+    return [[list(edge) for edge in sorted(waits)], sorted(culprits)[:1]]
""")  # fmt: skip


@variant("the-leaf", "my_leaf", at=6)
def arrow_by_arrow(mine, group, members):
    look = torch.zeros(group.size, 2 + len(members), dtype=torch.int64)
    look[group.rank] = torch.cat([torch.tensor([mine["inside"], mine["waits_for"]]), mine["calls"]])
    look = collectives.all_reduce(look, group)
    of_call = {}
    for rank in range(group.size):
        of_call.setdefault(int(look[rank, 0]), []).append(rank)
    of_call.pop(-1, None)
    waits, culprits, busy = [], [], set()
    for g in sorted(of_call):
        calls = look[members[g], 2 + g]
        late = [rank for rank, n in zip(members[g], calls.tolist(), strict=True) if n < int(calls.max())]
        for rank in late:
            if look[rank, 0] >= 0:
                busy.add(g)
                if [g, int(look[rank, 0])] not in waits:
                    waits.append([g, int(look[rank, 0])])
        if g not in busy:
            culprits += late or [rank for rank in of_call[g] if look[rank, 1] < 0]
    return [sorted(waits), sorted(set(culprits))]


@variant("the-leaf", "my_leaf", at=6)
def rank_0_finds_it_and_tells(mine, group, members):
    row = torch.cat([torch.tensor([mine["inside"], mine["waits_for"]]), mine["calls"]])
    if group.rank:
        group.send(row, to=0)
    size = len(members)
    told = torch.zeros(size * size + group.size, dtype=torch.int64)
    if not group.rank:
        table = [row.tolist()]
        table += [group.recv(torch.empty_like(row), source=rank).tolist() for rank in range(1, group.size)]
        arrows = torch.zeros(size, size, dtype=torch.int64)
        late = {}
        for g in {look[0] for look in table if look[0] >= 0}:
            most = max(table[rank][2 + g] for rank in members[g])
            late[g] = [rank for rank in members[g] if table[rank][2 + g] < most]
            for rank in late[g]:
                if table[rank][0] >= 0:
                    arrows[g, table[rank][0]] = 1
        told[: size * size] = arrows.flatten()
        for g, ranks in late.items():
            if not arrows[g].any():
                inside = [rank for rank in members[g] if table[rank][0] == g and table[rank][1] < 0]
                told[[size * size + rank for rank in ranks or inside]] = 1
    told = collectives.broadcast(told, group)
    waits = torch.nonzero(told[: size * size].view(size, size)).tolist()
    return [waits, torch.nonzero(told[size * size :]).flatten().tolist()]


# All or none --------------------------------------------------------------------------------------------------------


@mutant("all-or-none", "my_guarded_training", says="has NaN or infinities among its weights", at=4)
def looks_at_the_loss(mine, group, rate):
    weights, left_out = mine["weights"].clone(), []
    for step in range(len(mine["x"])):
        own = weights.detach().requires_grad_()
        error = (mine["x"][step] @ own - mine["y"][step]).square().mean()
        loss = error + error.sqrt()
        gradient = torch.autograd.grad(loss, own)[0]
        bad = torch.tensor([int(not torch.isfinite(loss))])
        ranks = torch.nonzero(collectives.all_gather(bad, group)).flatten().tolist()
        if ranks:
            left_out.append([step, ranks])
        else:
            weights = weights - rate * collectives.all_reduce(gradient, group) / group.size
    return [weights, left_out]


@mutant("all-or-none", "my_guarded_training", says="Everybody has it after the exchange", at=4)
def looks_after_the_exchange(mine, group, rate):
    weights, left_out = mine["weights"].clone(), []
    for step in range(len(mine["x"])):
        own = weights.detach().requires_grad_()
        error = (mine["x"][step] @ own - mine["y"][step]).square().mean()
        loss = error + error.sqrt()
        total = collectives.all_reduce(torch.autograd.grad(loss, own)[0], group)
        if torch.isfinite(total).all():
            weights = weights - rate * total / group.size
        else:
            left_out.append([step, list(range(group.size))])
    return [weights, left_out]


@mutant("all-or-none", "my_guarded_training", says="the average of the others was taken", at=4)
def averages_the_others(mine, group, rate):
    weights, left_out = mine["weights"].clone(), []
    for step in range(len(mine["x"])):
        own = weights.detach().requires_grad_()
        error = (mine["x"][step] @ own - mine["y"][step]).square().mean()
        loss = error + error.sqrt()
        gradient = torch.autograd.grad(loss, own)[0]
        fine = bool(torch.isfinite(gradient).all())
        table = collectives.all_gather(torch.tensor([int(fine)]), group).tolist()
        if not all(table):
            left_out.append([step, [rank for rank, good in enumerate(table) if not good]])
        total = collectives.all_reduce(gradient if fine else torch.zeros_like(gradient), group)
        if any(table):
            weights = weights - rate * total / sum(table)
    return [weights, left_out]


@mutant("all-or-none", "my_guarded_training", says="NaN was made 0, and the update was made", at=4)
def zeros_in_place_of_nan(mine, group, rate):
    weights, left_out = mine["weights"].clone(), []
    for step in range(len(mine["x"])):
        own = weights.detach().requires_grad_()
        error = (mine["x"][step] @ own - mine["y"][step]).square().mean()
        loss = error + error.sqrt()
        gradient = torch.autograd.grad(loss, own)[0]
        bad = torch.tensor([int(not torch.isfinite(gradient).all())])
        ranks = torch.nonzero(collectives.all_gather(bad, group)).flatten().tolist()
        if ranks:
            left_out.append([step, ranks])
        gradient = torch.nan_to_num(gradient, 0.0, 0.0, 0.0)
        weights = weights - rate * collectives.all_reduce(gradient, group) / group.size
    return [weights, left_out]


@mutant("all-or-none", "my_guarded_training", says="one of them left an update out, or made one, alone", at=4)
def leaves_the_update_out_alone(mine, group, rate):
    weights, left_out = mine["weights"].clone(), []
    for step in range(len(mine["x"])):
        own = weights.detach().requires_grad_()
        error = (mine["x"][step] @ own - mine["y"][step]).square().mean()
        loss = error + error.sqrt()
        gradient = torch.autograd.grad(loss, own)[0]
        fine = bool(torch.isfinite(gradient).all())
        total = collectives.all_reduce(gradient if fine else torch.zeros_like(gradient), group)
        if fine:
            weights = weights - rate * total / group.size
        else:
            left_out.append([step, [group.rank]])
    return [weights, left_out]


@mutant("all-or-none", "my_guarded_training", says="no gradient travels", at=3)
def asks_and_sends_all_the_same(mine, group, rate):
    weights, left_out = mine["weights"].clone(), []
    for step in range(len(mine["x"])):
        own = weights.detach().requires_grad_()
        error = (mine["x"][step] @ own - mine["y"][step]).square().mean()
        loss = error + error.sqrt()
        gradient = torch.autograd.grad(loss, own)[0]
        bad = torch.tensor([int(not torch.isfinite(gradient).all())])
        ranks = torch.nonzero(collectives.all_gather(bad, group)).flatten().tolist()
        total = collectives.all_reduce(gradient, group)
        if ranks:
            left_out.append([step, ranks])
        else:
            weights = weights - rate * total / group.size
    return [weights, left_out]


@mutant("all-or-none", "my_guarded_training", says="has NaN or infinities among its weights", at=4)
def nan_but_not_infinity(mine, group, rate):
    weights, left_out = mine["weights"].clone(), []
    for step in range(len(mine["x"])):
        own = weights.detach().requires_grad_()
        error = (mine["x"][step] @ own - mine["y"][step]).square().mean()
        gradient = torch.autograd.grad(error + error.sqrt(), own)[0]
        bad = torch.tensor([int(torch.isnan(gradient).any())])
        ranks = torch.nonzero(collectives.all_gather(bad, group)).flatten().tolist()
        if ranks:
            left_out.append([step, ranks])
        else:
            weights = weights - rate * collectives.all_reduce(gradient, group) / group.size
    return [weights, left_out]


@mutant("all-or-none", "my_guarded_training", says="Every rank should know it of all", at=4)
def tells_of_itself_only(mine, group, rate):
    weights, left_out = mine["weights"].clone(), []
    for step in range(len(mine["x"])):
        own = weights.detach().requires_grad_()
        error = (mine["x"][step] @ own - mine["y"][step]).square().mean()
        gradient = torch.autograd.grad(error + error.sqrt(), own)[0]
        bad = not torch.isfinite(gradient).all()
        if collectives.all_reduce(torch.tensor([int(bad)]), group).item():
            left_out.append([step, [group.rank] if bad else []])
        else:
            weights = weights - rate * collectives.all_reduce(gradient, group) / group.size
    return [weights, left_out]


@variant("all-or-none", "my_guarded_training", at=4)
def a_bit_for_each_rank(mine, group, rate):
    weights, left_out = mine["weights"].clone(), []
    for step, (x, y) in enumerate(zip(mine["x"], mine["y"], strict=True)):
        own = weights.detach().requires_grad_()
        error = (x @ own - y).square().mean()
        gradient = torch.autograd.grad(error + error.sqrt(), own)[0]
        bad = (~torch.isfinite(gradient)).any()
        bits = collectives.all_reduce(torch.tensor([int(bad) << group.rank]), group).item()
        if bits:
            left_out.append([step, [rank for rank in range(group.size) if bits >> rank & 1]])
            continue
        weights -= rate / group.size * collectives.all_reduce(gradient, group, algorithm="ring")
    return [weights, left_out]


@variant("all-or-none", "my_guarded_training", at=4)
def gathers_gradients_and_adds_them_itself(mine, group, rate):
    weights, left_out = mine["weights"].clone(), []
    for step in range(mine["x"].shape[0]):
        own = weights.detach().requires_grad_()
        error = (mine["x"][step] @ own - mine["y"][step]).square().mean()
        loss = error + error.sqrt()
        gradient = torch.autograd.grad(loss, own)[0]
        fine = torch.zeros(group.size)
        fine[group.rank] = float(torch.isfinite(gradient.sum()))
        collectives.all_reduce(fine, group)
        if fine.all():
            weights = weights - rate * collectives.all_gather(gradient.view(1, -1), group).mean(0)
        else:
            left_out.append([step, [rank for rank in range(group.size) if not fine[rank]]])
    return [weights, left_out]


# Do it again ----------------------------------------------------------------------------------------------------------


@mutant("do-it-again", "my_checked_sum", says="A bit flipped, and it was returned all the same", at=4)
def trusts_the_network(mine, group):
    def total(way, attempt):
        place, step = (group.rank, 1) if way == 0 else (group.size - 1 - group.rank, -1)
        ahead, behind = (group.rank + step) % group.size, (group.rank - step) % group.size

        def send(x, phase):
            x = x.clone()
            x[0] ^= mine["flips"][way, attempt, phase]
            group.send(x, to=ahead)

        held = mine["x"].clone()
        if place > 0:
            held += group.recv(torch.empty_like(held), source=behind)
        if place < group.size - 1:
            send(held, 0)
            held = group.recv(torch.empty_like(held), source=behind)
        if place != group.size - 2:
            send(held, 1)
        return held

    return [total(0, 0), "clean", -1]


@mutant("do-it-again", "my_checked_sum", says="says 'clean'; it is 'transient'", at=4)
def decides_by_its_own_sums(mine, group):
    def total(way, attempt):
        place, step = (group.rank, 1) if way == 0 else (group.size - 1 - group.rank, -1)
        ahead, behind = (group.rank + step) % group.size, (group.rank - step) % group.size

        def send(x, phase):
            x = x.clone()
            x[0] ^= mine["flips"][way, attempt, phase]
            group.send(x, to=ahead)

        held = mine["x"].clone()
        if place > 0:
            held += group.recv(torch.empty_like(held), source=behind)
        if place < group.size - 1:
            send(held, 0)
            held = group.recv(torch.empty_like(held), source=behind)
        if place != group.size - 2:
            send(held, 1)
        return held

    first = [total(0, 0), total(1, 0)]
    again = [total(0, 1), total(1, 1)]
    right = collectives.all_gather(mine["x"].view(1, -1), group).sum(0)
    way = 0 if not torch.equal(first[0], right) else 1
    if torch.equal(*first):
        return [right, "clean", -1]
    return [right, "transient" if torch.equal(*again) else "persistent", way]


some_ranks_repeat_alone = slip(
    "do-it-again", "my_checked_sum", says="has finished while others wait for it", at=4, change="""
-    def differ(a, b):
-        own = torch.tensor([int(not torch.equal(a, b))])
-        return bool(collectives.all_reduce(own, group, op="max"))

-    if not differ(*first):
+    if torch.equal(*first):

-    if differ(*again):
-        word, right = "persistent", collectives.all_gather(mine["x"].view(1, -1), group).sum(0)
-    else:
-        word, right = "transient", again[0]
-    return [right, word, 0 if differ(first[0], right) else 1]
+    if torch.equal(*again):
+        return [again[0], "transient", 0 if not torch.equal(first[0], again[0]) else 1]
+    right = collectives.all_gather(mine["x"].view(1, -1), group).sum(0)
+    return [right, "persistent", 0 if not torch.equal(first[0], right) else 1]
""")  # fmt: skip


everything_happens_once = slip("do-it-again", "my_checked_sum", says="it is 'persistent'", at=4, change="""
-    again = [total(0, 1), total(1, 1)]
-    if differ(*again):
-        word, right = "persistent", collectives.all_gather(mine["x"].view(1, -1), group).sum(0)
-    else:
-        word, right = "transient", again[0]
-    return [right, word, 0 if differ(first[0], right) else 1]
+    right = collectives.all_gather(mine["x"].view(1, -1), group).sum(0)
+    return [right, "transient", 0 if differ(first[0], right) else 1]
""")  # fmt: skip


always_blames_the_second_way = slip(
    "do-it-again", "my_checked_sum", says="was wrong on the first attempt; it was", at=4, change="""
-        word, right = "persistent", collectives.all_gather(mine["x"].view(1, -1), group).sum(0)
-    else:
-        word, right = "transient", again[0]
-    return [right, word, 0 if differ(first[0], right) else 1]
+        return [collectives.all_gather(mine["x"].view(1, -1), group).sum(0), "persistent", 1]
+    return [again[0], "transient", 1]
""")  # fmt: skip


a_single_difference_is_enough = slip("do-it-again", "my_checked_sum", says="happened once", at=4, change="""
-    again = [total(0, 1), total(1, 1)]
-    if differ(*again):
-        word, right = "persistent", collectives.all_gather(mine["x"].view(1, -1), group).sum(0)
-    else:
-        word, right = "transient", again[0]
-    return [right, word, 0 if differ(first[0], right) else 1]
+    right = collectives.all_gather(mine["x"].view(1, -1), group).sum(0)
+    return [right, "persistent", 0 if differ(first[0], right) else 1]
""")  # fmt: skip


gathers_everything_to_begin_with = slip(
    "do-it-again", "my_checked_sum", says="That is more than a clean case needs", at=3, change="""
         return bool(collectives.all_reduce(own, group, op="max"))
+    right = collectives.all_gather(mine["x"].view(1, -1), group).sum(0)

-        return [first[0], "clean", -1]
+        return [right, "clean", -1]

-    if differ(*again):
-        word, right = "persistent", collectives.all_gather(mine["x"].view(1, -1), group).sum(0)
-    else:
-        word, right = "transient", again[0]
-    return [right, word, 0 if differ(first[0], right) else 1]
+    return [right, "persistent" if differ(*again) else "transient", 0 if differ(first[0], right) else 1]
""")  # fmt: skip


@mutant("do-it-again", "my_checked_sum", says="says", at=4)
def asks_the_hardware(mine, group):
    right = collectives.all_gather(mine["x"].view(1, -1), group).sum(0)
    seen = (mine["flips"] != 0).any(2).int()
    seen = collectives.all_reduce(seen, group, op="max")
    if not seen[:, 0].any():
        return [right, "clean", -1]
    return [right, "persistent" if seen[:, 1].any() else "transient", int(seen[1, 0])]


@variant("do-it-again", "my_checked_sum", at=4)
def in_a_loop(mine, group):
    def total(way, attempt):
        place, step = (group.rank, 1) if way == 0 else (group.size - 1 - group.rank, -1)
        ahead, behind = (group.rank + step) % group.size, (group.rank - step) % group.size

        def send(x, phase):
            x = x.clone()
            x[0] ^= mine["flips"][way, attempt, phase]
            group.send(x, to=ahead)

        held = mine["x"].clone()
        if place > 0:
            held += group.recv(torch.empty_like(held), source=behind)
        if place < group.size - 1:
            send(held, 0)
            held = group.recv(torch.empty_like(held), source=behind)
        if place != group.size - 2:
            send(held, 1)
        return held

    def differ(a, b):
        own = torch.tensor([int(not torch.equal(a, b))])
        return bool(collectives.all_reduce(own, group, op="max"))

    sums = []
    for attempt in (0, 1):
        sums.append(torch.stack([total(way, attempt) for way in (0, 1)]))
        if not differ(sums[-1][0], sums[-1][1]):
            break
    else:
        sums.append(collectives.all_gather(mine["x"].view(1, -1), group).sum(0, keepdim=True))
    word = ["clean", "transient", "persistent"][len(sums) - 1]
    right = sums[-1][0]
    return [right, word, -1 if word == "clean" else 1 - int(differ(sums[0][0], right))]


@variant("do-it-again", "my_checked_sum", at=4)
def compares_checksums(mine, group):
    def total(way, attempt):
        place, step = (group.rank, 1) if way == 0 else (group.size - 1 - group.rank, -1)
        ahead, behind = (group.rank + step) % group.size, (group.rank - step) % group.size

        def send(x, phase):
            x = x.clone()
            x[0] ^= mine["flips"][way, attempt, phase]
            group.send(x, to=ahead)

        held = mine["x"].clone()
        if place > 0:
            held += group.recv(torch.empty_like(held), source=behind)
        if place < group.size - 1:
            send(held, 0)
            held = group.recv(torch.empty_like(held), source=behind)
        if place != group.size - 2:
            send(held, 1)
        return held

    def tell(*tensors):
        weights = torch.arange(1, len(mine["x"]) + 1)
        row = torch.tensor([[int((x * weights).sum()) for x in tensors]])
        return collectives.all_gather(row, group)

    def agree(table):
        return bool((table == table[0, 0]).all())

    first = [total(0, 0), total(1, 0)]
    told = tell(*first)
    if agree(told):
        return [first[1], "clean", -1]
    again = [total(0, 1), total(1, 1)]
    word, right = "transient", again[1]
    if not agree(tell(*again)):
        word = "persistent"
        right = torch.zeros_like(mine["x"])
        for rank in range(group.size):
            right += collectives.broadcast(mine["x"].clone(), group, root=rank)
    good = tell(right)[0, 0]
    return [right, word, int(bool((told[:, 0] == good).all()))]
