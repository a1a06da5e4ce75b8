"""What all tests share: functions of test files travel to ranks by value, nothing may be left behind, two fixtures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import nbval.kernel
import psutil
import pytest
from hypothesis import HealthCheck, settings
from leftovers import eventually, left_in_memory, ranks_of, shared_memory, zombies
from slices import LONG

WATCHED = {"world", "wire", "chaos", "resilience"}

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a script; some tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One profile, the same examples in every run; `make test-all` draws many, and new ones each time.
settings.register_profile(
    "labkit", deadline=None, derandomize=not LONG, database=None, max_examples=200 if LONG else 20,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
settings.load_profile("labkit")


_start_new_kernel = nbval.kernel.start_new_kernel


def start_new_kernel(**how: Any) -> Any:
    """A second time, when another took its port: it is chosen first, and bound by the kernel a second later."""
    try:
        return _start_new_kernel(**how)
    except RuntimeError as why:
        if "Kernel died" not in str(why):
            raise
        return _start_new_kernel(**how)


nbval.kernel.start_new_kernel = start_new_kernel

LONGEST = ("browser", "notebooks", "grading", "resilience", "parallel")  # these files begin first


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((n for n, room in enumerate(LONGEST) if room in item.path.parts), len(LONGEST)))
    # By reference, every rank would import the test file, and pytest and hypothesis with it.
    for module in {item.module.__name__ for item in items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(sys.modules[module])


@pytest.fixture(autouse=True)
def only_what_is_marked_starts_ranks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make check` is quick because a test that starts a world without the mark `ranks` fails, everywhere."""
    if request.node.get_closest_marker("ranks") is None and isinstance(request.node, pytest.Function):
        monkeypatch.setattr("labkit.forkserver.Zygote.host", _unmarked)


def _unmarked(*call: object) -> None:
    pytest.fail("this test starts ranks: give it, or its file, the mark `ranks`")


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test of real processes: no rank, no host, no zombie, no name in /dev/shm."""
    if request.path.parent.name not in WATCHED or request.node.get_closest_marker("ranks") is None:
        yield
        return
    from labkit.world.engine import _zygote, launch

    if _zygote._process is None:
        launch(_nothing, 1)  # no test measures the start of PyTorch
    before = shared_memory()
    yield
    worker = _zygote._process.pid if _zygote._process is not None else -1
    assert eventually(lambda: not ranks_of(worker)), f"still there: {ranks_of(worker)}"
    assert eventually(lambda: not zombies()), f"not buried: {zombies()}"
    assert eventually(lambda: not left_in_memory(before, worker)), f"in /dev/shm: {left_in_memory(before, worker)}"


def _nothing(group: object) -> None: ...


class CommandLine:
    """The command `labkit`, typed into this process. opened: what `lab` would have turned this process into."""

    def __init__(self, notebooks: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.notebooks, self.capfd = notebooks, capfd
        self.opened: list[tuple[Any, ...]] = []

    def __call__(self, *words: object) -> tuple[Any, str, str]:
        """Type a command; get (exit code, standard output, standard error). No kernel may be left."""
        from labkit.cli import main

        before = set(psutil.Process().children(recursive=True))
        try:
            code: Any = main([str(word) for word in words], notebooks=self.notebooks)
        except SystemExit as stop:  # argparse
            code = stop.code
        left = [p for p in psutil.Process().children(recursive=True) if p not in before]
        assert [p for p in left if "ipykernel" in " ".join(p.cmdline())] == []
        return code, *self.capfd.readouterr()


@pytest.fixture
def labkit(notebooks: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line on the edition of the book in `notebooks`, a fixture of the file that asks for this one."""
    typed = CommandLine(notebooks, capfd)
    monkeypatch.setattr("os.execve", lambda *call: typed.opened.append(call))
    return typed


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests that need one; Playwright cannot run twice in a process."""
    from browser.lab import browsing, missing

    if why := missing():
        pytest.skip(why)
    with browsing() as started:
        yield started
