"""What cannot work is refused at once, with the value and the remedy, and nothing is left running."""

from __future__ import annotations

import threading

import pytest
import torch

import labkit
from labkit import Link, Network, RankFailed, RefusedError
from labkit.world import engine

pytestmark = pytest.mark.ranks


def nothing(group):
    return None


@pytest.mark.parametrize(
    "size,options,text",
    [
        (0, {}, "world_size=0: needs a whole number of at least 1"),
        (-3, {}, "world_size=-3"),
        (2.0, {}, "world_size=2.0"),
        (True, {}, "world_size=True"),
        ("4", {}, "world_size='4'"),
        (None, {}, "world_size=None"),
        (10**6, {}, "at most [0-9]+ ranks fit here|may start only"),
        (2, {"transports": "local"}, "no option 'transports'; did you mean 'transport'?"),
        (2, {"zzz": 1}, "no option 'zzz'.*Options are: backend"),
        (2, {"backend": "mpi"}, "backend='mpi' is not one of 'auto', 'gloo', 'nccl'"),
        (2, {"transport": "tcp"}, "transport='tcp' is not one of"),
        (2, {"transport": ["local"]}, "transport=.'local'. is not one of"),
        (2, {"clock": "wall"}, "clock='wall'"),
        (2, {"memory": True}, "memory=True"),
        (2, {"on_failure": "ignore"}, "on_failure='ignore'"),
        (2, {"timeout": 0}, "timeout=0"),
        (2, {"timeout": "60"}, "timeout='60'"),
        (2, {"timeout": float("nan")}, "timeout=nan"),
        (2, {"deadline": -1}, "deadline=-1"),
        (2, {"seed": -1}, "seed=-1"),
        (2, {"seed": 1.5}, "seed=1.5"),
        (2, {"max_result_bytes": 0}, "max_result_bytes=0"),
        (2, {"network": 5}, "network=5: needs a labkit.Network"),
        (2, {"network": Network(nodes=3)}, "the world has 2"),
        (2, {"check": "no"}, "check='no'"),
        (2, {"progress": 3}, "progress=3"),
        (2, {"faults": 7}, "faults="),
    ],
)
def test_options(size, options, text) -> None:
    with pytest.raises(RefusedError, match=text):
        labkit.launch(nothing, size, **options)


def test_nccl_is_refused_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for option in ({"backend": "nccl"}, {"transport": "nccl"}):
        with pytest.raises(RefusedError, match="nccl needs an NVIDIA GPU"):
            labkit.launch(nothing, 2, **option)


def test_a_cap_on_ranks(monkeypatch) -> None:
    monkeypatch.setenv("LABKIT_MAX_RANKS", "3")
    assert labkit.launch(lambda group: 1, 3).results == [1, 1, 1]
    with pytest.raises(RefusedError, match="world_size=4: this machine allows at most 3 ranks a reader"):
        labkit.launch(nothing, 4)
    monkeypatch.setenv("LABKIT_MAX_RANKS", "many")
    with pytest.raises(RefusedError, match="LABKIT_MAX_RANKS='many'"):
        labkit.launch(nothing, 1)


def test_what_is_no_function() -> None:
    with pytest.raises(RefusedError, match="needs a function fn\\(group, \\*args\\), not int"):
        labkit.launch(3, 2)


def test_a_function_that_cannot_be_sent() -> None:
    lock = threading.Lock()
    with pytest.raises(RefusedError, match="cannot be sent to the ranks: .*lock.*create such things inside"):
        labkit.launch(lambda group: lock, 2)
    with pytest.raises(RefusedError, match="cannot be sent to the ranks"):
        labkit.launch(nothing, 2, (i for i in range(3)))


def test_a_function_that_cannot_be_loaded_there() -> None:
    class Trap:
        def __reduce__(self):
            return __import__, ("module_that_is_not_there",)

    with pytest.raises(RefusedError, match="could not be loaded in a new process: ModuleNotFoundError"):
        labkit.launch(nothing, 2, Trap())


def test_wrong_arguments_name_the_function() -> None:
    with pytest.raises(RankFailed, match="takes 1 positional argument but 2 were given"):
        labkit.launch(nothing, 1, "extra")


def test_a_nested_launch_is_refused() -> None:
    with pytest.raises(RankFailed, match="raised RefusedError: launch was called inside a rank"):
        labkit.launch(lambda group: labkit.launch(nothing, 1), 1)


def test_a_folder_that_is_gone_is_named(tmp_path, monkeypatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises((RefusedError, FileNotFoundError)):
        labkit.launch(nothing, 1)


def test_nothing_was_started_for_what_was_refused(monkeypatch) -> None:
    started = []
    monkeypatch.setattr(engine._zygote, "host", lambda: started.append(1))
    for options in ({"transport": "tcp"}, {"zzz": 1}, {"faults": [3]}):
        with pytest.raises(RefusedError):
            labkit.launch(nothing, 2, **options)
    assert not started


@pytest.mark.parametrize("bad", [{"bandwidth": 0}, {"bandwidth": -1}, {"latency": -1e-6}, {"latency": float("inf")},
                                 {"bandwidth": float("nan")}, {"latency": float("nan")}])  # fmt: skip
def test_links_that_cannot_be(bad) -> None:
    with pytest.raises(RefusedError):
        Link(**bad)


def test_a_link_faster_than_the_host_is_refused_in_real_time() -> None:
    for link in (Link(bandwidth=900e9, latency=1e-3), Link(latency=1e-9)):
        with pytest.raises(RefusedError, match="faster than this machine.*clock='virtual'"):
            labkit.launch(nothing, 2, network=Network(intra=link))
        assert labkit.launch(lambda g: g.rank, 2, network=Network(intra=link), clock="virtual").results == [0, 1]
    slow = Network(nodes=2, ranks_per_node=1, inter=Link(bandwidth=1e9, latency=1e-3))
    assert labkit.launch(lambda g: g.rank, 2, network=slow).results == [0, 1]
