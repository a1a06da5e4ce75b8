"""Which backend ranks use when there are fewer GPUs than ranks: a rule, so that it can be tested without any."""

import pytest

from labkit.world.devices import nccl_version, place


@pytest.mark.parametrize("ranks, gpus, nccl, backend, told, devices", [
    (4, 0, (2, 30, 7), "gloo", False, (None, None, None, None)),
    (4, 4, (2, 27, 3), "nccl", False, (0, 1, 2, 3)),
    (2, 4, (2, 30, 7), "nccl", False, (0, 1)),
    (4, 2, (2, 30, 0), "nccl", True, (0, 1, 0, 1)),
    (4, 1, (3, 0, 0), "nccl", True, (0, 0, 0, 0)),
    (4, 1, (2, 29, 9), "gloo", False, (0, 0, 0, 0)),
    (1, 1, (), "gloo", False, (0,)),
])  # fmt: skip
def test_more_ranks_than_gpus_use_nccl_if_it_can_share_and_gloo_if_not(ranks, gpus, nccl, backend, told, devices):
    found = place(ranks, gpus, nccl)
    assert (found.backend, found.devices) == (backend, devices)
    assert found.environ == ({"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if told else {})
    assert found.shared == (0 < gpus < ranks)


def test_a_build_without_cuda_has_no_nccl():
    import torch

    assert (nccl_version() == ()) == (torch.version.cuda is None)
