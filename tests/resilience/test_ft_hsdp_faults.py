"""Replicas that break at chosen moments: the others go on, who comes back catches up, and a replay gives the same bits.

Random storms are in tests/chaos; here each test is one sentence of the protocol.
"""

from __future__ import annotations

import functools

import pytest
import torch
from slices import REBUILDABLE, few

import labkit
from labkit import Kill
from labkit.resilience.errors import Recoverable
from labkit.resilience.ft_hsdp import Checkpoints, replay
from labkit.resilience.ft_hsdp.replaying import steps_of
from labkit.resilience.supervising.run import run_ft_hsdp

from .ft_hsdp_cases import BUILDS, build_mlp, config

pytestmark = pytest.mark.ranks

STEPS = 8


def proven(run, folder, build, replicas_finished=None):
    """The audit holds, all that finished are equal, and a replay without faults comes to the same state."""
    run.require()
    c = run.config
    ends = {tuple(r.state for r in ranks) for ranks in run.finished.values()}
    assert len(ends) == 1
    if replicas_finished is not None:
        assert len(run.finished) == replicas_finished, run
    again = labkit.launch(
        lambda g, s: replay(g, c, build, s), c.ranks, steps_of(run.audit.lineage, folder), transport="local"
    ).results
    assert tuple(r.state for r in again) == next(iter(ends))
    return run


def contributors(run):
    """Who contributed to each step of the lineage."""
    return [u.contributors for u in run.audit.lineage]


def same_by_hand(run):
    """The final weights are those of a plain loop: the mean loss of all samples of a step, one model, no buckets.

    It shares no code with the trainer, and adds up in another order: equal to rounding.
    """
    c = run.config
    model, optimizer, loss = build_mlp(None, c.seed)
    at = [0] * c.replicas
    for n, who in enumerate(contributors(run)):
        share = len(who) / c.replicas
        for group in optimizer.param_groups:
            group["lr"] = c.learning_rate(n) * {"none": 1, "linear": share, "sqrt": share**0.5}[c.intervention]
        samples = [r + c.replicas * p for r in who for p in range(at[r], at[r] + c.batch)]
        optimizer.zero_grad()
        loss(model, torch.tensor(samples)).backward()
        optimizer.step()
        for r in who:
            at[r] += c.batch
    mine = next(iter(run.finished.values()))[0]
    assert mine.positions == tuple(at)
    for name, p in model.named_parameters():
        assert torch.allclose(mine.weights[name], p, atol=2e-5), name


@pytest.mark.parametrize("at", ["quorum", "forward", "exchange", "vote", "commit"])
@pytest.mark.parametrize(("inside", "rank"), few([("plain", 0), ("fsdp", 0), ("tp", 1), ("context", 1)]))
@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_a_rank_killed_anywhere_in_a_step(at, inside, rank, transport, tmp_path):
    """Leader or not: its replica starts again, the others lose nothing, and in the end it is one of them again."""
    ranks = 1 if inside == "plain" else 2
    c = config(3 if ranks == 1 else 2, ranks)
    fault = Kill(ranks + rank, at=at, nth=3)
    run = run_ft_hsdp(c, BUILDS[inside], STEPS, log_dir=tmp_path, faults=[fault], transport=transport)
    proven(run, tmp_path, BUILDS[inside])
    assert not run.run.unfired
    # on a machine without a processor to spare a deadline may end a rank that was only slow: that must be survived too
    assert run.incidents[0].replica == 1, [str(i) for i in run.incidents]


def force_failures(where):
    """A build under which exchanges seem to fail on a rank: (world rank, step) pairs, each once."""

    def build(inner, seed):
        from labkit.resilience.ft_hsdp import step as stepping

        if not hasattr(stepping, "untouched"):
            stepping.untouched = stepping._train_and_exchange
            left = set(where)

            def lossy(life, quorum, taken, phases):
                problem = stepping.untouched(life, quorum, taken, phases)
                here = (life.group.rank, quorum.step)
                if here in left:
                    left.discard(here)
                    return Recoverable("made up")
                return problem

            stepping._train_and_exchange = lossy
        return build_mlp(inner, seed)

    return build


def test_replicas_that_decide_differently_meet_again(tmp_path):
    """Replica 0 applies step 3, replicas 1 and 2 do not: they take its state over, and their samples are in it."""
    c = config(3, keep_weights=True, learning_rate=lambda n: 0.01)
    run = proven(run_ft_hsdp(c, force_failures({(1, 3), (2, 3)}), STEPS, log_dir=tmp_path), tmp_path, build_mlp, 3)
    same_by_hand(run)
    assert contributors(run)[3] == (0, 1, 2)  # also of who discarded it
    assert contributors(run)[4] == (0,)
    assert contributors(run)[5] == (0, 1, 2)
    assert run.audit.consumed == (32, 28, 28)
    for r in (1, 2):
        roles = [(a.step, a.role, a.committed) for a in run.results[r].attempts][3:6]
        assert roles == [(3, "healthy", False), (4, "recovering", True), (5, "healthy", True)]
        assert run.results[r].transferred["fetched"] > 0
    assert run.results[0].transferred["served"] == 2 * run.results[1].transferred["fetched"]


def test_all_discard_and_train_the_same_samples_again(tmp_path):
    c = config(2)
    run = proven(run_ft_hsdp(c, force_failures({(0, 3), (1, 3)}), 5, log_dir=tmp_path), tmp_path, build_mlp, 2)
    clean = run_ft_hsdp(c, build_mlp, 5).require()
    assert run.results[0].state == clean.results[0].state  # nobody can tell that it was tried twice
    tries = [(a.step, a.committed) for a in run.results[0].attempts if a.role == "healthy"]
    assert tries == [(0, True), (1, True), (2, True), (3, False), (3, True), (4, True)]
    assert [a.why for a in run.results[0].attempts if not a.committed][:1] == ["made up"]


def test_a_replica_that_gives_up_says_why(tmp_path):
    c = config(1, max_attempts=3)
    run = run_ft_hsdp(c, force_forever, 3, log_dir=tmp_path, restarts=1)
    assert not run.finished
    assert any("3 times in vain; the last time: made up" in f.message for f in run.run.failures)


def force_forever(inner, seed):
    from labkit.resilience.ft_hsdp import step as stepping

    stepping._train_and_exchange = lambda *_: Recoverable("made up")
    return build_mlp(inner, seed)


@pytest.mark.parametrize("intervention", few(["sqrt", "linear"]))
def test_the_rate_follows_the_number_of_healthy_replicas(intervention, tmp_path):
    c = config(2, intervention=intervention, learning_rate=lambda n: 0.02, keep_weights=True)
    run = run_ft_hsdp(c, force_failures({(1, 1), (1, 3)}), 6, log_dir=tmp_path)
    proven(run, tmp_path, build_mlp, 2)  # the replay follows it too
    assert (0,) in contributors(run)
    same_by_hand(run)


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_all_but_one_are_killed_and_come_back(transport, tmp_path):
    faults = [Kill(r, at="exchange", nth=3) for r in (1, 2)]
    run = run_ft_hsdp(config(3), build_mlp, STEPS, log_dir=tmp_path, faults=faults, transport=transport)
    proven(run, tmp_path, build_mlp)
    assert (0,) in contributors(run) and len(run.incidents) == 2


class Finished(Checkpoints):
    """Each is whole before the next step begins; else the one of the step before a death may not be there."""

    def save(self, inner, state):
        super().save(inner, state)
        self._open.finish()


def test_everybody_dies_and_the_last_checkpoint_is_taken_up(tmp_path):
    """Without one it would begin anew; with one the lineage begins at its step."""
    faults = [Kill(r, at="exchange", nth=6) for r in range(2)]
    run = run_ft_hsdp(config(2), build_mlp, STEPS, log_dir=tmp_path / "a", faults=faults)
    proven(run, tmp_path / "a", build_mlp)
    assert run.audit.commits == 2 * 5 + 2 * STEPS  # the first five steps twice, to the same bits
    kept = config(2, checkpoint=Finished(tmp_path / "kept"), checkpoint_every=2)
    run = run_ft_hsdp(kept, build_mlp, STEPS, log_dir=tmp_path / "b", faults=faults).require()
    assert [u.step for u in run.audit.lineage] == list(range(4, STEPS))
    assert len({r.state for r in run.results if r.finished}) == 1
    assert not any(r.unsaved for r in run.results)


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_who_recovers_is_killed_again_and_again(transport, tmp_path):
    faults = [Kill(1, at="forward", nth=2), Kill(1, at="transfer", nth=1), Kill(1, at="load", nth=1)]
    c = config(2)
    run = run_ft_hsdp(c, build_slow, 30, log_dir=tmp_path, faults=faults, transport=transport)
    proven(run, tmp_path, build_mlp, 2)
    assert len(run.incidents) == 3 and not run.run.unfired


def build_slow(inner, seed):
    """Steps of a few hundredths of a second, so that others are still there when a replica is back."""
    import time

    model, optimizer, loss = build_mlp(inner, seed)

    def slow(model, numbers):
        time.sleep(0.1)
        return loss(model, numbers)

    return model, optimizer, slow


def test_the_source_of_a_transfer_is_killed(tmp_path):
    """Replica 2 comes back and asks; who serves it first dies of it, the next one gives the state."""
    faults = [Kill(2, at="forward", nth=2), Kill(0, at="serve", nth=1)]
    run = run_ft_hsdp(config(3, transfer_bytes=256), build_slow, 30, log_dir=tmp_path, faults=faults)
    proven(run, tmp_path, build_mlp)
    assert not run.run.unfired and {i.replica for i in run.incidents} == {0, 2}
    assert any(line.kind == "fetch" and line.replica == 2 and line.source == 1 for line in run.lines)


@pytest.mark.long
def test_a_transfer_that_takes_too_long_does_not_hold_up_the_others(tmp_path):
    """The others wait for join_wait at the most; then the replica tries again."""
    c = config(2, join_wait=0.2)
    run = run_ft_hsdp(
        c, functools.partial(slow_transfer, 2), 12, log_dir=tmp_path, faults=[Kill(1, at="forward", nth=3)]
    )
    proven(run, tmp_path, build_mlp)
    late = [a for a in run.results[1].attempts if "after the exchange" in a.why]
    assert late and not any(a.committed for a in late)


def slow_transfer(slow, inner, seed):
    """The first `slow` transfers of each rank take half a second longer than they should."""
    import time

    from labkit.resilience.ft_hsdp import transfer

    if not hasattr(transfer, "untouched"):
        transfer.untouched, left = transfer.fetch_state, [slow]

        def late(*args, **options):
            if left[0]:
                left[0] -= 1
                time.sleep(0.6)
            return transfer.untouched(*args, **options)

        transfer.fetch_state = late
    return build_slow(inner, seed)


def test_who_comes_back_after_the_end_is_left_behind(tmp_path):
    run = run_ft_hsdp(config(2), build_mlp, 4, log_dir=tmp_path, faults=[Kill(1, at="vote", nth=4)])
    proven(run, tmp_path, build_mlp)
    last = run.results[1]
    assert last is None or last.finished or last.steps == 0


def test_steps_left_to_nobody_are_no_error():
    run = run_ft_hsdp(config(2), build_mlp, 0).require()
    assert [r.steps for r in run.results] == [0, 0]
