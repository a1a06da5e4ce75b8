"""The zoo of the exercises of chapter 13: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import time

import torch

from labkit import collectives
from labkit.chapters.c13_embeddings.runs import noise, under_masks, worker
from labkit.chapters.c13_embeddings.tables import to_owners
from labkit.chapters.c13_embeddings.you_write import sum_equal
from labkit.grading.checks.zoo import mutant, slip, variant

# Sums come home -------------------------------------------------------------------------------------------------------


a_row_for_each_id = slip("sums-come-home", "my_pooled", says="A row comes back for each id", change="""
-    sums = []
-    for theirs in came.split(into):
-        asking, place = theirs[:, 1].unique(return_inverse=True)
-        total = rows.new_zeros(len(asking), rows.shape[1])
-        sums.append(total.index_add_(0, place, rows[theirs[:, 0] // group.size]))
-    asks = torch.zeros(group.size, b, dtype=torch.bool)
-    asks[owner, example] = True
-    back = [len(total) for total in sums]
-    home = collectives.all_to_all(torch.cat(sums), group, back, asks.sum(1).tolist())
-    return rows.new_zeros(b, rows.shape[1]).index_add_(0, asks.nonzero()[:, 1], home)
+    home = collectives.all_to_all(rows[came[:, 0] // group.size], group, into, counts.tolist())
+    return rows.new_zeros(b, rows.shape[1]).index_add_(0, example[order], home)
""")  # fmt: skip


twice_is_once = slip("sums-come-home", "my_pooled", says="is added once", change="""
-        total = rows.new_zeros(len(asking), rows.shape[1])
-        sums.append(total.index_add_(0, place, rows[theirs[:, 0] // group.size]))
+        each = [theirs[place == i, 0].unique() // group.size for i in range(len(asking))]
+        sums.append(torch.stack([rows[ids].sum(0) for ids in each]) if each else rows[:0])
""")  # fmt: skip


a_mean_of_each = slip("sums-come-home", "my_pooled", says="averaged, and not summed", change="""
-    return rows.new_zeros(b, rows.shape[1]).index_add_(0, asks.nonzero()[:, 1], home)
+    return rows.new_zeros(b, rows.shape[1]).index_add_(0, asks.nonzero()[:, 1], home) / k
""")  # fmt: skip


the_last_row_wins = slip("sums-come-home", "my_pooled", says="entries are wrong", change="""
-        sums.append(total.index_add_(0, place, rows[theirs[:, 0] // group.size]))
+        total[place] += rows[theirs[:, 0] // group.size]
+        sums.append(total)
""")  # fmt: skip


to_the_first_examples = slip("sums-come-home", "my_pooled", says="belong to other examples", change="""
-    return rows.new_zeros(b, rows.shape[1]).index_add_(0, asks.nonzero()[:, 1], home)
+    first = torch.cat([torch.arange(int(count)) for count in asks.sum(1)])
+    return rows.new_zeros(b, rows.shape[1]).index_add_(0, first, home)
""")  # fmt: skip


a_sum_for_every_example = slip("sums-come-home", "my_pooled", says="examples that did not ask", at=4, change="""
-        asking, place = theirs[:, 1].unique(return_inverse=True)
-        total = rows.new_zeros(len(asking), rows.shape[1])
-        sums.append(total.index_add_(0, place, rows[theirs[:, 0] // group.size]))
+        total = rows.new_zeros(examples[len(sums)], rows.shape[1])
+        sums.append(total.index_add_(0, theirs[:, 1], rows[theirs[:, 0] // group.size]))

-    sums = []
+    sums, examples = [], collectives.all_gather(torch.tensor([b]), group, algorithm="ring").tolist()

-    asks[owner, example] = True
+    asks[:] = True
""")  # fmt: skip


@mutant("sums-come-home", "my_pooled", says="Something is sent to everybody")
def the_whole_table(mine, group):
    sizes = collectives.all_gather(torch.tensor([len(mine["rows"])]), group, algorithm="ring").tolist()
    parts = collectives.all_gather(mine["rows"], group, sizes, algorithm="ring").split(sizes)
    table = torch.zeros(sum(sizes), mine["rows"].shape[1], dtype=mine["rows"].dtype)
    for rank, part in enumerate(parts):
        table[rank :: group.size] = part
    return table[mine["ids"]].sum(1)


@mutant("sums-come-home", "my_pooled", says="only the rows of the rank itself")
def stays_at_home(mine, group):
    ids, rows = mine["ids"], mine["rows"]
    own = (ids % group.size == group.rank).to(rows.dtype)
    return (rows[ids // group.size % max(1, len(rows))] * own[..., None]).sum(1)


@mutant("sums-come-home", "my_pooled", says="entries are wrong", at=4)
def made_for_two_ranks(mine, group):
    ids, rows = mine["ids"], mine["rows"]
    other = ids % group.size != group.rank
    counts = [int(other.sum()) if r == (group.rank + 1) % group.size else 0 for r in range(group.size)]
    into = collectives.all_to_all(torch.tensor(counts), group, algorithm="pairwise").tolist()
    asked = collectives.all_to_all(ids[other], group, counts, into)
    back = collectives.all_to_all(rows[asked // group.size % len(rows)], group, into, counts)
    found = torch.zeros(*ids.shape, rows.shape[1], dtype=rows.dtype)
    found[~other], found[other] = rows[ids[~other] // group.size], back
    return found.sum(1)


@mutant("sums-come-home", "my_pooled", says="wait", at=3)
def waits_for_ranks_that_do_not_ask(mine, group):
    if group.rank:  # everybody asks rank 0, which asks nobody
        group.send(torch.tensor([0]), 0)
        group.recv(torch.zeros(1, dtype=torch.int64), 0)
    else:
        for rank in range(1, group.size):
            group.recv(torch.zeros(2, dtype=torch.int64), rank)
    return mine["rows"][:0]


@variant("sums-come-home", "my_pooled")
def rank_after_rank(mine, group):
    ids, rows, n = mine["ids"], mine["rows"], group.size
    total = rows.new_zeros(len(ids), rows.shape[1])
    for step in range(n):
        to, source = (group.rank + step) % n, (group.rank - step) % n
        wanted = (ids % n == to).nonzero()[:, 0]
        pairs = torch.stack([ids[ids % n == to], wanted], 1)
        if step == 0:
            total.index_add_(0, wanted, rows[pairs[:, 0] // n])
            continue
        count = group.exchange(torch.tensor([len(pairs)]), to=to, like=torch.zeros(1, dtype=torch.int64), source=source)
        like = torch.zeros(int(count), 2, dtype=torch.int64)
        theirs = group.exchange(pairs, to=to, like=like, source=source)
        asking = theirs[:, 1].unique_consecutive()
        sums = [rows[theirs[theirs[:, 1] == e, 0] // n].sum(0) for e in asking]
        out = torch.stack(sums) if sums else rows[:0]
        whose = wanted.unique_consecutive()
        back = group.exchange(out, to=source, like=rows.new_zeros(len(whose), rows.shape[1]), source=to)
        total[whose] += back
    return total


@variant("sums-come-home", "my_pooled")
def ids_and_examples_apart(mine, group):
    ids, rows, n = mine["ids"], mine["rows"], group.size
    picks = [(ids % n == r).nonzero(as_tuple=True) for r in range(n)]
    out = [len(example) for example, _ in picks]
    into = collectives.all_to_all(torch.tensor(out), group, algorithm="pairwise").tolist()
    asked = collectives.all_to_all(torch.cat([ids[pick] for pick in picks]), group, out, into)
    whose = collectives.all_to_all(torch.cat([example for example, _ in picks]), group, out, into)
    source = torch.arange(n).repeat_interleave(torch.tensor(into))
    keys, place = (source * 10_000 + whose).unique(return_inverse=True)
    sums = torch.zeros(len(keys), rows.shape[1], dtype=rows.dtype).index_add_(0, place, rows[asked // n])
    back = (keys // 10_000).bincount(minlength=n).tolist()
    order = [example.unique() for example, _ in picks]
    home = collectives.all_to_all(sums, group, back, [len(one) for one in order])
    total = torch.zeros(len(ids), rows.shape[1], dtype=rows.dtype)
    for one, part in zip(order, home.split([len(one) for one in order]), strict=True):
        total[one] += part
    return total


# A row that rested ----------------------------------------------------------------------------------------------------


forgets_the_rest = slip("a-row-that-rested", "my_steps", says="as if no step had passed", change="""
-        decay = beta ** (t - 1 - last[place]).double()[:, None]
+        decay = torch.ones(len(place), 1).double()
""")  # fmt: skip


one_step_too_many = slip("a-row-that-rested", "my_steps", says="one step too many", change="""
-        decay = beta ** (t - 1 - last[place]).double()[:, None]
+        decay = beta ** (t - last[place]).double()[:, None]
""")  # fmt: skip


catches_up_one_step = slip("a-row-that-rested", "my_steps", says="catches up one step only", change="""
-        decay = beta ** (t - 1 - last[place]).double()[:, None]
+        decay = beta ** (last[place] < t - 1).double()[:, None]
""")  # fmt: skip


only_the_velocity_decays = slip("a-row-that-rested", "my_steps", says="has not moved meanwhile", change="""
-        rows[place] -= lr * beta * (1 - decay) / (1 - beta) * velocity[place]
""")  # fmt: skip


not_summed_at_home = slip("a-row-that-rested", "my_steps", says="Sum its gradients before they leave", change="""
-        ids, g = sum_equal(*to_owners(*sum_equal(*batch), group))
+        ids, g = sum_equal(*to_owners(*batch, group))
""")  # fmt: skip


not_summed_at_the_owner = slip("a-row-that-rested", "my_steps", says="of equal ids only", change="""
-        ids, g = sum_equal(*to_owners(*sum_equal(*batch), group))
+        ids, g = to_owners(*batch, group)
""")  # fmt: skip


averaged_over_ranks = slip("a-row-that-rested", "my_steps", says="averaged over the ranks", change="""
+        g = g / group.size
         place = ids // group.size
""")  # fmt: skip


counts_steps_from_zero = slip("a-row-that-rested", "my_steps", says="entries are wrong", change="""
-        last[place] = t
+        last[place] = t - 1
""")  # fmt: skip


forgets_when = slip("a-row-that-rested", "my_steps", says="`last` is 0 everywhere", change="""
-        last[place] = t
""")  # fmt: skip


skips_a_step_without_ids = slip("a-row-that-rested", "my_steps", says="entries are wrong", at=5, change="""
+        if not len(batch[0]):
+            continue
         ids, g = sum_equal(*to_owners(*sum_equal(*batch), group))
""")  # fmt: skip


made_for_a_half = slip("a-row-that-rested", "my_steps", says="entries are wrong", at=5, change="""
-        rows[place] -= lr * beta * (1 - decay) / (1 - beta) * velocity[place]
+        rows[place] -= lr * (1 - decay) * velocity[place]
""")  # fmt: skip


@mutant("a-row-that-rested", "my_steps", says="carried on to the last step")
def dense_at_the_owner(mine, group, lr, beta):
    rows = mine["rows"].clone()
    velocity, last = torch.zeros_like(rows), torch.zeros(len(rows), dtype=torch.int64)
    for t, batch in enumerate(zip(mine["ids"], mine["gradients"], strict=True), 1):
        ids, g = sum_equal(*to_owners(*sum_equal(*batch), group))
        velocity *= beta
        velocity[ids // group.size] += g
        rows -= lr * velocity
        last[ids // group.size] = t
    return [rows, velocity, last]


@mutant("a-row-that-rested", "my_steps", says="sent to everybody")
def all_reduces_the_table(mine, group, lr, beta):
    rows = mine["rows"].clone()
    n = torch.tensor([len(rows)])
    collectives.all_reduce(n, group, algorithm="ring")
    velocity, last = torch.zeros_like(rows), torch.zeros(len(rows), dtype=torch.int64)
    for t, (ids, gradients) in enumerate(zip(mine["ids"], mine["gradients"], strict=True), 1):
        whole = torch.zeros(int(n), rows.shape[1] + 1, dtype=rows.dtype)
        whole[:, :-1].index_add_(0, ids, gradients)
        whole[ids, -1] = 1
        collectives.all_reduce(whole, group, algorithm="ring")
        own = whole[group.rank :: group.size]
        for p in own[:, -1].nonzero()[:, 0].tolist():
            for _ in range(t - 1 - int(last[p])):
                velocity[p] *= beta
                rows[p] -= lr * velocity[p]
            velocity[p] = beta * velocity[p] + own[p, :-1]
            rows[p] -= lr * velocity[p]
            last[p] = t
    return [rows, velocity, last]


@variant("a-row-that-rested", "my_steps")
def step_after_step(mine, group, lr, beta):
    rows = mine["rows"].clone()
    velocity, last = torch.zeros_like(rows), torch.zeros(len(rows), dtype=torch.int64)
    for t, (ids, gradients) in enumerate(zip(mine["ids"], mine["gradients"], strict=True), 1):
        came, g = sum_equal(*to_owners(*sum_equal(ids, gradients), group))
        for i, one in zip((came // group.size).tolist(), g, strict=True):
            while last[i] < t:
                last[i] += 1
                velocity[i] = beta * velocity[i] + (one if last[i] == t else 0)
                rows[i] -= lr * velocity[i]
    return [rows, velocity, last]


@variant("a-row-that-rested", "my_steps")
def dense_with_snapshots(mine, group, lr, beta):
    w, v = mine["rows"].clone(), torch.zeros_like(mine["rows"])
    rows, velocity, last = w.clone(), v.clone(), torch.zeros(len(w), dtype=torch.int64)
    for t in range(len(mine["ids"])):
        ids, g = sum_equal(*to_owners(*sum_equal(mine["ids"][t], mine["gradients"][t]), group))
        dense = torch.zeros_like(w).index_copy_(0, ids // group.size, g)
        v = beta * v + dense
        w = w - lr * v
        p = ids // group.size
        rows[p], velocity[p], last[p] = w[p], v[p], t + 1
    return [rows, velocity, last]


# Half a gradient is none ----------------------------------------------------------------------------------------------


each_server_for_itself = slip("half-a-gradient", "my_server", says="half of a gradient was applied", at=5, change="""
-    every = group.subgroup(range(servers))
-    collectives.all_reduce(there, every, algorithm="ring")
-    whole = [w for w in workers if there[w - servers] == servers]
-    if whole:
-        part = part - lr * sum(came[w] for w in whole) / len(whole)
-    for w in whole:
-        group.send(part, w)
+    if came:
+        part = part - lr * sum(came.values()) / len(came)
+    every = group.subgroup(range(servers))
+    collectives.all_reduce(there, every, algorithm="ring")
+    for w in workers:
+        if there[w - servers] == servers:
+            group.send(part, w)
""")  # fmt: skip


divided_by_all_workers = slip("half-a-gradient", "my_server", says="number of all workers", at=5, change="""
-        part = part - lr * sum(came[w] for w in whole) / len(whole)
+        part = part - lr * sum(came[w] for w in whole) / len(workers)
""")  # fmt: skip


divided_by_all_ranks = slip("half-a-gradient", "my_server", says="number of all ranks", at=5, change="""
-        part = part - lr * sum(came[w] for w in whole) / len(whole)
+        part = part - lr * sum(came[w] for w in whole) / group.size
""")  # fmt: skip


summed_only = slip("half-a-gradient", "my_server", says="summed, and not averaged", at=6, change="""
-        part = part - lr * sum(came[w] for w in whole) / len(whole)
+        part = part - lr * sum(came[w] for w in whole)
""")  # fmt: skip


uphill = slip("half-a-gradient", "my_server", says="moved uphill", at=5, change="""
-        part = part - lr * sum(came[w] for w in whole) / len(whole)
+        part = part + lr * sum(came[w] for w in whole) / len(whole)
""")  # fmt: skip


nothing_over_nothing = slip("half-a-gradient", "my_server", says="0 / 0", at=6, change="""
-    if whole:
-        part = part - lr * sum(came[w] for w in whole) / len(whole)
+    total = sum((came[w] for w in whole), torch.zeros_like(part))
+    part = part - lr * total / torch.tensor(float(len(whole)))
""")  # fmt: skip


answers_the_dead = slip("half-a-gradient", "my_server", says="has finished while others wait", at=5, change="""
-    for w in whole:
+    for w in workers:
""")  # fmt: skip


waits_for_a_dead_worker = slip("half-a-gradient", "my_server", says="wait", at=5, change="""
-        if group.recv(torch.zeros(1, dtype=torch.int64), w):
-            there[w - servers] = 1
-            came[w] = group.recv(torch.empty_like(part), w)
+        there[w - servers] = group.recv(torch.zeros(1, dtype=torch.int64), w)[0]
+        came[w] = group.recv(torch.empty_like(part), w)
""")  # fmt: skip


never_answers = slip("half-a-gradient", "my_server", says="wait", at=5, change="""
-    for w in whole:
-        group.send(part, w)
""")  # fmt: skip


agrees_by_gradients = slip("half-a-gradient", "my_server", says="do not travel between servers", at=5, change="""
-    collectives.all_reduce(there, every, algorithm="ring")
+    collectives.all_reduce(there, every, algorithm="ring")
+    for w in workers:
+        longest = torch.zeros(64, dtype=part.dtype)
+        collectives.all_reduce(longest, every, algorithm="ring")
""")  # fmt: skip


two_servers_only = slip("half-a-gradient", "my_server", says="KeyError", at=6, change="""
-    whole = [w for w in workers if there[w - servers] == servers]
+    whole = [w for w in workers if there[w - servers] >= min(servers, 2)]
""")  # fmt: skip


@variant("half-a-gradient", "my_server", at=5)
def gathers_the_words(mine, group, servers, lr):
    if group.rank >= servers:
        return worker(mine["gradient"], mine["reaches"], group, servers)
    new, parts, words = mine["part"].clone(), [], []
    for w in range(servers, group.size):
        words.append(group.recv(torch.zeros(1, dtype=torch.int64), w))
        parts.append(group.recv(torch.empty_like(new), w) if words[-1] else torch.zeros_like(new))
    table = collectives.all_gather(torch.cat(words)[None], group.subgroup(range(servers)), algorithm="ring")
    whole = table.min(0).values
    if whole.any():
        new -= lr * (torch.stack(parts) * whole[:, None]).sum(0) / whole.sum()
    for w, fine in enumerate(whole.tolist(), servers):
        if fine:
            group.send(new, w)
    return new


@variant("half-a-gradient", "my_server", at=5)
def server_0_decides(mine, group, servers, lr):
    if group.rank >= servers:
        return worker(mine["gradient"], mine["reaches"], group, servers)
    workers = list(range(servers, group.size))
    parts = {}
    for w in workers:
        if int(group.recv(torch.zeros(1, dtype=torch.int64), w)) == 1:
            parts[w] = group.recv(torch.empty_like(mine["part"]), w)
    said = torch.tensor([int(w in parts) for w in workers])
    if group.rank:
        group.send(said, 0)
        group.recv(said, 0)
    else:
        for s in range(1, servers):
            said *= group.recv(torch.empty_like(said), s)
        for s in range(1, servers):
            group.send(said, s)
    whole = [w for w, fine in zip(workers, said.tolist(), strict=True) if fine]
    step = torch.zeros_like(mine["part"])
    for w in whole:
        step += parts[w] * (lr / len(whole))
    for w in whole:
        group.send(mine["part"] - step, w)
    return mine["part"] - step


# When one does not come -----------------------------------------------------------------------------------------------


leaves_the_masks = slip("when-one-does-not-come", "my_sum", says="are still in the sum", change="""
-                total += -mask if client < other else mask
+                total += 0 * mask
""")  # fmt: skip


the_wrong_sign = slip("when-one-does-not-come", "my_sum", says="were added once more", change="""
-                total += -mask if client < other else mask
+                total += mask if client < other else -mask
""")  # fmt: skip


subtracts_them_all = slip("when-one-does-not-come", "my_sum", says="every mask was subtracted", at=4, change="""
-                total += -mask if client < other else mask
+                total -= mask
""")  # fmt: skip


adds_them_all = slip("when-one-does-not-come", "my_sum", says="every mask was added", at=4, change="""
-                total += -mask if client < other else mask
+                total += mask
""")  # fmt: skip


tells_all_its_secrets = slip("when-one-does-not-come", "my_sum", says="can read its numbers", at=4, change="""
-            group.send(mine["secrets"][lost.bool()], 0)
+            group.send(mine["secrets"], 0)

-            secrets = group.recv(torch.zeros(len(gone), dtype=torch.int64), client)
+            secrets = group.recv(torch.zeros(group.size, dtype=torch.int64), client)[gone]
""")  # fmt: skip


sends_them_in_the_clear = slip("when-one-does-not-come", "my_sum", says="in the clear", change="""
-        group.send(sent, 0)
+        group.send(mine["numbers"], 0)

-                total += -mask if client < other else mask
""")  # fmt: skip


only_the_first_lost_one = slip("when-one-does-not-come", "my_sum", says="with the first", at=6, change="""
-            for other, secret in zip(gone, secrets.tolist(), strict=True):
+            for other, secret in zip(gone[:1], secrets.tolist()[:1], strict=True):
""")  # fmt: skip


silent_when_all_came = slip("when-one-does-not-come", "my_sum", says="wait", at=6, change="""
-        group.send(lost, client)
         if gone:
+            group.send(lost, client)
""")  # fmt: skip


tells_the_lost_one_too = slip("when-one-does-not-come", "my_sum", says="has finished while others wait", change="""
+    for client in gone:
+        group.send(lost, client)
     return [total, before]
""")  # fmt: skip


in_64_bits = slip("when-one-does-not-come", "my_sum", says="returned int64", change="""
-    before = torch.zeros(mine["n"], dtype=torch.int32)
-    for client in mine["came"]:
-        before += group.recv(torch.empty_like(before), client)
+    before = torch.zeros(mine["n"], dtype=torch.int64)
+    for client in mine["came"]:
+        before += group.recv(torch.empty(mine["n"], dtype=torch.int32), client)
""")  # fmt: skip


@mutant("when-one-does-not-come", "my_sum", says="did not end within")
def never_ends(mine, group):
    while True:
        time.sleep(0.01)


@variant("when-one-does-not-come", "my_sum", at=4)
def a_list_of_the_lost(mine, group):
    if group.rank and not mine["comes"]:
        return None
    if group.rank:
        sent = under_masks(mine["numbers"], mine["secrets"], group.rank)
        group.send(sent, 0)
        word = group.recv(torch.empty(group.size, dtype=torch.int64), 0).tolist()
        for other in (r for r, gone in enumerate(word) if gone):
            group.send(mine["secrets"][other : other + 1], 0)
        return sent
    parts = {c: group.recv(torch.empty(mine["n"], dtype=torch.int32), c) for c in mine["came"]}
    word = torch.tensor([int(r > 0 and r not in parts) for r in range(group.size)])
    for c in parts:
        group.send(word, c)
    before = torch.stack([torch.zeros(mine["n"], dtype=torch.int32), *parts.values()]).sum(0, dtype=torch.int32)
    extra = torch.zeros_like(before)
    for c in parts:
        for other in word.nonzero()[:, 0].tolist():
            secret = int(group.recv(torch.empty(1, dtype=torch.int64), c))
            extra += (1 if c < other else -1) * noise(secret, mine["n"])
    return [before - extra, before]


@variant("when-one-does-not-come", "my_sum", at=4)
def masks_by_the_lost_ones_own_rule(mine, group):
    if group.rank and not mine["comes"]:
        return None
    lost = torch.zeros(group.size, dtype=torch.bool)
    if group.rank:
        masked = under_masks(mine["numbers"], mine["secrets"], group.rank)
        group.send(masked, 0)
        lost = group.recv(lost, 0)
        if lost.any():
            group.send(mine["secrets"].masked_select(lost), 0)
        return masked
    before = sum(group.recv(torch.empty(mine["n"], dtype=torch.int32), c) for c in mine["came"])
    before = before + torch.zeros(mine["n"], dtype=torch.int32)
    lost[[c for c in range(1, group.size) if c not in mine["came"]]] = True
    total, count = before.clone(), int(lost.sum())
    table = torch.zeros(group.size, group.size, dtype=torch.int64)
    for c in mine["came"]:
        group.send(lost, c)
        if count:
            table[c, lost] = group.recv(torch.empty(count, dtype=torch.int64), c)
    for other in lost.nonzero()[:, 0].tolist():  # what the lost client would have sent, of zeros
        for c in mine["came"]:
            mask = noise(int(table[c, other]), mine["n"])
            total += mask if other < c else -mask
    return [total, before]
