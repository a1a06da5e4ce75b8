"""The zoo of the exercises of chapter 20: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch

from labkit import collectives
from labkit.grading.checks.zoo import mutant, variant

# A map for ranks that stay -------------------------------------------------------------------------------------------


@mutant("the-shard-map", "my_map", says="Fill one extra rank before you begin with the next", at=4)
def deals_in_turn(mine, group):
    shards, lost = mine["shards"], mine["lost"]
    owners = [rank for rank in range(mine["ranks"]) if rank not in lost]
    sync = [[] for _ in range(mine["ranks"])]
    for owner, stretch in zip(owners, torch.arange(shards).tensor_split(len(owners)), strict=True):
        sync[owner] = stretch.tolist()
    each, over = divmod(shards, mine["ranks"])
    load = {rank: each + (place < over) for place, rank in enumerate(owners + lost)}
    compute = [stretch[: load[rank]] for rank, stretch in enumerate(sync)]
    turn = 0
    for owner in owners:
        for shard in sync[owner][load[owner] :]:
            while len(compute[lost[turn % len(lost)]]) == load[lost[turn % len(lost)]]:
                turn += 1
            compute[lost[turn % len(lost)]].append(shard)
            turn += 1
    return {"sync": sync, "compute": compute}


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


@mutant("the-shard-map", "my_map", says="what is left over can stay with ranks that add up", at=4)
def one_more_by_number(mine, group):
    shards, lost = mine["shards"], mine["lost"]
    owners = [rank for rank in range(mine["ranks"]) if rank not in lost]
    sync = [[] for _ in range(mine["ranks"])]
    for owner, stretch in zip(owners, torch.arange(shards).tensor_split(len(owners)), strict=True):
        sync[owner] = stretch.tolist()
    each, over = divmod(shards, mine["ranks"])
    load = [each + (rank < over) for rank in range(mine["ranks"])]
    compute = [stretch[: load[rank]] for rank, stretch in enumerate(sync)]
    given = [shard for owner in owners for shard in sync[owner][load[owner] :]]
    for rank in range(mine["ranks"]):
        more = load[rank] - len(compute[rank])
        compute[rank], given = compute[rank] + given[:more], given[more:]
    return {"sync": sync, "compute": compute}


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
