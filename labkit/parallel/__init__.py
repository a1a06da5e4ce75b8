"""Strategies: how the training of one model is shared among ranks, written against `Group` and `labkit.collectives` only."""
