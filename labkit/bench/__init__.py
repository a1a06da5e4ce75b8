"""Benchmarks: speed as ratios within one run, because machines are shared and noisy. `labkit bench NAME`."""
