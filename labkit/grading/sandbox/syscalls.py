"""Numbers of system calls: name, number on x86_64, number on aarch64 (where there is none: -)."""

from __future__ import annotations

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # machine -> (what the kernel calls it, column)

_TABLE = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
lseek 8 62, close 3 57, close_range 436 436, fstat 5 80, stat 4 -, lstat 6 -, newfstatat 262 79, access 21 -,
faccessat 269 48, faccessat2 439 439, statx 332 291, statfs 137 43, fstatfs 138 44, readlink 89 -, readlinkat 267 78,
getdents 78 -, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -,
unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37,
symlink 88 -, symlinkat 266 36, ftruncate 77 46, truncate 76 45, fsync 74 82, fdatasync 75 83, fallocate 285 47,
fadvise64 221 223, sendfile 40 71, copy_file_range 326 285, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -,
pipe2 293 59, flock 73 32, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -,
epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19, mmap 9 222,
munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214, msync 26 227, mincore 27 232,
futex 202 98, futex_waitv 449 449, set_robust_list 273 99, get_robust_list 274 100, rseq 334 293,
set_tid_address 218 96, membarrier 324 283, sched_yield 24 124, sched_getaffinity 204 123, sched_getparam 143 121,
sched_getscheduler 145 120, sched_get_priority_max 146 125, sched_get_priority_min 147 126, getcpu 309 168,
get_mempolicy 239 236, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101,
gettimeofday 96 169, time 201 -, times 100 153, getrusage 98 165, getrlimit 97 163, sysinfo 99 179, uname 63 160,
umask 95 166, getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getgroups 115 158, getresuid 118 148, getresgid 120 150, getpgrp 111 -, getpgid 121 155,
getsid 124 156, getpriority 140 141, capget 125 90, getrandom 318 278, rt_sigaction 13 134, rt_sigprocmask 14 135,
rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132,
pause 34 -, alarm 37 -, setitimer 38 103, getitimer 36 102, exit 60 93, exit_group 231 94, restart_syscall 219 128,
arch_prctl 158 -, sendmsg 46 211, recvmsg 47 212, sendto 44 206, recvfrom 45 207, shutdown 48 210, getsockopt 55 209,
setsockopt 54 208, getsockname 51 204, getpeername 52 205, wait4 61 260, waitid 247 95, open 2 -, openat 257 56,
clone 56 220, clone3 435 435, openat2 437 437, fcntl 72 25, ioctl 16 29, prctl 157 167, kill 62 129, tgkill 234 131,
prlimit64 302 261, socketpair 53 199, seccomp 317 277
"""


def _row(text: str) -> tuple[str, tuple[int | None, int | None]]:
    name, *columns = text.split()
    x86, arm = (None if c == "-" else int(c) for c in columns)
    return name, (x86, arm)


NUMBERS: dict[str, tuple[int | None, int | None]] = dict(_row(text) for text in _TABLE.split(","))
