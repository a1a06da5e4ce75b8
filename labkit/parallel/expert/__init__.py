"""Expert parallelism: the experts of a layer shared out among ranks, and tokens that go to them and come back.

segments.py    rows in segments by rank, node and expert, and how they are put into another order
dispatch.py    rows to the ranks of their experts, in one hop or by way of the node, and back
parallel.py    `ExpertParallel`: put in the place of a model's own way to its experts
gradients.py   what is averaged over which ranks: experts have a data-parallel group of their own
"""
