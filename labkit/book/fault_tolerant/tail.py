"""The audit log of a run that goes on, read as it grows."""

from __future__ import annotations

from pathlib import Path

from labkit.resilience.audit.records import Line, parse
from labkit.wire.errors import RefusedError


class Tail:
    """What the leaders (rank 0 of each replica) have written so far. `read` looks only at what is new.

    A line that is not finished is left for the next look. When the folder is gone, the lines that were read stay.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[Line] = []
        self._at: dict[str, int] = {}

    def read(self) -> list[Line]:
        """All lines so far, those of one replica in order."""
        for path in sorted(self.folder.glob("audit-*-0000.jsonl")):
            try:
                with path.open("rb") as file:
                    file.seek(self._at.get(path.name, 0))
                    raw = file.read()
            except OSError:  # the run is over, and its folder goes
                continue
            whole = raw.rfind(b"\n") + 1
            self._at[path.name] = self._at.get(path.name, 0) + whole
            for text in raw[:whole].decode(errors="replace").splitlines():
                try:
                    self.lines.append(parse(text))
                except RefusedError:  # its rank was killed in the middle of it
                    continue
        return self.lines
