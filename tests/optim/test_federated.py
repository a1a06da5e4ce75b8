"""Federated averaging is what one device computes with those that came, who is away is named, and bytes are exact."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from slices import few

import labkit
from labkit import Kill, cost
from labkit.models import MLP, MLPConfig
from labkit.optim.synchrony import dirichlet_split, fed_avg
from labkit.wire.errors import RefusedError

CONFIG = MLPConfig((6, 9, 3))
NBYTES = 4 * CONFIG.num_parameters


def examples(rank, count):
    dice = torch.Generator().manual_seed(rank)
    return torch.randn(count, 6, generator=dice), torch.randint(3, (count,), generator=dice)


def descend(module, x, y, steps=1):
    for _ in range(steps):
        module.zero_grad()
        F.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.3 * p.grad


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def federated(group, counts, rounds, plan=None, steps=1, seconds=None, options=None):
    """counts: examples by rank. plan: rounds in which a rank gives up. seconds: of a rank's training."""

    def train(module, number):
        group.compute((seconds or {}).get((group.rank, number), 1.0))
        if number in (plan or {}).get(group.rank, ()):
            return None
        descend(module, *examples(group.rank, counts[group.rank]), steps)
        return counts[group.rank]

    module = MLP(CONFIG, seed=group.rank)
    reports = fed_avg(module, group, train, rounds, **(options or {}))
    return flat(module), reports, group.context.clock_here().now() / 1e9


def alone(reports, counts, steps=1):
    """On one device: in each round the average of those that came, counted by their examples."""
    module = MLP(CONFIG, seed=0)
    for report in reports:
        before, mean = flat(module), 0
        for rank in report.came:
            torch.nn.utils.vector_to_parameters(before.clone(), module.parameters())
            descend(module, *examples(rank, counts[rank]), steps)
            mean = mean + flat(module) * counts[rank] / report.examples
        torch.nn.utils.vector_to_parameters(mean if report.came else before, module.parameters())
    return flat(module)


@pytest.mark.ranks
@pytest.mark.parametrize(("size", "equal"), few([(4, 5), (2, 3)]))
def test_equal_data_and_one_local_step_are_sgd_on_all_data_together(size, equal):
    results = labkit.launch(federated, size, [equal] * size, 3, clock="virtual").results
    module = MLP(CONFIG, seed=0)
    x, y = (torch.cat(parts) for parts in zip(*(examples(r, equal) for r in range(1, size)), strict=True))
    descend(module, x, y, 3)
    for weights, _, _ in results:
        torch.testing.assert_close(weights, flat(module), rtol=1e-5, atol=1e-6)


@pytest.mark.ranks
def test_unequal_clients_count_by_their_examples_and_those_that_give_up_are_named():
    counts, plan = [0, 2, 7, 30], {1: (2,), 2: (2, 3), 3: (2, 4)}
    run = labkit.launch(federated, 4, counts, 4, plan, 3, clock="virtual", transport="local")
    reports = run.results[0][1]
    assert [r.came for r in reports] == [(1, 2, 3), (), (1, 3), (1, 2)]
    assert [r.examples for r in reports] == [39, 0, 32, 9]
    assert str(reports[1]) == (
        "round 2: no client came back (rank 1 gave up; rank 2 gave up; rank 3 gave up), and the weights stay"
    )
    assert str(reports[2]) == "round 3: 2 of 3 clients came back with 32 examples; rank 2 gave up"
    for weights, _, _ in run.results:  # the clients have the last ones, too
        torch.testing.assert_close(weights, alone(reports, counts, 3), rtol=1e-5, atol=1e-6)
    for r in reports[:-1]:  # the last step has the farewell in it
        sent = [sum(m.nbytes for m in run.trace.sends if m.step == r.number and m.src == s) for s in range(4)]
        assert (sent[0], sum(sent[1:])) == cost.fed_avg_round_bytes(NBYTES, 3, len(r.came))


@pytest.mark.ranks
def test_a_round_ends_at_the_deadline_and_a_late_client_is_left_alone_until_it_has_answered():
    """Client 2 takes 5 seconds in the first round, which may take 2; it is free again in the fourth."""
    counts, seconds = [0, 4, 4, 4], {(2, 1): 5.0}
    run = labkit.launch(federated, 4, counts, 5, None, 1, seconds, {"deadline": 2.0}, clock="virtual")
    weights, reports, ended = run.results[0]
    assert [dict(r.away) for r in reports] == [
        {2: "came too late"}, *[{2: "is still busy with an earlier round"}] * 3, {},
    ]  # fmt: skip
    assert ended == 2.0 + 4 * 1.0  # the first ends at its deadline, the others with their clients
    torch.testing.assert_close(weights, alone(reports, counts), rtol=1e-5, atol=1e-6)


@pytest.mark.ranks
def test_on_the_real_clock_too_nobody_waits_for_a_client_that_does_not_answer():
    """Client 2 cannot answer the first round before client 1 is in the third."""

    def work(group):
        word = torch.zeros(1)

        def train(module, number):
            if group.rank == 2 and number == 1:
                group.recv(word, 1)
            if group.rank == 1 and number == 3:
                group.send(word, 2)
            return 1

        return fed_avg(MLP(CONFIG), group, train, 3, deadline=1.5)

    reports = labkit.launch(work, 3).results[0]
    assert [r.away for r in reports[:2]] == [{2: "came too late"}, {2: "is still busy with an earlier round"}]
    assert all(1 in r.came for r in reports)


@pytest.mark.ranks
@pytest.mark.parametrize("dead", [(2,), (1, 2)])
def test_a_client_that_dies_is_named_once_and_not_drawn_again(dead):
    counts = [0, 3, 4]
    run = labkit.launch(federated, 3, counts, 3, clock="virtual", transport="local", on_failure="continue",
                        faults=[Kill(r, at="compute", nth=2) for r in dead])  # fmt: skip
    weights, reports, _ = run.results[0]
    assert reports[0].away == {} and reports[1].away == {r: "died" for r in dead} and reports[2].away == {}
    assert reports[2].came == tuple(r for r in (1, 2) if r not in dead)
    if len(dead) == 2:
        assert str(reports[2]) == "round 3: no client came back (none is left), and the weights stay"
    torch.testing.assert_close(weights, alone(reports, counts), rtol=1e-5, atol=1e-6)


@pytest.mark.ranks
def test_a_part_of_the_clients_is_drawn_by_the_seed():
    counts = [0, 2, 2, 2, 2]

    def drawn(seed):
        options = {"fraction": 0.5, "seed": seed}
        run = labkit.launch(federated, 5, counts, 6, None, 1, None, options, clock="virtual")
        return [r.came for r in run.results[0][1]]

    first, again, other = drawn(0), drawn(0), drawn(1)
    assert first == again != other and {len(came) for came in first} == {2} and len(set(first)) > 1


@pytest.mark.ranks
def test_arguments_that_cannot_be_are_refused_on_every_rank():
    def refused(group):
        said = []
        for rounds, options in ((0, {}), (1, {"fraction": 0.0}), (1, {"deadline": 0}), (1 + group.rank, {})):
            with pytest.raises(RefusedError) as why:
                fed_avg(MLP(CONFIG), group, lambda *_: 1, rounds, **options)
            said.append(str(why.value))
        return said

    with pytest.raises(labkit.RankFailed, match=r"rank 1: train returned -1: how many examples"):
        labkit.launch(lambda g: fed_avg(MLP(CONFIG), g, lambda *_: -1, 1), 2)
    for said in labkit.launch(refused, 3).results:
        assert [s.split(":")[0] for s in said[:3]] == ["rounds=0", "fraction=0.0", "deadline=0"]
        assert said[3].startswith("rank 1 brought other options")


def test_a_split_gives_every_example_away_once_and_is_as_uneven_as_alpha_says():
    labels = torch.arange(10).repeat(200)
    share = {}
    for alpha in (0.1, 1.0, 1000.0):
        parts = dirichlet_split(labels, 5, alpha, seed=1)
        assert torch.equal(torch.cat(parts).sort().values, torch.arange(2000))
        assert all(torch.equal(a, b) for a, b in zip(parts, dirichlet_split(labels, 5, alpha, seed=1), strict=True))
        tables = torch.stack([labels[part].bincount(minlength=10) for part in parts]) / 200
        share[alpha] = tables.amax(0).mean()  # of a label, at the client that has most of it
    assert share[0.1] > share[1.0] > share[1000.0] and abs(share[1000.0] - 1 / 5) < 0.05
    for bad in ({"alpha": 0.0}, {"clients": 0}):
        with pytest.raises(RefusedError, match=next(iter(bad))):
            dirichlet_split(labels, **({"clients": 5, "alpha": 1.0} | bad))
