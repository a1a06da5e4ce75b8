"""Reading editions: one file a strategy, with only what the idea needs.

Each edition names the full one, in `labkit.parallel`, `labkit.optim`, `labkit.align` or `labkit.resilience`.
They use a `Group`, `labkit.collectives` and plain PyTorch; they have no options, refuse nothing, and measure nothing.
A test holds each to the full library: the same weights, and the same bytes.
"""
