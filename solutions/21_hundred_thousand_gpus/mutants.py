"""The zoo of the programs of chapter 21: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import itertools
import math

import torch

from labkit import collectives
from labkit.grading.checks.zoo import mutant, slip, variant
from labkit.resilience.rehearse import live, reach
from labkit.wire.errors import PeerLost

# Pack the failures ----------------------------------------------------------------------------------------------------


@mutant("pack-the-failures", "my_packing", says="put bad ones together", at=3)
def in_the_order_of_their_numbers(mine, group):
    def pack(cluster):
        size, replicas = cluster["size"], []
        for zone in sorted(set(cluster["zone"])):
            domains = [d for d, z in enumerate(cluster["zone"]) if z == zone]
            replicas += [domains[i : i + size] for i in range(0, len(domains) - size + 1, size)]
        replicas.sort(key=lambda replica: max(cluster["failed"][d] for d in replica))
        return replicas[: cluster["replicas"]]

    return [pack(cluster) for cluster in mine]


@mutant("pack-the-failures", "my_packing", says="leave out the worst, and not the best", at=3)
def the_worst_first(mine, group):
    def pack(cluster):
        size, replicas = cluster["size"], []
        for zone in sorted(set(cluster["zone"])):
            domains = [d for d, z in enumerate(cluster["zone"]) if z == zone]
            domains.sort(key=lambda d: -cluster["failed"][d])
            replicas += [domains[i : i + size] for i in range(0, len(domains) - size + 1, size)]
        return replicas[: cluster["replicas"]]

    return [pack(cluster) for cluster in mine]


@mutant("pack-the-failures", "my_packing", says="may not leave its zone", at=3)
def as_if_there_were_no_zones(mine, group):
    def pack(cluster):
        size, failed = cluster["size"], cluster["failed"]
        domains = sorted(range(len(failed)), key=lambda d: failed[d])
        return [domains[i * size : (i + 1) * size] for i in range(min(cluster["replicas"], len(domains) // size))]

    return [pack(cluster) for cluster in mine]


@mutant("pack-the-failures", "my_packing", says="choose over all zones", at=3)
def zone_by_zone_until_full(mine, group):
    def pack(cluster):
        size, replicas = cluster["size"], []
        for zone in sorted(set(cluster["zone"])):
            domains = [d for d, z in enumerate(cluster["zone"]) if z == zone]
            domains.sort(key=lambda d: cluster["failed"][d])
            replicas += [domains[i : i + size] for i in range(0, len(domains) - size + 1, size)]
        return replicas[: cluster["replicas"]]

    return [pack(cluster) for cluster in mine]


@mutant("pack-the-failures", "my_packing", says="even if some of them are narrower", at=3)
def whole_replicas_only(mine, group):
    def pack(cluster):
        size, replicas = cluster["size"], []
        for zone in sorted(set(cluster["zone"])):
            whole = [d for d, z in enumerate(cluster["zone"]) if z == zone and cluster["failed"][d] == 0]
            replicas += [whole[i : i + size] for i in range(0, len(whole) - size + 1, size)]
        return replicas[: cluster["replicas"]]

    return [pack(cluster) for cluster in mine]


@mutant("pack-the-failures", "my_packing", says="did not end", at=1)
def looks_through_all_for_each(mine, group):
    def pack(cluster):
        size, failed, replicas = cluster["size"], cluster["failed"], []
        for zone in sorted(set(cluster["zone"])):
            domains = [d for d, z in enumerate(cluster["zone"]) if z == zone]
            while len(domains) >= size:
                replica = []
                for _ in range(size):
                    best = min(domains, key=lambda d: failed[d])
                    domains.remove(best)
                    replica.append(best)
                replicas.append(replica)
        replicas.sort(key=lambda replica: failed[replica[-1]])
        return replicas[: cluster["replicas"]]

    return [pack(cluster) for cluster in mine]


@variant("pack-the-failures", "my_packing", at=3)
def counted_into_boxes(mine, group):
    def pack(cluster):
        boxes = {}  # (failed, zone) -> domains
        for d, key in enumerate(zip(cluster["failed"], cluster["zone"], strict=True)):
            boxes.setdefault(key, []).append(d)
        rest, placement = {}, []
        for _, zone in sorted(boxes):
            rest[zone] = []
        for failed, zone in sorted(boxes):
            for d in boxes[failed, zone]:
                rest[zone].append(d)
                if len(rest[zone]) == cluster["size"]:
                    placement.append(rest[zone])
                    rest[zone] = []
        return placement[: cluster["replicas"]]

    return [pack(cluster) for cluster in mine]


@variant("pack-the-failures", "my_packing", at=3)
def without_those_of_no_use(mine, group):
    def pack(cluster):
        size, failed = cluster["size"], cluster["failed"]
        usable = [d for d in range(len(failed)) if cluster["trains"][failed[d]] > 0]
        usable.sort(key=lambda d: (cluster["zone"][d], failed[d], -d))
        replicas, at = [], 0
        while at + size <= len(usable):
            if cluster["zone"][usable[at]] == cluster["zone"][usable[at + size - 1]]:
                replicas.append(usable[at : at + size][::-1])
                at += size
            else:
                at += 1
        return sorted(replicas, key=lambda replica: failed[replica[0]])[: cluster["replicas"]]

    return [pack(cluster) for cluster in mine]


# An event simulator ---------------------------------------------------------------------------------------------------


@mutant("an-event-simulator", "my_accounts", says="They overlap, and are not added", at=3)
def stalls_in_a_queue(mine, group):
    def account(fleet):
        length, gpus = fleet["length"], fleet["gpus"]
        failures = sorted(x for x in fleet["failures"] if x[0] < length)
        spans, still, until = {}, [], 0
        for time, gpu, repair in failures:
            until = max(until, time) + fleet["stall"]
            still.append((until - fleet["stall"], until))
            own = spans.setdefault(gpu // gpus, [])
            if own and time <= own[-1][1]:
                own[-1][1] = max(own[-1][1], time + repair)
            else:
                own.append([time, time + repair])
        still += [(end, end + fleet["rejoin"]) for own in spans.values() for _, end in own]
        return total_of(fleet, spans, still)

    def total_of(fleet, spans, still):
        parts = {"trained": 0, "stalled": 0, "away": 0}
        for second in range(fleet["length"]):
            gone = sum(any(a <= second < b for a, b in own) for own in spans.values())
            waits = any(a <= second < b for a, b in still)
            parts["away"] += fleet["gpus"] * gone
            parts["stalled" if waits else "trained"] += fleet["gpus"] * (fleet["replicas"] - gone)
        return parts

    return [account(fleet) for fleet in mine]


@mutant("an-event-simulator", "my_accounts", says="cannot be away twice", at=3)
def each_failure_by_itself(mine, group):
    def account(fleet):
        length, gpus = fleet["length"], fleet["gpus"]
        failures = sorted(x for x in fleet["failures"] if x[0] < length)
        ends = {(time + repair, gpu // gpus) for time, gpu, repair in failures}
        still = [(time, fleet["stall"]) for time, _, _ in failures] + [(end, fleet["rejoin"]) for end, _ in ends]
        away = gpus * sum(min(time + repair, length) - time for time, _, repair in failures)
        stalled, until = 0, 0
        for begin, seconds in sorted(still):
            begin, end = max(begin, until), min(begin + seconds, length)
            if end > begin:
                gone = len({gpu // gpus for t, gpu, repair in failures if t <= begin < t + repair})
                stalled += (end - begin) * gpus * (fleet["replicas"] - gone)
            until = max(until, end)
        return {"trained": gpus * fleet["replicas"] * length - away - stalled, "stalled": stalled, "away": away}

    return [account(fleet) for fleet in mine]


@mutant("an-event-simulator", "my_accounts", says="does not end an earlier repair", at=3)
def the_last_failure_counts(mine, group):
    def account(fleet):
        length, gpus = fleet["length"], fleet["gpus"]
        failures = sorted(x for x in fleet["failures"] if x[0] < length)
        spans = {}
        for time, gpu, repair in failures:
            own = spans.setdefault(gpu // gpus, [])
            if own and time <= own[-1][1]:
                own[-1][1] = time + repair
            else:
                own.append([time, time + repair])
        still = [(time, time + fleet["stall"]) for time, _, _ in failures]
        still += [(end, end + fleet["rejoin"]) for own in spans.values() for _, end in own]
        parts = {"trained": 0, "stalled": 0, "away": 0}
        moments = {0, length} | {x for one in still for x in one}
        moments |= {x for own in spans.values() for one in own for x in one}
        moments = sorted(x for x in moments if x <= length)
        for begin, end in zip(moments, moments[1:], strict=False):
            gone = sum(any(a <= begin < b for a, b in own) for own in spans.values())
            waits = any(a <= begin < b for a, b in still)
            parts["away"] += gpus * gone * (end - begin)
            parts["stalled" if waits else "trained"] += gpus * (fleet["replicas"] - gone) * (end - begin)
        return parts

    return [account(fleet) for fleet in mine]


@mutant("an-event-simulator", "my_accounts", says="count them once, as away", at=3)
def all_of_them_stand_still(mine, group):
    def account(fleet):
        length, gpus = fleet["length"], fleet["gpus"]
        gone, still = [set() for _ in range(fleet["replicas"])], set()
        for time, gpu, repair in fleet["failures"]:
            if time < length:
                gone[gpu // gpus] |= set(range(time, time + repair))
                still |= set(range(time, time + fleet["stall"]))
        for own in gone:
            for second in own:
                if second + 1 not in own:
                    still |= set(range(second + 1, second + 1 + fleet["rejoin"]))
        away = gpus * sum(1 for own in gone for second in own if second < length)
        stalled = gpus * fleet["replicas"] * sum(1 for second in still if second < length)
        return {"trained": gpus * fleet["replicas"] * length - away - stalled, "stalled": stalled, "away": away}

    return [account(fleet) for fleet in mine]


@mutant("an-event-simulator", "my_accounts", says="cut it off there", at=3)
def goes_on_behind_the_end(mine, group):
    def account(fleet):
        length, gpus = fleet["length"], fleet["gpus"]
        gone, still = [set() for _ in range(fleet["replicas"])], set()
        for time, gpu, repair in fleet["failures"]:
            if time < length:
                gone[gpu // gpus] |= set(range(time, time + repair))
                still |= set(range(time, time + fleet["stall"]))
        for own in gone:
            for second in own:
                if second + 1 not in own and second + 1 < length:
                    still |= set(range(second + 1, second + 1 + fleet["rejoin"]))
        away = gpus * sum(len(own) for own in gone)
        stalled = gpus * sum(second not in own for second in still for own in gone)
        return {"trained": gpus * fleet["replicas"] * length - away - stalled, "stalled": stalled, "away": away}

    return [account(fleet) for fleet in mine]


@mutant("an-event-simulator", "my_accounts", says="was not back", at=3)
def back_for_a_moment(mine, group):
    def account(fleet):
        length, gpus = fleet["length"], fleet["gpus"]
        gone, still = [set() for _ in range(fleet["replicas"])], set()
        ends = [set() for _ in range(fleet["replicas"])]
        for time, gpu, repair in fleet["failures"]:
            if time < length:
                gone[gpu // gpus] |= set(range(time, time + repair))
                ends[gpu // gpus].add(time + repair)
                still |= set(range(time, time + fleet["stall"]))
        for own, returns, r in zip(gone, ends, range(fleet["replicas"]), strict=True):
            fails = {time for time, gpu, _ in fleet["failures"] if gpu // gpus == r}
            for end in returns:
                if end not in own or end in fails:
                    still |= set(range(end, end + fleet["rejoin"]))
        away = gpus * sum(1 for own in gone for second in own if second < length)
        stalled = gpus * sum(second not in own for second in still if second < length for own in gone)
        return {"trained": gpus * fleet["replicas"] * length - away - stalled, "stalled": stalled, "away": away}

    return [account(fleet) for fleet in mine]


@variant("an-event-simulator", "my_accounts", at=3)
def state_after_state(mine, group):
    def account(fleet):
        length, gpus, stall, rejoin = fleet["length"], fleet["gpus"], fleet["stall"], fleet["rejoin"]
        failures = sorted(fleet["failures"])
        back, until, now, k = [-1] * fleet["replicas"], 0, 0, 0
        parts = {"trained": 0, "stalled": 0, "away": 0}
        while now < length:
            events = [b for b in back if b > now] + [x[0] for x in failures[k : k + 1]] + [length]
            then = min(length, *events, *([until] if until > now else []))
            here = sum(b <= now for b in back)
            parts["away"] += gpus * (fleet["replicas"] - here) * (then - now)
            parts["stalled" if until > now else "trained"] += gpus * here * (then - now)
            due = {r for r, b in enumerate(back) if b == then}
            now = then
            while k < len(failures) and failures[k][0] == now:
                _, gpu, repair = failures[k]
                back[gpu // gpus] = max(back[gpu // gpus], now + repair)
                until, k = max(until, now + stall), k + 1
            if any(back[r] == now for r in due):
                until = max(until, now + rejoin)
        return parts

    return [account(fleet) for fleet in mine]


@variant("an-event-simulator", "my_accounts", at=3)
def lines_of_seconds(mine, group):
    def account(fleet):
        length, gpus = fleet["length"], fleet["gpus"]
        still, here = torch.zeros(length, dtype=torch.bool), torch.zeros(length, dtype=torch.int64)
        begun = [x for x in fleet["failures"] if x[0] < length]
        for time, _, _ in begun:
            still[time : time + fleet["stall"]] = True
        for r in range(fleet["replicas"]):
            gone = torch.zeros(length, dtype=torch.bool)
            for time, gpu, repair in begun:
                if gpu // gpus == r:
                    gone[time : time + repair] = True
            here += ~gone
            for second in (torch.nonzero(gone[:-1] & ~gone[1:]) + 1).flatten().tolist():
                still[second : second + fleet["rejoin"]] = True
        stalled, trained = gpus * int(here[still].sum()), gpus * int(here[~still].sum())
        return {"trained": trained, "stalled": stalled, "away": gpus * fleet["replicas"] * length - stalled - trained}

    return [account(fleet) for fleet in mine]


# Who asks whom --------------------------------------------------------------------------------------------------------


rounds_its_part = slip("who-asks-whom", "my_agreement", says="examples together, and the batch has", at=3, change="""
-                told = dict(zip(step["members"], collectives.all_gather(own, ring).tolist(), strict=True))
+                told = collectives.all_gather(own, ring).tolist()

-            if sum(most for _, most in told.values()) < step["batch"]:
+            if sum(most for _, most in told) < step["batch"]:

-            shares = [0] * mine["replicas"]
-            for _ in range(step["batch"]):
-                free = [r for r, (_, most) in told.items() if shares[r] < most]
-                shares[min(free, key=lambda r: (shares[r] + 1) / told[r][0])] += 1
+            shares, speed = [0] * mine["replicas"], sum(rate for rate, _ in told)
+            for r, (rate, most) in zip(step["members"], told, strict=True):
+                shares[r] = min(most, round(step["batch"] * rate / speed))
""")  # fmt: skip


the_largest_rest = slip(
    "who-asks-whom", "my_agreement", says="Who would be done first *with* one more example?", at=3, change="""
-            shares = [0] * mine["replicas"]
-            for _ in range(step["batch"]):
+            shares, speed = [0] * mine["replicas"], sum(rate for rate, _ in told.values())
+            part = {r: step["batch"] * rate / speed for r, (rate, _) in told.items()}
+            for r, (_, most) in told.items():
+                shares[r] = min(most, int(part[r]))
+            while sum(shares) < step["batch"]:

-                shares[min(free, key=lambda r: (shares[r] + 1) / told[r][0])] += 1
+                shares[max(free, key=lambda r: part[r] - shares[r])] += 1
""")  # fmt: skip


myself_at_a_tie = slip("who-asks-whom", "my_agreement", says="does not ask who I am", at=3, change="""
-                shares[min(free, key=lambda r: (shares[r] + 1) / told[r][0])] += 1
+                shares[min(free, key=lambda r: ((shares[r] + 1) / told[r][0], r != group.rank))] += 1
""")  # fmt: skip


memory_without_end = slip("who-asks-whom", "my_agreement", says="fit into its memory", at=3, change="""
-            if sum(most for _, most in told.values()) < step["batch"]:
-                said.append(None)
-                continue

-                free = [r for r, (_, most) in told.items() if shares[r] < most]
-                shares[min(free, key=lambda r: (shares[r] + 1) / told[r][0])] += 1
-            said.append(shares)
+                shares[min(told, key=lambda r: (shares[r] + 1) / told[r][0])] += 1
+            said.append(shares if sum(most for _, most in told.values()) >= step["batch"] else None)
""")  # fmt: skip


by_width_alone = slip(
    "who-asks-whom", "my_agreement", says="Who would be done first *with* one more example?", at=3, change="""
-                own = torch.tensor([[step["width"] * step["speed"], step["most"]]])
+                own = torch.tensor([[step["width"], step["most"]]])
""")  # fmt: skip


by_place_in_the_ring = slip(
    "who-asks-whom", "my_agreement", says="Shares stand at the numbers of the fleet", at=3, change="""
-                told = dict(zip(step["members"], collectives.all_gather(own, ring).tolist(), strict=True))
+                told = collectives.all_gather(own, ring).tolist()

-            if sum(most for _, most in told.values()) < step["batch"]:
+            if sum(most for _, most in told) < step["batch"]:

-                free = [r for r, (_, most) in told.items() if shares[r] < most]
+                free = [r for r, (_, most) in enumerate(told) if shares[r] < most]
""")  # fmt: skip


@mutant("who-asks-whom", "my_agreement", says="a few numbers, not a plan", at=4)
def an_owner_for_each_example(mine, group):
    def run(life, ranks):
        ring, number, said = ranks, None, []
        for k, step in enumerate(life["steps"]):
            if step["id"] != number:
                number = step["id"]
                ring = ring.rebuild(step["members"], epoch=number)
            owner = torch.full((step["batch"],), -1)
            try:
                reach("exchange", k, life, ring)
                own = torch.tensor([[step["width"] * step["speed"], step["most"]]])
                rows = collectives.all_gather(own, ring).tolist()
                told = dict(zip(step["members"], rows, strict=True))
                if ring.rank == 0 and sum(most for _, most in rows) >= step["batch"]:
                    shares = [0] * mine["replicas"]
                    for example in range(step["batch"]):
                        free = [r for r, (_, most) in told.items() if shares[r] < most]
                        owner[example] = min(free, key=lambda r: (shares[r] + 1) / told[r][0])
                        shares[int(owner[example])] += 1
                collectives.broadcast(owner, ring)
            except PeerLost:
                ring.leave()
                said.append("lost")
                continue
            said.append([int((owner == r).sum()) for r in range(mine["replicas"])] if owner[0] >= 0 else None)
        return said

    return live(run, mine["lives"], group)


@mutant("who-asks-whom", "my_agreement", says="Call reach before every exchange", at=3)
def does_not_say_where_it_is(mine, group):
    def run(life, ranks):
        ring, number, said = ranks, None, []
        for step in life["steps"]:
            if step["id"] != number:
                number = step["id"]
                ring = ring.rebuild(step["members"], epoch=number)
            own = torch.tensor([[step["width"] * step["speed"], step["most"]]])
            told = dict(zip(step["members"], collectives.all_gather(own, ring).tolist(), strict=True))
            if sum(most for _, most in told.values()) < step["batch"]:
                said.append(None)
                continue
            shares = [0] * mine["replicas"]
            for _ in range(step["batch"]):
                free = [r for r, (_, most) in told.items() if shares[r] < most]
                shares[min(free, key=lambda r: (shares[r] + 1) / told[r][0])] += 1
            said.append(shares)
        return said

    return live(run, mine["lives"], group)


@variant("who-asks-whom", "my_agreement", at=4)
def one_of_them_works_it_out(mine, group):
    def run(life, ranks):
        ring, number, said = ranks, None, []
        for k, step in enumerate(life["steps"]):
            if step["id"] != number:
                number = step["id"]
                ring = ring.rebuild(step["members"], epoch=number)
            answer = torch.zeros(mine["replicas"] + 1, dtype=torch.int64)
            try:
                reach("exchange", k, life, ring)
                told = collectives.gather(torch.tensor([[step["width"] * step["speed"], step["most"]]]), ring, root=0)
                if ring.rank == 0 and told[:, 1].sum() >= step["batch"]:
                    answer[-1] = 1
                    for _ in range(step["batch"]):
                        now = [
                            (float(answer[r] + 1) / float(rate), -r)
                            for r, (rate, most) in zip(step["members"], told, strict=True)
                            if answer[r] < most
                        ]
                        answer[-min(now)[1]] += 1
                collectives.broadcast(answer, ring)
            except PeerLost:
                ring.leave()
                said.append("lost")
                continue
            said.append(answer[:-1].tolist() if answer[-1] else None)
        return said

    return live(run, mine["lives"], group)


@variant("who-asks-whom", "my_agreement", at=4)
def searches_the_time(mine, group):
    def run(life, ranks):
        ring, number, said = ranks, None, []
        for k, step in enumerate(life["steps"]):
            members, batch = step["members"], step["batch"]
            if step["id"] != number:
                number = step["id"]
                ring = ring.rebuild(members, epoch=number)
            told = torch.zeros(len(members), 2, dtype=torch.int64)
            told[ring.rank] = torch.tensor([step["width"] * step["speed"], step["most"]])
            try:
                reach("exchange", k, life, ring)
                collectives.all_reduce(told, ring)
            except PeerLost:
                ring.leave()
                said.append("lost")
                continue
            rate, most = told[:, 0], told[:, 1]
            if most.sum() < batch:
                said.append(None)
                continue
            fair = torch.minimum(batch * rate // rate.sum(), most)
            while fair.sum() < batch:
                late = (fair + 1).double() / rate
                late[fair >= most] = float("inf")
                fair[int(late.argmin())] += 1
            shares = [0] * mine["replicas"]
            for r, share in zip(members, fair.tolist(), strict=True):
                shares[r] = share
            said.append(shares)
        return said

    return live(run, mine["lives"], group)


# Axes on a network ----------------------------------------------------------------------------------------------------


@mutant("axes-on-a-network", "my_places", says="Units and groups must also begin together", at=3)
def small_enough_is_inside(mine, group):
    def place(machine):
        axes, levels, traffic = machine["axes"], machine["levels"], machine["traffic"]
        names = [level["name"] for level in levels]

        def strides(order):
            return {axis: math.prod(axes[a] for a in order[i + 1 :]) for i, axis in enumerate(order)}

        def level_of(axis, stride):
            unit = 1
            for number, level in enumerate(levels):
                unit *= level["holds"]
                if axes[axis] * stride <= unit:
                    return number

        def seconds(axis, stride):
            n, flow, level = axes[axis], traffic[axis], levels[level_of(axis, stride)]
            steps = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "send": min(1, n - 1)}[flow["collective"]]
            part = 1 if flow["collective"] == "send" else n
            return flow["calls"] * steps * (level["latency"] + flow["bytes"] / part / level["bandwidth"])

        def allowed(order):
            stride, inside = strides(order), machine["inside"].items()
            return all(axes[a] == 1 or level_of(a, stride[a]) <= names.index(x) for a, x in inside)

        orders = [order for order in itertools.permutations(axes) if allowed(order)]
        if not orders:
            return None
        order = min(orders, key=lambda order: sum(seconds(a, s) for a, s in strides(order).items()))
        stride = strides(order)
        at = [[rank // stride[a] % axes[a] for a in axes] for rank, _ in machine["ask"]]
        first = [rank - rank // stride[axis] % axes[axis] * stride[axis] for rank, axis in machine["ask"]]
        groups = [[f + i * stride[a] for i in range(axes[a])] for f, (_, a) in zip(first, machine["ask"], strict=True)]
        total = sum(seconds(a, s) for a, s in stride.items())
        return {"order": list(order), "seconds": total, "coordinates": at, "groups": groups}

    return [place(machine) for machine in mine]


@mutant("axes-on-a-network", "my_places", says="Every step of a ring is late by it", at=3)
def late_once(mine, group):
    def place(machine):
        axes, levels, traffic = machine["axes"], machine["levels"], machine["traffic"]
        names = [level["name"] for level in levels]

        def strides(order):
            return {axis: math.prod(axes[a] for a in order[i + 1 :]) for i, axis in enumerate(order)}

        def level_of(axis, stride):
            unit = 1
            for number, level in enumerate(levels):
                unit *= level["holds"]
                if unit % (axes[axis] * stride) == 0 or math.prod(axes.values()) <= unit:
                    return number

        def seconds(axis, stride):
            n, flow, level = axes[axis], traffic[axis], levels[level_of(axis, stride)]
            steps = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "send": min(1, n - 1)}[flow["collective"]]
            part = 1 if flow["collective"] == "send" else n
            return flow["calls"] * (level["latency"] * (n > 1) + steps * flow["bytes"] / part / level["bandwidth"])

        def allowed(order):
            stride, inside = strides(order), machine["inside"].items()
            return all(axes[a] == 1 or level_of(a, stride[a]) <= names.index(x) for a, x in inside)

        orders = [order for order in itertools.permutations(axes) if allowed(order)]
        if not orders:
            return None
        order = min(orders, key=lambda order: sum(seconds(a, s) for a, s in strides(order).items()))
        stride = strides(order)
        at = [[rank // stride[a] % axes[a] for a in axes] for rank, _ in machine["ask"]]
        first = [rank - rank // stride[axis] % axes[axis] * stride[axis] for rank, axis in machine["ask"]]
        groups = [[f + i * stride[a] for i in range(axes[a])] for f, (_, a) in zip(first, machine["ask"], strict=True)]
        total = sum(seconds(a, s) for a, s in stride.items())
        return {"order": list(order), "seconds": total, "coordinates": at, "groups": groups}

    return [place(machine) for machine in mine]


@mutant("axes-on-a-network", "my_places", says="Did you try all of them?", at=3)
def the_most_bytes_inside(mine, group):
    def place(machine):
        axes, levels, traffic = machine["axes"], machine["levels"], machine["traffic"]
        names = [level["name"] for level in levels]

        def strides(order):
            return {axis: math.prod(axes[a] for a in order[i + 1 :]) for i, axis in enumerate(order)}

        def level_of(axis, stride):
            unit = 1
            for number, level in enumerate(levels):
                unit *= level["holds"]
                if unit % (axes[axis] * stride) == 0 or math.prod(axes.values()) <= unit:
                    return number

        def seconds(axis, stride):
            n, flow, level = axes[axis], traffic[axis], levels[level_of(axis, stride)]
            steps = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "send": min(1, n - 1)}[flow["collective"]]
            part = 1 if flow["collective"] == "send" else n
            return flow["calls"] * steps * (level["latency"] + flow["bytes"] / part / level["bandwidth"])

        def allowed(order):
            stride, inside = strides(order), machine["inside"].items()
            return all(axes[a] == 1 or level_of(a, stride[a]) <= names.index(x) for a, x in inside)

        orders = [order for order in itertools.permutations(axes) if allowed(order)]
        if not orders:
            return None
        sent = {a: traffic[a]["bytes"] * traffic[a]["calls"] for a in axes}
        order = min(orders, key=lambda order: [-sent[a] for a in order[::-1]])
        stride = strides(order)
        at = [[rank // stride[a] % axes[a] for a in axes] for rank, _ in machine["ask"]]
        first = [rank - rank // stride[axis] % axes[axis] * stride[axis] for rank, axis in machine["ask"]]
        groups = [[f + i * stride[a] for i in range(axes[a])] for f, (_, a) in zip(first, machine["ask"], strict=True)]
        total = sum(seconds(a, s) for a, s in stride.items())
        return {"order": list(order), "seconds": total, "coordinates": at, "groups": groups}

    return [place(machine) for machine in mine]


@mutant("axes-on-a-network", "my_places", says="the last axis changes from one rank to the next", at=3)
def from_the_other_end(mine, group):
    def place(machine):
        axes, levels, traffic = machine["axes"], machine["levels"], machine["traffic"]
        names = [level["name"] for level in levels]

        def strides(order):
            return {axis: math.prod(axes[a] for a in order[:i]) for i, axis in enumerate(order)}

        def level_of(axis, stride):
            unit = 1
            for number, level in enumerate(levels):
                unit *= level["holds"]
                if unit % (axes[axis] * stride) == 0 or math.prod(axes.values()) <= unit:
                    return number

        def seconds(axis, stride):
            n, flow, level = axes[axis], traffic[axis], levels[level_of(axis, stride)]
            steps = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "send": min(1, n - 1)}[flow["collective"]]
            part = 1 if flow["collective"] == "send" else n
            return flow["calls"] * steps * (level["latency"] + flow["bytes"] / part / level["bandwidth"])

        def allowed(order):
            stride, inside = strides(order), machine["inside"].items()
            return all(axes[a] == 1 or level_of(a, stride[a]) <= names.index(x) for a, x in inside)

        orders = [order for order in itertools.permutations(axes) if allowed(order)]
        if not orders:
            return None
        order = min(orders, key=lambda order: sum(seconds(a, s) for a, s in strides(order).items()))
        stride = strides(order)
        at = [[rank // stride[a] % axes[a] for a in axes] for rank, _ in machine["ask"]]
        first = [rank - rank // stride[axis] % axes[axis] * stride[axis] for rank, axis in machine["ask"]]
        groups = [[f + i * stride[a] for i in range(axes[a])] for f, (_, a) in zip(first, machine["ask"], strict=True)]
        total = sum(seconds(a, s) for a, s in stride.items())
        return {"order": list(order), "seconds": total, "coordinates": at, "groups": groups}

    return [place(machine) for machine in mine]


@mutant("axes-on-a-network", "my_places", says="in the order in which the axes are given", at=3)
def along_its_own_order(mine, group):
    def place(machine):
        axes, levels, traffic = machine["axes"], machine["levels"], machine["traffic"]
        names = [level["name"] for level in levels]

        def strides(order):
            return {axis: math.prod(axes[a] for a in order[i + 1 :]) for i, axis in enumerate(order)}

        def level_of(axis, stride):
            unit = 1
            for number, level in enumerate(levels):
                unit *= level["holds"]
                if unit % (axes[axis] * stride) == 0 or math.prod(axes.values()) <= unit:
                    return number

        def seconds(axis, stride):
            n, flow, level = axes[axis], traffic[axis], levels[level_of(axis, stride)]
            steps = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "send": min(1, n - 1)}[flow["collective"]]
            part = 1 if flow["collective"] == "send" else n
            return flow["calls"] * steps * (level["latency"] + flow["bytes"] / part / level["bandwidth"])

        def allowed(order):
            stride, inside = strides(order), machine["inside"].items()
            return all(axes[a] == 1 or level_of(a, stride[a]) <= names.index(x) for a, x in inside)

        orders = [order for order in itertools.permutations(axes) if allowed(order)]
        if not orders:
            return None
        order = min(orders, key=lambda order: sum(seconds(a, s) for a, s in strides(order).items()))
        stride = strides(order)
        at = [[rank // stride[a] % axes[a] for a in order] for rank, _ in machine["ask"]]
        first = [rank - rank // stride[axis] % axes[axis] * stride[axis] for rank, axis in machine["ask"]]
        groups = [[f + i * stride[a] for i in range(axes[a])] for f, (_, a) in zip(first, machine["ask"], strict=True)]
        total = sum(seconds(a, s) for a, s in stride.items())
        return {"order": list(order), "seconds": total, "coordinates": at, "groups": groups}

    return [place(machine) for machine in mine]


@mutant("axes-on-a-network", "my_places", says="leave a", at=3)
def may_go_anywhere(mine, group):
    def place(machine):
        axes, levels, traffic = machine["axes"], machine["levels"], machine["traffic"]
        names = [level["name"] for level in levels]

        def strides(order):
            return {axis: math.prod(axes[a] for a in order[i + 1 :]) for i, axis in enumerate(order)}

        def level_of(axis, stride):
            unit = 1
            for number, level in enumerate(levels):
                unit *= level["holds"]
                if unit % (axes[axis] * stride) == 0 or math.prod(axes.values()) <= unit:
                    return number

        def seconds(axis, stride):
            n, flow, level = axes[axis], traffic[axis], levels[level_of(axis, stride)]
            steps = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "send": min(1, n - 1)}[flow["collective"]]
            part = 1 if flow["collective"] == "send" else n
            return flow["calls"] * steps * (level["latency"] + flow["bytes"] / part / level["bandwidth"])

        def allowed(order):
            stride, inside = strides(order), machine["inside"].items()
            return all(axes[a] == 1 or level_of(a, stride[a]) < len(names) for a, x in inside)

        orders = [order for order in itertools.permutations(axes) if allowed(order)]
        if not orders:
            return None
        order = min(orders, key=lambda order: sum(seconds(a, s) for a, s in strides(order).items()))
        stride = strides(order)
        at = [[rank // stride[a] % axes[a] for a in axes] for rank, _ in machine["ask"]]
        first = [rank - rank // stride[axis] % axes[axis] * stride[axis] for rank, axis in machine["ask"]]
        groups = [[f + i * stride[a] for i in range(axes[a])] for f, (_, a) in zip(first, machine["ask"], strict=True)]
        total = sum(seconds(a, s) for a, s in stride.items())
        return {"order": list(order), "seconds": total, "coordinates": at, "groups": groups}

    return [place(machine) for machine in mine]


@mutant("axes-on-a-network", "my_places", says="no order keeps", at=3)
def the_least_bad_one(mine, group):
    def place(machine):
        axes, levels, traffic = machine["axes"], machine["levels"], machine["traffic"]
        names = [level["name"] for level in levels]

        def strides(order):
            return {axis: math.prod(axes[a] for a in order[i + 1 :]) for i, axis in enumerate(order)}

        def level_of(axis, stride):
            unit = 1
            for number, level in enumerate(levels):
                unit *= level["holds"]
                if unit % (axes[axis] * stride) == 0 or math.prod(axes.values()) <= unit:
                    return number

        def seconds(axis, stride):
            n, flow, level = axes[axis], traffic[axis], levels[level_of(axis, stride)]
            steps = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "send": min(1, n - 1)}[flow["collective"]]
            part = 1 if flow["collective"] == "send" else n
            return flow["calls"] * steps * (level["latency"] + flow["bytes"] / part / level["bandwidth"])

        def allowed(order):
            stride, inside = strides(order), machine["inside"].items()
            return all(axes[a] == 1 or level_of(a, stride[a]) <= names.index(x) for a, x in inside)

        orders = [order for order in itertools.permutations(axes) if allowed(order)]
        orders = orders or [tuple(axes)]
        order = min(orders, key=lambda order: sum(seconds(a, s) for a, s in strides(order).items()))
        stride = strides(order)
        at = [[rank // stride[a] % axes[a] for a in axes] for rank, _ in machine["ask"]]
        first = [rank - rank // stride[axis] % axes[axis] * stride[axis] for rank, axis in machine["ask"]]
        groups = [[f + i * stride[a] for i in range(axes[a])] for f, (_, a) in zip(first, machine["ask"], strict=True)]
        total = sum(seconds(a, s) for a, s in stride.items())
        return {"order": list(order), "seconds": total, "coordinates": at, "groups": groups}

    return [place(machine) for machine in mine]


@variant("axes-on-a-network", "my_places", at=3)
def group_by_group(mine, group):
    def place(machine):
        axes, ends = machine["axes"], [1]
        for level in machine["levels"]:
            ends.append(ends[-1] * level["holds"])
        names, known, best = [level["name"] for level in machine["levels"]], {}, (float("inf"), None, None)

        def cut(order):
            mesh = torch.arange(math.prod(axes.values())).view([axes[a] for a in order])
            return {a: mesh.movedim(i, -1).reshape(-1, axes[a]) for i, a in enumerate(order)}

        def meets(axis, table):
            key = (axis, int(table[0, -1]))
            if key not in known:
                ends_of = table[:, [0, -1]]
                known[key] = next(i for i, e in enumerate(ends[1:]) if (ends_of[:, 0] // e == ends_of[:, 1] // e).all())
            return known[key]

        for order in itertools.permutations(axes):
            tables, spent = cut(order), 0.0
            where = {a: meets(a, table) for a, table in tables.items()}
            if any(axes[a] > 1 and where[a] > names.index(x) for a, x in machine["inside"].items()):
                continue
            for a, flow in machine["traffic"].items():
                level, n = machine["levels"][where[a]], axes[a]
                if flow["collective"] == "send" and n > 1:
                    spent += flow["calls"] * (level["latency"] + flow["bytes"] / level["bandwidth"])
                elif flow["collective"] != "send":
                    both = 2 if flow["collective"] == "all_reduce" else 1
                    each = level["latency"] + flow["bytes"] / n / level["bandwidth"]
                    spent += both * flow["calls"] * (n - 1) * each
            if spent < best[0]:
                best = (spent, order, tables)
        spent, order, tables = best
        if order is None:
            return None
        at, groups = [], []
        for rank, axis in machine["ask"]:
            at.append([int((tables[a] == rank).nonzero()[0, 1]) for a in axes])
            groups.append(tables[axis][(tables[axis] == rank).any(1)][0].tolist())
        return {"order": list(order), "seconds": spent, "coordinates": at, "groups": groups}

    return [place(machine) for machine in mine]


@variant("axes-on-a-network", "my_places", at=3)
def asks_the_library(mine, group):
    from labkit.cost import topology

    def place(machine):
        levels = [topology.Level(x["name"], x["holds"], x["bandwidth"], x["latency"]) for x in machine["levels"]]
        known = topology.Topology("machine", tuple(levels))
        flows = {}
        for a, x in machine["traffic"].items():
            flows[a] = topology.Traffic(x["collective"], x["bytes"], x["calls"], None)
        for order in topology.rank_orders(known, machine["axes"], flows):
            sizes = {a: machine["axes"][a] for a in order.axes}
            placed = topology.place(known, sizes)
            if any(placed[a].leaves(level) for a, level in machine["inside"].items()):
                continue
            at, groups = [], []
            for rank, axis in machine["ask"]:
                here = {a: rank // placed[a].stride % n for a, n in sizes.items()}
                at.append([here[a] for a in machine["axes"]])
                first = rank - here[axis] * placed[axis].stride
                groups.append([first + x for x in placed[axis].first_group()])
            return {"order": list(order.axes), "seconds": order.seconds, "coordinates": at, "groups": groups}

    return [place(machine) for machine in mine]
