"""Embedding tables larger than any rank: cut among the ranks, and only the rows that a batch touches travel.

layouts.py       which rank holds which rows or columns of a table
optimizers.py    update rules of the touched rows, whose state lies beside each row
stores.py        the rows that a rank holds: in one tier, or hot ones in a cache before a larger and slower one
exchange.py      ids to the ranks that hold them, rows back, and later their gradients: sparse pull and push
hot.py           rows that everybody asks for, held by everybody
moving.py        rows with their state to other ranks, while training goes on
table.py         one table: a layout, a store and an optimizer, and the sum of what all ranks push
sharded.py       `ShardedEmbedding` and `ShardedEmbeddings`: what a model calls
"""
