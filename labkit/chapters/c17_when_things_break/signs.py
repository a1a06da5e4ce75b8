"""Lines of a few hosts in one bad night, to be read in the order of their times.

No machine has written them. They are composed after NVIDIA's documentation (the Xid catalog, and GPU memory error
management), the fields of DCGM, what PyTorch's NCCL watchdog prints, and Linux's machine check and EDAC messages.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from labkit.wire.errors import RefusedError

# Who writes what, by the part that a host plays: (time, line).
LINES = {
    "first": [
        ("02:41:07", "dcgm: gpu 5 DCGM_FI_DEV_PCIE_REPLAY_COUNTER 0 -> 3"),
        ("02:57:48", "dcgm: gpu 5 DCGM_FI_DEV_PCIE_REPLAY_COUNTER 3 -> 219"),
        ("02:58:12", "kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."),
        ("02:58:20", "dcgm: gpu 5 DCGM_FI_DEV_XID_ERRORS 0 -> 79"),
    ],
    "loud": [
        *(("03:08:13", f"trainer: [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88123, "
           "OpType=ALLREDUCE, Timeout(ms)=600000)") for rank in range(4)),
        ("03:08:14", "trainer: [Rank 0] Exception (either an error or timeout) detected by watchdog at work: 88123"),
        ("03:08:15", "trainer: Signal 6 (SIGABRT) received by process 4711"),
    ],
    "remapped": [
        ("01:20:31", "kernel: NVRM: Xid (PCI:0000:1b:00): 63, Row Remapper: New row marked for remapping, reset gpu to "
         "activate."),
        ("01:20:40", "dcgm: gpu 0 DCGM_FI_DEV_ROW_REMAP_PENDING 0 -> 1"),
        ("03:14:02", "kernel: NVRM: Xid (PCI:0000:1b:00): 64, Row Remapper: row remapping failed"),
    ],
    "corrected": [
        ("02:11:55", "kernel: mce: [Hardware Error]: Machine check events logged"),
        ("02:11:55", "kernel: EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0"),
        ("02:30:00", "dcgm: gpu 2 DCGM_FI_DEV_ECC_SBE_VOL_TOTAL 3 -> 4"),
        ("03:13:44", "kernel: NVRM: Xid (PCI:0000:44:00): 94, Contained: uncorrectable error, pid=5020"),
        ("03:13:50", "dcgm: gpu 2 DCGM_FI_DEV_ECC_DBE_VOL_TOTAL 0 -> 1"),
    ],
}  # fmt: skip

WHY = {
    "first": "Right: its PCIe counter grew, and at 02:58:12 its GPU fell off the bus (Xid 79). The others waited "
    "for its ranks from then on, until their watchdogs ran out after 600 s. It has no line about the job itself.",
    "loud": "It has most lines, but they say that it waited: since 600 s, for somebody else. Look at what happened "
    "600 s before 03:08:13.",
    "remapped": "Its Xid 63 came first of all lines, but that is a row marked for remapping, and what runs goes on: "
    "the job ran for another hour and a half. Its Xid 64 is a failure, and a later one.",
    "corrected": "Its early lines are errors that were corrected (CE, SBE), so nothing was lost. Its Xid 94 did end a "
    "process, but that was after the watchdogs, in the job that was started again.",
}


@dataclass(frozen=True)
class Log:
    """hosts: name -> the part that it plays."""

    hosts: dict[str, str]

    def __repr__(self) -> str:
        """All lines as a collector has them, host by host, those with most lines about the job first."""
        order = sorted(self.hosts, key=lambda host: (-len(LINES[self.hosts[host]]), self.hosts[host]))
        lines = [f"{time} {host} {line}" for host in order for time, line in LINES[self.hosts[host]]]
        return "\n".join(["[composed after the documentation, not recorded]", *lines])

    def told(self, host: str | None) -> str:
        """What to say to a reader who takes `host` for the one that failed first. None: not yet."""
        if host is None:
            return f"Which host failed first? Write one of {', '.join(sorted(self.hosts))} in place of None."
        if host not in self.hosts:
            raise RefusedError(f"failed_first={host!r}: the hosts are {', '.join(sorted(self.hosts))}")
        return f"{host}: {WHY[self.hosts[host]]}"


def log(seed: int) -> Log:
    """The same night on every seed, and each host plays another part."""
    names = [f"node-{n}" for n in (12, 27, 33, 48)]
    return Log(dict(zip(random.Random(f"signs {seed}").sample(names, len(names)), LINES, strict=True)))
