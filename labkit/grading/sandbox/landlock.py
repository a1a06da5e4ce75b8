"""Landlock: what an unprivileged process can forbid itself about files, signals and sockets, for good (Linux 5.13)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from . import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on all architectures
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _MAKE_SYM = 16, 32, 128, 256, 4096
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
LEAST = 3  # before, files could be cut to nothing


def version() -> int:
    """Of the kernel's Landlock; 0 if there is none."""
    try:
        return kernel.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def confine(readable: Iterable[str], home: str) -> int:
    """Read only below `readable`; write only below `home`, where nothing can be removed. Returns Landlock's version.

    Nothing can be removed so that what lies there is all that was written, and can be counted.
    From version 4 on TCP is forbidden, from 6 on signals and abstract Unix sockets to the outside. Raises OSError.
    """
    abi = version()
    if abi < LEAST:
        raise OSError(38, f"Landlock {abi or 'is not there'}: version {LEAST} is needed")
    everything = (1 << (16 if abi >= 5 else 15)) - 1
    attributes = (ctypes.c_uint64 * 3)(everything, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = kernel.syscall(_CREATE, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in readable:
            _allow(ruleset, path, _READ_FILE | _READ_DIR)
        _allow(ruleset, home, _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _MAKE_DIR | _MAKE_REG | _MAKE_SYM)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.syscall(_RESTRICT, ruleset, ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    return abi


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            access &= _READ_FILE | _WRITE_FILE
        rule = ctypes.create_string_buffer(access.to_bytes(8, "little") + fd.to_bytes(4, "little"), 12)
        kernel.syscall(_ADD, ruleset, 1, rule, ctypes.c_uint32(0))
    finally:
        os.close(fd)
