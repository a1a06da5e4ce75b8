"""What a rank sees of the machine: the interpreter and its libraries, read-only, and a temporary home. Nothing else."""

from __future__ import annotations

import os
import sys

from . import kernel
from .limits import MAX_RANKS

DEVICES = ("null", "zero", "full", "random", "urandom")
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # labkit itself


def readable() -> list[str]:
    """The folders that running Python, PyTorch and labkit takes; the real ones and the names that lead there."""
    roots = {os.path.join(p, "lib") for p in (sys.prefix, sys.base_prefix)}
    roots |= {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", PACKAGE}
    for entry in sys.path:  # of an editable install only labkit: what lies beside it may be solutions
        if os.path.basename(entry) in ("site-packages", "dist-packages"):
            roots.add(entry)
    found = {os.path.abspath(r) for r in roots if os.path.isdir(r)} | {os.path.realpath(r) for r in roots}
    found = {r for r in found if os.path.isdir(r) and r != "/"}
    return sorted(r for r in found if not any(r.startswith(o + "/") for o in found))


def build(root: str) -> None:
    """Make `root` this process's whole file system. It is its own mount namespace, and may mount there."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("labkit", root, "tmpfs", kernel.MS_NOSUID, "size=1m,nr_inodes=4096,mode=0755")
    for path in readable():
        if os.path.islink(path):
            os.makedirs(root + os.path.dirname(path), exist_ok=True)
            os.symlink(os.readlink(path), root + path)
            continue
        _bind(path, root, True)
    for name in DEVICES:
        _bind(f"/dev/{name}", root, False)
    for name in ("/old", *(f"/tmp/{rank}" for rank in range(MAX_RANKS))):
        os.makedirs(root + name, exist_ok=True)
    kernel.pivot_root(root, root + "/old")
    os.chdir("/")
    kernel.unmount("/old")
    os.rmdir("/old")
    kernel.set_attributes("/", kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV, recursive=False)


def _bind(path: str, root: str, folder: bool) -> None:
    target = root + path
    if folder:
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "wb").close()
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)
    attributes = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | (kernel.ATTR_NODEV if folder else kernel.ATTR_NOEXEC)
    kernel.set_attributes(target, attributes)


def fresh_home(path: str, disk: int) -> None:
    """An empty file system in memory at `path`, of `disk` bytes at most."""
    kernel.mount("labkit-home", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC,
                 f"size={disk},nr_inodes=2000,mode=0700")  # fmt: skip
