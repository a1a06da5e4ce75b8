"""How large a checkpoint is, how long it takes to write, and what keeping several takes. Bytes and seconds."""

from __future__ import annotations

from labkit.cost.refuse import not_negative, positive, whole

__all__ = ["checkpoint_bytes", "kept_bytes", "write_seconds"]


def checkpoint_bytes(params: float, bytes_per_parameter: float = 12) -> float:
    """Adam's: weights in fp32 and two moments, 12 bytes a parameter. 175B: 2.1 TB.

    The 16-bit weights follow from the fp32 ones, and gradients are not kept: of the 16 bytes of training 12 remain.
    """
    not_negative(params=params)
    positive(bytes_per_parameter=bytes_per_parameter)
    return params * bytes_per_parameter


def write_seconds(nbytes: float, writers: int, per_writer: float, storage: float | None = None) -> float:
    """The slower of what `writers` can send, at `per_writer` bytes per second each, and what the storage takes in all.

    storage: bytes per second; None: as much as comes. A full checkpoint has one writer; a sharded one has all ranks of
    one replica, as every other replica holds the same. 2.1 TB by one at 5 GB/s: 7 min; by 64: 6.6 s.
    """
    not_negative(nbytes=nbytes)
    whole(writers=writers)
    positive(per_writer=per_writer)
    if storage is not None:
        positive(storage=storage)
    rate = writers * per_writer if storage is None else min(writers * per_writer, storage)
    return nbytes / rate


def kept_bytes(nbytes: float, keep: int) -> float:
    """The most that lies on the storage when the last `keep` are kept: one more, until the next is complete."""
    not_negative(nbytes=nbytes)
    whole(keep=keep)
    return (keep + 1) * nbytes
