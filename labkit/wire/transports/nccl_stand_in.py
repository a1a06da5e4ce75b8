"""The `nccl-stand-in` transport: all of `nccl`, on a CPU, over communicators that keep NCCL's contract.

Under it the rank's tensors count as a GPU's (`labkit.wire.stand_in.memory`): everything that its own thread makes, but
for what it asks the host for. It is for tests, and for who wants to know whether a program keeps the contract.
"""

from __future__ import annotations

from .. import accelerator
from . import Site, kind
from .nccl import NcclTransport


def _process_groups() -> str:
    from ..stand_in.process_groups import register

    return register()


@kind("nccl-stand-in", device="stand-in", carries_time=False, listed=False, process_groups=_process_groups)
def _stand_in(site: Site) -> NcclTransport:
    from ..stand_in.device import StandIn
    from ..stand_in.memory import DeviceMemory

    DeviceMemory().__enter__()  # for the rest of the rank's life
    return NcclTransport(site, accelerator.install(StandIn(f"gpu {site.rank}")), "nccl-stand-in")
