"""What the ranks of a pipeline send: activations to the next stage, and their gradients back.

At each boundary between two stages, each microbatch's activation of s b h values goes on and its gradient comes back. A
microbatch and boundary at a time: a step of m microbatches sends each m times.
"""

from __future__ import annotations

from labkit.cost.refuse import one_of, whole

__all__ = [
    "pipeline_boundary_bytes",
    "pipeline_bytes_by_rank",
    "pipeline_messages_by_rank",
    "tensor_over_pipeline_bytes",
    "tied_embedding_bytes",
]

PLACEMENTS = ("loop", "v")


def pipeline_boundary_bytes(batch: int, sequence: int, hidden: int, itemsize: int = 2) -> int:
    """Bytes of the activation that crosses one boundary for one microbatch: s b h values; as many come back.

    h = 8192, b = 1, s = 2048: 33.55 MB, which is 32 MiB. 175B at b = 4: 201.33 MB.
    """
    whole(batch=batch, sequence=sequence, hidden=hidden, itemsize=itemsize)
    return batch * sequence * hidden * itemsize


def pipeline_messages_by_rank(
    stages: int, microbatches: int, chunks: int = 1, *, placement: str = "loop", passes: str = "both"
) -> list[int]:
    """Messages that each rank of a pipeline sends in a step.

    Of the p v stages of the model every one but the last sends each microbatch on, every one but the first sends its
    gradient back. placement: where stage c p + r lies, as in `Schedule`: "loop" on rank r; "v": on rank p - 1 - r for
    odd c. Two neighbouring stages on one rank send nothing.
    """
    whole(stages=stages, microbatches=microbatches, chunks=chunks)
    one_of(PLACEMENTS, placement=placement)
    one_of(("forward", "backward", "both"), passes=passes)
    home = [r if placement == "loop" or c % 2 == 0 else stages - 1 - r for c in range(chunks) for r in range(stages)]
    sent = [0] * stages
    for here, there in zip(home, home[1:], strict=False):
        if here != there:
            sent[here] += microbatches * (passes != "backward")
            sent[there] += microbatches * (passes != "forward")
    return sent


def pipeline_bytes_by_rank(
    batch: int,
    sequence: int,
    hidden: int,
    stages: int,
    microbatches: int,
    chunks: int = 1,
    *,
    placement: str = "loop",
    passes: str = "both",
    itemsize: int = 2,
) -> list[int]:
    """Bytes that each rank of a pipeline sends in a step, exact; the first and the last half of those between.

    batch: of one microbatch. Chunks cost bytes: v times as many stages, and about v times as many messages. Under
    tensor parallelism each of the t ranks of a stage sends this, unless they share it out (as sequence parallelism
    does).
    """
    payload = pipeline_boundary_bytes(batch, sequence, hidden, itemsize)
    messages = pipeline_messages_by_rank(stages, microbatches, chunks, placement=placement, passes=passes)
    return [payload * count for count in messages]


def tied_embedding_bytes(vocabulary: int, hidden: int, itemsize: int = 2) -> int:
    """Bytes that the first and the last stage each send to add up the gradients of the matrix that both hold: v h."""
    whole(vocabulary=vocabulary, hidden=hidden, itemsize=itemsize)
    return vocabulary * hidden * itemsize


def tensor_over_pipeline_bytes(layers: int, size: int) -> float:
    """How many times more bytes a rank sends for tensor than for pipeline parallelism: 4 l (t-1) / t.

    For a stage of l layers in the middle of a pipeline and a group of t: 4 l all-reduces against one activation and one
    gradient, of the same s b h values. Batch, sequence and hidden size cancel. 6 layers, t = 8: 21 times.
    """
    whole(layers=layers, size=size)
    return 4 * layers * (size - 1) / size
