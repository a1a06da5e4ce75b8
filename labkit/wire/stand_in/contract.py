"""What NCCL promises and what it does not: the rules that a program over NCCL has to keep, each with its source.

NVIDIA: the user guide of NCCL, docs.nvidia.com/deeplearning/nccl/user-guide. PyTorch: `distributed_c10d.py`,
`_dist2.py` and `ProcessGroupNCCL.hpp` of 2.13. None of it was tried on a GPU here.
"""

from __future__ import annotations

from typing import NamedTuple

from labkit.wire.errors import WireError

SHARED_GPU = (2, 30)  # the first NCCL that lets several ranks of a communicator share a GPU, if told to
SHARING_SWITCH = "NCCL_MULTI_RANK_GPU_ENABLE"


class Rule(NamedTuple):
    """One rule. says: what holds. source: where that stands."""

    says: str
    source: str


RULES = {
    "order": Rule(
        "Messages between two ranks of a communicator match in the order in which they are issued, and collectives in "
        "the order of the calls, which is the same on all ranks. Nothing is compared: a wrong order hangs or corrupts.",
        "NVIDIA, Point-to-point communication; Using multiple NCCL communicators concurrently",
    ),
    "no tags": Rule(
        "A message has no tag and no header; PyTorch takes a tag and ignores it.", "PyTorch, ProcessGroupNCCL::send"
    ),
    "group call": Rule(
        "Calls outside a group run one after the other: a send holds up what is issued behind it until the peer "
        "receives. Calls inside a group never hold up each other; those that must go on together are issued together.",
        "NVIDIA, Point-to-point communication; Group calls",
    ),
    "same count and type": Rule(
        "A send and its receive have the same number of elements of the same type, on both sides of each collective "
        "too.", "NVIDIA, Point-to-point communication; Collective operations",
    ),
    "device memory": Rule(
        "Buffers are contiguous and lie in the memory of the communicator's GPU: no tensor of the CPU, no stride.",
        "NVIDIA, Data pointers; PyTorch, ProcessGroupNCCL::check_gpu_single_tensor",
    ),
    "types": Rule(
        "Integers of 8, 32 and 64 bits, and floats; nothing else. Sum, product, minimum, maximum and average.",
        "NVIDIA, ncclDataType_t, ncclRedOp_t; PyTorch, getNcclDataType",
    ),
    "stream": Rule(
        "A call returns when its work is queued. Data may be read, and a buffer written, by what is queued behind it "
        "on the same stream, on one that waits for it, or when the host has seen its event.",
        "NVIDIA, CUDA stream semantics; PyTorch, Work.wait",
    ),
    "fails late": Rule(
        "What goes wrong in queued work is told by no call: a wait has to look for it, and has to have a deadline.",
        "NVIDIA, Asynchronous errors and error handling",
    ),
    "one thread": Rule(
        "Calls of one communicator come from one thread at a time, ordered by a lock or a stream, and in one order "
        "on all ranks: two lanes of messages need two communicators.", "NVIDIA, Thread safety",
    ),
    "init": Rule(
        "A communicator is made by all its members at once, under a name that is used once. Without one of them the "
        "others hang: it is made without blocking, by a deadline.",
        "NVIDIA, ncclCommInitRankConfig; PyTorch, TORCH_NCCL_NONBLOCKING_TIMEOUT",
    ),
    "split": Rule(
        "A split is called by all members of a parent that has been made, while nothing is under way on it.",
        "NVIDIA, ncclCommSplit",
    ),
    "abort": Rule(
        "A communicator is aborted by any thread at any time; what was under way on it never ends, and it is of no "
        "more use. The other members are not told.", "NVIDIA, ncclCommAbort; PyTorch, _abort_process_group",
    ),
    "dead member": Rule(
        "With a dead member a communicator is of no more use: what is issued hangs, and at best an error can be asked "
        "for. The living abort theirs and make another.", "NVIDIA, Fault tolerance",
    ),
    "shared GPU": Rule(
        f"Two ranks of a communicator share a GPU only from NCCL {SHARED_GPU[0]}.{SHARED_GPU[1]} on and with "
        f"{SHARING_SWITCH}=1.", "NVIDIA, Environment variables",
    ),
}  # fmt: skip


class ContractBroken(WireError):
    """A program did what NCCL does not allow. rule: which one of `RULES`."""

    def __init__(self, rule: str, what: str):
        super().__init__(f"{what} ({RULES[rule].says})")
        self.rule, self.what = rule, what

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.rule, self.what)
