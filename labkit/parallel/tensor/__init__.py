"""Tensor parallelism: the matrices of a layer cut among ranks."""
