"""`labkit run`: execute a chapter from top to bottom, with other parameters, and keep the result."""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from labkit.commands import UsageError
from labkit.commands.chapters import find_chapter, notebooks_dir
from labkit.commands.environment import using_our_kernel
from labkit.commands.kept import failing_cell, mark_stopped, short
from labkit.commands.parameters import parse_parameters

FAILED, INTERRUPTED = 1, 130


def run_chapter(
    wanted: str,
    parameters: Sequence[str] = (),
    out: Path | None = None,
    timeout: int = 300,
    notebooks: Path | None = None,
) -> int:
    """Execute chapter `wanted` in a kernel of this interpreter. Returns the exit code of the command.

    parameters: as typed, "name=value". out: the folder for the executed notebook; a new folder
    `runs/DATE-TIME` when None. timeout: seconds, for each cell.

    The executed notebook is kept whatever happens: 0 when every cell ran, 1 when a cell failed, ran
    past its time or lost its kernel, 130 when the run was interrupted. The kernel is gone on return.
    Raises UsageError, before a kernel starts, for a chapter, parameter, value or folder that cannot be.
    """
    chapter = find_chapter(notebooks or notebooks_dir(), wanted)
    values = parse_parameters(parameters, chapter.path)
    kept = _output_folder(out, chapter.path) / chapter.path.name

    settings = ", ".join(f"{name}={value!r}" for name, value in values.items())
    print(f"running {chapter.path.name}" + (f" with {settings}" if settings else ""), flush=True)
    began = time.monotonic()
    problem, code = execute(chapter.path, kept, values, timeout)
    seconds = time.monotonic() - began
    if problem:
        print(problem, file=sys.stderr)
    print(
        f"{'ran' if code == 0 else 'stopped'} after {seconds:.1f} s; the executed notebook: {kept}",
        flush=True,
    )
    return code


def execute(
    source: Path, kept: Path, values: dict[str, object], timeout: int, cwd: Path | None = None
) -> tuple[str, int]:
    """Run every cell in the folder `cwd`, that of `source` when None, and keep the executed notebook as `kept`.

    Returns what went wrong, "" if nothing did, and the exit code.
    """
    import papermill  # slow to import
    from nbclient.exceptions import CellTimeoutError
    from papermill.exceptions import PapermillExecutionError

    try:
        with using_our_kernel(), interrupted_by_signals():
            papermill.execute_notebook(
                _plain(source),
                _plain(kept),
                parameters=values,
                kernel_name="python3",
                language="python",
                cwd=cwd or source.parent,
                execution_timeout=timeout,
                start_timeout=max(60, timeout),
                progress_bar=sys.stderr.isatty(),
            )
    except PapermillExecutionError:
        return _judge(kept)
    except CellTimeoutError:
        return mark_stopped(kept, f"ran longer than {timeout} s; allow more with --timeout"), FAILED
    except KeyboardInterrupt:
        return mark_stopped(kept, "was interrupted"), INTERRUPTED
    except RuntimeError as error:  # the kernel did not start, or died
        return mark_stopped(kept, f"lost its kernel: {short(str(error))}"), FAILED
    return "", 0


def _judge(kept: Path) -> tuple[str, int]:
    """A cell that raised is a failure, unless its tag `raises-exception` says that it is meant to."""
    failure = failing_cell(kept)
    return (failure, FAILED) if failure else ("", 0)


def _plain(path: Path) -> str:
    """papermill fills in {names} in paths; a brace that is part of a folder's name is doubled."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _output_folder(out: Path | None, source: Path) -> Path:
    """Make the folder that keeps the executed notebook. Raises UsageError when that cannot be."""
    folder = (out or Path("runs") / time.strftime("%Y%m%d-%H%M%S")).resolve()
    if folder == source.parent.resolve():
        raise UsageError(f"--out {out}: the executed notebook would replace the chapter; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}; choose a folder that can be written") from error
    return folder


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let a termination or a closed terminal stop the run as Ctrl-C does, so that the kernel is ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
