"""A verdict on dumps of PyTorch's flight recorder (`dumps` says what they hold): the same reports, another recorder.

A dump tells which operations a rank has begun and which of them have ended, but not what its program waits for. So an
operation that has not ended counts as one that the rank is blocked in, the first one of each group, because a group
carries its operations out in order. What a dump does not hold, nobody is accused of.

An all-reduce cannot have ended well for anybody while a member has not begun it. Gloo says the same of a call that
ended and of one that failed; by this rule the latter counts as one that has not ended.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from labkit.wire.errors import RefusedError
from labkit.wire.messenger import COLLECTIVES, USER
from labkit.wire.recording import record as rec
from labkit.world.diagnosis.explain import ranks_text

from .detector import Heard
from .dumps import Dump, Entry, read_dumps
from .majority import after, shape
from .report import CallId, Made, Post, Report, Thread
from .verdict import Verdict, diagnose

_UNLIKE = ("barrier", "all_reduce_barrier", "all_to_all")  # beginnings of names: sizes may differ, or say nothing
_TOGETHER = ("all_reduce", "all_gather", "_all_gather", "reduce_scatter", "_reduce_scatter", "all_to_all", "barrier")


def from_pytorch(
    folder: str | Path, *, prefix: str | None = None, dead: Mapping[int, str] | None = None,
    groups: Mapping[str, Sequence[int]] | None = None, incomplete: bool = False,
) -> Verdict:  # fmt: skip
    """Who is at fault in a PyTorch job that stood still when each rank wrote `folder`/PREFIX_RANK.

    dead: ranks that died, and how, as `{2: "SIGKILL"}`; a library ends its process by SIGABRT when it receives
    something else than it expects. groups: by name or description, the ranks of groups whose
    members are not recorded, as those that gloo makes with `new_group`. incomplete: go on without dumps of other ranks,
    which then may be to blame for everything that they are a member of.

    The dumps must be of one moment: a rank that is only on its way is taken for one that does not come. Raises
    RefusedError, in a sentence, for what `read_dumps` refuses, and for dumps that are missing or of several jobs.
    """
    ended = dead or {}
    found = reports(read_dumps(folder, prefix), ended, groups or {}, incomplete)
    return diagnose(found, [Heard(rank, "died", how, f"rank {rank} died ({how})") for rank, how in ended.items()])


def reports(
    dumps: Mapping[int, Dump], dead: Collection[int], given: Mapping[str, Sequence[int]], incomplete: bool
) -> dict[int, Report]:
    """A report of each rank that left a dump."""
    world = _world(dumps, dead)
    missing = sorted(set(world) - dumps.keys() - set(dead))
    if missing and not incomplete:
        raise RefusedError(f"there is no dump of {ranks_text(missing)}, of {len(world)} ranks: copy it here, or say "
                           f"how the process died, as dead={{{missing[0]}: 'SIGKILL'}}, or go on without it by "
                           "incomplete=True")  # fmt: skip
    job = _Job(dumps, world, given)
    return {rank: job.report(rank) for rank in sorted(dumps)}


def _world(dumps: Mapping[int, Dump], dead: Collection[int]) -> tuple[int, ...]:
    """All ranks that are known of. Raises RefusedError where dumps do not agree on them."""
    recorded = {rank: ranks for rank, dump in dumps.items() for name in ("", "0") if (ranks := dump.groups.get(name))}
    for rank, ranks in recorded.items():
        first = min(recorded)
        if ranks != recorded[first] or rank not in ranks:
            raise RefusedError(f"{dumps[first].file} is of a job of {ranks_text(recorded[first])}, {dumps[rank].file} "
                               f"of one of {ranks_text(ranks)}: keep the files of one job")  # fmt: skip
    known = {*dumps, *dead, *(r for d in dumps.values() for ranks in d.groups.values() for r in ranks)}
    return tuple(range(max(known) + 1))


class _Job:
    """All dumps of one job.

    groups: number -> ranks. calls: of each rank, (group, number in it) -> its entries, several where they were
    coalesced. stuck: of each rank, group -> its first call that has not ended.
    """

    def __init__(self, dumps: Mapping[int, Dump], world: tuple[int, ...], given: Mapping[str, Sequence[int]]) -> None:
        self.dumps, self._numbers = dumps, dict[object, int]()
        self.groups: dict[int, tuple[int, ...]] = {}
        seen = defaultdict[tuple[str, str], set[int]](set)
        for rank, dump in dumps.items():
            for entry in dump.entries:
                seen[entry.group].add(rank)
        names = {text for group in seen for text in group}
        if unknown := sorted(set(given) - names):
            raise RefusedError(f"groups= names {unknown[0]!r}, and the groups of these dumps are {sorted(seen)}")
        self._of: dict[tuple[int, tuple[str, str]], int] = {}
        guessed = set()
        for group, ranks in sorted(seen.items()):
            for rank in sorted(ranks):
                told = dumps[rank].groups.get(group[0]) or given.get(group[0]) or given.get(group[1])
                members = tuple(sorted(told)) if told else world if group[1] == "default_pg" else tuple(sorted(ranks))
                number = self._numbers.setdefault((group, members), len(self._numbers) + 1)
                self.groups[number] = members
                self._of[rank, group] = number
                if not told and group[1] != "default_pg":
                    guessed.add(number)
        self.calls = {rank: self._calls(rank) for rank in dumps}
        self._reached = {number: self._least(number) for number in self.groups}
        self._check_times()
        self.stuck = {rank: self._stuck(rank) for rank in dumps}
        for rank, calls in self.stuck.items():
            for number in guessed & calls.keys():
                name = self.calls[rank][number, calls[number]][0].group
                raise RefusedError(f"rank {rank} waits in group {name}, whose members are not recorded: say who they "
                                   f"are, as groups={{{name[0]!r}: {self.groups[number]}}}")  # fmt: skip

    def _calls(self, rank: int) -> dict[CallId, list[Entry]]:
        found: dict[CallId, list[Entry]] = defaultdict(list)
        for entry in self.dumps[rank].entries:
            if not entry.p2p:
                found[self._of[rank, entry.group], entry.seq].append(entry)
        return dict(found)

    def _least(self, number: int) -> int:
        """The last call that all members have begun, of those whose dump tells."""
        last = []
        for rank in set(self.groups[number]) & self.dumps.keys():
            mine = [seq for group, seq in self.calls[rank] if group == number]
            if mine or not self.dumps[rank].whole:
                last.append(max(mine, default=0))
        return min(last, default=0)

    def _open(self, call: CallId, entries: Sequence[Entry]) -> bool:
        last = entries[-1]
        failed = last.library == "gloo" and last.name.startswith(_TOGETHER) and call[1] > self._reached[call[0]]
        return failed or not last.ended

    def _stuck(self, rank: int) -> dict[int, int]:
        """group -> its first call that has not ended."""
        found: dict[int, int] = {}
        for (number, seq), entries in self.calls[rank].items():
            if self._open((number, seq), entries):
                found[number] = min(seq, found.get(number, seq))
        return found

    def _check_times(self) -> None:
        """Nobody waits longer in a call that ends well than its time-out."""
        begun: dict[CallId, list[tuple[int, int, Entry]]] = defaultdict(list)
        for rank, calls in self.calls.items():
            for call, entries in calls.items():
                if not self._open(call, entries) and entries[-1].name.startswith(_TOGETHER):
                    begun[call].append((entries[0].created, rank, entries[0]))
        for those in begun.values():
            (first, one, entry), (late, other, _) = min(those)[:3], max(those)[:3]
            if 0 < entry.timeout < (late - first) / 1e6:
                raise RefusedError(f"{self.dumps[other].file} and {self.dumps[one].file} are of different jobs: rank "
                                   f"{other} began {_words([entry])}, call {entry.seq}, {(late - first) / 1e9:.0f} s "
                                   f"after rank {one}, which waits {entry.timeout / 1e3:g} s at most")  # fmt: skip

    # -- one rank --------------------------------------------------------------------------------------------------

    def report(self, rank: int) -> Report:
        """What a rank would have reported."""
        dump = self.dumps[rank]
        messages = self._messages(rank)
        begun: dict[tuple[int, ...], tuple[int, int]] = {}
        for (number, seq), entries in self.calls[rank].items():
            place = rec.COLLECTIVE, -1, number, COLLECTIVES
            begun[place] = max(begun.get(place, (0, 0)), (seq, entries[0].number))
        for post, entry, _ in messages:
            begun[_kind(post), post.peer, post.group, USER] = post.seq, entry.number
        waiting = [(post, entry) for post, entry, ended in messages if not ended]
        firsts = {(p.way, p.peer, p.group): (p, e) for p, e in reversed(waiting)}.values()
        threads = [*self._threads(rank), *(Thread(p.what + _at(e), posts=(p,)) for p, e in firsts)]
        last = dump.entries[-1] if dump.entries else None
        return Report(
            rank, rec.RUNNING, count=last.number + 1 if last else 0, main_free=not threads,
            doing=f"the last that it began is {_words([last])}, call {last.seq}{_at(last)}" if last else "",
            threads=tuple(threads), groups={n: m for n, m in self.groups.items() if rank in m},
            begun=tuple((*place, *which) for place, which in begun.items()), whole=dump.whole or -1,
            under_way=tuple((_kind(p), p.peer, p.group, USER, p.seq) for p, _ in waiting),
            made=tuple(self._made(rank, messages)), transport=last.library if last else "",
        )  # fmt: skip

    def _threads(self, rank: int) -> Iterable[Thread]:
        """Calls that the rank is in. On a GPU one may be enqueued only, while others have started it."""
        calls = list(self.stuck[rank].items())
        queued = [c for c in calls if self.calls[rank][c][-1].state == "scheduled" and self._started(c)]
        for call in calls:
            entries = self.calls[rank][call]
            if call in queued:
                yield Thread(f"has enqueued it, and its GPU has not started it{_at(entries[0])}", own=call)
            else:
                what = f"in {_words(entries)}, call {call[1]}{_at(entries[0])}"
                yield Thread(what, call, native=True, main=not queued)

    def _started(self, call: CallId) -> bool:
        return any(
            self.stuck[r].get(call[0]) == call[1] and self.calls[r][call][-1].state == "started" for r in self.dumps
        )

    def _messages(self, rank: int) -> list[tuple[Post, Entry, bool]]:
        """The rank's messages, numbered between sender and receiver, and whether they have ended; none where the buffer
        has wrapped, because then their numbers are not known."""
        dump = self.dumps[rank]
        batches = {(e.group, e.batch): e.ended for e in dump.entries if e.p2p and not e.message}
        counts: dict[tuple[str, int, int], int] = defaultdict(int)
        found = []
        for entry in dump.entries if not dump.whole else ():
            if entry.message:
                way, _, place = entry.message
                number = self._of[rank, entry.group]
                peer = self.groups[number][place]
                counts[way, peer, number] += 1
                tensors = _moved(entry)
                what = f"{_tensors(tensors)} to" if way == "send" else f"{_tensors(tensors)} from"
                post = Post(way, peer, number, USER, counts[way, peer, number], _nbytes(tensors),
                            f"{way} {what} rank {peer}")  # fmt: skip
                found.append((post, entry, batches.get((entry.group, entry.batch), entry.ended)))
        return found

    def _made(self, rank: int, messages: Iterable[tuple[Post, Entry, bool]]) -> Iterable[Made]:
        whole = self.dumps[rank].whole
        past = zlib.crc32(b"rank %d" % rank) if whole else 0  # what was before a part is like nobody's
        acts: list[tuple[int, CallId, list[Entry], Post | None, bool]] = [
            (e[0].number, call, e, None, False) for call, e in self.calls[rank].items()
        ]
        acts += [(e.number, (p.group, p.seq), [e], p, ended) for p, e, ended in messages]
        for nth, call, entries, post, ended in sorted(acts, key=lambda one: one[0]):
            members = self.groups[call[0]]
            if post is None:
                words = _words(entries)
                made = Made(call, words, f"{words} on {shape(members)}", nth, not self._open(call, entries), past=past)
            else:
                words = _tensors(_moved(entries[0]))
                away = (members.index(post.peer) - members.index(rank)) % len(members)
                ends = (rank, post.peer) if post.way == "send" else (post.peer, rank)
                role = f"{words} {post.way} rank +{away} of {shape(members)}"
                made = Made(call, words, role, nth, ended, post.nbytes, past=past, ends=ends)
            yield made
            past = after(made)


def _words(entries: Sequence[Entry]) -> str:
    """What all members must have said alike: PyTorch's analyzer compares the same (`Op.match`)."""
    return " and ".join(_of_one(e) for e in entries if e.name != "coalesced") or entries[0].name


def _of_one(entry: Entry) -> str:
    tensors = entry.outputs if entry.name == "scatter" else entry.inputs
    return entry.name if entry.name.startswith(_UNLIKE) or not tensors else f"{entry.name} on {_tensors(tensors)}"


def _moved(entry: Entry) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The tensors of a message, of this end."""
    return entry.inputs if entry.message[:1] == ("send",) else entry.outputs


def _tensors(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype}[{', '.join(map(str, shape))}]" for dtype, shape in tensors)


def _nbytes(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> int:
    return sum(math.prod(shape) * getattr(torch, dtype, torch.uint8).itemsize for dtype, shape in tensors)


def _kind(post: Post) -> int:
    return rec.SEND if post.way == "send" else rec.RECV


def _at(entry: Entry) -> str:
    return f", at {entry.where}" if entry.where else ""
