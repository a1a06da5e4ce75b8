"""The system calls that a rank may make: a list of those that computing, threads, files and its own sockets need.

Everything else is refused with EPERM: no new process and no program, no socket to anywhere, nothing that looks into or
signals another process, no mounts, no keys, no memory outside the counted kinds. The filter is made in the rank
itself, because it names the rank's own process id, and it cannot be taken off again.
"""

from __future__ import annotations

import ctypes
import os
import struct

from . import kernel
from .syscalls import ARCHITECTURES, NUMBERS

ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev lseek close close_range fstat stat lstat newfstatat access
faccessat faccessat2 statx statfs fstatfs readlink readlinkat getdents getdents64 getcwd chdir fchdir mkdir mkdirat
rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat ftruncate truncate fsync fdatasync
fallocate fadvise64 sendfile copy_file_range dup dup2 dup3 pipe pipe2 poll ppoll select pselect6 epoll_create
epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 mmap munmap mprotect mremap madvise brk msync futex
futex_waitv set_robust_list get_robust_list rseq set_tid_address membarrier sched_yield sched_getaffinity
sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min getcpu get_mempolicy clock_gettime
clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage getrlimit sysinfo uname umask getpid getppid
gettid getuid geteuid getgid getegid getgroups getresuid getresgid getpgrp getpgid getsid getpriority capget getrandom
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause alarm setitimer
getitimer exit exit_group restart_syscall arch_prctl sendmsg recvmsg sendto recvfrom shutdown getsockopt setsockopt
getsockname getpeername wait4 waitid
""".split()
NOT_THERE = ["clone3", "openat2"]  # the C library then uses the older calls, whose arguments a filter can see

_LD_W, _JEQ, _JGE, _JSET, _AND, _RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_X32 = 0x40000000
_TMPFILE = 0o20000000
_THREAD, _FRESH = 0x10000, 0x7E020000  # CLONE_THREAD; all flags that make namespaces
_INSTRUCTION = struct.Struct("=HBBI")
# fcntl: duplicates, flags, the size of a pipe; not F_SETOWN and its like, which direct signals, nor locks, by which
# ranks could tell each other things on files that all of them may read
_FCNTL = [0, 1, 2, 3, 4, 1030, 1032]
_IOCTL = [0x541B, 0x5401, 0x5421, 0x5450, 0x5451, 0x5413]  # bytes waiting, is it a terminal, (non)blocking, on exec
_PRCTL = [15, 16, 3, 2, 21, 23, 39, 0x53564D41]  # names, and what can be asked; not death signals nor dumpability


class _Program:
    """Instructions of the classic BPF machine. A rule is a block that ends the program or falls through."""

    def __init__(self) -> None:
        self.code: list[tuple[int, int, int, int]] = []

    def load(self, offset: int) -> None:
        self.code.append((_LD_W, 0, 0, offset))

    def give(self, verdict: int) -> None:
        self.code.append((_RET, 0, 0, verdict))

    def when(self, test: int, value: int, verdict: int) -> None:
        """End with `verdict` if the loaded word passes the test."""
        self.code.append((test, 0, 1, value))
        self.give(verdict)

    def unless(self, test: int, value: int, verdict: int) -> None:
        self.code.append((test, 1, 0, value))
        self.give(verdict)

    def rule(self, number: int, inner: _Program) -> None:
        """For this system call run `inner`, which ends the program."""
        self.code.append((_JEQ, 0, len(inner.code), number))
        self.code += inner.code


def _argument(n: int) -> int:
    return 16 + 8 * n  # the low half: both architectures are little-endian


def program(pid: int, machine: str) -> bytes:
    """The filter for a process `pid`. Raises OSError where the numbers of the system calls are not known."""
    if machine not in ARCHITECTURES:
        raise OSError(_ENOSYS, f"no table of system calls for {machine}")
    audit, column = ARCHITECTURES[machine]
    numbers = {name: number for name, row in NUMBERS.items() if (number := row[column]) is not None}
    refused, missing = _ERRNO | _EPERM, _ERRNO | _ENOSYS
    p = _Program()
    p.load(4)
    p.unless(_JEQ, audit, refused)
    p.load(0)
    p.when(_JGE, _X32, refused)

    def rule(name: str, argument: int, values: list[int] | None = None, bits: int = 0) -> None:
        """Allow the call only if the argument is one of `values`, or has none of `bits`."""
        if name not in numbers:
            return
        inner = _Program()
        inner.load(_argument(argument))
        if bits:
            inner.when(_JSET, bits, refused)
        for value in values or ():
            inner.when(_JEQ, value, _ALLOW)
        if bits:
            inner.give(_ALLOW)
        else:
            inner.give(refused)
        p.rule(numbers[name], inner)

    rule("fcntl", 1, _FCNTL)
    rule("ioctl", 1, _IOCTL)
    rule("prctl", 0, _PRCTL)
    rule("kill", 0, [pid])
    rule("tgkill", 0, [pid])
    rule("prlimit64", 0, [0, pid])
    rule("openat", 2, bits=_TMPFILE)
    rule("open", 1, bits=_TMPFILE)
    clone = _Program()
    clone.load(_argument(0))
    clone.when(_JSET, _FRESH, refused)
    clone.when(_JSET, _THREAD, _ALLOW)
    clone.give(refused)
    p.rule(numbers["clone"], clone)
    pair = _Program()  # Unix streams only: on a datagram socket one could name another address
    pair.load(_argument(0))
    pair.unless(_JEQ, 1, refused)
    pair.load(_argument(1))
    pair.code.append((_AND, 0, 0, 0xF))
    pair.when(_JEQ, 1, _ALLOW)
    pair.give(refused)
    p.rule(numbers["socketpair"], pair)
    for name in NOT_THERE:
        p.when(_JEQ, numbers[name], missing)
    for name in ALLOWED:
        if name in numbers:
            p.when(_JEQ, numbers[name], _ALLOW)
    p.give(refused)
    return b"".join(_INSTRUCTION.pack(*i) for i in p.code)


class _Prog(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def confine() -> None:
    """From now on this process, and every thread of it, may make these calls only. Raises OSError."""
    machine = os.uname().machine
    raw = program(os.getpid(), machine)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    prog = _Prog(len(raw) // _INSTRUCTION.size, ctypes.addressof(buffer))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    row = NUMBERS["seccomp"][ARCHITECTURES[machine][1]]
    kernel.syscall(row or 0, 1, 1, ctypes.byref(prog))  # SECCOMP_SET_MODE_FILTER, for all threads
