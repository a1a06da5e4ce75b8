"""Without faults FT-HSDP is plain HSDP to the bit, whatever is inside a replica; and its audit log can be replayed."""

from __future__ import annotations

import time

import pytest
import torch
from slices import REBUILDABLE, few

import labkit
from labkit.resilience.ft_hsdp import plain_hsdp, replay
from labkit.resilience.ft_hsdp.replaying import ring_sum, steps_of
from labkit.resilience.supervising.run import run_ft_hsdp

from .ft_hsdp_cases import BUILDS, build_mlp, config

pytestmark = pytest.mark.ranks

STEPS = 5


def states(results):
    return {(r.replica, r.rank): r.state for r in results}


def plain(c, build, steps=STEPS, **options):
    run = labkit.launch(lambda g: plain_hsdp(g, c, build, steps, **options), c.replicas * c.ranks, transport="local")
    return run.results


@pytest.mark.parametrize(
    ("inside", "replicas", "ranks", "options"),
    few(
        [
            ("plain", 3, 1, {"bucket_bytes": 128, "chunk_bytes": 40, "chunks": 2}),
            ("fsdp", 2, 2, {}),
            ("plain", 1, 1, {}),
            ("context", 2, 2, {}),
            (
                "plain",
                2,
                1,
                {"offload_optimizer": True, "intervention": "sqrt", "learning_rate": lambda n: 0.02 / (n + 1)},
            ),
            ("tp", 2, 2, {"bucket_bytes": 4096}),
        ],
        2,
    ),  # fmt: skip
)
@pytest.mark.parametrize("transport", REBUILDABLE)
def test_without_faults_it_is_plain_hsdp_to_the_bit(inside, replicas, ranks, options, transport, tmp_path):
    c = config(replicas, ranks, keep_weights=True, **options)
    run = run_ft_hsdp(c, BUILDS[inside], STEPS, log_dir=tmp_path, transport=transport).require()
    reference = plain(c, BUILDS[inside])
    assert states(run.results) == states(reference)
    for mine, its in zip(run.results, reference, strict=True):
        assert mine.losses == its.losses and len(mine.losses) == STEPS
        assert all(torch.equal(mine.weights[name], its.weights[name]) for name in its.weights)
        assert mine.positions == its.positions == (STEPS * c.batch,) * replicas
    first = run.results[0]
    assert len({a.quorum for a in first.attempts}) == 1  # the group was made once
    assert first.losses[STEPS - 1] != first.losses[0] and first.first_step > 0
    assert all(r.transferred == {"fetched": 0, "served": 0} for r in run.results)
    assert run.audit.ok and not run.incidents

    again = labkit.launch(
        lambda g, s: replay(g, c, BUILDS[inside], s), ranks, steps_of(run.audit.lineage, tmp_path), transport="local"
    ).results
    assert [r.state for r in again] == [r.state for r in run.finished[0]]


def test_another_order_of_addition_shows():
    """What the test above would not see if it compared too little: three replicas, added up in another order."""
    c = config(3)
    assert states(plain(c, build_mlp)) != states(plain(c, build_mlp, algorithm="tree"))


def test_replicas_end_with_the_same_state_and_train_different_samples(tmp_path):
    run = run_ft_hsdp(config(2), build_mlp, 3, log_dir=tmp_path).require()
    assert len(set(states(run.results).values())) == 1
    assert run.audit.consumed == (12, 12)
    alone = run_ft_hsdp(config(1, batch=8), build_mlp, 3).require()
    assert alone.results[0].state != run.results[0].state


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_sum_of_a_ring_is_added_up_in_its_order(n):
    def on_rank(group):
        x = torch.randn(103, generator=torch.Generator().manual_seed(group.rank)) * 10.0**group.rank
        return labkit.collectives.all_reduce(x, group, algorithm="ring") if group.size > 1 else x

    xs = [torch.randn(103, generator=torch.Generator().manual_seed(r)) * 10.0**r for r in range(n)]
    before = [x.clone() for x in xs]
    got = ring_sum(xs, torch.empty(103))
    assert torch.equal(got, labkit.launch(on_rank, n, transport="local").results[0])
    assert all(torch.equal(a, b) for a, b in zip(xs, before, strict=True))


def test_a_build_may_ask_for_its_replica_and_a_spare_has_none(tmp_path):
    def noting(inner, seed, *, replica):
        (tmp_path / f"{inner.context.rank}-{replica}").touch()
        give_up = time.monotonic() + 20  # two steps may be over before a spare has built anything
        while replica is not None and not (tmp_path / "2-None").exists() and time.monotonic() < give_up:
            time.sleep(0.01)
        return build_mlp(inner, seed)

    c = config(2, spares=1)
    run = run_ft_hsdp(c, noting, 2, log_dir=tmp_path / "logs").require()
    assert sorted(p.name for p in tmp_path.glob("?-*")) == ["0-0", "1-1", "2-None"]
    assert states(run.results[:2]) == states(plain(config(2), noting, 2))
    labkit.launch(lambda g: replay(g, c, noting, []), 1)
    assert sorted(p.name for p in tmp_path.glob("?-*")) == ["0-0", "0-None", "1-1", "2-None"]
