"""Reading editions: one file a strategy, with only what the idea needs.

The full ones are in `labkit.parallel`, `labkit.optim`, `labkit.align` and `labkit.resilience`, and each edition says where.
They use a `Group`, `labkit.collectives` and plain PyTorch; they have no options, refuse nothing, and measure nothing.
A test holds each to the full library: the same weights, and the same bytes.
"""
