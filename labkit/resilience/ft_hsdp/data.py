"""Which samples a replica trains: numbers from a stream of its own, each of them once.

Replica r's stream is r, r + replicas, r + 2 replicas, ...: the streams share out all numbers. Position p of it is
number r + p * replicas. How many positions of each stream are consumed is part of the training state, so who takes over
a state also learns what was consumed. The file `loader_state` says the same to those who look from outside, and to a
replica that starts: it can prepare its first batch before it checks in.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.resilience.quorum import Quorum
from labkit.wire.errors import RefusedError


def numbers(replica: int, position: int, batch: int, replicas: int) -> Tensor:
    """The sample numbers of positions [position, position + batch) of a stream: int64 of shape (batch,)."""
    if not 0 <= replica < replicas or position < 0 or batch < 1:
        raise RefusedError(
            f"numbers(replica={replica}, position={position}, batch={batch}, replicas={replicas}): needs a "
            "replica below replicas, a position of at least 0 and a batch of at least 1"
        )
    return replica + replicas * torch.arange(position, position + batch)


def draw_from(seed: int, replica: int, position: int) -> None:
    """Set torch's random numbers for one batch: the same whoever trains it, and whenever it is trained again."""
    torch.manual_seed((seed * 1_000_003 + replica) * 1_000_000_007 + position)


def write_loader_state(folder: Path, replica: int, found: dict[str, Any]) -> None:
    """Put what the leader of `replica` knows into its file, all or nothing."""
    path = folder / f"loader_state.{replica}.json"
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_text(json.dumps(found))
        os.replace(part, path)
    except OSError as why:
        raise RefusedError(
            f"{path} cannot be written: {why.strerror}. Name a folder with room in which this process may write"
        ) from why


def read_loader_state(folder: Path) -> dict[str, Any] | None:
    """The newest that the leader of any replica wrote; None where there is nothing to read.

    A hint, not the truth: positions that count come with the state.
    """
    found = []
    for path in folder.glob("loader_state.*.json"):
        try:
            found.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue
    return max(found, key=lambda f: f["step"], default=None)


# -- notes of the leaders --------------------------------------------------------------------------------------------


def note_quorum(folder: Path, replica: int, quorum: Quorum) -> None:
    """Write down who is in a quorum, before anything is exchanged in it."""
    members = [(m.replica, m.incarnation, m.step) for m in quorum.members]
    with (folder / f"quorums.{replica}.jsonl").open("a") as file:
        file.write(json.dumps({"quorum": quorum.id, "members": members}) + "\n")


def read_quorums(folder: Path) -> dict[int, list[tuple[int, int, int]]]:
    """Quorum id -> (replica, incarnation, step) of its members, in their order, from the notes of all leaders."""
    found = {}
    for path in sorted(folder.glob("quorums.*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                said = json.loads(line)
            except ValueError:  # its leader was killed in the middle of it
                continue
            found[said["quorum"]] = [(int(r), int(i), int(s)) for r, i, s in said["members"]]
    return found


# -- the end of a run ------------------------------------------------------------------------------------------------


def write_finished(folder: Path, run: str, steps: int) -> None:
    """Say that run `run` has all its steps behind it."""
    part = folder / f"finished.{os.getpid()}.part"
    part.write_text(json.dumps({"run": run, "steps": steps}))
    os.replace(part, folder / "finished.json")


def is_finished(folder: Path, run: str) -> bool:
    """Whether this run (another one may have used the folder before) has."""
    try:
        return bool(json.loads((folder / "finished.json").read_text())["run"] == run)
    except (OSError, ValueError, KeyError):
        return False
