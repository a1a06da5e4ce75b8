"""The zoo of the exercises of chapter 19: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import json

import torch

from labkit import collectives
from labkit.grading.checks.zoo import mutant, slip, variant
from labkit.resilience.rehearse import gradient_of, live, reach
from labkit.wire.errors import PeerLost

# An average of those that trained ------------------------------------------------------------------------------------


divides_by_all = slip("those-that-trained", "my_average", says="you divided by all", at=3, change="""
-    return weighed[:-1] / weighed[-1] if weighed[-1] > 0 else None
+    return weighed[:-1] / group.size if weighed[-1] > 0 else None
""")  # fmt: skip


@mutant("those-that-trained", "my_average", says="0 times nan is nan", at=3)
def zero_times_old_memory(mine, group):
    weighed = torch.cat([mine["gradient"] * mine["trained"], torch.tensor([float(mine["trained"])])])
    collectives.all_reduce(weighed, group)
    return weighed[:-1] / weighed[-1] if weighed[-1] > 0 else None


adds_up_only = slip("those-that-trained", "my_average", says="that is their sum", at=3, change="""
-    return weighed[:-1] / weighed[-1] if weighed[-1] > 0 else None
+    return weighed[:-1] if weighed[-1] > 0 else None
""")  # fmt: skip


@mutant("those-that-trained", "my_average", says="instead of collecting all gradients", at=4)
def everything_to_everybody(mine, group):
    gradient = mine["gradient"] if mine["trained"] else torch.zeros_like(mine["gradient"])
    flag = torch.tensor([float(mine["trained"])])
    rows = collectives.all_gather(torch.cat([gradient, flag]), group, algorithm="ring").view(group.size, -1)
    count = rows[:, -1].sum()
    return rows[:, :-1].sum(0) / count if count > 0 else None


an_average_of_nothing = slip("those-that-trained", "my_average", says="There is no average of nothing", at=2, change="""
-    return weighed[:-1] / weighed[-1] if weighed[-1] > 0 else None
+    return weighed[:-1] / weighed[-1]
""")  # fmt: skip


newcomers_get_nothing = slip("those-that-trained", "my_average", says="returned None", at=3, change="""
-    return weighed[:-1] / weighed[-1] if weighed[-1] > 0 else None
+    return weighed[:-1] / weighed[-1] if mine["trained"] else None
""")  # fmt: skip


counts_itself_only = slip("those-that-trained", "my_average", says="that is their sum", at=3, change="""
-    return weighed[:-1] / weighed[-1] if weighed[-1] > 0 else None
+    return weighed[:-1] / max(1, mine["trained"]) if weighed[-1] > 0 else None
""")  # fmt: skip


@variant("those-that-trained", "my_average", at=4)
def two_all_reduces(mine, group):
    gradient, count = torch.zeros_like(mine["gradient"]), torch.tensor([int(mine["trained"])])
    if mine["trained"]:
        gradient += mine["gradient"]
    collectives.all_reduce(count, group)
    if count.item() == 0:
        return None
    collectives.all_reduce(gradient, group)
    return gradient / count


@variant("those-that-trained", "my_average", at=4)
def a_ring_by_name(mine, group):
    x = torch.where(torch.tensor(mine["trained"]), mine["gradient"], torch.zeros(()))
    x = torch.cat([torch.tensor([float(mine["trained"])]), x])
    collectives.all_reduce(x, group, algorithm="ring")
    count = int(x[0])
    return x[1:] / count if count else None


# All ranks, or none --------------------------------------------------------------------------------------------------


by_its_own_exchange = slip("all-or-none", "my_replica", says="every rank went by its own exchange", at=4, change="""
-                if decision.item():
+                if well:

-                history.append("applied" if decision.item() else "discarded")
+                history.append("applied" if well else "discarded")
""")  # fmt: skip


the_optimizer_first = slip(
    "all-or-none", "my_replica", says="The momentum of a discarded attempt was kept", at=4, change="""
                 reach("vote", k, life, ranks)
+                momentum = momentum / 2 + total

-                    momentum = momentum / 2 + total
""")  # fmt: skip


the_leader_asks_itself = slip("all-or-none", "my_replica", says="The leader went by its own exchange", at=4, change="""
-                    decision[0] = votes.min()
+                    decision[0] = votes[0]
""")  # fmt: skip


one_yes_is_enough = slip("all-or-none", "my_replica", says="one vote in favour is not enough", at=4, change="""
-                    decision[0] = votes.min()
+                    decision[0] = votes.max()
""")  # fmt: skip


silence_is_consent = slip("all-or-none", "my_replica", says="It cannot know what the others voted", at=3, change="""
-            history.append("lost")
+            if well and ranks.rank > 0 and len(history) == k:
+                momentum = momentum / 2 + total
+                weights = weights - momentum
+                history.append("applied")
+            else:
+                history.append("lost")
""")  # fmt: skip


does_not_leave = slip("all-or-none", "my_replica", says="wait for each other", at=4, change="""
-            ranks.leave()
""")  # fmt: skip


says_nowhere_where_it_is = slip("all-or-none", "my_replica", says="Call reach", at=3, change="""
-            for k, (total, well) in enumerate(zip(life["sums"], life["well"], strict=True)):
-                reach("vote", k, life, ranks)
+            for total, well in zip(life["sums"], life["well"], strict=True):

-                    reach("decide", k, life, ranks)

-                reach("commit", k, life, ranks)
""")  # fmt: skip


commits_before_it_says_so = slip("all-or-none", "my_replica", says="Call reach", at=5, change="""
-                reach("commit", k, life, ranks)
""")  # fmt: skip


sends_the_sums_along = slip("all-or-none", "my_replica", says="A vote is one number", at=4, change="""
                 reach("commit", k, life, ranks)
+                collectives.all_gather(total.repeat(8), ranks)
""")  # fmt: skip


stops_at_the_first_no = slip("all-or-none", "my_replica", says="the history of rank", at=4, change="""
                 history.append("applied" if decision.item() else "discarded")
+                if not decision.item():
+                    break
""")  # fmt: skip


@variant("all-or-none", "my_replica", at=4)
def one_by_one(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"].clone(), life["momentum"].clone(), []
        for k in range(len(life["sums"])):
            try:
                reach("vote", k, life, ranks)
                word = torch.tensor([life["well"][k]], dtype=torch.uint8)
                if ranks.rank == 0:
                    heard = torch.zeros(1, dtype=torch.uint8)
                    for other in range(1, ranks.size):
                        ranks.recv(heard, other)
                        word = torch.minimum(word, heard)
                    reach("decide", k, life, ranks)
                    for other in range(1, ranks.size):
                        ranks.send(word, other)
                else:
                    ranks.send(word, 0)
                    ranks.recv(word, 0)
                reach("commit", k, life, ranks)
            except PeerLost:
                ranks.leave()
                return [weights, momentum, [*history, "lost"]]
            if word.item() == 0:
                history.append("discarded")
                continue
            momentum.div_(2).add_(life["sums"][k])
            weights.sub_(momentum)
            history.append("applied")
        return [weights, momentum, history]

    return live(run, [mine], group)


@variant("all-or-none", "my_replica", at=4)
def the_least_vote(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"], life["momentum"], []
        try:
            for k, (total, well) in enumerate(zip(life["sums"], life["well"], strict=True)):
                reach("vote", k, life, ranks)
                decision = collectives.reduce(torch.tensor([int(well)]), ranks, root=0, op="min")
                if ranks.rank == 0:
                    reach("decide", k, life, ranks)
                decision = torch.zeros(1, dtype=torch.int64) if decision is None else decision
                collectives.broadcast(decision, ranks)
                reach("commit", k, life, ranks)
                if decision.item():
                    momentum = momentum / 2 + total
                    weights = weights - momentum
                history.append("applied" if decision.item() else "discarded")
        except PeerLost:
            ranks.leave()
            history.append("lost")
        return [weights, momentum, history]

    return live(run, [mine], group)


# Read the log --------------------------------------------------------------------------------------------------------


whole_lines_only = slip("read-the-log", "my_audit", says="raised JSONDecodeError", at=4, change="""
-        try:
-            lines.append(json.loads(text))
-        except ValueError:
-            continue
+        lines.append(json.loads(text))
""")  # fmt: skip


discarded_samples_count = slip(
    "read-the-log", "my_audit", says="An attempt that was discarded is no training", at=4, change="""
-    done = {(x["replica"], x["step"], x["quorum"]) for x in commits}
-    taken = {(x["replica"], x["step"]): x["samples"] for x in votes if (x["replica"], x["step"], x["quorum"]) in done}
+    taken = {(x["replica"], x["step"], x["quorum"]): x["samples"] for x in votes if x["rank"] == 0}

-    for (replica, step), (begin, stop) in sorted(taken.items(), key=lambda item: item[0][1]):
+    for (replica, step, _), (begin, stop) in sorted(taken.items(), key=lambda item: item[0][1]):
""")  # fmt: skip


one_checksum_for_all = slip("read-the-log", "my_audit", says="each rank has a part", at=4, change="""
-        if sums.setdefault((x["step"], x["quorum"], x["rank"]), x["checksum"]) != x["checksum"]:
+        if sums.setdefault((x["step"], x["quorum"]), x["checksum"]) != x["checksum"]:
""")  # fmt: skip


asks_who_committed_only = slip(
    "read-the-log", "my_audit", says="Every rank of a replica must have voted yes", at=4, change="""
-    ranks = {x["rank"] for x in lines}

-        if any((x["replica"], x["incarnation"], rank, x["step"], x["quorum"]) not in yes for rank in ranks):
+        if any((x["replica"], x["incarnation"], rank, x["step"], x["quorum"]) not in yes for rank in [x["rank"]]):
""")  # fmt: skip


every_no_is_wrong = slip("read-the-log", "my_audit", says="that is right", at=4, change="""
     yes = {(x["replica"], x["incarnation"], x["rank"], x["step"], x["quorum"]) for x in votes if x["yes"]}
+    for x in votes:
+        if not x["yes"]:
+            found("no vote", x["step"])
""")  # fmt: skip


the_last_step = slip("read-the-log", "my_audit", says="You name a later step", at=4, change="""
-        if first[kind] is None or step < first[kind]:
+        if first[kind] is None or step > first[kind]:
""")  # fmt: skip


twice_for_both = slip("read-the-log", "my_audit", says="'skipped'", at=4, change="""
-                found("twice" if begin < end.get(replica, 0) else "skipped", step)
+                found("twice", step)
""")  # fmt: skip


forgets_that_zero_is_a_step = slip("read-the-log", "my_audit", says="you find 'skipped'", at=4, change="""
-            end[replica] = stop
+            end[replica] = begin
""")  # fmt: skip


@variant("read-the-log", "my_audit", at=4)
def by_the_positions(mine, group):
    lines = []
    for text in mine:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    first = dict.fromkeys(("no vote", "diverged", "twice", "skipped"))

    def found(kind, step):
        if first[kind] is None or step < first[kind]:
            first[kind] = step

    votes = [x for x in lines if x["kind"] == "vote"]
    commits = [x for x in lines if x["kind"] == "commit"]
    ranks = {x["rank"] for x in lines}
    yes = {(x["replica"], x["incarnation"], x["rank"], x["step"], x["quorum"]) for x in votes if x["yes"]}
    sums = {}
    for x in commits:
        if any((x["replica"], x["incarnation"], rank, x["step"], x["quorum"]) not in yes for rank in ranks):
            found("no vote", x["step"])
        if sums.setdefault((x["step"], x["quorum"], x["rank"]), x["checksum"]) != x["checksum"]:
            found("diverged", x["step"])
    done = {(x["replica"], x["step"], x["quorum"]) for x in commits}
    taken = {(x["replica"], x["step"]): x["samples"] for x in votes if (x["replica"], x["step"], x["quorum"]) in done}
    end = {}
    for (replica, step), (begin, stop) in sorted(taken.items(), key=lambda item: item[0][1]):
        if begin < stop:
            if begin < end.setdefault(replica, 0):
                found("twice", step)
            if begin > end[replica]:
                found("skipped", step)
            end[replica] = max(stop, end[replica])
    return first


@variant("read-the-log", "my_audit", at=4)
def step_by_step(mine, group):
    import re

    lines = [json.loads(text) for text in mine if re.search(r"}\s*$", text)]
    of = {kind: [x for x in lines if x["kind"] == kind] for kind in ("vote", "commit")}
    size = 1 + max(x["rank"] for x in lines)
    steps = {"no vote": [], "diverged": [], "twice": [], "skipped": []}
    stood = {}
    for step in range(1 + max(x["step"] for x in lines)):
        votes = [x for x in of["vote"] if x["step"] == step]
        commits = [x for x in of["commit"] if x["step"] == step]
        for replica, quorum, life in {(x["replica"], x["quorum"], x["incarnation"]) for x in commits}:
            own = [x for x in votes if (x["replica"], x["quorum"], x["incarnation"]) == (replica, quorum, life)]
            if sum(x["yes"] for x in own) < size:
                steps["no vote"].append(step)
            begin, stop = own[0]["samples"] if own else (0, 0)
            if begin < stop:
                known = stood.get(replica, 0)
                if begin != known:
                    steps["skipped" if begin > known else "twice"].append(step)
                stood[replica] = stop
        for rank in range(size):
            for quorum in {x["quorum"] for x in commits}:
                if len({x["checksum"] for x in commits if (x["rank"], x["quorum"]) == (rank, quorum)}) > 1:
                    steps["diverged"].append(step)
    return {kind: min(found, default=None) for kind, found in steps.items()}


# Who takes part ------------------------------------------------------------------------------------------------------


newcomers_begin = slip("who-takes-part", "my_decisions", says="a second one beside theirs", at=3, change="""
         begun = [x for x in awaited if x["asks"]]
+        full = len(begun) == len(awaited)
+        begun = begun or asking

-        full = len(begun) == len(awaited)
""")  # fmt: skip


always_waits_for_the_clock = slip("who-takes-part", "my_decisions", says="That is the fast path", at=3, change="""
-        full = len(begun) == len(awaited)
-        if not full and moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
+        if moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
""")  # fmt: skip


waits_for_all_the_living = slip("who-takes-part", "my_decisions", says="That is the fast path", at=3, change="""
-        full = len(begun) == len(awaited)
+        full = len(asking) == len(living)
""")  # fmt: skip


never_loses_patience = slip(
    "who-takes-part", "my_decisions", says="somebody has waited for `patience` seconds", at=3, change="""
-        if not full and moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
+        if not full:
""")  # fmt: skip


takes_newcomers_at_a_failure = slip("who-takes-part", "my_decisions", says="a round may only shrink", at=3, change="""
-        shrink = members and any(x["failed"] for x in begun) and len(begun) >= moment["least"]
-        chosen = begun if shrink else asking
+        chosen = asking
""")  # fmt: skip


shrinks_below_the_least = slip("who-takes-part", "my_decisions", says="Moment", at=3, change="""
-        shrink = members and any(x["failed"] for x in begun) and len(begun) >= moment["least"]
+        shrink = members and any(x["failed"] for x in begun)
""")  # fmt: skip


the_step_alone = slip("who-takes-part", "my_decisions", says="these are two states", at=3, change="""
-            "healthy": [x["replica"] for x in chosen if x["version"] == best],
+            "healthy": [x["replica"] for x in chosen if x["version"][0] == best[0]],
""")  # fmt: skip


forgets_who_is_silent = slip("who-takes-part", "my_decisions", says="A state is not thrown away", at=3, change="""
-        held = max([x["version"] for x in living if not x["asks"]], default=best)
-        if len(chosen) < moment["least"] or held > best:
+        if len(chosen) < moment["least"]:
""")  # fmt: skip


always_a_new_id = slip("who-takes-part", "my_decisions", says="so the id stays", at=3, change="""
-        same = latest and sorted([x["replica"], x["life"]] for x in chosen) == lives
-        same = same and not any(x["failed"] for x in chosen) and best[0] > latest["step"]
-        same = same and all(x["version"] == [best[0], latest["id"]] for x in chosen)

-            "id": latest["id"] if same else moment["next_id"],
+            "id": moment["next_id"],
""")  # fmt: skip


the_old_id_after_a_failure = slip(
    "who-takes-part", "my_decisions", says="the id stays only for the same lives", at=3, change="""
-        same = same and not any(x["failed"] for x in chosen) and best[0] > latest["step"]
-        same = same and all(x["version"] == [best[0], latest["id"]] for x in chosen)
""")  # fmt: skip


a_new_life_is_a_member = slip("who-takes-part", "my_decisions", says="Moment", at=3, change="""
-        members = [x for x in living if [x["replica"], x["life"]] in lives]
+        members = [x for x in living if x["replica"] in [r for r, _ in lives]]
""")  # fmt: skip


@variant("who-takes-part", "my_decisions", at=3)
def two_cases(mine, group):
    def version(x):
        return tuple(x["version"])

    def decide(moment):
        living = [x for x in moment["replicas"] if x["alive"]]
        latest = moment["latest"] or {"id": 0, "step": -1, "lives": []}
        lives = {tuple(life) for life in latest["lives"]}
        inside = [(x["replica"], x["life"]) in lives for x in living]
        wait_for = [x for x, member in zip(living, inside, strict=True) if member or not any(inside)]
        asked = [x for x in wait_for if x["asks"]]
        late = [x for x in wait_for if not x["asks"]]
        if not asked or late and moment["now"] - moment["patience"] < min(x["since"] for x in asked):
            return None
        everybody = [x for x in living if x["asks"]]
        if any(inside) and any(x["failed"] for x in asked) and len(asked) >= moment["least"]:
            everybody = asked
        if len(everybody) < moment["least"]:
            return None
        top = max(map(version, everybody))
        if any(version(x) > top for x in living if not x["asks"]):
            return None
        keeps = {(x["replica"], x["life"]) for x in everybody} == lives and top[0] > latest["step"]
        for x in everybody:
            keeps = keeps and version(x) == (top[0], latest["id"]) and not x["failed"]
        healthy = [x["replica"] for x in everybody if version(x) == top]
        number = latest["id"] if keeps else moment["next_id"]
        return dict(id=number, members=[x["replica"] for x in everybody], healthy=healthy)

    return list(map(decide, mine))


@variant("who-takes-part", "my_decisions", at=3)
def reasons_to_wait(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if [x["replica"], x["life"]] in lives]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        absent = [x for x in awaited if not x["asks"]]
        begins = min([x["since"] for x in begun], default=None)
        if begins is None or (absent and moment["now"] < begins + moment["patience"]):
            return None
        shrink = members and any(x["failed"] for x in begun) and len(begun) >= moment["least"]
        chosen = begun if shrink else asking
        best = max(x["version"] for x in chosen)
        held = max([x["version"] for x in living if not x["asks"]], default=best)
        if len(chosen) < moment["least"] or held > best:
            return None
        same = latest and sorted([x["replica"], x["life"]] for x in chosen) == lives
        same = same and not any(x["failed"] for x in chosen) and best[0] > latest["step"]
        same = same and all(x["version"] == [best[0], latest["id"]] for x in chosen)
        return {
            "id": latest["id"] if same else moment["next_id"],
            "members": [x["replica"] for x in chosen],
            "healthy": [x["replica"] for x in chosen if x["version"] == best],
        }

    return [decide(moment) for moment in mine]


# A replica leaves, and returns ---------------------------------------------------------------------------------------


counts_by_itself = slip("leaves-and-returns", "my_lives", says="counted its samples by itself", at=3, change="""
-                    weights, positions = state[: len(weights)], state[len(weights) :].long()
+                    weights = state[: len(weights)]
""")  # fmt: skip


moves_at_once = slip("leaves-and-returns", "my_lives", says="those samples are never trained", at=3, change="""
                     weights, positions = state[: len(weights)], state[len(weights) :].long()
+                positions[healthy] += batch

-            positions[healthy] += batch
""")  # fmt: skip


moves_everybody = slip("leaves-and-returns", "my_lives", says="It trained nothing in that step", at=3, change="""
-            positions[healthy] += batch
+            positions[members] += batch
""")  # fmt: skip


divides_by_members = slip("leaves-and-returns", "my_lives", says="divided by all members", at=3, change="""
-            weights = weights - gradient / len(healthy)
+            weights = weights - gradient / len(members)
""")  # fmt: skip


copies_after_the_update = slip(
    "leaves-and-returns", "my_lives", says="A newcomer took over the state *after* the update", at=3, change="""
-                state = torch.cat([weights, positions.double()])
+                if me in healthy:
+                    samples = me + mine["replicas"] * (positions[me] + torch.arange(batch))
+                    gradient = gradient_of(weights, samples)
+                reach("exchange", k, life, ring)
+                collectives.all_reduce(gradient, ring)
+                state = torch.cat([weights - gradient / len(healthy), positions.double()])

-                if me in healthy:
-                    samples = me + mine["replicas"] * (positions[me] + torch.arange(batch))
-                    gradient = gradient_of(weights, samples)
-                else:
+                if me not in healthy:

-                reach("exchange", k, life, ring)
-                collectives.all_reduce(gradient, ring)
""")  # fmt: skip


@variant("leaves-and-returns", "my_lives", at=4)
def leaves_when_it_builds_the_next(mine, group):
    def run(life, ranks):
        me, batch, ring, number = group.rank, mine["batch"], ranks, None
        weights, trained = life["weights"], []
        positions = torch.zeros(mine["replicas"], dtype=torch.int64)
        for k, quorum in enumerate(life["quorums"]):
            members, healthy = quorum["members"], quorum["healthy"]
            if quorum["id"] != number:
                number = quorum["id"]
                ring = ring.rebuild(members, epoch=number)
            gradient, samples = torch.zeros_like(weights), torch.zeros(0)
            try:
                state = torch.cat([weights, positions.double()])
                if me == healthy[0]:
                    for place, member in enumerate(members):
                        if member not in healthy:
                            ring.send(state, place)
                if me in healthy:
                    samples = me + mine["replicas"] * (positions[me] + torch.arange(batch))
                    gradient = gradient_of(weights, samples)
                else:
                    ring.recv(state, members.index(healthy[0]))
                    weights, positions = state[: len(weights)], state[len(weights) :].long()
                reach("exchange", k, life, ring)
                collectives.all_reduce(gradient, ring)
            except PeerLost:
                continue
            weights = weights - gradient / len(healthy)
            positions[healthy] += batch
            trained += samples.tolist()
        return [weights, positions, trained]

    return live(run, mine["lives"], group)


is_never_lost = slip("leaves-and-returns", "my_lives", says="Call reach before every exchange", at=3, change="""
-        for k, quorum in enumerate(life["quorums"]):
+        for quorum in life["quorums"]:

-                reach("exchange", k, life, ring)
""")  # fmt: skip


lists_discarded_samples = slip(
    "leaves-and-returns", "my_lives", says="are in the list. They are trained again later", at=3, change="""
                     weights, positions = state[: len(weights)], state[len(weights) :].long()
+                trained += samples.tolist()

-            trained += samples.tolist()
""")  # fmt: skip


@variant("leaves-and-returns", "my_lives", at=4)
def two_messages(mine, group):
    def run(life, ranks):
        me, batch, ring, number = group.rank, mine["batch"], ranks, None
        weights, trained = life["weights"], []
        positions = torch.zeros(mine["replicas"], dtype=torch.int64)
        for k, quorum in enumerate(life["quorums"]):
            members, healthy = quorum["members"], quorum["healthy"]
            if quorum["id"] != number:
                number = quorum["id"]
                ring = ring.rebuild(members, epoch=number)
            gradient, samples = torch.zeros_like(weights), torch.zeros(0)
            try:
                if me == healthy[0]:
                    for place, member in enumerate(members):
                        if member not in healthy:
                            ring.send(weights, place)
                            ring.send(positions, place)
                if me in healthy:
                    samples = me + mine["replicas"] * (positions[me] + torch.arange(batch))
                    gradient = gradient_of(weights, samples)
                else:
                    weights, positions = torch.empty_like(weights), torch.empty_like(positions)
                    ring.recv(weights, members.index(healthy[0]))
                    ring.recv(positions, members.index(healthy[0]))
                reach("exchange", k, life, ring)
                collectives.all_reduce(gradient, ring)
            except PeerLost:
                ring.leave()
                continue
            weights = weights - gradient / len(healthy)
            positions[healthy] += batch
            trained += samples.tolist()
        return [weights, positions, trained]

    return live(run, mine["lives"], group)


@variant("leaves-and-returns", "my_lives", at=4)
def a_broadcast_to_all(mine, group):
    def run(life, ranks):
        me, batch, ring, number = group.rank, mine["batch"], ranks, None
        weights, trained = life["weights"], []
        positions = torch.zeros(mine["replicas"], dtype=torch.int64)
        for k, quorum in enumerate(life["quorums"]):
            members, healthy = quorum["members"], quorum["healthy"]
            if quorum["id"] != number:
                number = quorum["id"]
                ring = ring.rebuild(members, epoch=number)
            gradient, samples = torch.zeros_like(weights), torch.zeros(0)
            try:
                state = torch.cat([weights, positions.double()])
                if len(healthy) < len(members):
                    collectives.broadcast(state, ring, root=members.index(healthy[0]))
                if me in healthy:
                    samples = me + mine["replicas"] * (positions[me] + torch.arange(batch))
                    gradient = gradient_of(weights, samples)
                else:
                    weights, positions = state[: len(weights)], state[len(weights) :].long()
                reach("exchange", k, life, ring)
                collectives.all_reduce(gradient, ring)
            except PeerLost:
                ring.leave()
                continue
            weights = weights - gradient / len(healthy)
            positions[healthy] += batch
            trained += samples.tolist()
        return [weights, positions, trained]

    return live(run, mine["lives"], group)
