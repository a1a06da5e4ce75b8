#!/usr/bin/env python3
"""Install labkit for this class: `python3 install.py`, in the folder of the archive.

It makes the environment .venv here. Where the archive came with a folder `wheels`, nothing is downloaded.
"""

import subprocess
import sys
import venv
from pathlib import Path


def main() -> int:
    here = Path(__file__).resolve().parent
    if sys.version_info < (3, 11):  # noqa: UP036  (a student may have any Python)
        print("labkit needs Python 3.11 or newer: run this with python3.11 or later", file=sys.stderr)
        return 1
    package = next((here / "package").glob("labkit-*.whl"))
    environment = here / ".venv"
    venv.create(environment, with_pip=False, clear=True)
    programs = environment / ("Scripts" if sys.platform == "win32" else "bin")
    command = [sys.executable, "-m", "pip", "--python", programs / "python"]  # also where a Python lacks ensurepip
    command += ["--disable-pip-version-check", "install", package]
    command += ["-c", here / "constraints.txt"]
    if (here / "wheels").is_dir():
        command += ["--no-index", "--find-links", here / "wheels"]
    done = subprocess.run([str(word) for word in command], cwd=here)
    if done.returncode == 0:
        print(f"\nInstalled. Open the first chapter with\n    {programs / 'labkit'} lab")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
