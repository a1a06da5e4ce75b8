"""What a sweep keeps of each run: a folder with the executed notebook and `run.json`."""

import hashlib
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat

from labkit.commands.sweeping.grid import Values
from labkit.files import write_atomically

RECORD = "application/vnd.labkit.record+json"
NOTES = "run.json"


@dataclass
class SweepRun:
    """One combination of values. `status`: "waiting", "ran", "failed" or "interrupted"; `records`: what it recorded."""

    values: Values
    key: str  # names the notebook's cells and the values; the same key is the same run
    folder: Path
    status: str = "waiting"
    problem: str = ""
    seconds: float = 0.0  # from start to end, kernel start included
    records: dict[str, Any] = field(default_factory=dict)
    again: bool = False  # whether an earlier sweep had finished it

    @property
    def label(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values.items())

    def row(self) -> dict[str, Any]:
        """The run as a row of the table."""
        about = {"status": self.status, "run seconds": round(self.seconds, 2)}
        return {**self.values, **about, **self.records}

    def recall(self) -> bool:
        """Take over what an earlier sweep noted, if it finished this very run."""
        try:
            notes = json.loads((self.folder / NOTES).read_text(encoding="utf-8"))
            finished = notes["key"] == self.key and notes["status"] == "ran"
            if finished:
                self.seconds, self.records = float(notes["seconds"]), dict(notes["records"])
                self.status, self.again = "ran", True
            return bool(finished)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def note(self) -> None:
        """Write `run.json`: only then does the run count as finished."""
        notes = {
            "schema": 1, "key": self.key, "parameters": {n: jsonable(v) for n, v in self.values.items()},
            "status": self.status, "problem": self.problem, "seconds": self.seconds, "records": self.records,
            "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }  # fmt: skip
        write_atomically(self.folder / NOTES, json.dumps(notes, indent=1, ensure_ascii=False) + "\n")


def plan(combinations: list[Values], notebook: Path, out: Path) -> list[SweepRun]:
    """A run for each combination, in order, each with a folder that says its values."""
    edition = notebook_hash(notebook)
    runs = []
    for values in combinations:
        told = repr((edition, sorted(values.items())))
        key = hashlib.sha256(told.encode()).hexdigest()
        name = ",".join(f"{n}={v}" for n, v in values.items())
        readable = re.sub(r"[^\w.=,-]+", "_", name)[:80].strip("._")
        runs.append(SweepRun(values, key, out / f"{readable}-{key[:8]}"))
    return runs


def notebook_hash(notebook: Path) -> str:
    """A name for what the notebook runs: its cells, without outputs and metadata other than tags."""
    cells = [
        (cell.cell_type, cell.source, sorted(cell.metadata.get("tags", [])))
        for cell in nbformat.read(notebook, as_version=4).cells
        if cell.cell_type == "code"
    ]
    return hashlib.sha256(repr(cells).encode()).hexdigest()


def recorded(notebook: Path) -> dict[str, Any]:
    """What the cells of an executed notebook recorded, by name; the last record of a name counts."""
    found: dict[str, Any] = {}
    for cell in nbformat.read(notebook, as_version=4).cells:
        for output in cell.get("outputs", []):
            record = output.get("data", {}).get(RECORD)
            if isinstance(record, dict):
                values = record.get("values", record)
                found |= values if isinstance(values, dict) else {}
    return found


def jsonable(value: object) -> object:
    """A parameter as JSON has it; what JSON does not have, as text."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value
