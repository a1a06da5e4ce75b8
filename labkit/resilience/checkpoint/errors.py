"""What a checkpoint refuses. All are `RefusedError`, are raised on every rank alike, and leave everything as it was."""

from __future__ import annotations

from labkit.wire.errors import RefusedError


class NotSaved(RefusedError):
    """A checkpoint that was not written: a full disk, no permission, another writer. Training can go on and save later.

    Those that were there before are untouched.
    """


class NotLoaded(RefusedError):
    """A checkpoint that does not fit what it should be loaded into. The model, optimizer and so on are as before."""


class Damaged(NotLoaded):
    """A checkpoint that is not what was written: cut short, a changed byte, a missing file."""
