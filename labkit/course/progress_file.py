"""A JSON file that several kernels change: locked while it changes, replaced in one step, set aside when broken."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCHEMA = 1
PATIENCE = 5.0  # seconds to wait for another kernel's lock
State = dict[str, Any]

# MIGRATIONS[n] turns a state of schema n into one of schema n + 1.
MIGRATIONS: dict[int, Callable[[State], State]] = {}


class ProgressFile:
    """The file at `path`, a state with a "schema" number. What goes wrong is said once each, and never raised."""

    def __init__(self, path: Path, say: Callable[[str], None] = print) -> None:
        self.path, self._say = path, say
        self._said: set[str] = set()
        self._unsaved: State | None = None  # what could not be written lives here
        self._lock = threading.RLock()

    def load(self) -> State:
        """The latest state; a new one where there is no file."""
        with self._lock:
            return self._unsaved if self._unsaved is not None else self._read()

    def change(self, edit: Callable[[State], object]) -> None:
        """Read the file anew, let `edit` change the state in place, and replace the file."""
        with self._lock:
            if self._unsaved is not None:
                edit(self._unsaved)
                return
            state: State | None = None
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self._only_one():
                    state = self._read()
                    edit(state)
                    if self._unsaved is None:
                        self._replace(state)
            except OSError as error:
                self._tell(f"Your progress cannot be saved in {self.path} ({error.strerror or error}). "
                           "It is kept until this kernel ends.")  # fmt: skip
                if state is None:
                    state = self._read()
                    edit(state)
                self._unsaved = state

    def _read(self) -> State:
        try:
            state = json.loads(self.path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return new()
        except OSError as error:
            self._tell(f"Your progress cannot be read from {self.path} ({error.strerror or error}).")
            return new()
        except (ValueError, RecursionError):
            return self._set_aside()
        schema = state.get("schema") if isinstance(state, dict) else None
        if not isinstance(schema, int) or isinstance(schema, bool):
            return self._set_aside()
        if schema > SCHEMA:
            self._tell(f"{self.path} was written by a newer labkit (schema {schema}, this one knows {SCHEMA}). "
                       "It stays as it is. Your progress is kept until this kernel ends: update labkit.")  # fmt: skip
            self._unsaved = new()
            return self._unsaved
        try:
            while state["schema"] < SCHEMA:
                state = {**MIGRATIONS[state["schema"]](state), "schema": state["schema"] + 1}
        except Exception:
            return self._set_aside()
        return state

    def _set_aside(self) -> State:
        """Keep a file that cannot be read under a name of its own, and begin anew."""
        nth = 1
        while (aside := self.path.with_name(f"{self.path.name}.broken-{nth}")).exists():
            nth += 1
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return new()  # another kernel was quicker
        except OSError as error:
            self._tell(f"{self.path} cannot be read as progress, nor moved ({error.strerror or error}).")
            self._unsaved = new()
            return self._unsaved
        self._tell(f"{self.path} could not be read. It now lies in {aside.name}, and your progress begins anew.")
        return new()

    def _replace(self, state: State) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            with open(temporary, "w", encoding="utf-8") as out:
                json.dump(state, out, indent=1, ensure_ascii=False, sort_keys=True)
                out.write("\n")
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, self.path)
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _only_one(self) -> Iterator[None]:
        """Hold the lock file. Raises TimeoutError (an OSError) after `PATIENCE`."""
        with open(self.path.with_name(self.path.name + ".lock"), "a") as lock:
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise TimeoutError(f"another kernel has held {lock.name} for {PATIENCE:g} s") from None
                    time.sleep(0.01)
            yield

    def _tell(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


def new() -> State:
    return {"schema": SCHEMA, "chapters": {}}
