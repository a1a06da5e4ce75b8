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


def test_the_spec_of_a_world_says_which_gpu_each_rank_has(monkeypatch):
    from labkit.wire.errors import RefusedError
    from labkit.world import devices
    from labkit.world.spec import make_spec

    def on(gpus, nccl, world_size, **options):
        monkeypatch.setattr(devices, "gpu_count", lambda: gpus)
        monkeypatch.setattr(devices, "nccl_version", lambda: nccl)
        return make_spec(world_size, options)

    own = on(4, (2, 27, 3), 4)  # a GPU each: used without being asked for
    assert (own.backend, own.transport, own.gpus.device_of(3)) == ("nccl", "nccl", 3)
    few = on(1, (2, 30, 0), 4)  # too few for everyone: ordinary cores, unless asked for
    assert (few.backend, few.transport, few.gpus.device_of(3)) == ("gloo", "gloo", None)
    shared = on(1, (2, 30, 0), 4, backend="nccl")
    assert (shared.backend, shared.transport, shared.gpus.device_of(3)) == ("nccl", "nccl", 0)
    assert shared.gpus.environ == {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    staged = on(1, (2, 29, 0), 4, backend="nccl")  # tensors on the GPU, messages by way of host memory
    assert (staged.backend, staged.transport, staged.gpus.device_of(3)) == ("gloo", "gloo", 0)
    sockets = on(1, (2, 29, 0), 4, backend="nccl", transport="local")
    assert (sockets.transport, sockets.gpus.device_of(1)) == ("local", 0)
    with pytest.raises(RefusedError, match="4 ranks on 1 GPUs.*does not let ranks share"):
        on(1, (2, 29, 0), 4, backend="nccl", transport="nccl")
    with pytest.raises(RefusedError, match="has no option 'gpus'"):
        make_spec(4, {"gpus": 2})
    timed = on(4, (2, 27, 3), 4, clock="virtual")  # NCCL's messages cannot carry times: by way of host memory
    assert (timed.backend, timed.transport, timed.gpus.device_of(3)) == ("nccl", "gloo", 3)
    with pytest.raises(RefusedError, match="transport='nccl' cannot carry the times"):
        on(4, (2, 27, 3), 4, transport="nccl", clock="virtual")


@pytest.mark.parametrize(
    ("gpus", "options", "transport"),
    [
        (0, {}, "gloo"),
        (0, {"clock": "virtual"}, "local"),
        (0, {"clock": "virtual", "transport": "gloo"}, "gloo"),
        (2, {}, "nccl"),
        (2, {"clock": "virtual", "backend": "gloo"}, "local"),
    ],
)
def test_with_a_virtual_clock_messages_go_by_the_quickest_way(monkeypatch, gpus, options, transport):
    from labkit.world import devices
    from labkit.world.spec import make_spec

    monkeypatch.setattr(devices, "gpu_count", lambda: gpus)
    monkeypatch.setattr(devices, "nccl_version", lambda: (2, 27, 3))
    assert make_spec(2, options).transport == transport
