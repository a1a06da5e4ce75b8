"""The server adds up what it cannot read: the average is that of the fixed-point numbers, to the bit."""

from __future__ import annotations

import pytest
import torch
from slices import few

import labkit
from labkit import Kill, cost
from labkit.models import MLP, MLPConfig
from labkit.optim.synchrony import masked_fed_avg
from labkit.optim.synchrony.masking import disclosed, from_fixed, to_fixed
from labkit.wire.errors import RefusedError

CONFIG = MLPConfig((6, 9, 3))
BITS = 16


def trained(rank, number):
    """What a client's training makes of any weights: easy to make again elsewhere."""
    return torch.randn(CONFIG.num_parameters, generator=torch.Generator().manual_seed(100 * rank + number))


def examples_of(rank, number):
    return 3 * rank + number


def secure(group, rounds, plan=None, seconds=None, options=None):
    def train(module, number):
        group.compute((seconds or {}).get((group.rank, number), 1.0))
        if number in (plan or {}).get(group.rank, ()):
            return None
        torch.nn.utils.vector_to_parameters(trained(group.rank, number), module.parameters())
        return examples_of(group.rank, number)

    module = MLP(CONFIG)
    reports = masked_fed_avg(module, group, train, rounds, bits=BITS, **(options or {}))
    return torch.cat([p.detach().flatten() for p in module.parameters()]), reports


def expected(reports):
    report = [r for r in reports if r.came][-1]
    counts = {rank: examples_of(rank, report.number) for rank in report.came}
    assert report.examples == sum(counts.values())
    fixed = [to_fixed(trained(rank, report.number).double() * n, BITS, 9) for rank, n in counts.items()]
    return (from_fixed(torch.stack(fixed).sum(0), BITS) / report.examples).float()


@pytest.mark.ranks
@pytest.mark.parametrize(("size", "plan", "lost"), few([(5, {2: (1,), 4: (1,)}, 2), (3, {}, 0), (4, {1: (1,)}, 1)], 2))
def test_the_average_is_exact_whoever_gives_up_and_bytes_are_those_of_the_formula(size, plan, lost):
    run = labkit.launch(secure, size, 2, plan, clock="virtual", transport="local")
    reports = run.results[0][1]
    assert reports[0].away == dict.fromkeys(plan, "gave up") and reports[1].away == {}
    for weights, _ in run.results:
        assert torch.equal(weights, expected(reports))
    sent = [sum(m.nbytes for m in run.trace.sends if m.step == 1 and m.src == r) for r in range(size)]
    # A client enters a round after it has sent its key, so that in the first step is the key of the second round.
    came = size - 1 - lost
    server, clients = cost.masked_round_bytes(CONFIG.num_parameters, 4, size, size - 1, came)
    assert (sent[0], sum(sent[1:])) == (server, clients)


@pytest.mark.ranks
@pytest.mark.parametrize("how", ["late", "dead"])
def test_masks_of_a_client_that_is_late_or_dies_are_taken_away(how):
    options, seconds = {"deadline": 2.0}, {(3, 1): 50.0} if how == "late" else None
    faults = [Kill(3, at="compute")] if how == "dead" else []
    run = labkit.launch(secure, 4, 1, None, seconds, options, clock="virtual", transport="local", faults=faults,
                        on_failure="continue" if faults else "raise")  # fmt: skip
    weights, reports = run.results[0]
    assert reports[0].away == {3: "came too late" if how == "late" else "died"}
    assert torch.equal(weights, expected(reports))


@pytest.mark.ranks
def test_a_survivor_that_dies_before_it_discloses_spoils_the_round_and_the_weights_stay():
    plan, how = {2: (2,)}, {"clock": "virtual", "transport": "local"}
    sent = [m.nbytes for m in labkit.launch(secure, 4, 2, plan, **how).trace.sends if m.src == 1]
    assert sent[-1] == 32  # its secret with client 2
    faults = [Kill(1, message=len(sent))]
    weights, reports = labkit.launch(secure, 4, 2, plan, faults=faults, on_failure="continue", **how).results[0]
    assert reports[1].away == {1: "died", 2: "gave up", 3: "came back, but masks of others stay in the sum"}
    assert reports[1].came == () and torch.equal(weights, expected(reports))  # of the first round


@pytest.mark.ranks
def test_a_sum_of_too_few_is_not_taken_and_the_weights_stay():
    run = labkit.launch(secure, 4, 2, {1: (2,), 3: (2,)}, clock="virtual")
    weights, reports = run.results[0]
    assert reports[1].came == () and reports[1].away[2] == "came back, but with fewer than 2 no sum is taken"
    assert torch.equal(weights, expected(reports))  # of the first round


@pytest.mark.ranks
def test_arguments_that_cannot_be_are_refused_on_every_rank():
    def refused(group):
        said = []
        for options in ({"bits": 31}, {"least": 1}, {"bits": 10 + group.rank}):
            with pytest.raises(RefusedError) as why:
                masked_fed_avg(MLP(CONFIG), group, lambda *_: 1, 1, **options)
            said.append(str(why.value))
        return said

    for bits, least, other in labkit.launch(refused, 3).results:
        assert bits.startswith("bits=31") and least.startswith("least=1") and other.startswith("rank 1 brought")


def test_a_client_does_not_disclose_what_would_lay_its_own_numbers_open():
    secrets = {1: b"a", 2: b"b", 3: b"c"}
    assert disclosed(secrets, [2, 3]) == [b"b", b"c"]
    with pytest.raises(RefusedError, match="every secret"):
        disclosed(secrets, [1, 2, 3])
