"""The zoo of the exercises of chapter 8: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch

from labkit import collectives
from labkit.chapters.c08_loose_synchrony.sums import stream
from labkit.grading.checks.zoo import mutant, slip, variant

# Arrows that go one way -----------------------------------------------------------------------------------------------


averages_what_it_hears = slip("one-way-arrows", "my_push_sum", says="the mean of what it hears", at=4, change="""
-        share = state / (1 + len(out[group.rank]))
+        share = state.clone()

-        for handle in sending:
+        state /= 1 + len(heard)
+        for handle in sending:
""")  # fmt: skip


gives_everything_away = slip("one-way-arrows", "my_push_sum", says="keeps no share", at=3, change="""
-        share = state / (1 + len(out[group.rank]))
+        share = state / max(1, len(out[group.rank]))

-        state = share.clone()
+        state = torch.zeros_like(share)
""")  # fmt: skip


keeps_everything = slip("one-way-arrows", "my_push_sum", says="keeps all that it has", at=3, change="""
-        state = share.clone()
+        state = state.clone()
""")  # fmt: skip


always_thirds = slip("one-way-arrows", "my_push_sum", says="every share is a third", at=4, change="""
-        share = state / (1 + len(out[group.rank]))
+        share = state / 3
""")  # fmt: skip


returns_the_numbers = slip("one-way-arrows", "my_push_sum", says="this is x alone", at=4, change="""
-    return torch.cat([state[:-1] / state[-1], state[-1:]])
+    return state
""")  # fmt: skip


one_round_too_few = slip("one-way-arrows", "my_push_sum", says="one round is missing", at=3, change="""
-    for _ in range(rounds):
+    for _ in range(rounds - 1):
""")  # fmt: skip


hears_whom_it_tells = slip("one-way-arrows", "my_push_sum", says="waits", at=4, change="""
-    heard = [r for r in range(group.size) if group.rank in out[r]]
+    heard = out[group.rank]
""")  # fmt: skip


receives_first = slip("one-way-arrows", "my_push_sum", says="waits", at=3, change="""
-        sending = [group.isend(share, to) for to in out[group.rank]]
+        sending = []

-        for handle in sending:
-            handle.wait()
+        for to in out[group.rank]:
+            group.send(share, to)
""")  # fmt: skip


@mutant("one-way-arrows", "my_push_sum", says="x and weight are one", at=3)
def two_messages_along_each_arrow(mine, group, out, rounds):
    x, w = mine["x"], torch.ones(1, dtype=torch.float64)
    for _ in range(rounds):
        x, w = x / (1 + len(out[group.rank])), w / (1 + len(out[group.rank]))
        sending = [group.isend(part, to) for to in out[group.rank] for part in (x, w)]
        came = [r for r in range(group.size) if group.rank in out[r]]
        for r in came:
            x = x + group.recv(torch.empty_like(mine["x"]), r)
            w = w + group.recv(torch.empty(1, dtype=torch.float64), r)
        for handle in sending:
            handle.wait()
    return torch.cat([x / w, w])


@mutant("one-way-arrows", "my_push_sum", says="Push-sum has no collective", at=3)
def everything_to_everybody(mine, group, out, rounds):
    state = torch.cat([mine["x"], torch.ones(1, dtype=torch.float64)])
    for _ in range(rounds):
        every = collectives.all_gather((state / (1 + len(out[group.rank])))[None], group, algorithm="ring")
        state = sum(every[r] for r in range(group.size) if r == group.rank or group.rank in out[r])
    return torch.cat([state[:-1] / state[-1], state[-1:]])


@mutant("one-way-arrows", "my_push_sum", says="entries are wrong", at=3)
def the_mean_at_once(mine, group, out, rounds):
    mean = collectives.all_reduce(mine["x"].clone(), group, "avg")
    return torch.cat([mean, torch.ones(1, dtype=torch.float64)])


@variant("one-way-arrows", "my_push_sum", at=4)
def receives_begun_before_sends(mine, group, out, rounds):
    n, me = group.size, group.rank
    parts = len(out[me]) + 1
    x, weight = mine["x"].clone(), 1.0
    for _ in range(rounds):
        boxes = [torch.empty(len(x) + 1, dtype=x.dtype) for r in range(n) if me in out[r]]
        senders = [r for r in range(n) if me in out[r]]
        coming = [group.irecv(box, r) for box, r in zip(boxes, senders, strict=True)]
        message = torch.tensor([*(x / parts).tolist(), weight / parts], dtype=x.dtype)
        going = [group.isend(message, to) for to in out[me]]
        for handle in [*coming, *going]:
            handle.wait()
        both = torch.stack([message, *boxes]).sum(0)
        x, weight = both[:-1], both[-1].item()
    return torch.tensor([*(x / weight).tolist(), weight], dtype=torch.float64)


@variant("one-way-arrows", "my_push_sum", at=4)
def the_weight_in_front(mine, group, out, rounds):
    state = torch.cat([torch.ones(1, dtype=torch.float64), mine["x"]])
    for _ in range(rounds):
        state = state / (len(out[group.rank]) + 1)
        sent = [group.isend(state.clone(), to) for to in reversed(out[group.rank])]
        came = [group.recv(torch.empty_like(state), r) for r in range(group.size) if group.rank in out[r]]
        state = sum(came, state)
        [handle.wait() for handle in sent]
    return torch.cat([state[1:] / state[0], state[:1]])


# A sum under masks ----------------------------------------------------------------------------------------------------


numbers_as_they_are = slip("a-sum-under-masks", "my_masked_sum", says="the server can read them", at=4, change="""
-            sent.add_(stream(secret, len(sent)), alpha=1 if group.rank < partner else -1)
+            pass

-            for q, secret in zip(lost, told.tolist(), strict=True):
-                total.add_(stream(secret, len(total)), alpha=-1 if r < q else 1)
""")  # fmt: skip


all_masks_are_added = slip("a-sum-under-masks", "my_masked_sum", says="or they do not cancel", at=4, change="""
-            sent.add_(stream(secret, len(sent)), alpha=1 if group.rank < partner else -1)
+            sent.add_(stream(secret, len(sent)))
""")  # fmt: skip


signs_the_other_way = slip("a-sum-under-masks", "my_masked_sum", says="subtracts towards higher ranks", at=4, change="""
-            sent.add_(stream(secret, len(sent)), alpha=1 if group.rank < partner else -1)
+            sent.add_(stream(secret, len(sent)), alpha=-1 if group.rank < partner else 1)
""")  # fmt: skip


masks_are_left = slip("a-sum-under-masks", "my_masked_sum", says="are still in the sum", at=4, change="""
-                total.add_(stream(secret, len(total)), alpha=-1 if r < q else 1)
+                total.add_(stream(secret, len(total)), alpha=0)
""")  # fmt: skip


masks_are_added_again = slip("a-sum-under-masks", "my_masked_sum", says="were added once more", at=4, change="""
-                total.add_(stream(secret, len(total)), alpha=-1 if r < q else 1)
+                total.add_(stream(secret, len(total)), alpha=1 if r < q else -1)
""")  # fmt: skip


always_taken_away = slip("a-sum-under-masks", "my_masked_sum", says="Which masks are left", at=4, change="""
-                total.add_(stream(secret, len(total)), alpha=-1 if r < q else 1)
+                total.sub_(stream(secret, len(total)))
""")  # fmt: skip


one_lost_client_at_most = slip("a-sum-under-masks", "my_masked_sum", says="Which masks are left", at=5, change="""
-            for q, secret in zip(lost, told.tolist(), strict=True):
+            for q, secret in zip(lost[:1], told.tolist()[:1], strict=True):
""")  # fmt: skip


tells_all_its_secrets = slip("a-sum-under-masks", "my_masked_sum", says="has told all of its secrets", at=4, change="""
-            told = group.recv(torch.empty(len(lost), dtype=torch.int64), r)
+            told = group.recv(torch.empty(group.size, dtype=torch.int64), r)[lost]

-        group.send(mine["secrets"][word.bool()], 0)
+        group.send(mine["secrets"], 0)
""")  # fmt: skip


waits_for_the_lost = slip("a-sum-under-masks", "my_masked_sum", says="rank 0", at=4, change="""
-        there = [r for r in range(1, group.size) if r not in lost]
+        there = list(range(1, group.size))
""")  # fmt: skip


@mutant("a-sum-under-masks", "my_masked_sum", says="left out the masks with the clients that are lost", at=4)
def knows_who_is_lost(mine, group):
    """Asks the others before it masks anything."""
    gone = torch.zeros(1, dtype=torch.int64) if group.rank == 0 else mine["gone"].long()[None]
    gone = collectives.all_gather(gone, group, algorithm="ring").tolist()
    there = [r for r in range(1, group.size) if not gone[r]]
    if group.rank == 0:
        came = torch.stack([group.recv(torch.empty_like(mine["like"]), r) for r in there])
        return [came.sum(0, dtype=torch.int32), came]
    if gone[group.rank]:
        return None
    sent = mine["numbers"].clone()
    for partner in there:
        if partner != group.rank:
            sign = 1 if group.rank < partner else -1
            sent.add_(stream(int(mine["secrets"][partner]), len(sent)), alpha=sign)
    group.send(sent, 0)


@mutant("a-sum-under-masks", "my_masked_sum", says="is not its numbers plus its masks", at=5)
def one_mask_around_the_ring(mine, group):
    """A mask with the next client only: two neighbours together can read what a client has sent."""
    if group.rank == 0:
        there = [r for r in range(1, group.size) if r not in mine["lost"].tolist()]
        came = torch.stack([group.recv(torch.empty_like(mine["like"]), r) for r in there])
        return [came.sum(0, dtype=torch.int32), came]
    if mine["gone"]:
        return None
    after, before = group.rank % (group.size - 1) + 1, (group.rank - 2) % (group.size - 1) + 1
    sent = mine["numbers"] + stream(int(mine["secrets"][after]), len(mine["numbers"]))
    group.send(sent - stream(int(mine["secrets"][before]), len(sent)), 0)


@variant("a-sum-under-masks", "my_masked_sum", at=4)
def all_at_once_modulo_2_to_the_32(mine, group):
    def mask(me, partner, secret, n):
        return (1 if me < partner else -1) * stream(secret, n).long()

    n, clients = group.size, range(1, group.size)
    if group.rank:
        if bool(mine["gone"]):
            return None
        others = [p for p in clients if p != group.rank]
        secrets = mine["secrets"].tolist()
        wide = mine["numbers"].long() + sum(mask(group.rank, p, secrets[p], len(mine["numbers"])) for p in others)
        group.send(((wide + 2**31) % 2**32 - 2**31).int(), 0)
        word = group.recv(torch.empty(n, dtype=torch.int64), 0).tolist()
        asked = [secrets[p] for p in others if word[p]]
        if asked:
            group.send(torch.tensor(asked), 0)
        return None
    lost = {int(r) for r in mine["lost"]}
    word = torch.tensor([int(r in lost) for r in range(n)])
    came = {r: group.recv(mine["like"].clone(), r) for r in clients if r not in lost}
    total = sum(x.long() for x in came.values())
    for r in came:
        group.send(word, r)
        if lost:
            told = group.recv(torch.empty(len(lost), dtype=torch.int64), r).tolist()
            total = total - sum(mask(r, q, told[i], len(total)) for i, q in enumerate(sorted(lost)))
    return [((total + 2**31) % 2**32 - 2**31).int(), torch.stack([came[r] for r in sorted(came)])]


@variant("a-sum-under-masks", "my_masked_sum", at=4)
def takes_masks_out_of_each_row_in_a_copy(mine, group):
    if group.rank == 0:
        lost = sorted(mine["lost"].tolist())
        there = sorted(set(range(1, group.size)) - set(lost))
        came = torch.stack([group.recv(torch.zeros_like(mine["like"]), r) for r in there])
        word = torch.tensor([r in lost for r in range(group.size)]).long()
        for handle in [group.isend(word, r) for r in there]:
            handle.wait()
        bare = came.clone()
        for row, r in zip(bare, there, strict=True):
            secrets = group.recv(torch.zeros(len(lost), dtype=torch.int64), r).tolist() if lost else []
            for q, secret in zip(lost, secrets, strict=True):
                row -= stream(secret, len(row)) if r < q else -stream(secret, len(row))
        return [bare.sum(0).int(), came]
    if not mine["gone"]:
        masked = mine["numbers"] * 1
        for q in range(1, group.size):
            if q > group.rank:
                masked += stream(int(mine["secrets"][q]), len(masked))
            elif q < group.rank:
                masked -= stream(int(mine["secrets"][q]), len(masked))
        group.send(masked, 0)
        lost = group.recv(torch.zeros(group.size, dtype=torch.int64), 0).nonzero()[:, 0]
        if len(lost):
            group.send(mine["secrets"][lost], 0)


# A server with a queue ------------------------------------------------------------------------------------------------


nobody_waits = slip("a-server-with-a-queue", "my_run", says="nobody ever waits", at=4, change="""
-        for w in [w for w in waiting if clock[w] - slowest <= s]:
+        for w in list(waiting):
""")  # fmt: skip


exactly_s_has_to_wait = slip("a-server-with-a-queue", "my_run", says="ahead by exactly s has to wait", at=4, change="""
-        for w in [w for w in waiting if clock[w] - slowest <= s]:
+        for w in [w for w in waiting if clock[w] - slowest < s]:
""")  # fmt: skip


looks_before_it_counts = slip("a-server-with-a-queue", "my_run", says="with a lead of s + 1", at=4, change="""
-        for w in [w for w in waiting if clock[w] - slowest <= s]:
+        for w in [w for w in waiting if clock[w] - 1 - slowest <= s]:
""")  # fmt: skip


counts_its_own_update = slip("a-server-with-a-queue", "my_run", says="own update is counted", at=4, change="""
-        log.append([now, w, clock[w], len(log) - version[w]])
+        log.append([now, w, clock[w], len(log) + 1 - version[w]])
""")  # fmt: skip


the_higher_rank_first = slip("a-server-with-a-queue", "my_run", says="that of the higher rank", at=4, change="""
-        w = min(pushes, key=lambda w: (pushes[w][0].item(), w))
+        w = min(pushes, key=lambda w: (pushes[w][0].item(), -w))
""")  # fmt: skip


by_rank_not_by_time = slip("a-server-with-a-queue", "my_run", says="earliest that was not applied", at=4, change="""
-        w = min(pushes, key=lambda w: (pushes[w][0].item(), w))
+        w = min(pushes)
""")  # fmt: skip


waits_for_who_waits = slip("a-server-with-a-queue", "my_run", says="rank 0", at=4, change="""
-        for w in computing:
+        for w in [w for w in clock if w not in pushes and clock[w] < clocks]:
""")  # fmt: skip


does_not_wait_for_all = slip("a-server-with-a-queue", "my_run", says="earliest that was not applied", at=4, change="""
-        for w in computing:
+        for w in computing[:1]:

-        computing = []
+        computing = computing[1:]
""")  # fmt: skip


a_whole_gradient = slip("a-server-with-a-queue", "my_run", says="the weights are not", at=4, change="""
-        now, weights = int(push[0]), weights - 0.25 * push[1:]
+        now, weights = int(push[0]), weights - push[1:]
""")  # fmt: skip


counts_its_computing = slip("a-server-with-a-queue", "my_run", says="from the times of its pushes", at=4, change="""
-            waited += int(answer[0]) - pushed
+            waited = int(answer[0]) + int(mine["takes"][c]) - pushed
""")  # fmt: skip


asks_in_a_message_of_its_own = slip("a-server-with-a-queue", "my_run", says="A push also asks", at=4, change="""
-            group.send(torch.cat(push), 0)
+            for part in push:
+                group.send(part, 0)

-            pushes[w] = group.recv(torch.empty(1 + len(weights), dtype=torch.float64), w)
+            time = group.recv(torch.empty(1, dtype=torch.float64), w)
+            pushes[w] = torch.cat([time, group.recv(torch.empty_like(weights), w)])
""")  # fmt: skip


changes_what_it_was_given = slip("a-server-with-a-queue", "my_run", says="the weights are not", at=4, change="""
-            group.send(torch.cat(push), 0)
+            mine["x"] += 1
+            group.send(torch.cat(push), 0)
""")  # fmt: skip


@mutant("a-server-with-a-queue", "my_run", says="the earliest that was not applied", at=4)
def one_after_the_other(mine, group, s, clocks):
    """BSP in the order of ranks: every worker once in each clock."""
    workers = range(1, group.size)
    if group.rank:
        waited = pushed = 0
        for c in range(clocks):
            told = group.recv(torch.empty(1 + mine["x"].shape[1], dtype=torch.float64), 0)
            waited += int(told[0]) - pushed
            pushed = int(told[0]) + int(mine["takes"][c])
            told = torch.cat([torch.tensor([pushed]).double(), told[1:] - mine["x"][c]])
            group.send(told, 0)
        return waited
    weights, log, now = mine["weights"], [], 0
    for c in range(clocks):
        for w in workers:
            group.send(torch.cat([torch.tensor([now]).double(), weights]), w)
        pushes = {w: group.recv(torch.empty(1 + len(weights), dtype=torch.float64), w) for w in workers}
        for w in workers:
            weights = weights - 0.25 * pushes[w][1:]
            log.append([int(pushes[w][0]), w, c, w - 1])
        now = max(int(push[0]) for push in pushes.values())
    return [weights, torch.tensor(log)]


@variant("a-server-with-a-queue", "my_run", at=4)
def receives_begun_as_soon_as_answered(mine, group, s, clocks):
    size = 1 + (len(mine["weights"]) if group.rank == 0 else mine["x"].shape[1])
    box = torch.empty(size, dtype=torch.float64)
    if group.rank:
        last, total = 0.0, 0.0
        for c in range(clocks):
            group.recv(box, 0)
            total += box[0].item() - last
            last = box[0].item() + mine["takes"][c].item()
            push = box.clone()
            push[0], push[1:] = last, box[1:] - mine["x"][c]
            group.send(push, 0)
        return total
    state = torch.cat([torch.zeros(1, dtype=torch.float64), mine["weights"]])  # time and weights
    done = [clocks] + [0] * (group.size - 1)
    began, under_way, log = [0] * group.size, {}, []

    def answer(workers):
        for w in workers:
            if w not in under_way and done[w] < clocks and done[w] <= min(done) + s:
                group.send(state.clone(), w)
                like = torch.empty_like(state)
                under_way[w], began[w] = (like, group.irecv(like, w)), len(log)

    answer(range(1, group.size))
    while under_way:
        for _, handle in under_way.values():
            if not handle.done():
                handle.wait()
        time, w = min((like[0].item(), w) for w, (like, _) in under_way.items())
        like, _ = under_way.pop(w)
        state[0] = time
        state[1:] -= like[1:] / 4
        log.append([int(time), w, done[w], len(log) - began[w]])
        done[w] += 1
        answer(range(1, group.size))
    return [state[1:].clone(), torch.tensor(log)]


@variant("a-server-with-a-queue", "my_run", at=4)
def a_sorted_queue(mine, group, s, clocks):
    if group.rank:
        free = waited = 0
        for take, x in zip(mine["takes"].tolist(), mine["x"], strict=True):
            begin, *weights = group.recv(torch.empty(1 + len(x), dtype=torch.float64), 0).tolist()
            waited, free = waited + int(begin) - free, int(begin) + take
            gradient = torch.tensor(weights, dtype=torch.float64) - x
            group.send(torch.tensor([free, *gradient.tolist()], dtype=torch.float64), 0)
        return waited
    w0 = mine["weights"].clone()
    idle, queue, clock, seen, log = {r: 0 for r in range(1, group.size)}, [], {}, {}, []
    clock.update(idle)
    time = 0
    while idle or queue:
        let = [r for r in sorted(idle) if clock[r] <= min(clock.values()) + s]
        for r in let:
            del idle[r]
            seen[r] = len(log)
            group.send(torch.tensor([time, *w0.tolist()], dtype=torch.float64), r)
        for r in let:
            push = group.recv(torch.empty(len(w0) + 1, dtype=torch.float64), r)
            queue.append((int(push[0]), r, push[1:]))
        queue.sort(key=lambda one: one[:2])
        time, r, gradient = queue.pop(0)
        w0 = w0 - gradient / 4
        log.append((time, r, clock[r], len(log) - seen[r]))
        clock[r] += 1
        if clock[r] < clocks:
            idle[r] = time
    return [w0, torch.tensor(log)]


# A sum of the largest -------------------------------------------------------------------------------------------------


forgets_what_is_not_sent = slip("a-sum-of-the-largest", "my_top_k", says="not sent is forgotten", at=4, change="""
-        residual += gradient
+        residual = gradient.clone()
""")  # fmt: skip


sends_it_twice = slip("a-sum-of-the-largest", "my_top_k", says="still in the residual", at=4, change="""
-        residual[best] = 0
-        sums = torch.zeros(part).index_add_(0, places.long() - first, values)
+        sums = torch.zeros(part).index_add_(0, places.long() - first, values)
""")  # fmt: skip


loses_the_small_sums = slip("a-sum-of-the-largest", "my_top_k", says="in the owner's own residual", at=4, change="""
-        residual[first : first + part] += sums
""")  # fmt: skip


keeps_the_large_sums_too = slip("a-sum-of-the-largest", "my_top_k", says="exactly one residual", at=4, change="""
-        sums[best] = 0
""")  # fmt: skip


every_owner_passes_on_k = slip("a-sum-of-the-largest", "my_top_k", says="k // n each", at=4, change="""
-        best = largest(sums, k // group.size)
+        best = largest(sums, min(k, part))
""")  # fmt: skip


minus_seven_is_small = slip("a-sum-of-the-largest", "my_top_k", says="-7 is larger in size", at=4, change="""
-        return x.abs().sort(descending=True, stable=True).indices[:many]
+        return x.sort(descending=True, stable=True).indices[:many]
""")  # fmt: skip


the_higher_place_first = slip("a-sum-of-the-largest", "my_top_k", says="lower place comes first", at=4, change="""
-        return x.abs().sort(descending=True, stable=True).indices[:many]
+        return x.abs().sort(stable=True).indices.flip(0)[:many]
""")  # fmt: skip


means_in_place_of_sums = slip("a-sum-of-the-largest", "my_top_k", says="Here they are summed", at=4, change="""
-        sums = torch.zeros(part).index_add_(0, places.long() - first, values)
+        sums = torch.zeros(part).index_add_(0, places.long() - first, values) / group.size
""")  # fmt: skip


places_in_64_bits = slip("a-sum-of-the-largest", "my_top_k", says="4 bytes for a place", at=4, change="""
-        places = collectives.all_to_all(best.int(), group, out, into)
+        places = collectives.all_to_all(best, group, out, into)
""")  # fmt: skip


made_for_four_ranks = slip("a-sum-of-the-largest", "my_top_k", says="entries are wrong", change="""
-        best = largest(sums, k // group.size)
+        best = largest(sums, max(1, k // 4))
""")  # fmt: skip


@mutant("a-sum-of-the-largest", "my_top_k", says="Every rank gets all of your k entries", at=4)
def everybody_gets_everything(mine, group, k):
    """The right updates, but each rank's entries are gathered by all, as in plain top-k."""
    gradients, n = mine["gradients"], group.size
    part = gradients.shape[1] // n
    residual, updates = torch.zeros(gradients.shape[1]), torch.zeros_like(gradients)
    for t, gradient in enumerate(gradients):
        residual += gradient
        best = residual.abs().sort(descending=True, stable=True).indices[:k]
        places = collectives.all_gather(best.int(), group, algorithm="ring")
        values = collectives.all_gather(residual[best], group, algorithm="ring")
        residual[best] = 0
        sums = torch.zeros(len(gradient)).index_add_(0, places.long(), values)
        for r in range(n):
            own = sums[r * part : (r + 1) * part]
            kept = own.abs().sort(descending=True, stable=True).indices[: k // n]
            updates[t, r * part + kept] = own[kept]
            own[kept] = 0
            if r == group.rank:
                residual[r * part : (r + 1) * part] += own
    return [updates, residual]


@variant("a-sum-of-the-largest", "my_top_k", at=4)
def a_message_for_each_owner(mine, group, k):
    gradients, n, me = mine["gradients"], group.size, group.rank
    part = gradients.shape[1] // n
    kept, updates = torch.zeros(n * part), []

    def choose(x, count):
        order = sorted(range(len(x)), key=lambda i: (-abs(x[i].item()), i))
        return torch.tensor(order[:count])

    for gradient in gradients:
        kept = kept + gradient
        best = choose(kept, k)
        sums = torch.zeros(part)
        for turn in range(n):
            to, source = (me + turn) % n, (me - turn) % n
            picked = best[best // part == to]
            packed = torch.cat([picked.int(), kept[picked].view(torch.int32)])
            if turn:
                count = group.exchange(torch.tensor([len(picked)]), to, torch.zeros(1, dtype=torch.int64), source)
                like = torch.empty(2 * int(count), dtype=torch.int32)
                packed = group.exchange(packed, to, like, source)
            where, what = packed.view(2, -1)
            sums.index_add_(0, where.long() - me * part, what.contiguous().view(torch.float32))
        kept[best] = 0
        top = choose(sums, k // n)
        pairs = torch.stack([(top + me * part).int(), sums[top].view(torch.int32)], 1)
        pairs = collectives.all_gather(pairs, group, algorithm="ring")
        update = torch.zeros(n * part)
        update[pairs[:, 0].long()] = pairs[:, 1].contiguous().view(torch.float32)
        updates.append(update)
        sums[top] = 0
        kept[me * part : (me + 1) * part] += sums
    return [torch.stack(updates), kept]


@variant("a-sum-of-the-largest", "my_top_k", at=4)
def by_a_threshold_and_masks(mine, group, k):
    steps, wide = mine["gradients"].shape
    n = group.size
    part = wide // n
    own = slice(group.rank * part, (group.rank + 1) * part)

    def mask_of(x, count):
        place = torch.argsort(x.abs(), descending=True, stable=True)
        mask = torch.zeros(len(x), dtype=torch.bool)
        mask[place[:count]] = True
        return mask

    residual, updates = torch.zeros(wide), torch.zeros(steps, wide)
    for t in range(steps):
        wanted = residual + mine["gradients"][t]
        mask = mask_of(wanted, k)
        places = mask.nonzero()[:, 0]
        out = mask.view(n, part).sum(1)
        into = collectives.all_to_all(out, group, algorithm="pairwise").tolist()
        pairs = torch.stack([places.int(), wanted[places].view(torch.int32)], 1)
        came = collectives.all_to_all(pairs, group, out.tolist(), into)
        dense = torch.zeros(wide)
        for place, value in zip(came[:, 0].tolist(), came[:, 1].contiguous().view(torch.float32), strict=True):
            dense[place] += value
        top = mask_of(dense[own], k // n)
        chosen = torch.zeros(wide, dtype=torch.bool)
        chosen[own] = top
        residual = torch.where(mask, torch.zeros(()), wanted) + torch.where(chosen, torch.zeros(()), dense)
        mine_now = chosen.nonzero()[:, 0]
        all_places = collectives.all_gather(mine_now.int(), group, algorithm="ring").long()
        updates[t, all_places] = collectives.all_gather(dense[mine_now], group, algorithm="ring")
    return [updates, residual]
