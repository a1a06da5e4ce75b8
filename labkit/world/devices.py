"""Which accelerators there are, asked without touching CUDA (a process that has cannot fork ranks)."""

from __future__ import annotations

import functools
import os


@functools.cache
def gpu_count() -> int:
    """NVIDIA GPUs that PyTorch can use, 0 for a CPU build."""
    import torch

    if torch.version.cuda is None or not torch.distributed.is_nccl_available():
        return 0
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return torch.cuda.device_count()
