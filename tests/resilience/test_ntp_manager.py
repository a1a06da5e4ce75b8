"""The resource manager assigns what the model of a cluster counts, moves little, and lends only what is free."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from labkit import cost, launch
from labkit.collectives import all_reduce
from labkit.cost.simulators.clusters import METHODS
from labkit.models import GPTConfig
from labkit.models.gpt import Block
from labkit.parallel.tensor.block import TensorParallelBlock
from labkit.parallel.tensor.whole import load_whole, whole_gradients
from labkit.resilience.ntp import Border, NonuniformSync, Replicas, ResourceManager
from labkit.wire.errors import RefusedError

CLUSTER = cost.Cluster(domains=6, gpus_per_domain=4, domains_per_replica=2, widths=(4, 3, 2), samples=4)
SPARES = 2
GPUS = (6 + SPARES) * 4

failures = st.sets(st.integers(0, GPUS - 1), max_size=GPUS)


@given(failed=failures, method=st.sampled_from(METHODS), spares=st.integers(0, SPARES))
def test_it_assigns_what_the_model_of_a_cluster_counts(failed, method, spares):
    gpus = (6 + spares) * 4
    failed = {g for g in failed if g < gpus}
    manager = ResourceManager(CLUSTER, method, spares)
    now = manager.fail(failed)
    lost = [sum(g // 4 == d for g in failed) for d in range(6 + spares)]
    use = CLUSTER.use(lost, method)
    trained = sum(CLUSTER.local_batches(method)[CLUSTER.widths.index(min(widths))] for widths in now.widths)
    assert trained == int(use.trained) and len(now.training) == int(use.active)
    assert len(now.idle) == int(use.idle) and len(now.spare) == int(use.stranded)
    assert sorted((*now.training, *now.idle, *now.spare, *now.failed)) == list(range(gpus))
    for stages, domains in zip(now.members, now.domains, strict=True):
        assert len(stages) == len(set(domains)) == CLUSTER.domains_per_replica
        assert all({g // 4 for g in ranks} == {d} for ranks, d in zip(stages, domains, strict=True))


@given(first=failures, then=failures, method=st.sampled_from(METHODS))
def test_any_order_of_failures_and_repairs_comes_to_as_much(first, then, method):
    manager, fresh = ResourceManager(CLUSTER, method, SPARES), ResourceManager(CLUSTER, method, SPARES)
    manager.fail(first)
    manager.fail(then - first)
    now, wanted = manager.repair(first - then), fresh.fail(then)
    assert sorted(map(sorted, now.widths)) == sorted(map(sorted, wanted.widths)) and now.failed == wanted.failed
    assert len(now.idle) == len(wanted.idle) and len(now.spare) == len(wanted.spare)


def test_one_failure_moves_nobody_and_a_second_one_exchanges_two():
    big = ResourceManager(cost.Cluster(12, 4, 3, (4, 3), 4))
    assert big.now.moved == () and big.now.domains == ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11))
    assert big.fail([4 * 7]).moved == ()
    second = big.fail([4 * 0])
    assert len(second.moved) == 2 and sorted(map(min, second.widths)) == [3, 4, 4, 4]
    assert any({0, 7} <= set(domains) for domains in second.domains)
    assert big.repair([4 * 0, 4 * 7]).moved == ()
    late = ResourceManager(cost.Cluster(12, 4, 3, (4, 3), 4))
    assert len(late.fail([4 * 7, 4 * 10]).moved) == 2  # what is short of a domain takes the one that was given up
    four = ResourceManager(cost.Cluster(16, 4, 4, (4, 3), 4))
    assert len(four.fail(4 * d for d in (1, 5, 8, 9)).moved) == 4  # both gaps are filled from the replica with two


@given(broken=st.sets(st.integers(0, 11), max_size=12))
def test_few_replicas_are_narrow_and_few_domains_move(broken):
    manager = ResourceManager(cost.Cluster(12, 4, 3, (4, 3), 4))
    now = manager.fail(4 * d for d in broken)
    assert sum(min(widths) < 4 for widths in now.widths) == math.ceil(len(broken) / 3)
    assert len(now.moved) <= 2 * len(broken)


def test_gpus_that_a_narrow_replica_cannot_use_are_lent_and_called_back():
    manager = ResourceManager(CLUSTER)
    now = manager.fail([0])  # domain 0 has 3 left, so domain 1 runs at 3 of its 4
    assert now.widths == [[3, 3], [4, 4], [4, 4]] and now.idle == (7,) and now.spare == ()
    assert manager.lend("evaluation", 1) == (7,)
    assert manager.now.training == now.training and manager.now.loans == {"evaluation": (7,)}
    with pytest.raises(RefusedError, match=r"asks for 1 GPUs; 0 healthy ones are free: \[\]"):
        manager.lend("another", 1)
    with pytest.raises(RefusedError, match="job 'evaluation' has GPUs \\[7\\]"):
        manager.lend("evaluation", 1)
    also = manager.fail([4])  # now domain 1 has lost one too: the borrowed GPU has to train
    assert also.recalled == {"evaluation": (7,)} and also.loans == {"evaluation": ()} and 7 in also.training
    assert manager.give_back("evaluation").loans == {}


def test_what_is_lent_stays_lent_while_training_can_do_without_it():
    manager = ResourceManager(CLUSTER)
    manager.fail([0, 1])  # replica 0 is 2 wide, so 2 of 4, 5, 6 and 7 train
    assert manager.now.idle == (6, 7) and manager.lend("evaluation", 2) == (6, 7)
    now = manager.repair([1])  # 3 wide: one of them must train again, the other one need not
    assert now.recalled == {"evaluation": (6,)} and now.loans == {"evaluation": (7,)} and now.idle == (7,)
    assert manager.fail([7]).recalled == {"evaluation": (7,)}
    other = ResourceManager(CLUSTER)
    other.fail([0, 1])
    assert other.lend("evaluation", 1) == (6,)
    now = other.repair([1])  # 6 or 7 has to train: the one that is not lent
    assert now.recalled == {} and now.loans == {"evaluation": (6,)} and 7 in now.training


def test_a_job_gets_gpus_of_one_domain_if_it_can():
    manager = ResourceManager(cost.Cluster(6, 4, 3, (4, 3, 2), 4))
    now = manager.fail([0, 4, 5])
    assert now.widths[0] == [2, 2, 2] and now.idle == (3, 10, 11)
    assert manager.lend("evaluation", 2) == (10, 11) and manager.lend("another", 1) == (3,)


def test_spares_serve_before_a_domain_runs_narrow_and_are_lent_last():
    manager = ResourceManager(CLUSTER, spares=1)
    now = manager.fail([5])
    assert now.widths == [[4, 4]] * 3 and now.domains[0] == (0, 6) and now.moved == (1, 6)
    assert now.spare == (4, 6, 7) and now.idle == ()
    manager.fail([0, 25])  # two domains with one failure each beside the spare, which is as bad
    assert len(manager.now.spare) == 3 and manager.now.widths[0] == [3, 3]
    more = manager.fail([9])
    assert len(more.idle) == 1 and manager.lend("evaluation", 1) == more.idle


REFUSALS = [
    (lambda m: m.fail([24]), "there is no GPU 24: they have numbers from 0 to 23"),
    (lambda m: m.fail([True]), "there is no GPU True"),
    (lambda m: (m.fail([3]), m.fail([3])), "GPU 3 has failed already"),
    (lambda m: m.repair([3]), "GPU 3 has not failed"),
    (lambda m: m.give_back("x"), "job 'x' has borrowed nothing"),
    (lambda m: m.lend("x", 0), "asks for 0 GPUs; 0 healthy"),
    (lambda m: ResourceManager(CLUSTER, "drop"), "method 'drop': one of dp-drop, ntp, ntp-pw"),
    (lambda m: ResourceManager(CLUSTER, spares=-1), "spares=-1"),
]


@pytest.mark.parametrize(("ask", "words"), REFUSALS)
def test_what_cannot_be_is_refused(ask, words):
    manager = ResourceManager(CLUSTER)
    with pytest.raises(RefusedError, match=words):
        ask(manager)


# -- and for real: 12 ranks, 2 replicas of 2 stages of 3 GPUs, and another job on what is idle ----------------------

MODEL = GPTConfig(vocab=8, context=8, layers=2, heads=6, width=12)
SMALL = cost.Cluster(domains=4, gpus_per_domain=3, domains_per_replica=2, widths=(3, 2, 1), samples=4)


def blocks():
    torch.manual_seed(1)
    return [Block(MODEL).double() for _ in range(2)]


def example(replica):
    return torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(replica), dtype=torch.float64)


def gpu(group, now, state):
    """One step of the pipeline on the GPUs that train, while the borrowed ones add up numbers of their own."""
    for ranks in now.loans.values():
        if group.rank in ranks:
            mine = group.subgroup(ranks)
            return sum(float(all_reduce(torch.full((4,), float(group.rank)), mine)[0]) for _ in range(5))
    if group.rank not in now.training:
        return None
    replica, stage = next(
        (r, s) for r, stages in enumerate(now.members) for s, ranks in enumerate(stages) if group.rank in ranks
    )
    line = group.subgroup(sorted(now.members[replica][0] + now.members[replica][1]))
    border = Border(line, *([line.global_ranks.index(g) for g in ranks] for ranks in now.members[replica]))
    replicas = Replicas(tuple(stages[stage] for stages in now.members))
    inner = group.subgroup(now.members[replica][stage])
    block = TensorParallelBlock(MODEL, inner, placement=replicas.computes(MODEL, replica)).double()
    load_whole(block, inner, state[stage])
    sync = NonuniformSync(block, replicas, group.subgroup(replicas.ranks), share=0.5)
    if stage == 0:
        y = block(example(replica))
        border.send(y.detach())
        y.backward(border.receive(y))
    else:
        x = border.receive(example(replica)).requires_grad_()
        (block(x) ** 2).sum().backward()
        border.send(x.grad)
    sync.remove()
    return stage, whole_gradients(block, inner)


@pytest.mark.ranks
def test_a_narrowed_replica_trains_while_its_idle_gpu_works_for_another_job():
    manager = ResourceManager(SMALL)
    now = manager.fail([1])
    assert now.widths == [[2, 2], [3, 3]] and now.idle == (5,)
    manager.fail([4])
    both = manager.repair([1])  # now the other stage is the narrow one, and a GPU of the first has nothing to do
    assert both.widths[0] == [2, 2] and len(both.idle) == 1
    lent = manager.lend("evaluation", 1)
    one, two = blocks()
    for replica in (0, 1):
        (0.5 * (two(one(example(replica))) ** 2).sum()).backward()
    run = launch(gpu, 12, manager.now, [b.state_dict() for b in blocks()], transport="local")
    for rank, found in enumerate(run.results):
        if rank in lent:
            assert found == 5 * sum(lent)
        elif rank == 4:
            assert found is None
        else:
            stage, gradients = found
            wanted = {name: p.grad for name, p in (one, two)[stage].named_parameters()}
            assert max(float((gradients[name] - wanted[name]).abs().max()) for name in wanted) < 1e-10
    called = manager.repair([4])
    assert called.recalled == {"evaluation": lent} and called.loans == {"evaluation": ()} and called.idle == ()
