"""Looking at checkpoints from anywhere, a notebook say: no rank and no model is needed."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from . import place
from .errors import Damaged, NotLoaded
from .reading import open_manifest, problems, read_whole


def available(directory: str | Path) -> list[place.Found]:
    """The whole checkpoints in a run's directory, the newest first. What is in them is not looked at."""
    return place.found(Path(directory))


def read(directory: str | Path, prefix: str = "model/") -> dict[str, Tensor]:
    """Whole tensors from the newest checkpoint that is good, by the names of the plain model.

    directory: of a run, or of one checkpoint. prefix: "model/", "buffer/", "optimizer/exp_avg/", ...; "" for
    everything under its full name. Raises NotLoaded if there is none, Damaged if none is good.
    """
    skipped = []
    for checkpoint in _those(Path(directory)):
        try:
            saved = open_manifest(checkpoint)
            found = dict(read_whole(checkpoint, saved, prefix))
        except Damaged as why:
            skipped.append(str(why))
            continue
        if not found:
            kinds = sorted({name.rpartition("/")[0].partition("/")[0] for name in saved.tensors})
            raise NotLoaded(f"{checkpoint.name} has nothing under {prefix!r}; it has {', '.join(kinds)}")
        return found
    raise Damaged(". ".join(skipped))


def check(directory: str | Path) -> dict[str, list[str]]:
    """What is wrong with each checkpoint, by the name of its directory; nothing is wrong with those whose list is
    empty. All of every file is read."""
    return {checkpoint.name: problems(checkpoint) for checkpoint in _those(Path(directory))}


def _those(directory: Path) -> list[Path]:
    if place.NAME.fullmatch(directory.name):
        return [directory]
    found = [f.path for f in place.found(directory)]
    if not found:
        raise NotLoaded(f"there is no checkpoint in {directory}")
    return found
