"""Run a command as an ordinary user, where the tests run as root and the interpreter lies in root's folders.

A child leaves the mount namespace and lays a folder that may be searched over every closed one on the way to what it
needs; nothing outside that child changes. Then it becomes the user.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from labkit.grading.sandbox import kernel

UID = 54321
REPOSITORY = Path(__file__).parents[2]


def run(command: list[str], timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command's output, as user UID."""
    with tempfile.TemporaryDirectory(prefix="labkit-ordinary-") as scratch:
        os.chmod(scratch, 0o755)
        home = os.path.join(scratch, "home")
        os.mkdir(home, 0o700)
        os.chown(home, UID, UID)
        inner = {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", **environment}
        me = [sys.executable, "-B", __file__, scratch, *command]
        return subprocess.run(me, timeout=timeout, env=inner, cwd=REPOSITORY, capture_output=True, text=True)


def become_ordinary(scratch: str) -> None:
    """Open the way to the interpreter and the repository, in a mount namespace of this process's own; drop the user."""
    needed = sorted({os.path.realpath(p) for p in (sys.base_prefix, sys.prefix, str(REPOSITORY))})
    kernel.unshare("mount")
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    tops = {"/" + p.split("/")[1] for p in needed}
    for top in sorted(t for t in tops if not os.stat(t).st_mode & 1):
        stage = scratch + "/stage"
        os.makedirs(stage, exist_ok=True)
        kernel.mount(top, stage, None, kernel.MS_BIND | kernel.MS_REC)
        kernel.mount("tmpfs", top, "tmpfs", 0, "mode=0755")
        for path in (p for p in needed if p.startswith(top + "/")):
            os.makedirs(path, exist_ok=True)
            kernel.mount(stage + path[len(top) :], path, None, kernel.MS_BIND | kernel.MS_REC)
        kernel.unmount(stage)
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


if __name__ == "__main__":
    become_ordinary(sys.argv[1])
    os.execv(sys.argv[2], sys.argv[2:])
