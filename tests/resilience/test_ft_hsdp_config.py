"""What a fault-tolerant run refuses before it starts; rates, sample numbers, and the files beside a run."""

from __future__ import annotations

import json
import math

import pytest
import torch

from labkit.resilience import Deadlines
from labkit.resilience.ft_hsdp import FtConfig, data, factor, learning_rate
from labkit.wire.errors import RefusedError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"replicas": 0}, "replicas=0"),
        ({"replicas": 2, "ranks": 1.5}, "ranks=1.5"),
        ({"replicas": 2, "batch": True}, "batch=True"),
        ({"replicas": 2, "join_wait": math.inf}, "join_wait=inf"),
        ({"replicas": 2, "join_wait": 100.0}, "at most a step's deadline, 10 s"),
        ({"replicas": 2, "intervention": "cubic"}, "choose 'none', 'linear', 'sqrt'"),
        ({"replicas": 2, "min_replicas": 3}, "there are only 2 replicas"),
        ({"replicas": 2, "deadlines": 3}, "needs Deadlines"),
        ({"replicas": 2, "beat": 5.0}, "than a message may take"),
        ({"replicas": 2, "spares": -1}, "spares=-1"),
    ],
)
def test_options_that_cannot_work_are_refused(options, words):
    with pytest.raises(RefusedError, match="FtConfig") as caught:
        FtConfig(**{"deadlines": Deadlines.for_step(1.0), **options})
    assert words in str(caught.value)


def test_the_world_holds_replicas_and_spares():
    assert FtConfig(4, 2).world_size == 8
    assert FtConfig(4, 2, spares=1).world_size == 10


def test_interventions_are_those_of_the_paper():
    assert factor("none", 1, 12) == 1
    assert factor("linear", 9, 12) == 0.75
    assert factor("sqrt", 3, 12) == 0.5
    assert factor("sqrt", 12, 12) == factor("linear", 12, 12) == 1
    for healthy in (0, 13):
        with pytest.raises(RefusedError, match=f"{healthy} healthy replicas of 12"):
            factor("linear", healthy, 12)
    with pytest.raises(RefusedError, match="cubic"):
        factor("cubic", 1, 2)


def test_each_group_of_the_optimizer_gets_its_rate():
    a, b = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 2.0}])
    learning_rate.set_rates(optimizer, [0.5, 0.25])
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.25]


def test_streams_share_out_all_numbers_and_each_once():
    replicas, batch, steps = 3, 4, 5
    seen = torch.cat([data.numbers(r, s * batch, batch, replicas) for r in range(replicas) for s in range(steps)])
    assert sorted(seen.tolist()) == list(range(replicas * batch * steps))
    for wrong in ((3, 0, 1, 3), (0, -1, 1, 3), (0, 0, 0, 3)):
        with pytest.raises(RefusedError, match="numbers"):
            data.numbers(*wrong)


def test_random_numbers_follow_from_replica_and_position_alone():
    def drawn(*where):
        torch.rand(7)  # whatever was drawn before
        data.draw_from(*where)
        return torch.rand(3).tolist()

    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    assert len({tuple(drawn(*w)) for w in ((1, 2, 3), (0, 2, 3), (1, 1, 3), (1, 2, 4))}) == 4


def test_loader_state_is_there_whole_or_not_at_all(tmp_path):
    assert data.read_loader_state(tmp_path) is None
    data.write_loader_state(tmp_path, 0, {"step": 3, "positions": [4, 4]})
    data.write_loader_state(tmp_path, 1, {"step": 4, "positions": [8, 8]})
    (tmp_path / "loader_state.2.json").write_text('{"step": 9, "posi')  # somebody wrote it by hand
    assert data.read_loader_state(tmp_path) == {"step": 4, "positions": [8, 8]}
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"loader_state.{r}.json" for r in range(3)]
    with pytest.raises(RefusedError, match="cannot be written"):
        data.write_loader_state(tmp_path / "nowhere", 0, {"step": 0})


def test_another_run_in_the_folder_is_not_over(tmp_path):
    assert not data.is_finished(tmp_path, "a")
    data.write_finished(tmp_path, "a", 7)
    assert data.is_finished(tmp_path, "a") and not data.is_finished(tmp_path, "b")


def test_notes_of_quorums_survive_a_torn_line(tmp_path):
    from labkit.resilience.quorum import Member, Quorum

    data.note_quorum(tmp_path, 1, Quorum(5, 2, 0, (Member(0, 1, 2), Member(1, 3, 0))))
    with (tmp_path / "quorums.1.jsonl").open("a") as file:
        file.write(json.dumps({"quorum": 6, "members": [[0, 1, 3]]})[:-4])
    assert data.read_quorums(tmp_path) == {5: [(0, 1, 2), (1, 3, 0)]}
