"""The stand-in as a backend of torch.distributed: `dist.all_reduce` and the others under the contract of NCCL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .communicator import Communicator

NAME = "nccl_stand_in"


def register() -> str:
    """Let `dist.init_process_group` and `dist.new_group` make communicators of the stand-in; returns the backend's name."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _make, devices=["cpu"])
    return NAME


def _make(store: Any, rank: int, size: int, timeout: timedelta) -> Communicator:
    made = Communicator(store, rank, size, "the process group")
    made.eager_connect_single_device()
    return made
