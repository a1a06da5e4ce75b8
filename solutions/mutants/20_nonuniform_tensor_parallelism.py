"""The zoo of the programs of chapter 20: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch

from labkit import collectives
from labkit.grading.checks.zoo import mutant, variant
from labkit.resilience.rehearse import adamw_step, gradient_of, gradient_of_shards, live, reach
from labkit.wire.errors import PeerLost

# Uneven batches --------------------------------------------------------------------------------------------------


@mutant("uneven-batches", "my_uneven_batch", says="in proportion to the GPUs", at=4)
def in_proportion_to_the_gpus(mine, group):
    exact = [len(mine["samples"]) * width / sum(mine["widths"]) for width in mine["widths"]]
    batch = len(mine["samples"])
    shares = [int(x) for x in exact]
    by_need = sorted(range(group.size), key=lambda r: (shares[r] - exact[r], r))
    for r in by_need[: batch - sum(shares)]:
        shares[r] += 1
    first = sum(shares[: group.rank])
    own = mine["samples"][first : first + shares[group.rank]]
    gradient = torch.zeros_like(mine["weights"])
    if len(own):
        gradient = gradient_of(mine["weights"], own) * len(own) / batch
    collectives.all_reduce(gradient, group)
    return [shares, own.tolist(), gradient]


@mutant("uneven-batches", "my_uneven_batch", says="add up to", at=4)
def rounds_down(mine, group):
    every = sum(mine["widths"])
    batch = len(mine["samples"])
    shares = [batch * width // every for width in mine["widths"]]
    first = sum(shares[: group.rank])
    own = mine["samples"][first : first + shares[group.rank]]
    gradient = torch.zeros_like(mine["weights"])
    if len(own):
        gradient = gradient_of(mine["weights"], own) * len(own) / batch
    collectives.all_reduce(gradient, group)
    return [shares, own.tolist(), gradient]


@mutant("uneven-batches", "my_uneven_batch", says="may have no example at all", at=3)
def an_example_for_everybody(mine, group):
    each = [-(-mine["shards"] // width) for width in mine["widths"]]
    batch = len(mine["samples"])
    shares = [1] * group.size
    for _ in range(batch - group.size):
        soonest = min(range(group.size), key=lambda r: (shares[r] + 1) * each[r])
        shares[soonest] += 1
    first = sum(shares[: group.rank])
    own = mine["samples"][first : first + shares[group.rank]]
    gradient = torch.zeros_like(mine["weights"])
    if len(own):
        gradient = gradient_of(mine["weights"], own) * len(own) / batch
    collectives.all_reduce(gradient, group)
    return [shares, own.tolist(), gradient]


@mutant("uneven-batches", "my_uneven_batch", says="it is a mean of means", at=4)
def a_mean_of_means(mine, group):
    each = [-(-mine["shards"] // width) for width in mine["widths"]]
    batch = len(mine["samples"])
    shares = [0] * group.size
    for _ in range(batch):
        soonest = min(range(group.size), key=lambda r: (shares[r] + 1) * each[r])
        shares[soonest] += 1
    first = sum(shares[: group.rank])
    own = mine["samples"][first : first + shares[group.rank]]
    gradient = torch.zeros_like(mine["weights"])
    if len(own):
        gradient = gradient_of(mine["weights"], own) / group.size
    collectives.all_reduce(gradient, group)
    return [shares, own.tolist(), gradient]


@mutant("uneven-batches", "my_uneven_batch", says="has the weight of its GPUs", at=4)
def the_weight_of_its_gpus(mine, group):
    each = [-(-mine["shards"] // width) for width in mine["widths"]]
    batch = len(mine["samples"])
    shares = [0] * group.size
    for _ in range(batch):
        soonest = min(range(group.size), key=lambda r: (shares[r] + 1) * each[r])
        shares[soonest] += 1
    first = sum(shares[: group.rank])
    own = mine["samples"][first : first + shares[group.rank]]
    part = mine["widths"][group.rank] / sum(mine["widths"])
    gradient = torch.zeros_like(mine["weights"])
    if len(own):
        gradient = gradient_of(mine["weights"], own) * part
    collectives.all_reduce(gradient, group)
    return [shares, own.tolist(), gradient]


@mutant("uneven-batches", "my_uneven_batch", says="their mean is nan", at=3)
def a_mean_over_nothing(mine, group):
    each = [-(-mine["shards"] // width) for width in mine["widths"]]
    batch = len(mine["samples"])
    shares = [0] * group.size
    for _ in range(batch):
        soonest = min(range(group.size), key=lambda r: (shares[r] + 1) * each[r])
        shares[soonest] += 1
    first = sum(shares[: group.rank])
    own = mine["samples"][first : first + shares[group.rank]]
    gradient = gradient_of(mine["weights"], own) * len(own) / batch
    collectives.all_reduce(gradient, group)
    return [shares, own.tolist(), gradient]


@mutant("uneven-batches", "my_uneven_batch", says="compute with the whole batch", at=4)
def everybody_trains_all(mine, group):
    each = [-(-mine["shards"] // width) for width in mine["widths"]]
    batch = len(mine["samples"])
    shares = [0] * group.size
    for _ in range(batch):
        soonest = min(range(group.size), key=lambda r: (shares[r] + 1) * each[r])
        shares[soonest] += 1
    first = sum(shares[: group.rank])
    own = mine["samples"][first : first + shares[group.rank]]
    gradient = gradient_of(mine["weights"], mine["samples"])
    return [shares, own.tolist(), gradient]


@mutant("uneven-batches", "my_uneven_batch", says="Weigh the gradient before it is added up", at=4)
def everything_to_everybody(mine, group):
    each = [-(-mine["shards"] // width) for width in mine["widths"]]
    batch = len(mine["samples"])
    shares = [0] * group.size
    for _ in range(batch):
        soonest = min(range(group.size), key=lambda r: (shares[r] + 1) * each[r])
        shares[soonest] += 1
    first = sum(shares[: group.rank])
    own = mine["samples"][first : first + shares[group.rank]]
    gradient = torch.zeros_like(mine["weights"])
    if len(own):
        gradient = gradient_of(mine["weights"], own) * len(own) / batch
    rows = collectives.all_gather(gradient, group, algorithm="ring").view(group.size, -1)
    gradient = collectives.all_gather(rows.sum(0), group, algorithm="ring").view(group.size, -1)[0]
    return [shares, own.tolist(), gradient]


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


@mutant("state-that-follows", "my_following_state", says="came without their moments", at=4)
def weights_without_moments(mine, group):
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
                waiting, arriving = [], []
                for (giver, taker), shards in moves.items():
                    message = torch.zeros(len(shards) * state.shape[2] + 1, dtype=torch.float64)
                    if me == giver:
                        message[:-1] = state[0, [have[me].index(shard) for shard in shards]].flatten()
                        message[-1] = steps
                        waiting.append(ring.isend(message, members.index(taker)))
                    if me == taker:
                        waiting.append(ring.irecv(message, members.index(giver)))
                        arriving.append((shards, message))
                for handle in waiting:
                    handle.wait()
                for shards, message in arriving:
                    new[0, [want[me].index(shard) for shard in shards]] = message[:-1].view(len(shards), -1)
                    count = int(message[-1])
                gradient = gradient_of_shards(new[0], want[me], quorum["samples"])
                reach("step", k, life, ring)
                collectives.barrier(ring)
            except PeerLost:
                ring.leave()
                continue
            state, steps = adamw_step(new, count, gradient), count + 1
        return [state, steps]

    return live(run, mine["lives"], group)


@mutant("state-that-follows", "my_following_state", says="A rank that comes back has made none", at=4)
def a_newcomer_counts_from_zero(mine, group):
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
                gradient = gradient_of_shards(new[0], want[me], quorum["samples"])
                reach("step", k, life, ring)
                collectives.barrier(ring)
            except PeerLost:
                ring.leave()
                continue
            state, steps = adamw_step(new, count, gradient), count + 1
        return [state, steps]

    return live(run, mine["lives"], group)


@mutant("state-that-follows", "my_following_state", says="An attempt that came to nothing was counted", at=4)
def counts_every_attempt(mine, group):
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
                steps += 1
                reach("step", k, life, ring)
                collectives.barrier(ring)
            except PeerLost:
                ring.leave()
                continue
            state, steps = adamw_step(new, count, gradient), max(steps, count + 1)
        return [state, steps]

    return live(run, mine["lives"], group)


@mutant("state-that-follows", "my_following_state", says="of its own replica has comes from that one", at=4)
def always_from_the_other_replica(mine, group):
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
                        giver = min(holders, key=lambda r: replica[r] == replica[taker])
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
                collectives.barrier(ring)
            except PeerLost:
                ring.leave()
                continue
            state, steps = adamw_step(new, count, gradient), count + 1
        return [state, steps]

    return live(run, mine["lives"], group)


@mutant("state-that-follows", "my_following_state", says="What a rank has it keeps", at=4)
def fetches_all_that_it_wants(mine, group):
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
                    holders = [r for r in members if shard in have[r] and r != taker]
                    if holders and want != have:
                        giver = min(holders, key=lambda r: replica[r] != replica[taker])
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
                collectives.barrier(ring)
            except PeerLost:
                ring.leave()
                continue
            state, steps = adamw_step(new, count, gradient), count + 1
        return [state, steps]

    return live(run, mine["lives"], group)


@mutant("state-that-follows", "my_following_state", says="is not in list", at=4)
def asks_a_rank_that_is_lost(mine, group):
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
                        holders = [r for r in range(group.size) if shard in have[r]]
                        giver = min(holders, key=lambda r: replica[r] != replica[taker])
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
                collectives.barrier(ring)
            except PeerLost:
                ring.leave()
                continue
            state, steps = adamw_step(new, count, gradient), count + 1
        return [state, steps]

    return live(run, mine["lives"], group)


@mutant("state-that-follows", "my_following_state", says="is out of bounds", at=4)
def takes_up_what_has_arrived(mine, group):
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
                state, steps = new, count
                reach("step", k, life, ring)
                collectives.barrier(ring)
            except PeerLost:
                ring.leave()
                continue
            state, steps = adamw_step(new, count, gradient), count + 1
        return [state, steps]

    return live(run, mine["lives"], group)


@mutant("state-that-follows", "my_following_state", says="also made the step of an attempt", at=4)
def updates_before_it_counts(mine, group):
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
                if have[me] == want[me]:
                    state = adamw_step(new, count, gradient)
                reach("step", k, life, ring)
                collectives.barrier(ring)
            except PeerLost:
                ring.leave()
                continue
            state = state if have[me] == want[me] else adamw_step(new, count, gradient)
            steps = count + 1
        return [state, steps]

    return live(run, mine["lives"], group)


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
