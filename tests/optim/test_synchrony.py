"""BSP, SSP and ASP on real ranks with stragglers: logs against a replay, who waits, times, corrections."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st

import labkit
from labkit import Slow
from labkit.optim.synchrony import ASP, BSP, SSP, DelayCompensation, by_inverse, by_root, explicit_momentum
from labkit.parallel.server import Client, Server, largest_lead, out_of_order, staleness
from labkit.wire.errors import RefusedError

SGD = partial(torch.optim.SGD, lr=0.1)


def run_apart(group, policy, seconds):
    """Rank 0 serves one number; worker w needs seconds[w - 1][c] for its clock c. The server's log and waits."""
    named = {"w": torch.ones(3)}
    if group.rank == 0:
        server = Server(named, group, [0], policy=policy, optimizer=SGD)
        return server.serve(), server.waits
    with Client(named, group, [0]) as client:
        for length in seconds[group.rank - 1]:
            w = client.pull("w")
            group.compute(length)
            client.push("w", w)
            client.tick()


def replay(seconds, s, together=False):
    """What the log must be, by counting: (worker, clock, version, tau) of each update. s: None for no bound."""
    clocks = {w: 0 for w in range(1, len(seconds) + 1)}
    ends = {w: seconds[w - 1][0] for w in clocks}  # when the workers that compute are through
    seen, log, held, waiting = dict.fromkeys(clocks, 0), [], [], set()
    while ends:
        now, w = min((t, w) for w, t in ends.items())
        del ends[w]
        held.append((w, clocks[w]))
        clocks[w] += 1
        if clocks[w] == len(seconds[w - 1]):
            del clocks[w]
        else:
            waiting.add(w)
        if not together or not ends:
            version = len(log)
            log += [(w, c, seen[w], version - seen[w]) for w, c in sorted(held)]
            held.clear()
        for w in sorted(waiting):
            if s is None or clocks[w] - min(clocks.values()) <= s:
                waiting.remove(w)
                seen[w], ends[w] = len(log), now + seconds[w - 1][clocks[w]]
    return log


@pytest.fixture(scope="module")
def world():
    with labkit.world(4, clock="virtual", transport="local") as world:
        yield world


stragglers = st.lists(st.lists(st.integers(1, 9).map(float), min_size=4, max_size=4), min_size=3, max_size=3)


def few_examples(test):
    """Each example is four runs of four ranks."""
    return settings(max_examples=max(2, settings().max_examples // 7))(test)


@pytest.mark.ranks
def test_logs_are_those_of_a_replay_and_nobody_leads_by_more_than_s(world):
    """For any stragglers: who was applied when and how stale, the bound, the waits, and the time against BSP."""

    @given(stragglers)
    @few_examples
    def check(seconds):
        runs = {policy: world.run(run_apart, policy, seconds) for policy in (BSP(), SSP(0), SSP(2), ASP())}
        waits = {policy: len(run.results[0][1]) for policy, run in runs.items()}
        assert waits[SSP(0)] == waits[BSP()] and waits[ASP()] == 0
        for policy, run in runs.items():
            log = run.results[0][0]
            s = getattr(policy, "s", 0 if policy.together else None)
            expected = replay(seconds, s, policy.together)
            assert [(u.worker, u.clock, u.version, u.tau) for u in log] == expected
            taus = [tau for *_, tau in expected]
            assert staleness(log) == {tau: taus.count(tau) for tau in sorted(set(taus))}
            assert out_of_order(log) == []
            assert s is None or largest_lead(log, (1, 2, 3)) <= s
            assert run.trace.duration <= runs[BSP()].trace.duration

    check()


def time_to(target, policy, lr, clocks):
    """Seconds of the virtual clock until a least-squares loss is below `target`, with worker 3 of 3 slowed 4 times."""

    def work(group):
        draw = torch.Generator().manual_seed(0)
        x_nd, truth = torch.randn(96, 5, generator=draw), torch.randn(5, generator=draw)
        y_n = x_nd @ truth
        losses = []

        class Watched(torch.optim.SGD):
            def step(self):
                super().step()
                losses.append(float((x_nd @ self.param_groups[0]["params"][0] - y_n).square().mean().detach()))

        named = {"w": torch.zeros(5)}
        if group.rank == 0:
            server = Server(named, group, [0], policy=policy, optimizer=partial(Watched, lr=lr))
            log = server.serve()
            when = sorted({u.at for u in log}) if policy.together else [u.at for u in log]
            return next(at for at, loss in zip(when, losses, strict=True) if loss < target) / 1e9
        mine = slice(32 * (group.rank - 1), 32 * group.rank)
        with Client(named, group, [0]) as client:
            for _ in range(clocks):
                w = client.pull("w")
                group.compute(1.0)
                client.push("w", 2 / 32 * x_nd[mine].T @ (x_nd[mine] @ w - y_n[mine]))
                client.tick()

    return labkit.launch(work, 4, clock="virtual", transport="local", faults=[Slow(3, factor=4.0)]).results[0]


@pytest.mark.ranks
def test_ssp_reaches_the_loss_of_bsp_in_less_than_six_tenths_of_its_time():
    """Each gradient of SSP has a third of the rate, so in a clock of all three it moves the weights as far as BSP."""
    bsp = time_to(1e-3, BSP(), 0.15, clocks=40)
    assert time_to(1e-3, SSP(16), 0.15 / 3, clocks=40) <= 0.6 * bsp


def test_rates_fall_with_staleness():
    assert [by_root(tau) for tau in (0, 3, 8)] == [1, 1 / 2, 1 / 3]
    assert [by_inverse(tau) for tau in (0, 1, 4)] == [1, 1, 1 / 4]


def test_delay_compensation_leaves_an_error_of_second_order():
    """-log w has the second derivative g * g, so halving the way that the weights have moved quarters the error."""
    then = torch.tensor([0.7, 2.0, 5.0], dtype=torch.float64)

    def error(way):
        now = then + way
        return (DelayCompensation(1.0)(-1 / then, then, now) + 1 / now).abs()

    assert torch.allclose(error(1e-3) / error(5e-4), torch.full_like(then, 4.0), rtol=1e-2)


def test_momentum_of_asynchrony_and_of_the_optimizer_add_up():
    """Random staleness and momentum u on a slope of 1: a step's share in the one after it is u + 1 - 1/N = target."""
    workers, target = 4, 0.9
    implicit, u = 1 - 1 / workers, explicit_momentum(target, workers)
    kicks = [(1 - implicit) * implicit**tau for tau in range(3)]  # of a gradient that is there in one step only
    steps = [kicks[0]]
    steps.append(u * steps[0] + kicks[1])
    assert steps[1] / steps[0] == pytest.approx(target)
    steps.append(u * steps[1] + kicks[2])
    assert steps[2] == pytest.approx(target * steps[1] - u * implicit * steps[0])
    assert explicit_momentum(0.5, 4) < 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SSP(-1), r"SSP\(-1\): the staleness must be"),
        (lambda: SSP(1.5), r"SSP\(1.5\)"),
        (lambda: DelayCompensation(-0.5), r"DelayCompensation\(-0.5\)"),
        (lambda: explicit_momentum(1.0, 4), r"explicit_momentum\(1.0, 4\)"),
        (lambda: explicit_momentum(0.5, 0), "1 worker or more"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(RefusedError, match=words):
        make()
