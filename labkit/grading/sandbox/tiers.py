"""The kinds of walls, best first, and what each keeps out and what stays possible, in words."""

from __future__ import annotations

TIERS = ("root", "userns", "landlock", "none")

_COMMON = """
A filter of system calls (seccomp) leaves a rank computing, threads, its own files and the sockets it was
given. Refused are new processes and programs, any other socket, looking into or signalling other processes,
mounts, keys, changing owners and modes. The kernel limits addresses (memory), processor time, threads, open
files, the length of a file; the grader limits wall time, output, results, messages and their bytes, and
ends what exceeds a limit. A rank has no descriptor but its three sockets and its output, an empty
environment, and no right that a program could raise.
"""

_STAYS = """
Still possible: to return what was computed by other means than the task asks for, as long as bytes and
messages are right (hard-coded answers for known inputs; a patched labkit inside the ranks, whose messages
are counted like others). The operation, call and lane that a message names are the sender's claim. A rank
may use all its limits: processor time, memory, the home. It may write to memory that it shares with its
template before the limit on addresses counts it (some hundred MB a rank at most). It sees which machine it
runs on (kernel version, number of cores, load), and a bug of the kernel in one of the calls that are
allowed would open the wall. Timing of the grader's answers can be measured.
"""

_WORDS = {
    "root": """
Tier root: each rank has a user of its own without rights, in namespaces of its own for mounts, processes,
networks, semaphores and names. It sees Python, PyTorch and labkit, read-only, and a small home in memory;
no /proc, no /home, no /etc, no notebooks. The network is an unconnected loopback.
""",
    "userns": """
Tier userns: each rank lives in namespaces of its own for users, mounts, processes, networks, semaphores and
names, without any capability in them. It sees Python, PyTorch and labkit, read-only, and a small home in
memory; no /proc, no /home, no /etc, no notebooks. For files it is the grader's own user, who has no other
file in sight.
""",
    "landlock": """
Tier landlock: Landlock lets a rank open Python, PyTorch and labkit for reading, and its home for reading
and writing, and forbids tracing and, on newer kernels, signals and abstract sockets. There are no
namespaces: a rank can see that files exist, their sizes and dates (not what is in them), and numbers of
processes. The home is on a disk: its size is looked at 20 times a second, so that it can be exceeded by
what is written between two looks.
""",
    "none": """
Tier none: NOT A SANDBOX. Only limits on resources hold. What is graded can read and write every file of
this user, end the grader, use the network, and leave processes behind. Use it for code that you trust.
""",
}


def words(tier: str) -> str:
    """What is in force in this tier, and what stays possible: a line a paragraph."""
    texts = [_WORDS[tier]] if tier == "none" else [_WORDS[tier], _COMMON, _STAYS]
    return "\n".join(" ".join(text.split()) for text in texts)
