"""The zoo of the exercises of chapter 20: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch

from labkit import collectives
from labkit.grading.checks.zoo import mutant, slip, variant
from labkit.resilience.rehearse import adamw_step, gradient_of, gradient_of_shards, live, reach
from labkit.wire.errors import PeerLost

# A map for ranks that stay -------------------------------------------------------------------------------------------


deals_in_turn = slip(
    "the-shard-map", "my_map", says="Fill one extra rank before you begin with the next", at=4, change="""
-    given = [shard for owner in owners for shard in sync[owner][load[owner] :]]
-    for rank in lost:
-        compute[rank], given = given[: load[rank]], given[load[rank] :]
+    turn = 0
+    for owner in owners:
+        for shard in sync[owner][load[owner] :]:
+            while len(compute[lost[turn % len(lost)]]) == load[lost[turn % len(lost)]]:
+                turn += 1
+            compute[lost[turn % len(lost)]].append(shard)
+            turn += 1
""")  # fmt: skip


@mutant("the-shard-map", "my_map", says="Its partner is lost, so it adds up none", at=4)
def those_behind_move_up(mine, group):
    shards, ranks, owners = mine["shards"], mine["ranks"], mine["ranks"] - len(mine["lost"])
    sync = [stretch.tolist() for stretch in torch.arange(shards).tensor_split(owners)]
    sync += [[] for _ in mine["lost"]]
    load = [len(stretch) for stretch in torch.arange(shards).tensor_split(ranks)]
    compute = [stretch[: load[rank]] for rank, stretch in enumerate(sync)]
    given = [shard for rank, stretch in enumerate(sync) for shard in stretch[load[rank] :]]
    for rank in range(owners, ranks):
        compute[rank], given = given[: load[rank]], given[load[rank] :]
    return {"sync": sync, "compute": compute}


@mutant("the-shard-map", "my_map", says="an owner keeps its own", at=4)
def cuts_anew(mine, group):
    shards, lost = mine["shards"], mine["lost"]
    owners = [rank for rank in range(mine["ranks"]) if rank not in lost]
    sync = [[] for _ in range(mine["ranks"])]
    for owner, stretch in zip(owners, torch.arange(shards).tensor_split(len(owners)), strict=True):
        sync[owner] = stretch.tolist()
    compute = [stretch.tolist() for stretch in torch.arange(shards).tensor_split(mine["ranks"])]
    return {"sync": sync, "compute": compute}


one_more_by_number = slip(
    "the-shard-map", "my_map", says="what is left over can stay with ranks that add up", at=4, change="""
-    load = {rank: each + (place < over) for place, rank in enumerate(owners + lost)}
+    load = [each + (rank < over) for rank in range(mine["ranks"])]

-    for rank in lost:
-        compute[rank], given = given[: load[rank]], given[load[rank] :]
+    for rank in range(mine["ranks"]):
+        more = load[rank] - len(compute[rank])
+        compute[rank], given = compute[rank] + given[:more], given[more:]
""")  # fmt: skip


@mutant("the-shard-map", "my_map", says="is on no rank. Each shard is there once", at=4)
def forgets_what_is_left_over(mine, group):
    shards, lost = mine["shards"], mine["lost"]
    owners = [rank for rank in range(mine["ranks"]) if rank not in lost]
    sync = [[] for _ in range(mine["ranks"])]
    each = shards // len(owners)
    for place, owner in enumerate(owners):
        sync[owner] = list(range(place * each, (place + 1) * each))
    load = shards // mine["ranks"]
    compute = [stretch[:load] for stretch in sync]
    given = [shard for stretch in sync for shard in stretch[load:]]
    for rank in lost:
        compute[rank], given = given[:load], given[load:]
    return {"sync": sync, "compute": compute}


@mutant("the-shard-map", "my_map", says="All wait for who has", at=4)
def the_last_one_takes_the_rest(mine, group):
    shards, lost = mine["shards"], mine["lost"]
    owners = [rank for rank in range(mine["ranks"]) if rank not in lost]
    sync = [[] for _ in range(mine["ranks"])]
    for owner, stretch in zip(owners, torch.arange(shards).tensor_split(len(owners)), strict=True):
        sync[owner] = stretch.tolist()
    load = shards // mine["ranks"]
    compute = [stretch[:load] for stretch in sync]
    given = [shard for owner in owners for shard in sync[owner][load:]]
    for rank in lost:
        compute[rank], given = given[:load], given[load:]
    compute[lost[-1]] += given
    return {"sync": sync, "compute": compute}


@variant("the-shard-map", "my_map", at=4)
def longer_ones_last(mine, group):
    shards, ranks, lost = mine["shards"], mine["ranks"], mine["lost"]
    owners = [rank for rank in range(ranks) if rank not in lost]
    sync, compute, at = [[] for _ in range(ranks)], [[] for _ in range(ranks)], 0
    for place, owner in enumerate(owners):
        length = (shards + place) // len(owners)
        sync[owner] = list(range(at, at + length))
        at += length
    each, over = divmod(shards, ranks)
    free = []
    for place, owner in enumerate(reversed(owners)):
        stays = each + (place < over)
        cut = len(sync[owner]) - stays
        compute[owner] = sync[owner][:cut:-1] + sync[owner][cut : cut + 1] if stays else []
        free += sync[owner][:cut]
    over = max(0, over - len(owners))
    for place, rank in enumerate(lost):
        for _ in range(each + (place < over)):
            compute[rank].append(free.pop())
    return {"sync": sync, "compute": compute}


@variant("the-shard-map", "my_map", at=4)
def one_shard_after_the_other(mine, group):
    owners = [rank for rank in range(mine["ranks"]) if rank not in mine["lost"]]
    owner = [owners[shard * len(owners) // mine["shards"]] for shard in range(mine["shards"])]
    load = dict.fromkeys(range(mine["ranks"]), mine["shards"] // mine["ranks"])
    over = mine["shards"] % mine["ranks"]
    longest_first = sorted(owners, key=lambda rank: -owner.count(rank))
    for rank in [*longest_first, *mine["lost"]][:over]:
        load[rank] += 1
    layouts = {"sync": [[] for _ in load], "compute": [[] for _ in load]}
    for shard, rank in enumerate(owner):
        layouts["sync"][rank].append(shard)
        to = rank if len(layouts["compute"][rank]) < load[rank] else None
        if to is None:
            to = next(extra for extra in mine["lost"] if len(layouts["compute"][extra]) < load[extra])
        layouts["compute"][to].append(shard)
    return layouts


# A sum over two widths -----------------------------------------------------------------------------------------------


@mutant("sum-over-widths", "my_sums", says="are enough", at=5)
def everything_to_everybody(mine, group):
    compute, most = mine["compute"], max(len(held) for layout in mine["compute"] for held in layout)
    padded = mine["gradients"].new_zeros(most, mine["gradients"].shape[1])
    padded[: len(mine["gradients"])] = mine["gradients"]
    every = collectives.all_gather(padded, group).view(group.size, most, -1)
    total = {}
    for ranks, layout in zip(mine["ranks"], compute, strict=True):
        for rank, held in zip(ranks, layout, strict=True):
            for i, shard in enumerate(held):
                total[shard] = total.get(shard, 0) + every[rank, i]
    replica = 0 if group.rank in mine["ranks"][0] else 1
    return torch.stack([total[shard] for shard in compute[replica][mine["ranks"][replica].index(group.rank)]])


@mutant("sum-over-widths", "my_sums", says="in the other replica; 0 B are enough. It", at=5)
def each_with_whom_it_shares(mine, group):
    replica = 0 if group.rank in mine["ranks"][0] else 1
    held = mine["compute"][replica][mine["ranks"][replica].index(group.rank)]
    sums, waiting = mine["gradients"].clone(), []
    for rank, theirs in zip(mine["ranks"][1 - replica], mine["compute"][1 - replica], strict=True):
        rows = [held.index(shard) for shard in sorted(set(held) & set(theirs))]
        if rows:
            out = mine["gradients"][rows]
            into = torch.empty_like(out)
            waiting.append((rows, into, group.isend(out, rank), group.irecv(into, rank)))
    for rows, into, sent, received in waiting:
        sent.wait()
        received.wait()
        sums[rows] += into
    return sums


@mutant("sum-over-widths", "my_sums", says="it was never added up, or the sum did not come back", at=5)
def nothing_comes_back(mine, group):
    sync, gradients = mine["sync"], mine["gradients"]
    replica = 0 if group.rank in mine["ranks"][0] else 1
    ranks, compute = mine["ranks"][replica], mine["compute"][replica]
    me = ranks.index(group.rank)
    total = dict(zip(compute[me], gradients, strict=True))
    for other, rank in enumerate(ranks):
        out = [shard for shard in sync[other] if shard in compute[me]]
        into = [shard for shard in sync[me] if shard in compute[other]]
        if other != me and out:
            group.send(torch.stack([total[shard] for shard in out]), rank)
        if other != me and into:
            got = group.recv(gradients.new_empty(len(into), gradients.shape[1]), rank)
            total |= dict(zip(into, got, strict=True))
    if sync[me]:
        stretch = torch.stack([total[shard] for shard in sync[me]])
        partner = mine["ranks"][1 - replica][me]
        stretch += group.exchange(stretch, partner, torch.empty_like(stretch), partner)
        total |= dict(zip(sync[me], stretch, strict=True))
    return torch.stack([total[shard] for shard in compute[me]])


@mutant("sum-over-widths", "my_sums", says="Put all shards for one rank into one message", at=5)
def a_message_for_each_shard(mine, group):
    sync, gradients = mine["sync"], mine["gradients"]
    replica = 0 if group.rank in mine["ranks"][0] else 1
    ranks, compute = mine["ranks"][replica], mine["compute"][replica]
    me = ranks.index(group.rank)
    total = dict(zip(compute[me], gradients.clone(), strict=True))
    for back in (False, True):
        for other, rank in enumerate(ranks):
            out = [shard for shard in sync[other] if shard in compute[me]]
            into = [shard for shard in sync[me] if shard in compute[other]]
            for shard in (into if back else out) if other != me else []:
                group.send(total[shard], rank)
            for shard in (out if back else into) if other != me else []:
                total[shard] = group.recv(gradients.new_empty(gradients.shape[1]), rank)
        if sync[me] and not back:
            stretch = torch.stack([total[shard] for shard in sync[me]])
            partner = mine["ranks"][1 - replica][me]
            stretch += group.exchange(stretch, partner, torch.empty_like(stretch), partner)
            total |= dict(zip(sync[me], stretch, strict=True))
    return torch.stack([total[shard] for shard in compute[me]])


@mutant("sum-over-widths", "my_sums", says="both ends of a message need the same order", at=5)
def in_the_order_of_memory(mine, group):
    sync, gradients = mine["sync"], mine["gradients"]
    replica = 0 if group.rank in mine["ranks"][0] else 1
    ranks, compute = mine["ranks"][replica], mine["compute"][replica]
    me = ranks.index(group.rank)
    total = dict(zip(compute[me], gradients, strict=True))
    for back in (False, True):
        for other, rank in enumerate(ranks):
            out = [shard for shard in compute[me] if shard in sync[other]]
            into = [shard for shard in sync[me] if shard in compute[other]]
            out, into = (into, out) if back else (out, into)
            if other != me and out:
                group.send(torch.stack([total[shard] for shard in out]), rank)
            if other != me and into:
                got = group.recv(gradients.new_empty(len(into), gradients.shape[1]), rank)
                total |= dict(zip(into, got, strict=True))
        if sync[me] and not back:
            stretch = torch.stack([total[shard] for shard in sync[me]])
            partner = mine["ranks"][1 - replica][me]
            stretch += group.exchange(stretch, partner, torch.empty_like(stretch), partner)
            total |= dict(zip(sync[me], stretch, strict=True))
    return torch.stack([total[shard] for shard in compute[me]])


@mutant("sum-over-widths", "my_sums", says="wait for each other", at=5)
def partners_send_first(mine, group):
    sync, gradients = mine["sync"], mine["gradients"]
    replica = 0 if group.rank in mine["ranks"][0] else 1
    ranks, compute = mine["ranks"][replica], mine["compute"][replica]
    me = ranks.index(group.rank)
    total = dict(zip(compute[me], gradients, strict=True))
    for back in (False, True):
        for other, rank in enumerate(ranks):
            out = [shard for shard in sync[other] if shard in compute[me]]
            into = [shard for shard in sync[me] if shard in compute[other]]
            out, into = (into, out) if back else (out, into)
            if other != me and out:
                group.send(torch.stack([total[shard] for shard in out]), rank)
            if other != me and into:
                got = group.recv(gradients.new_empty(len(into), gradients.shape[1]), rank)
                total |= dict(zip(into, got, strict=True))
        if sync[me] and not back:
            stretch = torch.stack([total[shard] for shard in sync[me]])
            partner = mine["ranks"][1 - replica][me]
            group.send(stretch, partner)
            stretch += group.recv(torch.empty_like(stretch), partner)
            total |= dict(zip(sync[me], stretch, strict=True))
    return torch.stack([total[shard] for shard in compute[me]])


@variant("sum-over-widths", "my_sums", at=5)
def all_at_once_with_handles(mine, group):
    sync, gradients = mine["sync"], mine["gradients"]
    replica = 0 if group.rank in mine["ranks"][0] else 1
    ranks, compute = mine["ranks"][replica], mine["compute"][replica]
    me = ranks.index(group.rank)
    total = dict(zip(compute[me], gradients, strict=True))
    for back in (False, True):
        waiting = []
        for other, rank in enumerate(ranks):
            out = [shard for shard in sync[other] if shard in compute[me]]
            into = [shard for shard in sync[me] if shard in compute[other]]
            out, into = (into, out) if back else (out, into)
            if other != me and out:
                waiting.append(([], None, group.isend(torch.stack([total[shard] for shard in out]), rank)))
            if other != me and into:
                got = gradients.new_empty(len(into), gradients.shape[1])
                waiting.append((into, got, group.irecv(got, rank)))
        for shards, got, handle in waiting:
            handle.wait()
            total |= dict(zip(shards, () if got is None else got, strict=True))
        if sync[me] and not back:
            stretch = torch.stack([total[shard] for shard in sync[me]])
            partner = mine["ranks"][1 - replica][me]
            stretch += group.exchange(stretch, partner, torch.empty_like(stretch), partner)
            total |= dict(zip(sync[me], stretch, strict=True))
    return torch.stack([total[shard] for shard in compute[me]])


@variant("sum-over-widths", "my_sums", at=5)
def the_second_replica_adds(mine, group):
    width, which = mine["gradients"].shape[1], 0 if group.rank in mine["ranks"][0] else 1
    ranks, held = mine["ranks"][which], mine["compute"][which]
    me = ranks.index(group.rank)
    table = torch.zeros(1 + max(map(max, filter(None, mine["sync"]))), width)
    table[held[me]] = mine["gradients"]
    shared = [[sorted(set(a) & set(b)) for b in mine["sync"]] for a in held]
    others = [i for i, rank in enumerate(ranks) if i != me and rank is not None]
    for i in others:
        if shared[me][i]:
            group.send(table[shared[me][i]], ranks[i])
        if shared[i][me]:
            table[shared[i][me]] = group.recv(torch.empty(len(shared[i][me]), width), ranks[i])
    mine_to_add, partner = mine["sync"][me], mine["ranks"][1 - which][me]
    if mine_to_add and which == 0:
        group.send(table[mine_to_add], partner)
        table[mine_to_add] = group.recv(torch.empty(len(mine_to_add), width), partner)
    elif mine_to_add:
        table[mine_to_add] += group.recv(torch.empty(len(mine_to_add), width), partner)
        group.send(table[mine_to_add], partner)
    for i in others:
        if shared[i][me]:
            group.send(table[shared[i][me]], ranks[i])
        if shared[me][i]:
            table[shared[me][i]] = group.recv(torch.empty(len(shared[me][i]), width), ranks[i])
    return table[held[me]]


# Uneven batches --------------------------------------------------------------------------------------------------


in_proportion_to_the_gpus = slip("uneven-batches", "my_uneven_batch", says="in proportion to the GPUs", at=4, change="""
-    each = [-(-mine["shards"] // width) for width in mine["widths"]]
+    exact = [len(mine["samples"]) * width / sum(mine["widths"]) for width in mine["widths"]]

-    shares = [0] * group.size
-    for _ in range(batch):
-        soonest = min(range(group.size), key=lambda r: (shares[r] + 1) * each[r])
-        shares[soonest] += 1
+    shares = [int(x) for x in exact]
+    by_need = sorted(range(group.size), key=lambda r: (shares[r] - exact[r], r))
+    for r in by_need[: batch - sum(shares)]:
+        shares[r] += 1
""")  # fmt: skip


rounds_down = slip("uneven-batches", "my_uneven_batch", says="add up to", at=4, change="""
-    each = [-(-mine["shards"] // width) for width in mine["widths"]]
+    every = sum(mine["widths"])

-    shares = [0] * group.size
-    for _ in range(batch):
-        soonest = min(range(group.size), key=lambda r: (shares[r] + 1) * each[r])
-        shares[soonest] += 1
+    shares = [batch * width // every for width in mine["widths"]]
""")  # fmt: skip


an_example_for_everybody = slip("uneven-batches", "my_uneven_batch", says="may have no example at all", at=3, change="""
-    shares = [0] * group.size
-    for _ in range(batch):
+    shares = [1] * group.size
+    for _ in range(batch - group.size):
""")  # fmt: skip


a_mean_of_means = slip("uneven-batches", "my_uneven_batch", says="it is a mean of means", at=4, change="""
-        gradient = gradient_of(mine["weights"], own) * len(own) / batch
+        gradient = gradient_of(mine["weights"], own) / group.size
""")  # fmt: skip


the_weight_of_its_gpus = slip("uneven-batches", "my_uneven_batch", says="has the weight of its GPUs", at=4, change="""
     own = mine["samples"][first : first + shares[group.rank]]
+    part = mine["widths"][group.rank] / sum(mine["widths"])

-        gradient = gradient_of(mine["weights"], own) * len(own) / batch
+        gradient = gradient_of(mine["weights"], own) * part
""")  # fmt: skip


a_mean_over_nothing = slip("uneven-batches", "my_uneven_batch", says="their mean is nan", at=3, change="""
-    gradient = torch.zeros_like(mine["weights"])
-    if len(own):
-        gradient = gradient_of(mine["weights"], own) * len(own) / batch
+    gradient = gradient_of(mine["weights"], own) * len(own) / batch
""")  # fmt: skip


everybody_trains_all = slip("uneven-batches", "my_uneven_batch", says="compute with the whole batch", at=4, change="""
-    gradient = torch.zeros_like(mine["weights"])
-    if len(own):
-        gradient = gradient_of(mine["weights"], own) * len(own) / batch
-    collectives.all_reduce(gradient, group)
+    gradient = gradient_of(mine["weights"], mine["samples"])
""")  # fmt: skip


all_gradients_to_everybody = slip(
    "uneven-batches", "my_uneven_batch", says="Weigh the gradient before it is added up", at=4, change="""
-    collectives.all_reduce(gradient, group)
+    rows = collectives.all_gather(gradient, group, algorithm="ring").view(group.size, -1)
+    gradient = collectives.all_gather(rows.sum(0), group, algorithm="ring").view(group.size, -1)[0]
""")  # fmt: skip


@variant("uneven-batches", "my_uneven_batch", at=4)
def from_the_time(mine, group):
    each = [-(-mine["shards"] // width) for width in mine["widths"]]
    batch = len(mine["samples"])
    time = 0
    while sum(time // one for one in each) < batch:
        time += 1
    shares = [time // one for one in each]
    while sum(shares) > batch:
        shares[shares.index(max(shares))] -= 1
    first = sum(shares[: group.rank])
    own = mine["samples"][first : first + shares[group.rank]]
    gradient = torch.zeros_like(mine["weights"])
    if len(own):
        gradient = gradient_of(mine["weights"], own) * len(own) / batch
    collectives.all_reduce(gradient, group)
    return [shares, own.tolist(), gradient]


@variant("uneven-batches", "my_uneven_batch", at=3)
def divides_at_the_end(mine, group):
    each = [-(-mine["shards"] // width) for width in mine["widths"]]
    batch = len(mine["samples"])
    shares = [0] * group.size
    for _ in range(batch):
        soonest = min(range(group.size), key=lambda r: (shares[r] + 1) * each[r])
        shares[soonest] += 1
    turns = [r for r in range(group.size) for _ in range(shares[r])]
    own = mine["samples"].flip(0)[torch.tensor(turns) == group.rank]
    total = torch.zeros(len(mine["weights"]) + 1, dtype=torch.float64)
    for sample in own:
        total[1:] += gradient_of(mine["weights"], sample[None])
        total[0] += 1
    collectives.all_reduce(total, group, algorithm="ring")
    return [shares, own.tolist(), total[1:] / total[0]]


# The state that follows --------------------------------------------------------------------------------------------


weights_without_moments = slip(
    "state-that-follows", "my_following_state", says="came without their moments", at=4, change="""
-                    message = torch.zeros(3 * len(shards) * state.shape[2] + 1, dtype=torch.float64)
+                    message = torch.zeros(len(shards) * state.shape[2] + 1, dtype=torch.float64)

-                        message[:-1] = state[:, [have[me].index(shard) for shard in shards]].flatten()
+                        message[:-1] = state[0, [have[me].index(shard) for shard in shards]].flatten()

-                    new[:, [want[me].index(shard) for shard in shards]] = message[:-1].view(3, len(shards), -1)
+                    new[0, [want[me].index(shard) for shard in shards]] = message[:-1].view(len(shards), -1)
""")  # fmt: skip


a_newcomer_counts_from_zero = slip(
    "state-that-follows", "my_following_state", says="A rank that comes back has made none", at=4, change="""
-                    count = int(message[-1])
""")  # fmt: skip


counts_every_attempt = slip(
    "state-that-follows", "my_following_state", says="An attempt that came to nothing was counted", at=4, change="""
                 gradient = gradient_of_shards(new[0], want[me], quorum["samples"])
+                steps += 1

-            state, steps = adamw_step(new, count, gradient), count + 1
+            state, steps = adamw_step(new, count, gradient), max(steps, count + 1)
""")  # fmt: skip


always_from_the_other_replica = slip(
    "state-that-follows", "my_following_state", says="of its own replica has comes from that one", at=4, change="""
-                        giver = min(holders, key=lambda r: replica[r] != replica[taker])
+                        giver = min(holders, key=lambda r: replica[r] == replica[taker])
""")  # fmt: skip


fetches_all_that_it_wants = slip(
    "state-that-follows", "my_following_state", says="What a rank has it keeps", at=4, change="""
-                    if shard not in have[taker]:
-                        holders = [r for r in members if shard in have[r]]
+                    holders = [r for r in members if shard in have[r] and r != taker]
+                    if holders and want != have:
""")  # fmt: skip


asks_a_rank_that_is_lost = slip("state-that-follows", "my_following_state", says="is not in list", at=4, change="""
-                        holders = [r for r in members if shard in have[r]]
+                        holders = [r for r in range(group.size) if shard in have[r]]
""")  # fmt: skip


takes_up_what_has_arrived = slip("state-that-follows", "my_following_state", says="is out of bounds", at=4, change="""
                 gradient = gradient_of_shards(new[0], want[me], quorum["samples"])
+                state, steps = new, count
""")  # fmt: skip


updates_before_it_counts = slip(
    "state-that-follows", "my_following_state", says="also made the step of an attempt", at=4, change="""
                 gradient = gradient_of_shards(new[0], want[me], quorum["samples"])
+                if have[me] == want[me]:
+                    state = adamw_step(new, count, gradient)

-            state, steps = adamw_step(new, count, gradient), count + 1
+            state = state if have[me] == want[me] else adamw_step(new, count, gradient)
+            steps = count + 1
""")  # fmt: skip


@variant("state-that-follows", "my_following_state", at=4)
def one_shard_at_a_time(mine, group):
    def run(life, ranks):
        me, replica = group.rank, mine["replica"]
        state, steps, ring, number = life["state"], life["steps"], ranks, None
        for k, quorum in enumerate(life["quorums"]):
            members, have, want = quorum["members"], quorum["have"], quorum["want"]
            if quorum["id"] != number:
                number = quorum["id"]
                ring = ring.rebuild(members, epoch=number)
            moves = {}  # by giver and taker, the shards; alike on all ranks
            for taker in members:
                for shard in want[taker]:
                    if shard not in have[taker]:
                        holders = [r for r in members if shard in have[r]]
                        giver = min(holders, key=lambda r: replica[r] != replica[taker])
                        moves.setdefault((giver, taker), []).append(shard)
            try:
                reach("move", k, life, ring)
                new, count = torch.zeros(3, len(want[me]), state.shape[2], dtype=torch.float64), steps
                for place, shard in enumerate(want[me]):
                    if shard in have[me]:
                        new[:, place] = state[:, have[me].index(shard)]
                for (giver, taker), shards in moves.items():
                    for shard in shards:
                        if me == giver:
                            ring.send(state[:, have[me].index(shard)].contiguous(), members.index(taker))
                            ring.send(torch.tensor([steps]), members.index(taker))
                        if me == taker:
                            into = torch.empty(3, state.shape[2], dtype=torch.float64)
                            new[:, want[me].index(shard)] = ring.recv(into, members.index(giver))
                            count = ring.recv(torch.tensor([0]), members.index(giver)).item()
                gradient = gradient_of_shards(new[0], want[me], quorum["samples"])
                reach("step", k, life, ring)
                collectives.barrier(ring)
            except PeerLost:
                ring.leave()
                continue
            state, steps = adamw_step(new, count, gradient), count + 1
        return [state, steps]

    return live(run, mine["lives"], group)


@variant("state-that-follows", "my_following_state", at=4)
def a_sum_as_the_word(mine, group):
    def run(life, ranks):
        me, replica = group.rank, mine["replica"]
        state, steps, ring, number = life["state"], life["steps"], ranks, None
        for k, quorum in enumerate(life["quorums"]):
            members, have, want = quorum["members"], quorum["have"], quorum["want"]
            if quorum["id"] != number:
                number = quorum["id"]
                ring = ring.rebuild(members, epoch=number)
            moves = {}  # by giver and taker, the shards; alike on all ranks
            for taker in members:
                for shard in want[taker]:
                    if shard not in have[taker]:
                        holders = [r for r in members if shard in have[r]]
                        own = [r for r in holders if replica[r] == replica[taker]] or holders
                        giver = own[(shard + taker) % len(own)]
                        moves.setdefault((giver, taker), []).append(shard)
            try:
                reach("move", k, life, ring)
                new, count = torch.zeros(3, len(want[me]), state.shape[2], dtype=torch.float64), steps
                for place, shard in enumerate(want[me]):
                    if shard in have[me]:
                        new[:, place] = state[:, have[me].index(shard)]
                waiting, arriving = [], []
                for (giver, taker), shards in moves.items():
                    message = torch.zeros(3 * len(shards) * state.shape[2] + 1, dtype=torch.float64)
                    if me == giver:
                        message[:-1] = state[:, [have[me].index(shard) for shard in shards]].flatten()
                        message[-1] = steps
                        waiting.append(ring.isend(message, members.index(taker)))
                    if me == taker:
                        waiting.append(ring.irecv(message, members.index(giver)))
                        arriving.append((shards, message))
                for handle in waiting:
                    handle.wait()
                for shards, message in arriving:
                    new[:, [want[me].index(shard) for shard in shards]] = message[:-1].view(3, len(shards), -1)
                    count = int(message[-1])
                gradient = gradient_of_shards(new[0], want[me], quorum["samples"])
                reach("step", k, life, ring)
                ready = torch.ones(1)
                collectives.all_reduce(ready, ring)
            except PeerLost:
                ring.leave()
                continue
            state, steps = adamw_step(new, count, gradient), count + 1
        return [state, steps]

    return live(run, mine["lives"], group)
