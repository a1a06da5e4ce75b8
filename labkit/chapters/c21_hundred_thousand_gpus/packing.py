"""Clusters with failed GPUs, the least that packing can lose in them, and what a placement loses more, and why.

The least loss is counted, and no domain is placed for it: of the domains of a zone with at most k failures, as many
replicas can be made as `size` goes into their number, whose worst domain has at most k. The tests compare this with
all placements of small clusters. That the worst domains belong together is from arXiv 2504.06095, section 4.4.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Evidence, Student

Cluster = dict[str, Any]  # plain data: see the statement of the exercise
GPUS = 8  # of a domain
SAMPLES = 8  # of a whole replica


def some_clusters(
    student: Student, n: int, count: int, domains: int, zones: int, spares: int, rate: float
) -> list[list[Cluster]]:
    """By rank: `count` clusters. domains: of each, about. zones: at most. spares: domains that no replica needs.

    rate: the part of the domains that have a failed GPU or several.
    """
    random = Random(number_from(student.seed, "chapter 21", "packing", n, count, domains, zones, spares, rate))
    return [[_cluster(random, domains, zones, spares, rate) for _ in range(count)] for _ in range(n)]


def _cluster(random: Random, domains: int, zones: int, spares: int, rate: float) -> Cluster:
    size = random.choice((2, 3, 4))
    replicas = max(1, (domains - spares) // size - random.randint(0, 1))
    zone = [random.randrange(zones) for _ in range(domains)]
    weights = [random.choice((0.3, 1.0, 2.5)) for _ in range(zones)]  # some zones are worse than others
    failed = [
        min(GPUS, 1 + int(random.expovariate(0.6))) if random.random() < rate * weights[z] / 1.27 else 0 for z in zone
    ]
    least = random.choice((5, 6))  # GPUs without which a domain is of no use
    trains = [SAMPLES * (GPUS - k) // GPUS if GPUS - k >= least else 0 for k in range(GPUS + 1)]
    if random.random() < 0.5:  # samples are whole, and larger: two failures cost as much as one
        trains[1] = trains[2]
    return {"size": size, "replicas": replicas, "trains": trains, "failed": failed, "zone": zone}


def most_trained(cluster: Cluster) -> tuple[int, int]:
    """(whole replicas, samples trained with NTP) of the best placements. One placement reaches both."""
    size, trains = cluster["size"], cluster["trains"]
    counts = Counter(zip(cluster["zone"], cluster["failed"], strict=True))
    here = dict.fromkeys(cluster["zone"], 0)
    before = samples = whole = 0
    for failed, each in enumerate(trains):
        for zone in here:
            here[zone] += counts[zone, failed]
        so_far = min(cluster["replicas"], sum(domains // size for domains in here.values()))
        samples += (so_far - before) * each
        whole = so_far if failed == 0 else whole
        before = so_far
    return whole, samples


def trained_by(cluster: Cluster, placement: list[list[int]]) -> tuple[int, int]:
    """The same of one placement."""
    each = [cluster["trains"][max(cluster["failed"][d] for d in replica)] for replica in placement]
    whole = sum(all(cluster["failed"][d] == 0 for d in replica) for replica in placement)
    return whole, sum(each)


def expect_packing(student: Student, run: Evidence, clusters: list[list[Cluster]]) -> None:
    """Every cluster is placed as the statement says, and no placement loses less."""
    for rank, (got, many) in enumerate(zip(run.results, clusters, strict=True)):
        text = "Rank {rank} did not return a list with a placement for each of its {count} clusters."
        student.expect(isinstance(got, list) and len(got) == len(many), text, rank=rank, count=len(many))
        for number, (placement, cluster) in enumerate(zip(got, many, strict=True)):
            where = f"Cluster {number} of rank {rank} ({len(cluster['failed'])} domains, {cluster['size']} a replica)"
            fault = placed_badly(cluster, placement)
            student.expect(not fault, "{where}: {fault}", where=where, fault=fault)
            (whole, samples), (most, best) = trained_by(cluster, placement), most_trained(cluster)
            why = cause(cluster, placement) if (whole, samples) != (most, best) else ""
            text = "{where}: {got} of {all} replicas are hurt, and {least} would do. {why}"
            total = cluster["replicas"]
            student.expect(whole >= most, text, where=where, all=total, got=total - whole, least=total - most, why=why)
            text = "{where}: no more replicas are hurt than must be, but NTP trains {got} samples, not {best}. {why}"
            student.expect(samples >= best, text, where=where, got=samples, best=best, why=why)


def placed_badly(cluster: Cluster, placement: Any) -> str:
    """Why this is no placement at all, or ""."""
    fine = isinstance(placement, list) and all(isinstance(r, list) for r in placement)
    if not fine or not all(type(d) is int for replica in placement for d in replica):
        return "return a list of replicas, each a list of numbers of domains."
    if len(placement) > cluster["replicas"]:
        return f"you return {len(placement)} replicas, and the job has {cluster['replicas']}."
    domains, used = len(cluster["failed"]), Counter(d for replica in placement for d in replica)
    for number, replica in enumerate(placement):
        if len(replica) != cluster["size"]:
            return f"replica {number} has {len(replica)} domains, and needs {cluster['size']}."
        for d in replica:
            if not 0 <= d < domains:
                return f"replica {number} has domain {d}: they count from 0 to {domains - 1}."
            if used[d] > 1:
                return f"domain {d} is used {used[d]} times: it can work for one replica only."
        zones = sorted({cluster["zone"][d] for d in replica})
        if len(zones) > 1:
            return f"replica {number} has domains of the zones {zones}: a replica may not leave its zone."
    return ""


def cause(cluster: Cluster, placement: list[list[int]]) -> str:
    """What could be better in a placement that loses too much: in a zone by itself, or in the choice over zones."""
    size, failed, zone = cluster["size"], cluster["failed"], cluster["zone"]
    used = {d for replica in placement for d in replica}
    for z in sorted(set(zone)):
        own = [replica for replica in placement if zone[replica[0]] == z]
        mine = sorted((d for replica in own for d in replica), key=lambda d: failed[d])
        if _better(cluster, mine, own):
            broken = sum(failed[d] > 0 for d in mine)
            hurt = sum(any(failed[d] for d in replica) for replica in own)
            return (
                f"In zone {z}, {broken} domains with failures lie in {hurt} replicas: a replica is as narrow as its "
                "worst domain, so put bad ones together."
            )
        best = sorted((d for d in range(len(zone)) if zone[d] == z), key=lambda d: failed[d])[: len(mine)]
        if _better(cluster, best, own):
            other = next(d for d in best if d not in used)
            worst = max(mine, key=lambda d: failed[d])
            return (
                f"Domain {other} with {failed[other]} failed GPUs stands by, while domain {worst} of the same zone has "
                f"{failed[worst]} and works: leave out the worst, and not the best."
            )
    could = min(cluster["replicas"], sum(count // size for count in Counter(zone).values()))
    if len(placement) < could:
        return f"You return {len(placement)} replicas, and {could} can be made, even if some of them are narrower."
    return "In each zone you do what is best, but you take too many replicas of a bad one: choose over all zones."


def _better(cluster: Cluster, domains: list[int], than: list[list[int]]) -> bool:
    """Whether replicas cut from `domains` in this order have more whole ones, or train more."""
    size = cluster["size"]
    whole, samples = trained_by(cluster, [domains[i : i + size] for i in range(0, len(domains), size)])
    old_whole, old_samples = trained_by(cluster, than)
    return whole > old_whole or samples > old_samples
