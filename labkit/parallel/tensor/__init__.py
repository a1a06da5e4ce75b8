"""Tensor and sequence parallelism: one layer's matrices shared out among the ranks of a group.

regions.py       where a region begins and ends: pairs of functions, each the other's backward
products.py      the two matrix products with what they send; the sum that hides behind a product
linear.py        ColumnParallelLinear, RowParallelLinear
attention.py, feed_forward.py, block.py, gpt.py   a GPT made of them: TensorParallelGPT
random.py        random numbers that are the same outside of a region and different inside
gradients.py     the gradients' norm, with what all ranks hold counted once
cut.py, whole.py which part a rank holds, and the parts put together again
degrees.py, moves.py   what can be divided; collectives along any dimension
"""
