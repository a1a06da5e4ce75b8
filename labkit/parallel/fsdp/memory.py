"""How much a rank holds at the worst moment beside its shards, in bytes: the units that are whole at once."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.collectives.chunks import even_sizes


def peak_bytes(
    units: Sequence[int], itemsize: int, size: int, prefetch: int = 1, *, train: bool = True, reshard: bool = True
) -> int:
    """The most that is held for a while, on rank 0, activations aside; add the shards and the optimizer's state.

    units: elements of each unit, the root first, as in `FullyShard.units`. itemsize: bytes of an element, gathered and
    as a gradient alike. Units are used one after the other; the root stays. reshard: whether units are let go between
    forward and backward. Three moments compete:

    - forward of unit i: the root, unit i, and the next `prefetch` units (without reshard: all of them);
    - reduction of unit i: the root, the `prefetch` units before it, and unit i's gradients twice: as autograd made
      them, and packed to be sent, with two of N parts under way. Shards of gradients that are there already;
    - reduction of the root: its gradients twice, two parts under way, and all shards of gradients.
    """
    if size == 1:
        return 2 * max(units) * itemsize if train else 0
    root, blocks = units[0], list(units[1:])
    forward = root + (sum(blocks) if train and not reshard else max(
        (sum(blocks[i : i + 1 + prefetch]) for i in range(len(blocks))), default=0))  # fmt: skip
    if not train:
        return forward * itemsize
    moments = [forward]
    reduced = 0  # elements of reduced shards
    for i in reversed(range(len(blocks))):
        ahead = sum(blocks[max(0, i - prefetch) : i]) if reshard else sum(blocks[:i])
        moments.append(root + ahead + 2 * blocks[i] + 2 * even_sizes(blocks[i], size)[0] + reduced)
        reduced += even_sizes(blocks[i], size)[0]
    moments.append(2 * root + 2 * even_sizes(root, size)[0] + reduced)
    return max(moments) * itemsize
