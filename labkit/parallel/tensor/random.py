"""Random numbers: the same on every rank outside of a region, different ones inside.

Outside, all ranks hold the same activations, and must drop the same of them. Inside, and on the parts of sequence
parallelism, each rank holds something else: with equal numbers all parts would drop in the same pattern.

Both follow from the ranks' usual random state (`torch.manual_seed`, the same on all of them). A region draws one number
from it, alike on all ranks, and seeds its own numbers with that and the rank. So nothing needs to be kept beside the
usual state, and a block that is checkpointed and computed again draws the same numbers again. (Megatron-LM keeps a
second state for the inside: `CudaRNGStatesTracker`.)
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import torch

from labkit.collectives import all_gather
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


@contextlib.contextmanager
def different_inside(group: Group) -> Iterator[None]:
    """Random numbers of this rank's own; afterwards the state is what one number drawn leaves, alike on all ranks."""
    number = int(torch.randint(2**62, ()))
    words = f"{number} {group.rank}".encode()
    seed = int.from_bytes(hashlib.sha256(words).digest()[:7], "big")
    cuda = [group.device] if group.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(cuda[0]):
                torch.cuda.manual_seed(seed)
        yield


def check_random_state(group: Group) -> None:
    """Raise RefusedError on every rank, saying who differs, unless all have the same random state. 8 bytes a rank."""
    state = [torch.get_rng_state()]
    if group.device.type == "cuda":
        state.append(torch.cuda.get_rng_state(group.device))
    digest = hashlib.sha256(b"".join(s.numpy().tobytes() for s in state)).digest()
    mine = torch.tensor([int.from_bytes(digest[:7], "big")], device=group.device)
    found = all_gather(mine, group).tolist()
    others = [r for r, number in enumerate(found) if number != found[0]]
    if others:
        who = f"rank {others[0]}" if len(others) == 1 else f"ranks {', '.join(map(str, others))}"
        raise RefusedError(
            f"the random state of {who} is not that of rank 0, and dropout would drop other activations "
            "there. Call torch.manual_seed(seed) with the same seed on every rank of the group, and draw the "
            "same numbers on each of them"
        )
