"""Dissemination barrier: nobody leaves before everybody has come, in log2 N rounds of empty messages.

In round k each rank tells the rank 2^k to its right that it, and all it has heard of, are here. After ceil(log2
N) rounds it has heard, through others, of everyone. No root, and no power of two needed.
Source: Hensgen, Finkel & Manber 1988, "Two algorithms for barrier synchronization".
"""

from __future__ import annotations

import torch

from labkit.collectives.registry import algorithm
from labkit.wire.group import Group


@algorithm("barrier", "dissemination")
def dissemination_barrier(group: Group) -> None:
    """Return when all ranks of the group have called it: ceil(log2 N) messages of 0 bytes from each rank."""
    n, me = group.size, group.rank
    here, heard = torch.empty(0, device=group.device), torch.empty(0, device=group.device)
    distance = 1
    while distance < n:
        group.exchange(here, to=(me + distance) % n, like=heard, source=(me - distance) % n)
        distance *= 2
