"""The two-level wait-for graph: first which operation waits for which, then which rank for which inside one.

An operation waits for another if one of its members has not come to it because it is blocked in the other. The ones
that wait for no other hold up the whole job (the FT-HSDP paper, section 2.3). There a member either has not joined and
is not blocked either, or all have joined: then the messages inside say which rank waits for which, and the last one of
such a chain makes no progress. Every such place is a `Clue`: a set of ranks of which one is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.wire.recording import record as rec
from labkit.world.diagnosis.explain import ranks_text

from .operations import Key, Operation, Operations
from .report import Post, Report

BUFFERED = 1 << 18  # bytes: a message of an exchange on the `local` transport that is no longer has left its sender


@dataclass(frozen=True)
class Clue:
    """One of `ranks` is at fault, because of `why`. kind: "absent", "finished", "dead", "inside", "between", "lost",
    "native" or "circle". way: (sender, receiver) where it is about a message between two ranks."""

    ranks: frozenset[int]
    kind: str
    why: str
    way: tuple[int, int] | None = None


@dataclass(frozen=True)
class Edge:
    """Operation `of` waits for operation `on`, because `rank` is blocked there."""

    of: Key
    on: Key
    rank: int


class Waits:
    """Both levels, and the clues.

    operations: by key. edges: between operations. between: (rank, rank that it waits for) inside the operations that
    wait for no other.
    """

    def __init__(self, reports: Mapping[int, Report]) -> None:
        self.reports = reports
        self._ops = Operations(reports)
        self.operations: dict[Key, Operation] = self._ops.found
        self.edges: list[Edge] = []
        self.between: list[tuple[int, int]] = []
        self.clues: list[Clue] = []
        for op in self.operations.values():
            self.edges += self._first_level(op)
        for op in self.leaves:
            self.clues += self._second_level(op)
        if not self.clues:
            self.clues += self._circles()
        self.clues = list(dict.fromkeys(self.clues))

    @property
    def leaves(self) -> list[Operation]:
        """The operations that wait for no other."""
        waiting = {edge.of for edge in self.edges}
        return [op for key, op in self.operations.items() if key not in waiting]

    # -- operations ------------------------------------------------------------------------------------------------

    def _first_level(self, op: Operation) -> list[Edge]:
        edges, gone = [], []
        for rank in (*op.absent, *op.posted):
            report = self.reports[rank]
            busy = self._ops.main(rank) if rank in op.absent else self._ops.others(rank)
            # Who still waits for a call of its own that is over, and does not notice, is busy with nothing.
            busy = [k for k in busy if k != op.key and self.operations[k].status(rank) != "left"]
            if report.over:
                gone.append(rank)
            elif busy:
                edges += [Edge(op.key, key, rank) for key in busy]
            elif op.inside and not (op.key[0] == "message" and rank in op.posted):
                self._clue({rank}, "absent", f"rank {rank} has not joined {op.name}, and {report.words()}")
        dead = [r for r in gone if self.reports[r].state == rec.FAILED]
        finished = [r for r in gone if r not in dead]
        for rank in dead:
            self._clue({rank}, "dead", f"rank {rank} is gone, and {op.name} waits for it")
        if finished:  # of two that agree neither is the one at fault
            one = finished if len(finished) == 1 < len(op.inside) else []
            one = op.inside if len(op.inside) == 1 < len(finished) else one
            self._clue({*one} or {*finished, *op.inside}, "finished", f"{ranks_text(finished)} finished, while "
                       f"{ranks_text(op.inside)} went on to {op.name}")  # fmt: skip
        return edges

    # -- ranks inside one ------------------------------------------------------------------------------------------

    def _second_level(self, op: Operation) -> Iterator[Clue]:
        if op.absent or (op.posted and op.key[0] == "call"):
            return
        edges: dict[int, set[int]] = {}
        for rank in op.inside:
            for post in self._ops.posts(rank, op.key):
                if self._ops.other_side(rank, post) is False and not self._has_left(post):
                    edges.setdefault(rank, set()).add(post.peer)
        self.between += [(rank, peer) for rank, peers in edges.items() for peer in sorted(peers)]
        native = [t.native for r in op.inside for t in self.reports[r].threads if t.call == op.key[1:]]
        if native and all(native):
            dark = f", {ranks_text(op.unknown)} may not have come to it" if op.unknown else ""
            yield Clue(frozenset({*op.inside, *op.unknown}), "native", f"{ranks_text(op.inside)} {_are(op.inside)} "
                       f"inside {op.name}{dark}, and the library does not tell who waits for whom there")  # fmt: skip
            return
        for rank in op.inside:
            if rank not in edges:
                yield from self._stands(rank, op)
            else:
                for peer in sorted(edges[rank]):
                    if peer in op.left:
                        yield Clue(frozenset({rank, peer}), "lost", f"rank {rank} waits in {op.name} for a message of "
                                   f"rank {peer}, which has left it", (peer, rank))  # fmt: skip
        yield from _ring(edges, op)

    def _has_left(self, post: Post) -> bool:
        """Whether a send is out of its sender's hands, so that nobody waits for its receiver."""
        local = all(r.transport == "local" for r in self.reports.values())
        return post.way == "send" and post.exchange and local and post.nbytes <= BUFFERED

    def _stands(self, rank: int, op: Operation) -> Iterator[Clue]:
        """A rank inside that waits for nobody who has yet to act: it, or a message under way, makes no progress."""
        posts = self._ops.posts(rank, op.key)
        if not posts:
            yield Clue(frozenset({rank}), "inside", f"rank {rank} has joined {op.name}, waits for no message there, "
                       "and makes no progress")  # fmt: skip
        binding = [p for p in posts if not self._has_left(p)]
        begun = [p for p in binding if self._ops.other_side(rank, p)]
        under_way = [p for p in begun if self._ops.under_way(rank, p)]
        if begun and len(begun) == len(binding) and not under_way:  # the two of an exchange end together
            way, what = _message(rank, begun[-1], op)
            done = "has taken it" if begun[-1].way == "send" else "has sent it"
            yield Clue(frozenset({rank}), "between", f"rank {rank} still waits for {what}, and rank {begun[-1].peer} "
                       f"{done}", way)  # fmt: skip
        for post in under_way:
            way, what = _message(rank, post, op)
            peer = self.reports[post.peer]
            if peer.main_free and not peer.threads:
                yield Clue(frozenset({post.peer}), "between", f"{what} is under way, and rank {post.peer}, which does "
                           "not wait for it, is outside any message", way)  # fmt: skip
            else:
                yield Clue(frozenset(way), "between", f"both have begun {what}, and neither has ended it", way)

    # -- circles ---------------------------------------------------------------------------------------------------

    def _circles(self) -> Iterator[Clue]:
        """Operations that wait for each other: ranks came to them in different orders.

        In every circle one rank is at fault; the smaller it is, the more that says. So of each rank the shortest one.
        """
        onward: dict[Key, dict[Key, list[int]]] = {}
        for edge in self.edges:
            onward.setdefault(edge.of, {}).setdefault(edge.on, []).append(edge.rank)
        for edge in self.edges:
            back = _shortest(onward, edge.on, edge.of)
            if back is not None:
                ranks = {edge.rank, *(onward[a][b][0] for a, b in zip(back, back[1:], strict=False))}
                names = " and ".join(sorted(self.operations[key].name for key in back))
                yield Clue(frozenset(ranks), "circle", f"{names} wait for each other, through "
                           f"{ranks_text(sorted(ranks))}")  # fmt: skip

    def _clue(self, ranks: set[int], kind: str, why: str) -> None:
        self.clues.append(Clue(frozenset(ranks), kind, why))


def _message(rank: int, post: Post, op: Operation) -> tuple[tuple[int, int], str]:
    """(sender, receiver) of a message that a rank waits for, and what it is called."""
    way = (rank, post.peer) if post.way == "send" else (post.peer, rank)
    where = f" in {op.name}" if op.key[0] == "call" else ""
    return way, f"the message from rank {way[0]} to rank {way[1]}{where}"


def _ring(edges: Mapping[int, set[int]], op: Operation) -> Iterator[Clue]:
    for circle in _circles(edges):
        ranks = sorted(r for r in circle if isinstance(r, int))
        if all(edges[r] <= circle for r in ranks):  # nobody in it waits for anybody else
            yield Clue(frozenset(ranks), "circle", f"{ranks_text(ranks)} wait for each other inside {op.name}")


def _shortest(onward: Mapping[Any, Collection[Any]], start: Any, end: Any) -> list[Any] | None:
    """The shortest way from one node to another; None for no way."""
    ways = [[start]]
    seen = {start}
    for way in ways:
        if way[-1] == end:
            return way
        for node in onward.get(way[-1], ()):
            if node not in seen:
                seen.add(node)
                ways.append([*way, node])
    return None


def _circles(edges: Mapping[Any, set[Any]]) -> list[set[Any]]:
    """The sets of nodes that can reach each other, of two or more."""
    reach = {node: _reached(edges, node) for node in edges}
    found: list[set[Any]] = []
    for node in edges:
        circle = {other for other in reach[node] if node in reach.get(other, set())}
        if node in circle and circle not in found:
            found.append(circle)
    return found


def _reached(edges: Mapping[Any, set[Any]], start: Any) -> set[Any]:
    seen: set[Any] = set()
    todo = [start]
    while todo:
        for node in edges.get(todo.pop(), ()):
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return seen


def _are(ranks: list[int]) -> str:
    return "is" if len(ranks) == 1 else "are"
