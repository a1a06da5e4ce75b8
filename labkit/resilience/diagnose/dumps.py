"""The files of PyTorch's flight recorder, one a rank, read as plain data.

What PyTorch 2.13 has (format 2.10). What is said of gloo was found by trying on the CPU build, which has no other
recorder; what is said of NCCL is from PyTorch's sources (`FlightRecorder.hpp`, `flight_recorder/components/types.py`).

- It records by itself, up to `TORCH_FR_BUFFER_SIZE` entries (2000; 0 turns it off; the older name is
  `TORCH_NCCL_TRACE_BUFFER_SIZE`). `torch._C._distributed_c10d._dump_fr_trace()` returns a rank's buffer as a pickle,
  `_dump_fr_trace_json()` as JSON without frames. Gloo writes no file by itself. NCCL's watchdog does after a time-out,
  to `TORCH_FR_DUMP_TEMP_FILE` with the rank behind it.
- A dump has `version`, `entries`, `pg_config` (group -> name, desc, ranks), `pg_status` (of each group the last
  operation enqueued, started and completed) and `comm_lib_version`; that of an NCCL job also has `nccl_comm_state`.
- An entry has `record_id` (counted by rank), `pg_id`, `process_group` (name, description), `collective_seq_id` (counted
  by group), `p2p_seq_id`, `op_id`, `is_p2p`, `profiling_name` ("gloo:all_reduce", "nccl:send 0->1"), sizes and dtypes
  of inputs and outputs, `state` (scheduled, started, completed), `retired`, three times in ns, `timeout_ms`, the
  thread, and `frames`. The root of a call and the op of a reduction are not recorded.
- Gloo's entries stay "scheduled" for ever, and `retired` says that they have ended, well or not. It does not record
  `send`, `recv` and `monitored_barrier`, writes down a reduce-scatter as an `all_reduce` of each part, and its groups
  into `pg_config` without their names, each over the last one. NCCL's entries are completed when they have ended well,
  and one that is retired and not completed has timed out. Its messages are recorded, with places in their group.
- `torchfrtrace DIR` (`torch.distributed.flight_recorder.fr_trace`) compares dumps. On gloo's it ends with a KeyError,
  because it looks up the names that are missing. `torch.distributed.debug` serves dumps and stacks over HTTP.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.wire.errors import RefusedError
from labkit.world.diagnosis.explain import ranks_text

MAJOR = 2  # of the format, whose minor numbers only add fields (FlightRecorder.hpp)
_NAME = re.compile(r"(?P<prefix>.*?)(?P<rank>\d+)(?:\.json|\.pkl|\.pickle)?")
_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "Byte": "uint8", "Char": "int8", "Short": "int16",
    "Int": "int32", "Long": "int64", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One operation of a rank. number: how many it had recorded before. group: (name, description). seq: the number of
    the collective in its group. name: without the library. message: (way, place of this rank in the group, place of its
    peer), or (). p2p, batch: it is one, or ends a batch of them, which have this number in common.

    inputs, outputs: (dtype, shape) of each tensor. created: ns since 1970. timeout: ms. where: `train.py:31`, or "".
    """

    number: int
    group: tuple[str, str]
    seq: int
    p2p: bool
    batch: int
    library: str
    name: str
    message: tuple[str, int, int] | tuple[()]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    state: str
    ended: bool
    created: int
    timeout: int
    where: str


@dataclass(frozen=True)
class Dump:
    """What one rank had recorded. groups: name -> its ranks, as far as they are recorded. enqueued: the most operations
    that one of its groups has counted, entries or not."""

    rank: int
    file: str
    version: str
    groups: Mapping[str, tuple[int, ...]]
    entries: tuple[Entry, ...]
    enqueued: int

    @property
    def whole(self) -> int:
        """All entries from this number on are here; 0 where the buffer has not wrapped."""
        return self.entries[0].number if self.entries else int(self.enqueued > 0)


def read_dumps(folder: str | Path, prefix: str | None = None) -> dict[int, Dump]:
    """The dumps in `folder`, by rank: files called PREFIX and a number, as pickles or as JSON.

    prefix: needed only where files of several prefixes lie there. Raises RefusedError, in a sentence, for files that
    are no dumps, cut off, or in a format that is not known, and for several formats at once.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RefusedError(f"there is no folder {folder}: give the one that has a dump of each rank")
    named = [(m["prefix"], int(m["rank"]), p) for p in sorted(folder.iterdir()) if (m := _NAME.fullmatch(p.name))]
    prefixes = sorted({p for p, _, _ in named})
    if prefix is None and len(prefixes) > 1:
        raise RefusedError(f"{folder} has dumps of several prefixes, {' and '.join(map(repr, prefixes))}, which may be "
                           "of several jobs: choose one with prefix=")  # fmt: skip
    found: dict[int, Dump] = {}
    for before, rank, path in named:
        if prefix is not None and before != prefix:
            continue
        if rank in found:
            raise RefusedError(f"{found[rank].file} and {path.name} are both of rank {rank}: keep one of them")
        found[rank] = _dump(rank, path)
    if not found:
        raise RefusedError(f"{folder} has no file called {prefix or 'PREFIX_'}RANK, as PyTorch names its dumps")
    versions = {d.version: d for d in found.values()}
    if len(versions) > 1:
        told = "; ".join(f"{ranks_text([r for r, d in found.items() if d.version == v])} in {v}" for v in versions)
        raise RefusedError(f"the dumps are written in different formats, so not by one job: {told}")
    return found


class _PlainUnpickler(pickle.Unpickler):
    """Builds dicts, lists, tuples, texts and numbers. A pickle that names anything else could run it."""

    def find_class(self, module: str, name: str) -> Any:
        raise RefusedError(f"it asks for {module}.{name}, while a dump holds plain data only; it was not loaded, "
                           "because a pickle can run what it names")  # fmt: skip


def _dump(rank: int, path: Path) -> Dump:
    data = path.read_bytes()
    try:
        raw = _PlainUnpickler(io.BytesIO(data)).load() if data[:1] == b"\x80" else json.loads(data)
    except RefusedError as why:
        raise RefusedError(f"{path.name} is refused: {why}") from None
    except Exception as why:  # an unpickler raises whatever the bytes lead it to
        raise RefusedError(f"{path.name} cannot be read to its end, it is cut off or no dump "
                           f"({type(why).__name__}: {why})") from why  # fmt: skip
    try:
        version = raw["version"]
        if int(version.partition(".")[0]) != MAJOR:
            raise RefusedError(f"{path.name} is written in format {version}; {MAJOR}.x can be read")
        entries = tuple(sorted(map(_entry, raw["entries"]), key=lambda e: e.number))
        groups = {name: tuple(json.loads(found["ranks"])) for name, found in raw["pg_config"].items()}
        enqueued = max((int(s["last_enqueued_collective"]) for s in raw.get("pg_status", {}).values()), default=0)
    except RefusedError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as why:
        raise RefusedError(
            f"{path.name} is no dump of PyTorch's flight recorder ({type(why).__name__}: {why})"
        ) from why
    if entries and entries[-1].number - entries[0].number >= len(entries):
        raise RefusedError(f"{path.name} has gaps, as a dump of active operations only has: write it with all of them, "
                           "because what has ended tells who is behind")  # fmt: skip
    return Dump(rank, path.name, version, groups, entries, enqueued)


def _entry(raw: Mapping[str, Any]) -> Entry:
    library, _, name = raw["profiling_name"].partition(":")
    message = _MESSAGE.fullmatch(name)
    group, description = raw["process_group"]
    ended = raw["state"] == "completed" or (library == "gloo" and bool(raw["retired"]))
    return Entry(
        int(raw["record_id"]), (str(group), str(description)), int(raw["collective_seq_id"]),
        bool(raw.get("is_p2p", message)), int(raw["p2p_seq_id"]), library, name,
        (message[1], int(message[2]), int(message[3])) if message else (), _tensors(raw, "input"),
        _tensors(raw, "output"), str(raw["state"]), ended, int(raw["time_created_ns"]), int(raw.get("timeout_ms", 0)),
        _where(raw.get("frames", ())),
    )  # fmt: skip


def _tensors(raw: Mapping[str, Any], side: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    sizes, dtypes = raw[f"{side}_sizes"], raw[f"{side}_dtypes"]
    return tuple((_DTYPES.get(d, d.lower()), tuple(map(int, s))) for d, s in zip(dtypes, sizes, strict=True))


def _where(frames: Any) -> str:
    """The innermost line that is neither PyTorch's own nor of what writes its calls down for labkit."""
    own = (f for f in frames if not any(lib in f["filename"] for lib in ("/torch/", "/labkit/wire/")))
    return next((f"{Path(f['filename']).name}:{f['line']}" for f in own), "")
