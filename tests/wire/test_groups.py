"""Groups of some of the ranks: subgroup, split, and rebuild over the living."""

from __future__ import annotations

import pytest
import torch
from leftovers import NEVER
from slices import REBUILDABLE, WIRES, few

import labkit
from labkit import Kill, RankFailed, collectives
from labkit.resilience.ftar.queued import Ftar

pytestmark = pytest.mark.ranks


def around(group, value):
    """What the left neighbour holds."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    return int(group.exchange(torch.tensor([value]), right, torch.tensor([-1]), left)) if group.size > 1 else value


@pytest.mark.parametrize("transport", WIRES)
def test_subgroups_have_ranks_of_their_own(transport) -> None:
    def work(group):
        mine = group.subgroup([4, 2, 0]) if group.rank % 2 == 0 else group.subgroup([1, 3])
        assert mine is group.subgroup([4, 2, 0] if group.rank % 2 == 0 else [1, 3])
        return mine.rank, mine.size, mine.global_ranks, around(mine, group.rank)

    assert labkit.launch(work, 5, transport=transport).results == [
        (2, 3, (4, 2, 0), 2), (0, 2, (1, 3), 3), (1, 3, (4, 2, 0), 4), (1, 2, (1, 3), 1), (0, 3, (4, 2, 0), 0),
    ]  # fmt: skip


@pytest.mark.parametrize("transport", WIRES)
def test_messages_of_overlapping_groups_do_not_meet(transport) -> None:
    def work(group):
        other, got = 1 - group.rank, []
        twin, deeper = group.subgroup([1, 0]), group.subgroup([1, 0]).subgroup([0, 1])
        handles = [g.isend(torch.tensor([v]), g.size - 1 - g.rank) for v, g in ((1, group), (2, twin), (3, deeper))]
        for g in (deeper, twin, group):
            got.append(int(g.recv(torch.tensor([0]), g.size - 1 - g.rank)))
        for handle in handles:
            handle.wait()
        collectives.all_reduce(x := torch.tensor([other]), twin, algorithm="ring")
        return got, int(x)

    assert labkit.launch(work, 2, transport=transport).results == [([3, 2, 1], 1)] * 2


@pytest.mark.parametrize("transport", WIRES)
def test_split_by_colour_and_key(transport) -> None:
    def work(group):
        mine = group.split(group.rank % 2, key=-group.rank)
        return mine.global_ranks, int(collectives.all_reduce(torch.tensor([group.rank]), mine, algorithm="tree"))

    results = labkit.launch(work, 5, transport=transport).results
    assert results == [((4, 2, 0), 6) if r % 2 == 0 else ((3, 1), 4) for r in range(5)]


@pytest.mark.parametrize("transport", WIRES)
def test_collectives_and_barriers_of_subgroups(transport) -> None:
    def work(group):
        pair = group.subgroup([0, 1]) if group.rank < 2 else group.subgroup([2, 3])
        pair.barrier()
        got = [int(collectives.all_reduce(torch.tensor([group.rank]), g, algorithm=a))
               for g in (pair, group) for a in ("ring", "native")]  # fmt: skip
        group.barrier()
        return got

    assert labkit.launch(work, 4, transport=transport).results == [[1, 1, 6, 6]] * 2 + [[5, 5, 6, 6]] * 2


def survive(group, rounds=3):
    """All-reduce; on the loss of a rank go on with those that are left."""
    living, history = group, []
    for n in range(rounds):
        try:
            group.step(n)
            x = collectives.all_reduce(torch.ones(1000), living, algorithm="ring")
        except labkit.PeerLost:
            living = group.rebuild([r for r in range(group.size) if r != 1])
            x = collectives.all_reduce(torch.ones(1000), living, algorithm="ring")
        history.append((living.size, float(x[0]), float(x[-1])))
    return history


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_the_living_rebuild_after_a_death(transport) -> None:
    run = labkit.launch(survive, 4, transport=transport, on_failure="continue", faults=[Kill(1, step=1)], timeout=20)
    after = [(4, 4.0, 4.0), (3, 3.0, 3.0), (3, 3.0, 3.0)]
    assert run.results == [after, None, after, after]
    assert [(f.rank, f.kind) for f in run.failures] == [(1, "died")]


@pytest.mark.parametrize("message", [1, 2, 3, 4])  # from the fifth on, rank 0 has all it needs
@pytest.mark.parametrize("transport", REBUILDABLE)
def test_the_living_rebuild_after_a_death_in_the_middle_of_a_collective(message, transport) -> None:
    """A collective that was cut leaves half sums behind: the survivors start it again from their own values."""

    def work(group):
        try:
            collectives.all_reduce(torch.ones(1 << 16), group, algorithm="ring")
            return "whole"
        except labkit.PeerLost:
            pass
        living = group.rebuild([0, 2, 3])
        return collectives.all_reduce(torch.ones(1 << 16), living, algorithm="ring").unique().tolist()

    run = labkit.launch(
        work, 4, transport=transport, on_failure="continue", faults=[Kill(1, message=message)], timeout=NEVER
    )
    assert [run.results[r] for r in (0, 2, 3)] == [[3.0]] * 3


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_a_group_can_be_rebuilt_again_and_again(transport) -> None:
    def work(group):
        got = []
        for _ in range(5):
            group = group.rebuild([2, 0, 1])
            got.append(around(group, group.rank))
        return got

    assert labkit.launch(work, 3, transport=transport).results == [[0] * 5, [1] * 5, [2] * 5]


def over_a_fixed_transport(group, call):
    """As on one that can form no group anew."""
    group.context.transport.name, group.context.transport.rebuildable = "fixed", False
    call(group)


def test_rebuild_is_refused_where_it_cannot_work() -> None:
    for name, call in {
        "rebuild\\(\\)": lambda group: group.rebuild([0, 1]), "leave\\(\\)": lambda group: group.leave(),
        "within\\(\\)": lambda group: group.within(1.0).__enter__(), "FTAR": Ftar,
    }.items():  # fmt: skip
        with pytest.raises(RankFailed, match=f"RefusedError: {name} needs transport='local' or 'gloo', not 'fixed'"):
            labkit.launch(over_a_fixed_transport, 2, call)
    with pytest.raises(
        RankFailed, match=r"raised RefusedError: rebuild\(\[1\]\): rank 0, which calls it, is not in it"
    ):
        labkit.launch(lambda group: group.rank or group.rebuild([1]), 2, transport="local")
    with pytest.raises(RankFailed, match="raised RefusedError: rebuild"):
        labkit.launch(lambda group: group.rebuild([0, 1, 9]), 2, transport="local")


def test_a_world_of_one() -> None:
    def work(group):
        group.barrier()
        alone = group.split(3).subgroup([0])
        return collectives.all_reduce(torch.ones(3), alone).tolist(), group.ranks_per_node, repr(group)

    for transport in WIRES:
        assert labkit.launch(work, 1, transport=transport).results == [
            ([1.0] * 3, 1, f"Group(rank 0 of 1, world ranks [0], {transport})")
        ]


def test_nodes_of_a_network() -> None:
    def work(group):
        return group.ranks_per_node, group.subgroup([0, 1, 2, 3]).ranks_per_node if group.rank < 4 else None

    net = labkit.Network(nodes=3, ranks_per_node=2)
    assert labkit.launch(work, 6, network=net).results[0] == (2, 2)
    assert labkit.launch(work, 6).results[0] == (6, 4)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("transport", REBUILDABLE)
def test_who_leaves_before_a_collective_is_missed_at_once(before, transport) -> None:
    """Collectives have connections of their own: those must be closed even if none was opened yet."""

    def work(group):
        ring = group.subgroup(list(range(group.size)))
        for _ in range(before):
            collectives.barrier(ring)
        if group.rank == 1:
            ring.leave()
        try:
            collectives.all_reduce(torch.ones(8), ring, algorithm="ring")
        except labkit.PeerLost as lost:
            ring.leave()
            return lost.peer
        finally:
            group.barrier()

    run = labkit.launch(work, 4, transport=transport, timeout=NEVER)
    assert None not in run.results and run.results[1] == -1
