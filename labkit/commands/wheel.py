"""Build the package as a wheel, from a clone of the repository."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from labkit.commands import UsageError
from labkit.commands.kept import short


def build_wheel(project: Path, into: Path) -> Path:
    """The wheel of the project in the folder `project`, without its dependencies, in the folder `into`.

    With hatchling installed nothing is downloaded; else pip fetches it for the build. Raises UsageError with the end of
    pip's own message.
    """
    if not (project / "pyproject.toml").is_file():
        raise UsageError(f"{project} has no pyproject.toml: a bundle is made in a clone of the repository")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--quiet"]
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    done = subprocess.run([*pip, *isolation, "-w", str(into), str(project)], capture_output=True, text=True)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise UsageError(f"pip could not build the wheel of {project}:\n{short(done.stderr[-2000:])}")
    return wheels[0]
