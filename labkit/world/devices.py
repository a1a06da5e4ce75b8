"""Which accelerators there are, asked without touching CUDA (a process that has cannot fork ranks)."""

from __future__ import annotations

import functools
import os
from typing import NamedTuple


@functools.cache
def gpu_count() -> int:
    """NVIDIA GPUs that PyTorch can use, 0 for a CPU build."""
    import torch

    if torch.version.cuda is None or not torch.distributed.is_nccl_available():
        return 0
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return torch.cuda.device_count()


CPU, GPU = "gloo", "nccl"  # the backends of torch.distributed, by where tensors are
MULTI_RANK = (2, 30)  # the first NCCL that lets several ranks of a communicator share a GPU, if told to


class Placement(NamedTuple):
    """How ranks speak that live on GPUs. environ: what must be in the environment before NCCL starts."""

    backend: str
    environ: dict[str, str]
    devices: tuple[int | None, ...]  # of each rank, None for the CPU; empty if no rank has one

    def device_of(self, rank: int) -> int | None:
        """The GPU of a rank, None for the CPU."""
        return self.devices[rank] if self.devices else None

    @property
    def shared(self) -> bool:
        """Whether a GPU has more than one rank."""
        return len(set(self.devices)) < len(self.devices) and None not in self.devices


ON_CPU = Placement(CPU, {}, ())


def place(ranks: int, gpus: int, nccl: tuple[int, ...]) -> Placement:
    """Which backend `ranks` ranks on one host use with `gpus` GPUs and NCCL of version `nccl`, () for none.

    A GPU each: NCCL. More ranks than GPUs: rank r is on GPU r % gpus, and NCCL is told to allow it if it can; an older
    one refuses two ranks on a GPU, and the messages go by way of host memory over gloo (`labkit.wire.staging`).
    """
    if gpus < 1:
        return Placement(CPU, {}, (None,) * ranks)
    devices = tuple(rank % gpus for rank in range(ranks))
    if not nccl or (ranks > gpus and nccl[:2] < MULTI_RANK):
        return Placement(CPU, {}, devices)
    return Placement(GPU, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if ranks > gpus else {}, devices)


def process_group_backend(backend: str) -> str:
    """What `torch.distributed.init_process_group` is asked for: with GPUs one for the tensors of each place."""
    return f"cpu:{CPU},cuda:{GPU}" if backend == GPU else backend


def nccl_version() -> tuple[int, ...]:
    """The version of the NCCL that PyTorch uses, () for none; does not touch CUDA."""
    import torch

    if torch.version.cuda is None or not torch.distributed.is_nccl_available():
        return ()
    return tuple(torch.cuda.nccl.version()[:3])
