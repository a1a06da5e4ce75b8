"""Nonuniform tensor parallelism: replicas of different width train one model together (Arfeen et al. 2025).

    run = run_ntp(NtpConfig(model, examples, optimizer, widths=(4, 4)), steps=20, faults=[Kill(5, step=7)])

shard_map.py   which shards each rank holds and computes with, and which it sums over the replicas
replicas.py    who is in which replica, how wide each is, and what follows from that
moving.py      parts of tensors that change their ranks
sync.py        gradients summed over replicas of different width, behind the backward
naive.py       the same without a shard map, to compare with
stages.py      activations between pipeline stages of different width
manager.py     which domain serves which replica, and who borrows what is idle
state.py       weights and optimizer state that follow when a rank is lost or returns
trainer.py     what a rank runs, step by step, and why no update is torn
config.py, run.py   a job in one call
"""

from .config import NtpConfig
from .manager import Assignment, ResourceManager
from .naive import NaiveSync
from .replicas import Replicas
from .run import NtpFailed, NtpJob, NtpRun, run_ntp, start_ntp
from .shard_map import ShardMap, naive_messages, shard_map
from .stages import Border
from .sync import NonuniformSync
from .trainer import train

__all__ = [
    "Assignment", "Border",
    "NaiveSync",
    "NonuniformSync", "NtpConfig", "NtpFailed", "NtpJob", "NtpRun", "Replicas", "ResourceManager", "ShardMap",
    "naive_messages", "run_ntp", "shard_map", "start_ntp", "train",
]  # fmt: skip
