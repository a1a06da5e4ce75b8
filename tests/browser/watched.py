"""The first cell of a notebook whose reader watches a job, or replicas: they train until somebody ends them."""

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

REPLICAS = """
import torch, labkit
from labkit import book
from labkit.resilience import Deadlines, FtConfig, start_ft_hsdp

def build(inner, seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    def loss(model, numbers):
        with inner.compute(0.2):
            return model(torch.sin(numbers[:, None] * torch.arange(1.0, 5))).square().mean()
    return model, torch.optim.SGD(model.parameters(), lr=0.01), loss

config = FtConfig(2, 1, deadlines=Deadlines.for_step(0.4), join_wait=1.0, beat=0.1)
job = start_ft_hsdp(config, build, 3000)
book.dashboard(job, controls=True)
"""
