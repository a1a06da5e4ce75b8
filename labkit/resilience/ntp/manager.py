"""The resource manager: which domain serves which replica, and who may use what is left.

Domains with failures go into as few replicas as possible, the worst first, and of the others as few as possible are
moved. GPUs that their replica is too narrow for, and those of domains that no replica takes, can be lent to other jobs.
What training needs again after a repair is called back. (Arfeen et al. 2025, "Nonuniform tensor parallelism", section
4.4; domains change their replica when the job restarts.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from labkit.cost.simulators.clusters import METHODS, Cluster
from labkit.wire.errors import RefusedError

Gpus = tuple[int, ...]


@dataclass(frozen=True)
class Assignment:
    """What every GPU does, until the next failure or repair. GPU g is in domain g // gpus_per_domain.

    members[r][s]: the GPUs that train stage s of replica r, ascending. domains[r][s]: the domain that they are in.
    idle: healthy GPUs of a replica that is narrower than they are many. spare: those of domains in no replica.
    failed: all others. loans: for each other job its GPUs, which are idle or spare.
    moved: domains that change their replica, or begin or end to be in one. recalled: by job, what training took back
    or what has failed.
    """

    members: tuple[tuple[Gpus, ...], ...]
    domains: tuple[tuple[int, ...], ...]
    idle: Gpus
    spare: Gpus
    failed: Gpus
    loans: dict[str, Gpus] = field(default_factory=dict)
    moved: Gpus = ()
    recalled: dict[str, Gpus] = field(default_factory=dict)

    @property
    def widths(self) -> list[list[int]]:
        """Of every stage of every replica."""
        return [[len(gpus) for gpus in stages] for stages in self.members]

    @property
    def training(self) -> Gpus:
        return tuple(sorted(g for stages in self.members for gpus in stages for g in gpus))


class ResourceManager:
    """Of one cluster, whose domains beyond `cluster.domains` are `spares`.

    method: "dp-drop" takes whole domains only. "ntp" runs all stages of a replica at its narrowest one's width.
    "ntp-pw" gives each stage its own width, since narrow ones get more power.
    The replicas that there are no domains for are left out, the last ones first.
    """

    def __init__(self, cluster: Cluster, method: str = "ntp", spares: int = 0) -> None:
        if method not in METHODS:
            raise RefusedError(f"method {method!r}: one of {', '.join(METHODS)}")
        if type(spares) is not int or spares < 0:
            raise RefusedError(f"spares={spares!r}: a number of domains, 0 or more")
        self.cluster, self.method = cluster, method
        self._domains = cluster.domains + spares
        self._failed: set[int] = set()
        self._loans: dict[str, set[int]] = {}
        size = cluster.domains_per_replica
        self._homes = {d: d // size for d in range(cluster.domains)}  # the replica that a domain is in
        self.now = self._assign()

    @property
    def gpus(self) -> int:
        """With the spares'."""
        return self._domains * self.cluster.gpus_per_domain

    def fail(self, gpus: Iterable[int]) -> Assignment:
        """These have failed. Raises RefusedError for one that has already, or that there is not."""
        lost = self._known(gpus)
        if twice := sorted(lost & self._failed):
            raise RefusedError(f"GPU {twice[0]} has failed already; until it is repaired it cannot fail again")
        self._failed |= lost
        return self._change()

    def repair(self, gpus: Iterable[int]) -> Assignment:
        """These are healthy again. Raises RefusedError for one that had not failed."""
        back = self._known(gpus)
        if whole := sorted(back - self._failed):
            raise RefusedError(f"GPU {whole[0]} has not failed: those that have are {sorted(self._failed)}")
        self._failed -= back
        return self._change()

    def lend(self, job: str, gpus: int) -> Gpus:
        """So many free GPUs for `job`, until it gives them back or they are recalled.

        From as few domains as possible, idle ones of replicas first, since spares may be needed for training. Raises
        Refused if the job has some already, or if there are fewer.
        """
        if job in self._loans:
            raise RefusedError(f"job {job!r} has GPUs {sorted(self._loans[job])}: it must give them back first")
        taken = {g for held in self._loans.values() for g in held}
        idle, spare = ([g for g in of if g not in taken] for of in (self.now.idle, self.now.spare))
        free = len(idle) + len(spare)
        if type(gpus) is not int or not 1 <= gpus <= free:
            raise RefusedError(f"job {job!r} asks for {gpus!r} GPUs; {free} healthy ones are free: {idle + spare}")
        width = self.cluster.gpus_per_domain
        together = Counter(g // width for g in idle)
        idle.sort(key=lambda g: (-together[g // width], g))
        self._loans[job] = set((idle + spare)[:gpus])
        self.now = self._assign()
        return self.now.loans[job]

    def give_back(self, job: str) -> Assignment:
        """`job` has ended. Raises RefusedError if it has no GPUs."""
        if job not in self._loans:
            raise RefusedError(f"job {job!r} has borrowed nothing: those that have are {sorted(self._loans)}")
        del self._loans[job]
        self.now = self._assign()
        return self.now

    # -- how it decides ----------------------------------------------------------------------------------------

    def _known(self, gpus: Iterable[int]) -> set[int]:
        asked = list(gpus)
        if strange := [g for g in asked if type(g) is not int or not 0 <= g < self.gpus]:
            raise RefusedError(f"there is no GPU {strange[0]!r}: they have numbers from 0 to {self.gpus - 1}")
        return set(asked)

    def _change(self) -> Assignment:
        before, homes = self._loans, dict(self._homes)
        self._homes = self._pack()
        moved = tuple(d for d in range(self._domains) if homes.get(d) != self._homes.get(d))
        after = self._assign()
        free = {*after.idle, *after.spare}
        self._loans = {job: held & free for job, held in before.items()}
        recalled = {job: tuple(sorted(held - free)) for job, held in before.items() if held - free}
        self.now = self._assign(moved, recalled)
        return self.now

    def _lost(self) -> list[int]:
        """Failed GPUs of each domain."""
        lost = Counter(g // self.cluster.gpus_per_domain for g in self._failed)
        return [lost[d] for d in range(self._domains)]

    def _width(self, failed: int) -> int:
        width = self.cluster.width_of(failed)
        return width if self.method != "dp-drop" or not failed else 0

    def _pack(self) -> dict[int, int]:
        """The replica of each domain that is in one: as many failures together as can be, and little moved."""
        lost, size = self._lost(), self.cluster.domains_per_replica
        usable = sorted((d for d in range(self._domains) if self._width(lost[d])), key=lambda d: lost[d])
        replicas = min(self.cluster.replicas, len(usable) // size)
        needs = [Counter(lost[d] for d in usable[r * size : (r + 1) * size]) for r in range(replicas)]
        free = set(usable)
        homes: dict[int, int] = {}
        names = list(range(replicas))
        for need in needs:
            there = {r: Counter(lost[d] for d in free if self._homes.get(d) == r) for r in names}
            name = max(names, key=lambda r: ((need & there[r]).total(), -r))
            names.remove(name)
            for level, many in need.items():
                mine = [d for d in free if lost[d] == level]
                # its own first, then from replicas that are the least whole
                whole = Counter(self._homes.get(d) for d in free if not lost[d])
                mine.sort(key=lambda d: (self._homes.get(d) != name, whole[self._homes.get(d)], d))
                for d in mine[:many]:
                    homes[d] = name
                    free.remove(d)
        return homes

    def _assign(self, moved: Gpus = (), recalled: dict[str, Gpus] | None = None) -> Assignment:
        lost, each = self._lost(), self.cluster.gpus_per_domain
        domains: list[tuple[int, ...]] = []
        members: list[tuple[Gpus, ...]] = []
        idle: list[int] = []
        borrowed = {g for held in self._loans.values() for g in held}
        for r in range(max(self._homes.values(), default=-1) + 1):
            stages = tuple(sorted(d for d, home in self._homes.items() if home == r))
            widths = [self._width(lost[d]) for d in stages]
            narrowest = min(widths)
            trains = []
            for d, own in zip(stages, widths, strict=True):
                healthy = [g for g in range(d * each, (d + 1) * each) if g not in self._failed]
                width = own if self.method == "ntp-pw" else narrowest
                healthy.sort(key=lambda g: (g in borrowed, g))  # of several that could be idle, those that are lent
                trains.append(tuple(sorted(healthy[:width])))
                idle += sorted(healthy[width:])
            domains.append(stages)
            members.append(tuple(trains))
        spare = [g for d in range(self._domains) if d not in self._homes for g in range(d * each, (d + 1) * each)]
        return Assignment(
            tuple(members), tuple(domains), tuple(sorted(idle)), tuple(g for g in spare if g not in self._failed),
            tuple(sorted(self._failed)), {job: tuple(sorted(held)) for job, held in self._loans.items()}, moved,
            recalled or {},
        )  # fmt: skip
