"""Reading a checkpoint with all ranks: they try the same one, and take it up together or not at all."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from labkit import collectives
from labkit.parallel.refusals.agreement import agree
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from . import place
from .encode import decode
from .errors import Damaged, NotLoaded
from .manifest import Manifest, parse
from .needs import check, wanted
from .reading import read_part, read_text
from .resuming import take
from .sharing import tell
from .training import Training


@dataclass
class Loaded:
    """What was loaded. ranks: that saved it. skipped: why newer ones were not taken. extra: what `extra` gave then.

    nbytes: of tensors that this rank took. seconds: on this rank.
    """

    step: int
    path: Path
    ranks: int
    skipped: list[str] = field(default_factory=list)
    extra: Any = None
    nbytes: int = 0
    seconds: float = 0.0


def load_newest(training: Training, group: Group, directory: Path, step: int | None) -> Loaded | None:
    """Take up the newest whole and undamaged checkpoint, or the newest of `step`; None where there is none at all.

    Every rank calls it. Raises, on every rank: NotLoaded for one of another model, Damaged where all are damaged.
    """
    begun, skipped = time.perf_counter(), list[str]()
    for name in _candidates(group, directory, step):
        checkpoint = directory / name
        try:
            loaded = _load(training, group, checkpoint)
        except Damaged as why:
            skipped.append(str(why))
            continue
        loaded.skipped, loaded.seconds = skipped, time.perf_counter() - begun
        return loaded
    if skipped:
        raise Damaged(f"no checkpoint in {directory} can be loaded. " + ". ".join(skipped))
    return None


def _candidates(group: Group, directory: Path, step: int | None) -> list[str]:
    said: dict[str, Any] = {"problem": "", "names": []}
    if group.rank == 0:
        try:
            those = place.found(directory)
            said["names"] = [f.path.name for f in those if step is None or f.step == step]
            if step is not None and not said["names"]:
                steps = ", ".join(str(s) for s in sorted({f.step for f in those})[-8:]) or "none"
                said["problem"] = f"there is no checkpoint of step {step} in {directory}; there are: {steps}"
        except OSError as why:
            said["problem"] = f"{directory} cannot be read: {why}"
    told: dict[str, Any] = json.loads(tell(group, json.dumps(said))[0])
    if told["problem"]:
        raise NotLoaded(told["problem"])
    return list(told["names"])


def _load(training: Training, group: Group, checkpoint: Path) -> Loaded:
    saved = _manifest(group, checkpoint)
    wants, problem = [], None
    try:
        wants = wanted(training, saved)
    except NotLoaded as why:
        problem = f"{checkpoint.name}: {why}"
    _all_agree(group, problem, NotLoaded)
    _refuse_more(group, checkpoint, saved, {w.name for w in wants})
    read = {}
    try:
        for want in wants:
            read[want.name] = read_part(checkpoint, saved, want.name, want.slices)
    except Damaged as why:
        problem = str(why)
    _all_agree(group, problem, Damaged)
    before = training.states()
    try:
        check(training, read, saved)
        training.take_states(saved)
    except (NotLoaded, RefusedError, KeyError, TypeError, ValueError) as why:
        problem = f"{checkpoint.name}: {why}"
    try:
        _all_agree(group, problem, NotLoaded)
    except NotLoaded:
        training.put_states(before)
        raise
    take(training, read, saved)
    extra = decode(saved.value("extra", group.rank, group.size))
    return Loaded(saved.step, checkpoint, saved.ranks, extra=extra, nbytes=sum(x.nbytes for x in read.values()))


def _manifest(group: Group, checkpoint: Path) -> Manifest:
    """Read by rank 0, and told to all."""
    said = {"problem": "", "text": ""}
    if group.rank == 0:
        try:
            said["text"] = read_text(checkpoint)
        except Damaged as why:
            said["problem"] = str(why)
    told = json.loads(tell(group, json.dumps(said) if group.rank == 0 else "")[0])
    if told["problem"]:
        raise Damaged(told["problem"])
    try:
        return parse(told["text"])
    except Damaged as why:
        raise Damaged(f"{checkpoint.name}: {why}") from None
    except NotLoaded as why:
        raise NotLoaded(f"{checkpoint.name}: {why}") from None


def _refuse_more(group: Group, checkpoint: Path, saved: Manifest, wanted: set[str]) -> None:
    """Raise NotLoaded on every rank if the checkpoint has parameters or buffers that no rank has."""
    names = sorted(n for n in saved.tensors if n.startswith(("model/", "buffer/")))
    flags = torch.tensor([n in wanted for n in names], dtype=torch.uint8, device=group.device)
    anywhere = collectives.all_reduce(flags, group, "max").tolist() if names else []
    for name, here in zip(names, anywhere, strict=True):
        own = any(w.startswith("own/") and w.endswith(f"/{name}") for w in wanted)
        if not here and not own:
            raise NotLoaded(
                f"{checkpoint.name}: the checkpoint is of another model: it has "
                f"{name.partition('/')[2]!r}, which no rank has here"
            )


def _all_agree(group: Group, problem: str | None, kind: type[NotLoaded]) -> None:
    try:
        agree(group, problem)
    except RefusedError as why:
        raise kind(str(why)) from None
