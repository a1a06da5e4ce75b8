"""The zoo of the exercises of chapter 19: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import json

import torch

from labkit import collectives
from labkit.grading.checks.zoo import mutant, variant
from labkit.resilience.rehearse import gradient_of, live, reach
from labkit.wire.errors import PeerLost

# An average of those that trained ------------------------------------------------------------------------------------


@mutant("those-that-trained", "my_average", says="you divided by all", at=3)
def divides_by_all(mine, group):
    weighed = torch.zeros(mine["gradient"].numel() + 1)
    if mine["trained"]:
        weighed[:-1] = mine["gradient"]
        weighed[-1] = 1
    collectives.all_reduce(weighed, group)
    return weighed[:-1] / group.size if weighed[-1] > 0 else None


@mutant("those-that-trained", "my_average", says="0 times nan is nan", at=3)
def zero_times_old_memory(mine, group):
    weighed = torch.cat([mine["gradient"] * mine["trained"], torch.tensor([float(mine["trained"])])])
    collectives.all_reduce(weighed, group)
    return weighed[:-1] / weighed[-1] if weighed[-1] > 0 else None


@mutant("those-that-trained", "my_average", says="that is their sum", at=3)
def adds_up_only(mine, group):
    weighed = torch.zeros(mine["gradient"].numel() + 1)
    if mine["trained"]:
        weighed[:-1] = mine["gradient"]
        weighed[-1] = 1
    collectives.all_reduce(weighed, group)
    return weighed[:-1] if weighed[-1] > 0 else None


@mutant("those-that-trained", "my_average", says="instead of collecting all gradients", at=4)
def everything_to_everybody(mine, group):
    gradient = mine["gradient"] if mine["trained"] else torch.zeros_like(mine["gradient"])
    flag = torch.tensor([float(mine["trained"])])
    rows = collectives.all_gather(torch.cat([gradient, flag]), group, algorithm="ring").view(group.size, -1)
    count = rows[:, -1].sum()
    return rows[:, :-1].sum(0) / count if count > 0 else None


@mutant("those-that-trained", "my_average", says="There is no average of nothing", at=2)
def an_average_of_nothing(mine, group):
    weighed = torch.zeros(mine["gradient"].numel() + 1)
    if mine["trained"]:
        weighed[:-1] = mine["gradient"]
        weighed[-1] = 1
    collectives.all_reduce(weighed, group)
    return weighed[:-1] / weighed[-1]


@mutant("those-that-trained", "my_average", says="returned None", at=3)
def newcomers_get_nothing(mine, group):
    weighed = torch.zeros(mine["gradient"].numel() + 1)
    if mine["trained"]:
        weighed[:-1] = mine["gradient"]
        weighed[-1] = 1
    collectives.all_reduce(weighed, group)
    return weighed[:-1] / weighed[-1] if mine["trained"] else None


@mutant("those-that-trained", "my_average", says="that is their sum", at=3)
def counts_itself_only(mine, group):
    weighed = torch.zeros(mine["gradient"].numel() + 1)
    if mine["trained"]:
        weighed[:-1] = mine["gradient"]
        weighed[-1] = 1
    collectives.all_reduce(weighed, group)
    return weighed[:-1] / max(1, mine["trained"]) if weighed[-1] > 0 else None


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


@mutant("all-or-none", "my_replica", says="every rank went by its own exchange", at=4)
def by_its_own_exchange(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"], life["momentum"], []
        try:
            for k, (total, well) in enumerate(zip(life["sums"], life["well"], strict=True)):
                reach("vote", k, life, ranks)
                votes = collectives.gather(torch.tensor([int(well)]), ranks, root=0)
                decision = torch.zeros(1, dtype=torch.int64)
                if ranks.rank == 0:
                    decision[0] = votes.min()
                    reach("decide", k, life, ranks)
                collectives.broadcast(decision, ranks)
                reach("commit", k, life, ranks)
                if well:
                    momentum = momentum / 2 + total
                    weights = weights - momentum
                history.append("applied" if well else "discarded")
        except PeerLost:
            ranks.leave()
            history.append("lost")
        return [weights, momentum, history]

    return live(run, [mine], group)


@mutant("all-or-none", "my_replica", says="The momentum of a discarded attempt was kept", at=4)
def the_optimizer_first(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"], life["momentum"], []
        try:
            for k, (total, well) in enumerate(zip(life["sums"], life["well"], strict=True)):
                reach("vote", k, life, ranks)
                momentum = momentum / 2 + total
                votes = collectives.gather(torch.tensor([int(well)]), ranks, root=0)
                decision = torch.zeros(1, dtype=torch.int64)
                if ranks.rank == 0:
                    decision[0] = votes.min()
                    reach("decide", k, life, ranks)
                collectives.broadcast(decision, ranks)
                reach("commit", k, life, ranks)
                if decision.item():
                    weights = weights - momentum
                history.append("applied" if decision.item() else "discarded")
        except PeerLost:
            ranks.leave()
            history.append("lost")
        return [weights, momentum, history]

    return live(run, [mine], group)


@mutant("all-or-none", "my_replica", says="The leader went by its own exchange", at=4)
def the_leader_asks_itself(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"], life["momentum"], []
        try:
            for k, (total, well) in enumerate(zip(life["sums"], life["well"], strict=True)):
                reach("vote", k, life, ranks)
                votes = collectives.gather(torch.tensor([int(well)]), ranks, root=0)
                decision = torch.zeros(1, dtype=torch.int64)
                if ranks.rank == 0:
                    decision[0] = votes[0]
                    reach("decide", k, life, ranks)
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


@mutant("all-or-none", "my_replica", says="one vote in favour is not enough", at=4)
def one_yes_is_enough(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"], life["momentum"], []
        try:
            for k, (total, well) in enumerate(zip(life["sums"], life["well"], strict=True)):
                reach("vote", k, life, ranks)
                votes = collectives.gather(torch.tensor([int(well)]), ranks, root=0)
                decision = torch.zeros(1, dtype=torch.int64)
                if ranks.rank == 0:
                    decision[0] = votes.max()
                    reach("decide", k, life, ranks)
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


@mutant("all-or-none", "my_replica", says="It cannot know what the others voted", at=3)
def silence_is_consent(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"], life["momentum"], []
        try:
            for k, (total, well) in enumerate(zip(life["sums"], life["well"], strict=True)):
                reach("vote", k, life, ranks)
                votes = collectives.gather(torch.tensor([int(well)]), ranks, root=0)
                decision = torch.zeros(1, dtype=torch.int64)
                if ranks.rank == 0:
                    decision[0] = votes.min()
                    reach("decide", k, life, ranks)
                collectives.broadcast(decision, ranks)
                reach("commit", k, life, ranks)
                if decision.item():
                    momentum = momentum / 2 + total
                    weights = weights - momentum
                history.append("applied" if decision.item() else "discarded")
        except PeerLost:
            ranks.leave()
            if well and ranks.rank > 0 and len(history) == k:
                momentum = momentum / 2 + total
                weights = weights - momentum
                history.append("applied")
            else:
                history.append("lost")
        return [weights, momentum, history]

    return live(run, [mine], group)


@mutant("all-or-none", "my_replica", says="wait for each other", at=4)
def does_not_leave(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"], life["momentum"], []
        try:
            for k, (total, well) in enumerate(zip(life["sums"], life["well"], strict=True)):
                reach("vote", k, life, ranks)
                votes = collectives.gather(torch.tensor([int(well)]), ranks, root=0)
                decision = torch.zeros(1, dtype=torch.int64)
                if ranks.rank == 0:
                    decision[0] = votes.min()
                    reach("decide", k, life, ranks)
                collectives.broadcast(decision, ranks)
                reach("commit", k, life, ranks)
                if decision.item():
                    momentum = momentum / 2 + total
                    weights = weights - momentum
                history.append("applied" if decision.item() else "discarded")
        except PeerLost:
            history.append("lost")
        return [weights, momentum, history]

    return live(run, [mine], group)


@mutant("all-or-none", "my_replica", says="Call reach", at=3)
def says_nowhere_where_it_is(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"], life["momentum"], []
        try:
            for total, well in zip(life["sums"], life["well"], strict=True):
                votes = collectives.gather(torch.tensor([int(well)]), ranks, root=0)
                decision = torch.zeros(1, dtype=torch.int64)
                if ranks.rank == 0:
                    decision[0] = votes.min()
                collectives.broadcast(decision, ranks)
                if decision.item():
                    momentum = momentum / 2 + total
                    weights = weights - momentum
                history.append("applied" if decision.item() else "discarded")
        except PeerLost:
            ranks.leave()
            history.append("lost")
        return [weights, momentum, history]

    return live(run, [mine], group)


@mutant("all-or-none", "my_replica", says="Call reach", at=5)
def commits_before_it_says_so(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"], life["momentum"], []
        try:
            for k, (total, well) in enumerate(zip(life["sums"], life["well"], strict=True)):
                reach("vote", k, life, ranks)
                votes = collectives.gather(torch.tensor([int(well)]), ranks, root=0)
                decision = torch.zeros(1, dtype=torch.int64)
                if ranks.rank == 0:
                    decision[0] = votes.min()
                    reach("decide", k, life, ranks)
                collectives.broadcast(decision, ranks)
                if decision.item():
                    momentum = momentum / 2 + total
                    weights = weights - momentum
                history.append("applied" if decision.item() else "discarded")
        except PeerLost:
            ranks.leave()
            history.append("lost")
        return [weights, momentum, history]

    return live(run, [mine], group)


@mutant("all-or-none", "my_replica", says="A vote is one number", at=4)
def sends_the_sums_along(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"], life["momentum"], []
        try:
            for k, (total, well) in enumerate(zip(life["sums"], life["well"], strict=True)):
                reach("vote", k, life, ranks)
                votes = collectives.gather(torch.tensor([int(well)]), ranks, root=0)
                decision = torch.zeros(1, dtype=torch.int64)
                if ranks.rank == 0:
                    decision[0] = votes.min()
                    reach("decide", k, life, ranks)
                collectives.broadcast(decision, ranks)
                reach("commit", k, life, ranks)
                collectives.all_gather(total.repeat(8), ranks)
                if decision.item():
                    momentum = momentum / 2 + total
                    weights = weights - momentum
                history.append("applied" if decision.item() else "discarded")
        except PeerLost:
            ranks.leave()
            history.append("lost")
        return [weights, momentum, history]

    return live(run, [mine], group)


@mutant("all-or-none", "my_replica", says="the history of rank", at=4)
def stops_at_the_first_no(mine, group):
    def run(life, ranks):
        weights, momentum, history = life["weights"], life["momentum"], []
        try:
            for k, (total, well) in enumerate(zip(life["sums"], life["well"], strict=True)):
                reach("vote", k, life, ranks)
                votes = collectives.gather(torch.tensor([int(well)]), ranks, root=0)
                decision = torch.zeros(1, dtype=torch.int64)
                if ranks.rank == 0:
                    decision[0] = votes.min()
                    reach("decide", k, life, ranks)
                collectives.broadcast(decision, ranks)
                reach("commit", k, life, ranks)
                if decision.item():
                    momentum = momentum / 2 + total
                    weights = weights - momentum
                history.append("applied" if decision.item() else "discarded")
                if not decision.item():
                    break
        except PeerLost:
            ranks.leave()
            history.append("lost")
        return [weights, momentum, history]

    return live(run, [mine], group)


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


@mutant("read-the-log", "my_audit", says="raised JSONDecodeError", at=4)
def whole_lines_only(mine, group):
    lines = []
    for text in mine:
        lines.append(json.loads(text))
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
            if begin != end.get(replica, 0):
                found("twice" if begin < end.get(replica, 0) else "skipped", step)
            end[replica] = stop
    return first


@mutant("read-the-log", "my_audit", says="An attempt that was discarded is no training", at=4)
def discarded_samples_count(mine, group):
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
    taken = {(x["replica"], x["step"], x["quorum"]): x["samples"] for x in votes if x["rank"] == 0}
    end = {}
    for (replica, step, _), (begin, stop) in sorted(taken.items(), key=lambda item: item[0][1]):
        if begin < stop:
            if begin != end.get(replica, 0):
                found("twice" if begin < end.get(replica, 0) else "skipped", step)
            end[replica] = stop
    return first


@mutant("read-the-log", "my_audit", says="each rank has a part", at=4)
def one_checksum_for_all(mine, group):
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
        if sums.setdefault((x["step"], x["quorum"]), x["checksum"]) != x["checksum"]:
            found("diverged", x["step"])
    done = {(x["replica"], x["step"], x["quorum"]) for x in commits}
    taken = {(x["replica"], x["step"]): x["samples"] for x in votes if (x["replica"], x["step"], x["quorum"]) in done}
    end = {}
    for (replica, step), (begin, stop) in sorted(taken.items(), key=lambda item: item[0][1]):
        if begin < stop:
            if begin != end.get(replica, 0):
                found("twice" if begin < end.get(replica, 0) else "skipped", step)
            end[replica] = stop
    return first


@mutant("read-the-log", "my_audit", says="Every rank of a replica must have voted yes", at=4)
def asks_who_committed_only(mine, group):
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
    yes = {(x["replica"], x["incarnation"], x["rank"], x["step"], x["quorum"]) for x in votes if x["yes"]}
    sums = {}
    for x in commits:
        if any((x["replica"], x["incarnation"], rank, x["step"], x["quorum"]) not in yes for rank in [x["rank"]]):
            found("no vote", x["step"])
        if sums.setdefault((x["step"], x["quorum"], x["rank"]), x["checksum"]) != x["checksum"]:
            found("diverged", x["step"])
    done = {(x["replica"], x["step"], x["quorum"]) for x in commits}
    taken = {(x["replica"], x["step"]): x["samples"] for x in votes if (x["replica"], x["step"], x["quorum"]) in done}
    end = {}
    for (replica, step), (begin, stop) in sorted(taken.items(), key=lambda item: item[0][1]):
        if begin < stop:
            if begin != end.get(replica, 0):
                found("twice" if begin < end.get(replica, 0) else "skipped", step)
            end[replica] = stop
    return first


@mutant("read-the-log", "my_audit", says="that is right", at=4)
def every_no_is_wrong(mine, group):
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
    for x in votes:
        if not x["yes"]:
            found("no vote", x["step"])
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
            if begin != end.get(replica, 0):
                found("twice" if begin < end.get(replica, 0) else "skipped", step)
            end[replica] = stop
    return first


@mutant("read-the-log", "my_audit", says="You name a later step", at=4)
def the_last_step(mine, group):
    lines = []
    for text in mine:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    first = dict.fromkeys(("no vote", "diverged", "twice", "skipped"))

    def found(kind, step):
        if first[kind] is None or step > first[kind]:
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
            if begin != end.get(replica, 0):
                found("twice" if begin < end.get(replica, 0) else "skipped", step)
            end[replica] = stop
    return first


@mutant("read-the-log", "my_audit", says="'skipped'", at=4)
def twice_for_both(mine, group):
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
            if begin != end.get(replica, 0):
                found("twice", step)
            end[replica] = stop
    return first


@mutant("read-the-log", "my_audit", says="you find 'skipped'", at=4)
def forgets_that_zero_is_a_step(mine, group):
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
            if begin != end.get(replica, 0):
                found("twice" if begin < end.get(replica, 0) else "skipped", step)
            end[replica] = begin
    return first


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


@mutant("who-takes-part", "my_decisions", says="a second one beside theirs", at=3)
def newcomers_begin(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if [x["replica"], x["life"]] in lives]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        full = len(begun) == len(awaited)
        begun = begun or asking
        if not begun:
            return None
        if not full and moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
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


@mutant("who-takes-part", "my_decisions", says="That is the fast path", at=3)
def always_waits_for_the_clock(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if [x["replica"], x["life"]] in lives]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        if not begun:
            return None
        if moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
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


@mutant("who-takes-part", "my_decisions", says="That is the fast path", at=3)
def waits_for_all_the_living(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if [x["replica"], x["life"]] in lives]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        if not begun:
            return None
        full = len(asking) == len(living)
        if not full and moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
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


@mutant("who-takes-part", "my_decisions", says="somebody has waited for `patience` seconds", at=3)
def never_loses_patience(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if [x["replica"], x["life"]] in lives]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        if not begun:
            return None
        full = len(begun) == len(awaited)
        if not full:
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


@mutant("who-takes-part", "my_decisions", says="a round may only shrink", at=3)
def takes_newcomers_at_a_failure(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if [x["replica"], x["life"]] in lives]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        if not begun:
            return None
        full = len(begun) == len(awaited)
        if not full and moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
            return None
        chosen = asking
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


@mutant("who-takes-part", "my_decisions", says="Moment", at=3)
def shrinks_below_the_least(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if [x["replica"], x["life"]] in lives]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        if not begun:
            return None
        full = len(begun) == len(awaited)
        if not full and moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
            return None
        shrink = members and any(x["failed"] for x in begun)
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


@mutant("who-takes-part", "my_decisions", says="these are two states", at=3)
def the_step_alone(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if [x["replica"], x["life"]] in lives]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        if not begun:
            return None
        full = len(begun) == len(awaited)
        if not full and moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
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
            "healthy": [x["replica"] for x in chosen if x["version"][0] == best[0]],
        }

    return [decide(moment) for moment in mine]


@mutant("who-takes-part", "my_decisions", says="A state is not thrown away", at=3)
def forgets_who_is_silent(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if [x["replica"], x["life"]] in lives]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        if not begun:
            return None
        full = len(begun) == len(awaited)
        if not full and moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
            return None
        shrink = members and any(x["failed"] for x in begun) and len(begun) >= moment["least"]
        chosen = begun if shrink else asking
        best = max(x["version"] for x in chosen)
        if len(chosen) < moment["least"]:
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


@mutant("who-takes-part", "my_decisions", says="so the id stays", at=3)
def always_a_new_id(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if [x["replica"], x["life"]] in lives]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        if not begun:
            return None
        full = len(begun) == len(awaited)
        if not full and moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
            return None
        shrink = members and any(x["failed"] for x in begun) and len(begun) >= moment["least"]
        chosen = begun if shrink else asking
        best = max(x["version"] for x in chosen)
        held = max([x["version"] for x in living if not x["asks"]], default=best)
        if len(chosen) < moment["least"] or held > best:
            return None
        return {
            "id": moment["next_id"],
            "members": [x["replica"] for x in chosen],
            "healthy": [x["replica"] for x in chosen if x["version"] == best],
        }

    return [decide(moment) for moment in mine]


@mutant("who-takes-part", "my_decisions", says="the id stays only for the same lives", at=3)
def the_old_id_after_a_failure(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if [x["replica"], x["life"]] in lives]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        if not begun:
            return None
        full = len(begun) == len(awaited)
        if not full and moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
            return None
        shrink = members and any(x["failed"] for x in begun) and len(begun) >= moment["least"]
        chosen = begun if shrink else asking
        best = max(x["version"] for x in chosen)
        held = max([x["version"] for x in living if not x["asks"]], default=best)
        if len(chosen) < moment["least"] or held > best:
            return None
        same = latest and sorted([x["replica"], x["life"]] for x in chosen) == lives
        return {
            "id": latest["id"] if same else moment["next_id"],
            "members": [x["replica"] for x in chosen],
            "healthy": [x["replica"] for x in chosen if x["version"] == best],
        }

    return [decide(moment) for moment in mine]


@mutant("who-takes-part", "my_decisions", says="Moment", at=3)
def a_new_life_is_a_member(mine, group):
    def decide(moment):
        latest, living = moment["latest"], [x for x in moment["replicas"] if x["alive"]]
        lives = sorted(latest["lives"]) if latest else []
        asking = [x for x in living if x["asks"]]
        members = [x for x in living if x["replica"] in [r for r, _ in lives]]
        awaited = members or living
        begun = [x for x in awaited if x["asks"]]
        if not begun:
            return None
        full = len(begun) == len(awaited)
        if not full and moment["now"] < min(x["since"] for x in begun) + moment["patience"]:
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


@mutant("leaves-and-returns", "my_lives", says="counted its samples by itself", at=3)
def counts_by_itself(mine, group):
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
                    weights = state[: len(weights)]
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


@mutant("leaves-and-returns", "my_lives", says="those samples are never trained", at=3)
def moves_at_once(mine, group):
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
                positions[healthy] += batch
                reach("exchange", k, life, ring)
                collectives.all_reduce(gradient, ring)
            except PeerLost:
                ring.leave()
                continue
            weights = weights - gradient / len(healthy)
            trained += samples.tolist()
        return [weights, positions, trained]

    return live(run, mine["lives"], group)


@mutant("leaves-and-returns", "my_lives", says="It trained nothing in that step", at=3)
def moves_everybody(mine, group):
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
                ring.leave()
                continue
            weights = weights - gradient / len(healthy)
            positions[members] += batch
            trained += samples.tolist()
        return [weights, positions, trained]

    return live(run, mine["lives"], group)


@mutant("leaves-and-returns", "my_lives", says="divided by all members", at=3)
def divides_by_members(mine, group):
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
                ring.leave()
                continue
            weights = weights - gradient / len(members)
            positions[healthy] += batch
            trained += samples.tolist()
        return [weights, positions, trained]

    return live(run, mine["lives"], group)


@mutant("leaves-and-returns", "my_lives", says="A newcomer took over the state *after* the update", at=3)
def copies_after_the_update(mine, group):
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
                if me in healthy:
                    samples = me + mine["replicas"] * (positions[me] + torch.arange(batch))
                    gradient = gradient_of(weights, samples)
                reach("exchange", k, life, ring)
                collectives.all_reduce(gradient, ring)
                state = torch.cat([weights - gradient / len(healthy), positions.double()])
                if me == healthy[0]:
                    for place, member in enumerate(members):
                        if member not in healthy:
                            ring.send(state, place)
                if me not in healthy:
                    ring.recv(state, members.index(healthy[0]))
                    weights, positions = state[: len(weights)], state[len(weights) :].long()
            except PeerLost:
                ring.leave()
                continue
            weights = weights - gradient / len(healthy)
            positions[healthy] += batch
            trained += samples.tolist()
        return [weights, positions, trained]

    return live(run, mine["lives"], group)


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


@mutant("leaves-and-returns", "my_lives", says="Call reach before every exchange", at=3)
def is_never_lost(mine, group):
    def run(life, ranks):
        me, batch, ring, number = group.rank, mine["batch"], ranks, None
        weights, trained = life["weights"], []
        positions = torch.zeros(mine["replicas"], dtype=torch.int64)
        for quorum in life["quorums"]:
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
                collectives.all_reduce(gradient, ring)
            except PeerLost:
                ring.leave()
                continue
            weights = weights - gradient / len(healthy)
            positions[healthy] += batch
            trained += samples.tolist()
        return [weights, positions, trained]

    return live(run, mine["lives"], group)


@mutant("leaves-and-returns", "my_lives", says="are in the list. They are trained again later", at=3)
def lists_discarded_samples(mine, group):
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
                trained += samples.tolist()
                reach("exchange", k, life, ring)
                collectives.all_reduce(gradient, ring)
            except PeerLost:
                ring.leave()
                continue
            weights = weights - gradient / len(healthy)
            positions[healthy] += batch
        return [weights, positions, trained]

    return live(run, mine["lives"], group)


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
