"""Chain broadcast: cut the tensor in chunks and pass them from rank to rank, as on a conveyor belt.

With one chunk the last rank waits for N - 1 whole messages. With c chunks, rank v sends chunk i while chunk i
+ 1 comes in; the first chunk needs N - 1 steps to reach the end, and the others follow one step apart: N - 2
+ c steps of M / c bytes. For large tensors that is about the time of one message of M bytes, however long the
chain is.
Sources: Pjesivac-Grbovic et al. 2007, "Performance analysis of MPI collective operations" (chain, segmented).
"""

from __future__ import annotations

from torch import Tensor

from labkit.collectives.choose import chain_chunks
from labkit.collectives.chunks import split_evenly
from labkit.collectives.registry import algorithm
from labkit.wire.group import Group


@algorithm("broadcast", "chain")
def chain_broadcast(x: Tensor, group: Group, root: int = 0, chunks: int | None = None) -> Tensor:
    """Copy `x` of `root` to all ranks, in place, and return it: all but the last send M bytes, in chunks.

    x: same shape and dtype on every rank, any dtype, sent as it is. `chunks`: in how many pieces, the same on
    every rank; by default the number that the cost model finds best (`choose.chain_chunks`).
    Bytes sent: `cost.collectives.chain_broadcast_bytes`.
    """
    n, v = group.size, (group.rank - root) % group.size
    before, after = (group.rank - 1) % n, (group.rank + 1) % n
    pieces = split_evenly(x, chunks or chain_chunks(x.nbytes, n, group.link_model))

    if n == 1:
        return x
    if v == 0:
        for piece in pieces:
            group.send(piece, to=after)
    elif v == n - 1:
        for piece in pieces:
            group.recv(piece, source=before)
    else:
        group.recv(pieces[0], source=before)
        for i in range(1, len(pieces)):  # chunk i comes in while chunk i - 1 goes out
            group.exchange(pieces[i - 1], to=after, like=pieces[i], source=before)
        group.send(pieces[-1], to=after)
    return x
