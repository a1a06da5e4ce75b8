"""`labkit sweep`: run a chapter for all combinations of some values, and collect what it recorded."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from labkit.commands import UsageError
from labkit.commands.chapters import Chapter, find_chapter, notebooks_dir
from labkit.commands.run import FAILED, INTERRUPTED, interrupted_by_signals
from labkit.commands.sweeping.grid import grid
from labkit.commands.sweeping.report import report
from labkit.commands.sweeping.run import SweepRun, plan, recorded

PATIENCE = 20.0  # seconds that interrupted runs get to end their kernels
CORES_EACH = 4  # one run starts a world of processes: that many cores make room for one more run


def sweep(
    wanted: str,
    parameters: Sequence[str],
    jobs: int | None = None,
    out: Path | None = None,
    timeout: int = 300,
    notebooks: Path | None = None,
) -> int:
    """Run chapter `wanted` once for each combination of the values in `parameters`. Returns the exit code.

    parameters: as typed, "name=value,value". jobs: runs at a time; by the cores when None. out: where runs and results
    go, `runs/sweep_NN_name` when None. A run that an earlier sweep finished there, with the same values and the same
    cells, is not repeated. timeout: seconds, for each cell.

    0 when every run ended well, 1 when one failed (the others still run), 130 when interrupted; then no kernel is left,
    and what is finished is kept. Raises UsageError, before anything runs, for what cannot be.
    """
    chapter = find_chapter(notebooks or notebooks_dir(), wanted)
    combinations = grid(parameters, chapter.path)
    folder = _folder(out, chapter)
    with _only_one(folder), tempfile.TemporaryDirectory() as temporary:
        snapshot = Path(temporary) / chapter.path.name  # an edit while the sweep goes on would mix two editions
        snapshot.write_bytes(chapter.path.read_bytes())
        runs = plan(combinations, snapshot, folder)
        waiting = [run for run in runs if not run.recall()]
        done = len(runs) - len(waiting)
        print(f"{len(runs)} runs of {chapter.path.stem}" + (f", {done} finished before" if done else ""), flush=True)
        interrupted = False
        ctrl_c = signal.getsignal(signal.SIGINT)
        try:
            with interrupted_by_signals():
                _run_all(waiting, snapshot, chapter.path.parent, jobs or default_jobs(), timeout)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, ctrl_c)
        report(chapter, runs, folder)
    if interrupted:
        print("interrupted: the same command goes on where this one stopped", file=sys.stderr)
        return INTERRUPTED
    return 0 if all(run.status == "ran" for run in runs) else FAILED


def default_jobs() -> int:
    """How many runs this machine's cores can carry at a time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // CORES_EACH)


def _run_all(waiting: list[SweepRun], source: Path, cwd: Path, jobs: int, timeout: int) -> None:
    """Execute the runs, `jobs` at a time. On an interrupt all that were started are ended first."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    queue = list(waiting)
    working: dict[subprocess.Popen[str], tuple[SweepRun, float]] = {}
    bar = tqdm(total=len(waiting), unit="run", disable=not sys.stderr.isatty(), leave=False)
    try:
        while queue or working:
            while queue and len(working) < jobs:
                run = queue.pop(0)
                working[_start(run, source, cwd, timeout)] = (run, time.monotonic())
            for process in [process for process in working if process.poll() is not None]:
                run, began = working.pop(process)
                run.seconds = time.monotonic() - began
                _finish(run, process, source.name)
                with bar.external_write_mode(file=sys.stdout):
                    print(f"{run.status:>6}  {run.seconds:6.1f} s  {run.label}", flush=True)
                    if run.problem:
                        print(f"        {run.problem}", flush=True)
                bar.update()
            time.sleep(0.05)
    finally:
        bar.close()
        _end(working)


def _start(run: SweepRun, source: Path, cwd: Path, timeout: int) -> "subprocess.Popen[str]":
    run.folder.mkdir(parents=True, exist_ok=True)
    for old in (run.folder / "run.json", run.folder / source.name):
        old.unlink(missing_ok=True)
    with open(run.folder / "errors.txt", "w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "labkit.commands.sweeping.one_run"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, text=True,
            start_new_session=True,  # Ctrl-C reaches the sweep alone, which then ends its runs in order
        )  # fmt: skip
    task = (str(source), str(run.folder / source.name), str(cwd), run.values, timeout)
    with suppress(BrokenPipeError):  # it died at once: its exit code says so
        _pipe(process).write(f"{task!r}\n")
        _pipe(process).flush()
    return process


def _finish(run: SweepRun, process: "subprocess.Popen[str]", name: str) -> None:
    """Note how a run ended, and what it recorded until then."""
    with suppress(BrokenPipeError):
        _pipe(process).close()
    errors = run.folder / "errors.txt"
    run.problem = errors.read_text(encoding="utf-8", errors="replace").strip()
    if process.returncode == 0:
        run.status, run.problem = "ran", ""
        errors.unlink()
    else:
        run.status = "interrupted" if process.returncode == INTERRUPTED else "failed"
        run.problem = run.problem or f"its process ended with code {process.returncode}"
    kept = run.folder / name
    run.records = recorded(kept) if kept.exists() else {}
    run.note()


def _end(working: "dict[subprocess.Popen[str], tuple[SweepRun, float]]") -> None:
    """End what still runs; each run ends its own kernel, and the kernel its ranks. A second interrupt waits, too."""
    if working and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    for process in working:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    for process, (run, _) in working.items():
        run.status = "interrupted"
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(BrokenPipeError):
            _pipe(process).close()


def _pipe(process: "subprocess.Popen[str]") -> IO[str]:
    assert process.stdin is not None
    return process.stdin


def _folder(out: Path | None, chapter: Chapter) -> Path:
    folder = (out or Path("runs") / f"sweep_{chapter.path.stem}").resolve()
    if folder == chapter.path.parent.resolve():
        raise UsageError(f"--out {out}: that folder holds the chapters; choose another one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}; choose a folder that can be written") from error
    return folder


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Keep a second sweep out of the same folder."""
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another sweep is running in {folder}: wait for it, or give another --out") from None
        yield
