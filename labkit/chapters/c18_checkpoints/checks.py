"""What the checks of chapter 18 compare with: a directory that forgets at a power failure, and four small references.

A program that saves notes its calls; here they are carried out, and the run is ended at every place that is possible.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.student import Evidence, Student
from labkit.grading.known import Answers

answers = Answers("18_checkpoints")  # what only instructors can compute


Call = tuple[Any, ...]
Files = dict[str, bytes]
CALLS = {"write": 2, "fsync": 1, "rename": 2, "sync": 0, "remove": 1, "barrier": 0}  # and how many words each has
LONGEST = 60  # calls of a rank
MOST = 400  # places in one phase at which a run is ended


# A directory --------------------------------------------------------------------------------------------------------


class NotThere(Exception):
    """A call names a file that may not be there."""


@dataclass
class Directory:
    """names: name -> number of a file. contents, sure: by number, bytes, and how many of them are on the disk for sure.

    known: the names that are on the disk for sure. pending: changes of names since, in order.
    """

    names: dict[str, int] = field(default_factory=dict)
    contents: list[bytes] = field(default_factory=list)
    sure: list[int] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    pending: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, files: Files) -> Directory:
        """All of it on the disk."""
        names = {name: number for number, name in enumerate(files)}
        return cls(dict(names), list(files.values()), [len(data) for data in files.values()], names)

    def copy(self) -> Directory:
        return Directory(dict(self.names), list(self.contents), list(self.sure), dict(self.known), list(self.pending))

    def do(self, call: Call) -> None:
        """Carry out one call. Raises NotThere."""
        what, *words = call
        if what in ("fsync", "rename", "remove") and words[0] not in self.names:
            raise NotThere(in_words(call))
        if what == "write":
            name, data = words
            if name not in self.names:
                self._change(("link", name, len(self.contents)))
                self.contents.append(b"")
                self.sure.append(0)
            self.contents[self.names[name]] += data
        elif what == "fsync":
            self.sure[self.names[words[0]]] = len(self.contents[self.names[words[0]]])
        elif what == "sync":
            self.known, self.pending = dict(self.names), []
        elif what in ("rename", "remove"):
            self._change(call)

    def _change(self, change: Call) -> None:
        _change(self.names, change)
        self.pending.append(change)

    def after_a_kill(self) -> Files:
        """The process is gone, and the machine goes on: nothing is forgotten."""
        return {name: self.contents[number] for name, number in self.names.items()}

    def after_a_power_failure(self) -> Iterator[Files]:
        """What may be there: some changes of names, in order, and nothing or a half of what was not fsynced."""
        names = dict(self.known)
        for change in [None, *self.pending]:
            if change is not None:
                _change(names, change)
            for half in (False, True):
                kept = [len(data) + sure >> 1 if half else sure
                        for data, sure in zip(self.contents, self.sure, strict=True)]  # fmt: skip
                yield {name: self.contents[number][: kept[number]] for name, number in names.items()}


def _change(names: dict[str, int], change: Call) -> None:
    what, name, *rest = change
    if what == "link":
        names[name] = rest[0]
    elif what == "rename":
        names[rest[0]] = names.pop(name)
    else:
        del names[name]


def in_words(call: Call) -> str:
    """fsync '7-0'; rename 'new' to 'step-7'."""
    names = [repr(word) for word in call[1:] if isinstance(word, str)]
    return f"{call[0]} {' to '.join(names)}".strip()


# Whole or not at all ------------------------------------------------------------------------------------------------


@dataclass
class Save:
    """One run that saved: the parts by rank, before and after, and the calls of each rank, cut at barriers."""

    step: int
    old: list[bytes]
    new: list[bytes]
    phases: list[list[list[Call]]] = field(default_factory=list)  # by rank

    @property
    def size(self) -> int:
        return len(self.new)

    def before(self) -> Files:
        """The checkpoint of the step before."""
        names = [f"{self.step - 1}-{rank}" for rank in range(self.size)]
        return {f"step-{self.step - 1}": "\n".join(names).encode(), **dict(zip(names, self.old, strict=True))}

    def ends(self) -> Iterator[tuple[Directory, str, bool]]:
        """Every place at which the run may end: the directory, the place in words, whether a rank has returned."""
        base, last = Directory.of(self.before()), len(self.phases[0]) - 1
        for number, phase in enumerate(zip(*self.phases, strict=True)):
            places = _places([len(calls) for calls in phase])
            for done in places:
                for ranks in ((*range(self.size),), (*reversed(range(self.size)),))[: 1 + (sum(map(bool, done)) > 1)]:
                    there = base.copy()
                    for rank in ranks:
                        for call in phase[rank][: done[rank]]:
                            there.do(call)
                    returned = number == last and any(d == len(calls) for d, calls in zip(done, phase, strict=True))
                    yield there, self._where(number, done), returned
            for call in itertools.chain(*phase):
                base.do(call)

    def _where(self, phase: int, done: Sequence[int]) -> str:
        """How far each rank was."""
        told = []
        for rank, count in enumerate(done):
            calls = [call for part in self.phases[rank][:phase] for call in part] + self.phases[rank][phase][:count]
            after = f"after {len(calls)}, {in_words(calls[-1])}" if calls else "before its first call"
            told.append(f"rank {rank} {after}")
        return "; ".join(told)

    def at_the_end(self) -> Directory:
        there = Directory.of(self.before())
        for phase in zip(*self.phases, strict=True):
            for call in itertools.chain(*phase):
                there.do(call)
        return there


def _places(lengths: Sequence[int]) -> list[tuple[int, ...]]:
    """How many calls each rank may have made: all combinations, or where there are too many, some of them: all in
    which one rank is alone ahead or alone behind, and others at random."""
    if math.prod(length + 1 for length in lengths) <= MOST:
        return list(itertools.product(*(range(length + 1) for length in lengths)))
    found = {(*others[:r], d, *others[r + 1 :]) for others in ([0] * len(lengths), list(lengths))
             for r, length in enumerate(lengths) for d in range(length + 1)}  # fmt: skip
    random = Random(0)
    return sorted(found | {tuple(random.randint(0, length) for length in lengths) for _ in range(MOST)})


def newest(files: Files) -> int | None:
    """The step that a reader would load."""
    return max((int(found[1]) for name in files if (found := re.fullmatch(r"step-(\d+)", name))), default=None)


def why_not(files: Files, step: int, parts: Sequence[bytes]) -> str:
    """Why the checkpoint of `step` is not what it should be; "" if it is."""
    lines = files[f"step-{step}"].decode(errors="replace").splitlines()
    if len(lines) != len(parts):
        return f"'step-{step}' has {len(lines)} of {len(parts)} lines"
    for rank, (name, data) in enumerate(zip(lines, parts, strict=True)):
        if name not in files:
            return f"'step-{step}' names {name!r} for rank {rank}, and there is no such file"
        if files[name] != data:
            got = f"{len(files[name])} of {len(data)} bytes" if len(files[name]) < len(data) else "other bytes"
            return f"{name!r}, the part of rank {rank}, has {got}"
    return ""


def read_calls(student: Student, run: Evidence, step: int, old: list[bytes], new: list[bytes]) -> Save:
    """The calls that every rank returned, in phases between barriers. Else NotRight."""
    n = len(new)
    many = f"With {n} rank{'s' * (n != 1)}"
    save = Save(step, old, new)
    for rank, got in enumerate(run.results):
        student.expect(isinstance(got, list), f"{many}: rank {rank} returned no list of calls. Return `calls`.")
        student.expect(len(got) <= LONGEST, f"{many}: rank {rank} has {len(got)} calls; {LONGEST} are plenty.")
        phases: list[list[Call]] = [[]]
        for call in got:
            fine = isinstance(call, (list, tuple)) and call and call[0] in CALLS and len(call) == 1 + CALLS[call[0]]
            fine = fine and all(isinstance(name, str) for name in call[1:2])
            fine = fine and (len(call) < 3 or isinstance(call[2], bytes if call[0] == "write" else str))
            text = f"{many}: rank {rank} has a call that is none of the six: {str(call)[:60]}. write takes bytes."
            student.expect(fine, text)
            if call[0] == "barrier":
                phases.append([])
            else:
                phases[-1].append(tuple(call))
        save.phases.append(phases)
    student.expect(len({len(phases) for phases in save.phases}) == 1, f"{many}: the ranks note different barriers.")
    rounds = (len(save.phases[0]) - 1) * math.ceil(math.log2(n))  # of empty messages, in each barrier
    text = f"{many}: a barrier is noted, and no rank waited for another."
    student.expect(min(run.messages) >= rounds, text)
    return save


def expect_saved(student: Student, save: Save) -> None:
    """At the end the new checkpoint is there."""
    many = f"With {save.size} rank{'s' * (save.size != 1)}"
    try:
        files = save.at_the_end().after_a_kill()
    except NotThere as call:
        student.expect(False, f"{many}: {call}: there is no such file at that moment.")
    text = "{many}, when all have returned: there is no file 'step-{step}'."
    student.expect(f"step-{save.step}" in files, text, many=many, step=save.step)
    student.expect(newest(files) == save.step, f"{many}, when all have returned: a reader would not load this step.")
    wrong = why_not(files, save.step, save.new)
    student.expect(not wrong, "{many}, when all have returned: {wrong}.", many=many, wrong=wrong)


def expect_nothing_else(student: Student, save: Save) -> None:
    """At the end there is no file that nobody reads."""
    expect_saved(student, save)
    files = save.at_the_end().after_a_kill()
    named = files[f"step-{save.step}"].decode(errors="replace").splitlines()
    left = sorted(set(files) - {f"step-{save.step}", *named})
    text = "With {n} ranks, when all have returned, {left!r} is still there: nothing reads it any more."
    student.expect(not left, text, n=save.size, left=left[0] if left else "")


def expect_survives(student: Student, save: Save, power: bool) -> None:
    """Wherever it ends, one of the two checkpoints loads. power: what was not on the disk for sure may be gone."""
    many = f"With {save.size} rank{'s' * (save.size != 1)}"
    what = "the power fails" if power else "the run is killed"
    try:
        for there, where, _ in save.ends():
            for files in there.after_a_power_failure() if power else [there.after_a_kill()]:
                found = newest(files)
                text = f"{many}, {what} ({{where}}): no checkpoint is left. {{why}}"
                why = "The old one may go when the new one is safe."
                student.expect(found is not None, text, where=where, why=why)
                wrong = f"a reader loads 'step-{found}', which was never saved"
                if found in (save.step, save.step - 1):
                    wrong = why_not(files, found, save.new if found == save.step else save.old)
                text = f"{many}, {what} ({{where}}): a reader takes 'step-{found}', and {{wrong}}. {{why}}"
                student.expect(not wrong, text, where=where, wrong=wrong, why=_why(wrong, found == save.step, power))
    except NotThere as call:
        student.expect(False, f"{many}: {call}: that file may not be there yet, if another rank is slower.")


def _why(wrong: str, new: bool, power: bool) -> str:
    if not new:
        return "The old one must stay as it is until the new one is safe."
    if "lines" in wrong:
        return "Give the manifest its name when it is whole" + (", and on the disk." if power else ".")
    if power:
        return "What a manifest names must be on the disk before the manifest has its name."
    return "A manifest may have its name when the parts of all ranks are there."


def expect_durable(student: Student, save: Save) -> None:
    """Once a rank has returned, no power failure takes the new checkpoint away."""
    many = f"With {save.size} rank{'s' * (save.size != 1)}"
    try:
        for there, where, returned in save.ends():
            for files in there.after_a_power_failure() if returned else []:
                text = f"{many}, a rank has returned and the power fails ({{where}}): a reader finds {{found}}. {{why}}"
                why = "Names are on the disk after sync, and ranks that are done must not run ahead of it."
                found = "nothing" if newest(files) is None else f"'step-{newest(files)}'"
                student.expect(newest(files) == save.step, text, where=where, found=found, why=why)
    except NotThere as call:
        student.expect(False, f"{many}: {call}: that file may not be there yet, if another rank is slower.")


# A checksum that names the tensor -----------------------------------------------------------------------------------

Parts = list[dict[str, Any]]


def stored_parts(student: Student, ranks: int, tensors: int) -> Parts:
    """For each rank its file and what it should hold, all of it good. Pieces have gaps between them."""
    names = [f"layer{k}.weight" for k in range(tensors)]
    parts: Parts = []
    for rank in range(ranks):
        pieces, data = [], b""
        for k, name in enumerate(names):
            if (k + rank) % 4 == 3 and ranks > 1:  # this rank holds nothing of it
                continue
            values = bytes(student.tensor(150 + 7 * k + 3 * rank, dtype=torch.uint8).tolist())
            data += bytes(-len(data) % 64)
            pieces.append([name, len(data), len(values), zlib.crc32(values)])
            data += values
        parts.append({"data": torch.tensor(list(data), dtype=torch.uint8), "pieces": pieces, "names": names})
    return parts


def _with(parts: Parts, rank: int, data: Tensor) -> Parts:
    """Other parts, in which the file of `rank` is this one. What was given stays: a run may be known by it."""
    return [{**part, "data": data} if r == rank else part for r, part in enumerate(parts)]


def flipped(parts: Parts, rank: int, piece: int, at: int, bit: int = 4) -> tuple[Parts, str]:
    """(parts with one bit flipped in a piece of a rank, the name of its tensor). at: from the begin, or below 0 from
    the end of the piece."""
    name, offset, nbytes, _ = parts[rank]["pieces"][piece]
    data = parts[rank]["data"].clone()
    data[offset + at % nbytes] ^= 1 << bit
    return _with(parts, rank, data), str(name)


def flipped_between(parts: Parts) -> Parts:
    """Parts with a bit flipped in a gap of rank 0, which belongs to no tensor."""
    _, offset, nbytes, _ = parts[0]["pieces"][0]
    data = parts[0]["data"].clone()
    data[offset + nbytes] ^= 1
    return _with(parts, 0, data)


def cut_short(parts: Parts, rank: int, nbytes: int) -> tuple[Parts, list[str]]:
    """(parts with bytes taken off the end of a file, the names of what is not whole any more)."""
    end = len(parts[rank]["data"]) - nbytes
    names = [str(name) for name, offset, length, _ in parts[rank]["pieces"] if offset + length > end]
    return _with(parts, rank, parts[rank]["data"][:end].clone()), names


def moved(parts: Parts, rank: int, piece: int) -> tuple[Parts, str]:
    """(parts in which the bytes of a piece moved by one place, the name of its tensor): their sum is as before."""
    name, offset, nbytes, _ = parts[rank]["pieces"][piece]
    data = parts[rank]["data"].clone()
    data[offset : offset + nbytes] = data[offset : offset + nbytes].roll(1)
    return _with(parts, rank, data), str(name)


# Each example once --------------------------------------------------------------------------------------------------


def order_of(count: int, seed: int, epoch: int) -> Tensor:
    """The order of an epoch, as the statement has it."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))


batches = answers.batches


# Only what they lack ------------------------------------------------------------------------------------------------

Runs = list[tuple[int, int]]


def even_runs(numel: int, ranks: int, size: int) -> list[Runs]:
    """One run for each of the first `ranks` ranks, as even as it goes; nothing for the others."""
    borders = [numel * r // ranks for r in range(ranks + 1)]
    return [[(borders[r], borders[r + 1])] if r < ranks else [] for r in range(size)]


def column_runs(rows: int, width: int, ranks: int, size: int) -> list[Runs]:
    """For each of the first `ranks` ranks its columns of a matrix: a run in each row."""
    borders = [width * r // ranks for r in range(ranks + 1)]
    return [[(row * width + borders[r], row * width + borders[r + 1]) for row in range(rows)] if r < ranks else []
            for r in range(size)]  # fmt: skip


def elements(runs: Runs) -> Tensor:
    """The places of all elements of some runs, in order."""
    return torch.cat([torch.arange(begin, end) for begin, end in runs]) if runs else torch.arange(0)


def lacked(old: list[Runs], new: list[Runs]) -> list[list[int]]:
    """[from][to]: how many elements `from` holds that `to` wants."""
    held, wanted = ([set(elements(runs).tolist()) for runs in cut] for cut in (old, new))
    return [[0 if a == b else len(held[a] & wanted[b]) for b in range(len(new))] for a in range(len(old))]


# While training goes on ---------------------------------------------------------------------------------------------


def trained(w: Tensor, steps: int) -> Tensor:
    """The weights after so many steps of the given stand-in for training."""
    w = w.clone()
    for step in range(steps):
        w.mul_(-1).add_(step + 1)
    return w


last_whole = answers.last_whole


def bytes_so_far(numel: int, steps: int, every: int, parts: int) -> int:
    """What one rank has sent after `steps` steps: a piece in each step, in 32 bits."""
    sizes = [len(piece) for piece in torch.empty(numel).tensor_split(parts)]
    return 4 * sum(sum(sizes[: min(parts, steps - k + 1)]) for k in range(every, steps + 1, every))
