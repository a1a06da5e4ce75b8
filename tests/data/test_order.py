"""The order of examples: the same everywhere, disjoint by rank, independent of how many ranks."""

from itertools import islice

import pytest
import torch
from hypothesis import given, strategies as st

from labkit.data import batch_indices


def steps(number, *args):
    return list(islice(batch_indices(*args), number))


sizes = st.tuples(st.integers(1, 5), st.integers(1, 8)).flatmap(
    lambda bw: st.tuples(st.integers(bw[0] * bw[1], 120), st.just(bw[0]), st.just(bw[1]))
)


@given(size=sizes, seed=st.integers(0, 3))
def test_ranks_of_an_epoch_are_disjoint_and_together_they_are_the_single_rank_batch(size, seed):
    count, batch, world = size
    epoch = count // (batch * world)
    by_rank = [torch.stack(steps(2 * epoch, count, batch, seed, rank, world)) for rank in range(world)]
    seen = torch.cat([b[:epoch].flatten() for b in by_rank])
    assert len(set(seen.tolist())) == epoch * batch * world
    assert 0 <= seen.min() and seen.max() < count
    alone = torch.stack(steps(2 * epoch, count, batch * world, seed))
    assert torch.equal(torch.cat(by_rank, dim=1), alone)


def test_the_seed_decides_and_every_epoch_differs():
    first, again, other = (torch.cat(steps(8, 64, 16, seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[:64], first[64:])
    assert torch.equal(first[:64].sort().values, first[64:].sort().values)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((10, 0), "batch=0"),
        ((10, 1, 0, 0, 0), "world=0"),
        ((10, 1, 0, 2, 2), "rank=2 is not in a world of 2"),
        ((10, 1, 0, -1, 2), "rank=-1"),
        ((10, 3, 0, 0, 4), "at most 2"),
        ((3, 1, 0, 0, 4), "at most 3 ranks"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused_at_the_call(args, words):
    with pytest.raises(ValueError, match=words):
        batch_indices(*args)
