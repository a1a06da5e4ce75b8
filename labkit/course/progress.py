"""What the reader has done: one JSON file, on this machine only.

    {"schema": 1, "chapters": {"03_collectives": {
        "opened": "2026-01-31T09:00:00+00:00", "read": null,
        "predictions": {"ring-bytes": {"state": "predicted", "values": [1.78], "at": "..."}},
        "questions": {"who-waits": {"tries": 2, "right": true, "revealed": false, "value": "...", "at": "..."}},
        "choices": {"zero1-sends": {"value": "less"}},
        "written": {"ring_sum": {"tries": 2, "right": true, "at": "..."}}}}}

Every change reads the file anew, changes one entry and replaces the file in one step, under a lock: two kernels never
lose each other's changes. Keys that this version does not know are kept. A file that cannot be read is set aside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.course.progress_file import SCHEMA, ProgressFile

State = dict[str, Any]


def home() -> Path:
    """$LABKIT_HOME, or labkit's folder among the reader's own data."""
    told = os.environ.get("LABKIT_HOME")
    if told:
        return Path(told).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share").expanduser() / "labkit"


class Progress:
    """The reader's progress. Reading is always of the latest state; nothing is written before the first change.

    path: the file, or None to remember in this process only (nobody is there). say: tells the reader when a file was
    set aside or cannot be written; progress is then kept in memory, and no chapter stops for it.
    """

    def __init__(self, path: Path | None, say: Callable[[str], None] = print) -> None:
        self._file = None if path is None else ProgressFile(path, say)
        self._memory: State = {"schema": SCHEMA, "chapters": {}}

    @classmethod
    def of_reader(cls, say: Callable[[str], None] = print) -> Progress:
        """The progress of whoever runs this process."""
        return cls(home() / "progress.json", say)

    @property
    def path(self) -> Path | None:
        return None if self._file is None else self._file.path

    def opened(self, chapter: str) -> None:
        """The chapter was begun; the first time counts."""
        self._change(chapter, lambda entry: entry.setdefault("opened", now()))

    def read(self, chapter: str) -> None:
        """The chapter was read to its end; the first time counts."""
        self._change(chapter, lambda entry: entry.update(read=entry.get("read") or now()))

    def predicted(self, chapter: str, id: str, values: list[Any], about: str = "") -> None:
        """values: plain JSON, as the forecast reads them. about: the question, with its numbers, or a digest of it."""
        kept = {"state": "predicted", "values": values, "about": about}
        self._change(chapter, lambda e: part(e, "predictions", id).update(kept, at=now()))

    def skipped(self, chapter: str, id: str, about: str = "") -> None:
        """The reader chose not to predict. A prediction made before stays, also one about other numbers."""

        def change(entry: State) -> None:
            known = part(entry, "predictions", id)
            if known.get("state") != "predicted":
                known.update(state="skipped", at=now())
            else:
                known.update(skipped=about, at=now())

        self._change(chapter, change)

    def answered(self, chapter: str, id: str, value: Any, right: bool) -> None:
        """One more try. A question once right stays right; tries are counted up to the first right one."""

        def change(entry: State) -> None:
            known = part(entry, "questions", id)
            if not known.get("right"):
                known["tries"] = count(known.get("tries")) + 1
            known.update(value=value, right=bool(known.get("right")) or right, at=now())
            known.setdefault("revealed", False)

        self._change(chapter, change)

    def revealed(self, chapter: str, id: str) -> None:
        """The reader asked for the answer. With a question that was right already, nothing changes."""

        def change(entry: State) -> None:
            known = part(entry, "questions", id)
            if not known.get("right"):
                known.update(revealed=True, tries=count(known.get("tries")), right=False, at=now())

        self._change(chapter, change)

    def wrote(self, chapter: str, name: str, right: bool) -> None:
        """One more try at a function that the chapter asks for. Once right it stays right."""

        def change(entry: State) -> None:
            known = part(entry, "written", name)
            if not known.get("right"):
                known["tries"] = count(known.get("tries")) + 1
            known.update(right=bool(known.get("right")) or right, at=now())

        self._change(chapter, change)

    def chose(self, chapter: str, id: str, value: str) -> None:
        """What the reader chose before a panel showed what is so; the first choice counts."""
        self._change(chapter, lambda entry: part(entry, "choices", id).setdefault("value", value))

    def choice(self, chapter: str, id: str) -> State:
        """What is known of a choice; empty if nothing is."""
        return self._part(chapter, "choices", id)

    def prediction(self, chapter: str, id: str) -> State:
        """What is known of a prediction; empty if nothing is."""
        return self._part(chapter, "predictions", id)

    def question(self, chapter: str, id: str) -> State:
        """What is known of a question; empty if nothing is."""
        return self._part(chapter, "questions", id)

    def chapters(self) -> dict[str, State]:
        """Everything, by chapter, to read."""
        state = self._memory if self._file is None else self._file.load()
        found = state.get("chapters")
        return {n: e for n, e in found.items() if isinstance(e, dict)} if isinstance(found, dict) else {}

    def _part(self, chapter: str, table: str, id: str) -> State:
        entries = self.chapters().get(chapter, {}).get(table)
        found = entries.get(id) if isinstance(entries, dict) else None
        return dict(found) if isinstance(found, dict) else {}

    def _change(self, chapter: str, change: Callable[[State], object]) -> None:
        def in_state(state: State) -> None:
            change(part(state, "chapters", chapter))

        if self._file is None:
            in_state(self._memory)
        else:
            self._file.change(in_state)


def part(entry: State, table: str, name: str) -> State:
    """entry[table][name], made where it is missing or no table."""
    for key in (table, name):
        if not isinstance(entry.get(key), dict):
            entry[key] = {}
        entry = entry[key]
    return entry


def count(tries: object) -> int:
    return tries if isinstance(tries, int) and tries > 0 else 0


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def summary(chapters: Mapping[str, State]) -> list[dict[str, Any]]:
    """One row a chapter, for `labkit progress`: of `Progress.chapters()`.

    chapter; opened and read: the day, or None; predicted, skipped: how many predictions; tried, right, right_at_once,
    revealed: how many questions; tries: of all questions together; written: how many functions of one's own are right.
    """
    rows = []
    for name in sorted(chapters):
        entry = chapters[name]
        predictions = [p for p in values_of(entry, "predictions")]
        questions = [q for q in values_of(entry, "questions")]
        rows.append(
            {
                "chapter": name, "opened": day(entry.get("opened")), "read": day(entry.get("read")),
                "predicted": sum(p.get("state") == "predicted" for p in predictions),
                "skipped": sum(p.get("state") == "skipped" for p in predictions),
                "tried": sum(count(q.get("tries")) > 0 for q in questions),
                "right": sum(bool(q.get("right")) for q in questions),
                "right_at_once": sum(bool(q.get("right")) and q.get("tries") == 1 for q in questions),
                "revealed": sum(bool(q.get("revealed")) for q in questions),
                "written": sum(bool(w.get("right")) for w in values_of(entry, "written")),
                "tries": sum(count(q.get("tries")) for q in questions),
            }
        )  # fmt: skip
    return rows


def values_of(entry: State, table: str) -> list[State]:
    found = entry.get(table)
    return [v for v in found.values() if isinstance(v, dict)] if isinstance(found, dict) else []


def day(stamp: object) -> str | None:
    return stamp[:10] if isinstance(stamp, str) else None
