"""Which parameters travel together, for odd sizes and mixed dtypes; and the names that labkit.parallel exports."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import labkit
import labkit.parallel
from labkit.parallel import DataParallel
from labkit.parallel.data.buckets import Buffer, plan

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
PARAMETERS = st.lists(st.builds(lambda n, d: torch.empty(n, dtype=d), st.integers(0, 50), DTYPES), min_size=1)


@given(PARAMETERS, st.randoms(use_true_random=False), st.integers(1, 100), st.integers(1, 300))
def test_each_parameter_lies_in_one_bucket_of_its_dtype(parameters, random, first, most):
    order = list(range(len(parameters)))
    random.shuffle(order)
    buckets = plan(parameters, order, first, most)
    assert sorted(i for bucket in buckets for i in bucket) == sorted(order)
    place = {i: n for n, i in enumerate(order)}
    for bucket in buckets:
        assert len({parameters[i].dtype for i in bucket}) == 1
        assert sorted(bucket, key=place.__getitem__) == bucket
    full = [bucket for bucket in buckets if sum(parameters[i].nbytes for i in bucket) >= most]
    for bucket in full:  # without its last parameter it was not full
        assert sum(parameters[i].nbytes for i in bucket[:-1]) < max(first, most)
    ends = [place[bucket[-1]] for bucket in buckets]
    assert ends == sorted(ends), "buckets stand in the order in which they become full"
    if sum(p.nbytes for p in parameters) and len({p.dtype for p in parameters}) == 1 and len(buckets) > 1:
        size = sum(parameters[i].nbytes for i in buckets[0])
        assert size >= first and size - parameters[buckets[0][-1]].nbytes < first


def test_a_buffer_is_one_stretch_of_memory():
    parameters = [torch.empty(2, 3), torch.empty(()), torch.empty(0, 4), torch.empty(5)]
    buffer = Buffer([3, 0, 2, 1], ["a", "b", "c", "d"], parameters)
    assert buffer.flat.shape == (12,) and buffer.missing == 4
    for i, view in zip(buffer.members, buffer.views, strict=True):
        assert view.shape == parameters[i].shape
        view.fill_(i + 1)
    assert buffer.flat.tolist() == [4] * 5 + [1] * 6 + [2]
    assert buffer.record.names == ("d", "a", "c", "b") and buffer.record.nbytes == 48


class Odd(nn.Module):
    """A scalar, an empty parameter, a transposed one, and three dtypes."""

    def __init__(self):
        super().__init__()
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.turned = nn.Parameter(torch.arange(6.0).view(2, 3).t())
        self.wide = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.narrow = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))

    def forward(self, x):
        y = (x @ self.turned).sum() * self.scalar + self.empty.sum()
        return y + (self.wide * x[0]).sum() + (self.narrow.float() * x.sum()).sum()


@pytest.mark.ranks
def test_odd_parameters():
    def work(group, tiny):
        model = DataParallel(Odd(), group, **({"bucket_bytes": 1, "first_bucket_bytes": 1} if tiny else {}))
        for _ in range(2):
            model.zero_grad()
            model(torch.full((2, 3), group.rank + 1.0)).backward()
        return [(p.grad.clone(), p.grad.dtype == p.dtype) for p in model.parameters()], len(model.buckets)

    for size in (1, 2, 3):
        one = Odd()
        sum(one(torch.full((2, 3), r + 1.0)) / size for r in range(size)).backward()
        for tiny in (True, False):
            for gradients, buckets in labkit.launch(work, size, tiny).results:
                assert buckets == (4 if tiny else 3), "empty and the one behind it share a bucket"
                for (got, same), p in zip(gradients, one.parameters(), strict=True):
                    near = 2e-2 if p.dtype == torch.bfloat16 else 1e-6
                    assert same and torch.allclose(got, p.grad, rtol=near, atol=1e-6)


def test_names_load_when_first_used():
    assert all(getattr(labkit.parallel, name) is not None for name in labkit.parallel.__all__)
    code = (
        "import sys, labkit.parallel as p; assert 'torch' not in sys.modules; p.Sampler; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
