"""The first cell of a notebook whose reader watches a job: it trains until somebody ends it."""

TRAIN = """
import time, torch, labkit
from labkit import book

def train(group):
    for step in range(2000):
        group.step(step)
        time.sleep(0.05)
        labkit.collectives.all_reduce(torch.ones(1000), group, algorithm="ring")

job = labkit.start(train, 3, on_failure="return")
book.dashboard(job, controls=True)
"""
