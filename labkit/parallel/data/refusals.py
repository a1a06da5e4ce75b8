"""The words in which the reducer refuses a backward that would leave the ranks apart, or waiting."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.wire.errors import Refused


def unfinished(rank: int) -> Refused:
    """A forward begins, and gradients of the step before are half sent."""
    return Refused(
        f"rank {rank}: the backward before this forward did not come to its end (an error in it?), and gradients of "
        "it are on their way: wrap the module anew"
    )


def came_again(rank: int, name: str, had_gradient: bool, static: bool) -> Refused:
    """A gradient arrives for the second time, or after it was taken for absent."""
    if had_gradient:
        return Refused(
            f"rank {rank}: the gradient of {name!r} was finished twice in one backward, and its bucket may be gone. "
            "Reentrant checkpointing of a part that is used twice does that"
        )
    if static:
        return Refused(
            f"rank {rank}: {name!r} got a gradient, but it had none in the first step, and static_graph=True "
            "promises that all steps use the same parameters: use find_unused_parameters=True"
        )
    return Refused(
        f"rank {rank}: {name!r} got a gradient, although no output of the forward depends on it: return every tensor "
        "that the loss is made of"
    )


def never_came(rank: int, names: Sequence[str], static: bool) -> Refused:
    """Backward is over, and gradients are missing."""
    shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    if static:
        return Refused(
            f"rank {rank}: backward ended without a gradient for {shown}, which had one in the first step, and "
            "static_graph=True promises that all steps use the same parameters: use find_unused_parameters=True"
        )
    return Refused(
        f"rank {rank}: backward ended without a gradient for {shown}, and the bucket they lie in would wait for ever: "
        "pass find_unused_parameters=True, or freeze them with requires_grad_(False) before wrapping"
    )


def never_averaged(rank: int) -> Refused:
    """An optimizer is about to use gradients that only this rank has seen."""
    return Refused(
        f"rank {rank}: this step would use gradients that were never averaged, and the models would part: the last "
        "microbatch must run outside of no_sync() (is it still open?). To train apart on purpose, call model.module"
    )
