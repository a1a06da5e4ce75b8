"""A stand-in for a GPU and for NCCL, on a CPU: what NCCL forbids is refused or hangs here as well, with a sentence.

`contract.py` says what NCCL promises and what not. `streams.py` has streams and events on threads, `memory.py` tells
device memory from host memory and finds data that is used too early, `communicator.py` moves bytes over gloo by the
contract, and `device.py` puts them together behind the same door as CUDA (`labkit.wire.accelerator`).

It shows that a program keeps the contract. It does not show that NCCL does, nor how fast anything is.
"""
