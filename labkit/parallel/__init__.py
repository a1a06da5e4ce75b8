"""Strategies: how ranks share the training of one model, written against `Group` and `labkit.collectives` only."""
