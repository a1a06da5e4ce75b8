"""Context parallelism: one sequence shared out among the ranks of a group, and attention across them.

layouts.py     which positions a rank holds: contiguous, striped, zigzag
masks.py       which keys a query may read: causal, sliding window, packed documents, full
blocks.py      attention to a block of keys with its log-sum-exp, how two of them merge, and the gradients of one
ring.py        keys and values go around the ring, forward and backward: `ring_attention`
ulysses.py     all-to-all: from a part of the positions to a part of the heads, and back
parallel.py    `ContextParallel`: the two combined, put in the place of a model's attention
"""
