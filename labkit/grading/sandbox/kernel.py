"""System calls that Python 3.11 does not offer, by ctypes. Linux only; importing this file is harmless elsewhere."""

from __future__ import annotations

import ctypes
import os
from typing import Any

CLONE = {"mount": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_SETATTR = 442  # the same on all architectures, as all calls since 424
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_GET_SECCOMP = 24, 47, 21


def call(name: str, *args: Any) -> int:
    """A function of the C library that returns -1 and errno. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    made = int(getattr(libc, name)(*args))
    if made < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return made


def syscall(number: int, *args: Any) -> int:
    """A system call by its number. Raises OSError."""
    return call("syscall", ctypes.c_long(number), *args)


def unshare(*kinds: str) -> None:
    """Leave the namespaces of these kinds for new ones. A new one of processes begins with the next child."""
    flags = 0
    for kind in kinds:
        flags |= CLONE[kind]
    call("unshare", flags)


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    call(
        "mount", source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags),
        options.encode() if options else None,
    )  # fmt: skip


def unmount(target: str) -> None:
    call("umount2", target.encode(), MNT_DETACH)


def set_attributes(target: str, attributes: int, recursive: bool = True) -> None:
    """Add mount attributes (read-only, ...) to a mount, and to all below it (Linux 5.12)."""
    values = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    syscall(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), ctypes.c_uint(flags), ctypes.byref(values), ctypes.c_size_t(32))


def pivot_root(new: str, old: str) -> None:
    syscall(_PIVOT_ROOT[os.uname().machine], new.encode(), old.encode())


def prctl(option: int, *args: int) -> int:
    return call("prctl", option, *(ctypes.c_ulong(a) for a in (*args, 0, 0, 0, 0)[:4]))


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def capabilities() -> tuple[int, int, int]:
    """(effective, permitted, inheritable) of this process, as bit masks."""
    header, data = _CapHeader(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call("capget", ctypes.byref(header), data)
    return tuple(data[i] | data[i + 3] << 32 for i in range(3))  # type: ignore[return-value]


def drop_capabilities() -> None:
    """All of them, for good: also those that a program could be given on exec, and those that would be inherited."""
    prctl(PR_CAP_AMBIENT, 4)
    for number in range(64):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError:
            break  # no such capability, or not ours to drop
    header = _CapHeader(0x20080522, 0)
    call("capset", ctypes.byref(header), (ctypes.c_uint32 * 6)())
