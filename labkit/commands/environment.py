"""Environment variables under which Jupyter finds this environment's kernel, and labkit's settings.

`labkit/commands/jupyter` holds a `python3` kernel whose interpreter Jupyter takes from the process that
starts it. Standing first on the search path, it wins over a `python3` kernel that the reader once
registered from another environment, where labkit is not installed. The same folder turns off the
question about news that JupyterLab would otherwise ask in front of the first chapter, follows the system's light or
dark theme, saves every 30 seconds, and keeps headings of outputs out of the list of contents. A reader's own
settings win over these. The programs of this environment, such as `labkit` and `torchrun`, come first on PATH, in
cells and in terminals.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SETTINGS = Path(__file__).with_name("jupyter")


def jupyter_environment(base: Mapping[str, str]) -> dict[str, str]:
    """`base` with labkit's folder in front of Jupyter's search paths for kernels and configuration, and with the folder
    of this interpreter in front of PATH."""
    environment = dict(base)
    for name in ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH"):
        rest = environment.get(name)
        environment[name] = f"{SETTINGS}{os.pathsep}{rest}" if rest else str(SETTINGS)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return environment


@contextmanager
def answers_in(solutions: Path) -> Iterator[None]:
    """Answers of programs (`labkit.grading.known`) are in that folder inside, for processes that are started too."""
    before = os.environ.get("LABKIT_SOLUTIONS")
    os.environ["LABKIT_SOLUTIONS"] = str(solutions)
    try:
        yield
    finally:
        os.environ.pop("LABKIT_SOLUTIONS")
        if before is not None:
            os.environ["LABKIT_SOLUTIONS"] = before


@contextmanager
def using_our_kernel() -> Iterator[None]:
    """Start kernels from this interpreter inside; the environment is as before afterwards."""
    before = dict(os.environ)
    os.environ.update(jupyter_environment(before))
    os.environ["LABKIT_HEADLESS"] = "1"  # nobody will move a slider: figures take their still form
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
