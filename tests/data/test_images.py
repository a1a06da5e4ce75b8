"""The digits as tensors."""

import numpy as np
import pytest
import torch

from labkit.data import digits, image_batches, images


def test_every_digit_is_in_one_part_and_scaled():
    train, val = digits(0.2)
    assert len(train.y) + len(val.y) == 1797
    assert abs(len(val.y) - 0.2 * 1797) < 1
    assert train.x.shape[1:] == val.x.shape[1:] == (1, 8, 8)
    assert train.x.dtype == torch.float32 and train.y.dtype == torch.int64
    assert train.x.min() == 0 and train.x.max() == 1
    assert sorted(train.y.unique().tolist()) == sorted(val.y.unique().tolist()) == list(range(10))


def test_the_seed_mixes():
    first, again, other = (digits(seed=s)[0].y for s in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_ranks_share_out_the_batch_of_one():
    train, _ = digits()
    alone = next(image_batches(train, 6))
    parts = [next(image_batches(train, 2, rank=rank, world=3)) for rank in range(3)]
    assert torch.equal(torch.cat([p.x for p in parts]), alone.x)
    assert torch.equal(torch.cat([p.y for p in parts]), alone.y)


def test_a_part_outside_zero_to_one_is_refused():
    with pytest.raises(ValueError, match="validation=0"):
        digits(0)


def test_the_file_is_read_as_scikit_learn_reads_it():
    from sklearn.datasets import load_digits

    assert np.array_equal(images._table(), np.column_stack([load_digits().data, load_digits().target]))
