"""A mesh: ranks and coordinates go both ways, groups are those of the axes, and bytes stay inside them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from slices import WIRES, few

from labkit import Network, launch
from labkit.collectives import all_reduce
from labkit.cost import cost_of
from labkit.parallel import Layout, Mesh
from labkit.parallel.fitting import check_fits, nearest
from labkit.wire.errors import RefusedError

WORLDS = range(1, 13)


def products(number, axes):
    return [f for f in itertools.product(range(1, number + 1), repeat=axes) if math.prod(f) == number]


def layouts():
    """Every way to name 1 to 3 axes over 1 to 12 ranks, in two orders, and four axes over 8 and 12."""
    for world, axes in [*itertools.product(WORLDS, (1, 2, 3)), (8, 4), (12, 4)]:
        for sizes in products(world, axes):
            for names in (("dp", "pp", "tp", "cp"), ("tp", "cp", "dp", "pp")):
                yield Layout(dict(zip(names, sizes, strict=False)))


# -- the layout: numbers only --------------------------------------------------------------------------------------


def test_ranks_and_coordinates_are_each_other_s_inverse():
    for layout in layouts():
        seen = [layout.coordinates(rank) for rank in range(layout.size)]
        assert [layout.rank(**place) for place in seen] == list(range(layout.size))
        # The order of numpy and of the pseudo-code of every paper: the last axis changes fastest.
        assert [tuple(place.values()) for place in seen] == list(
            itertools.product(*(range(size) for size in layout.sizes.values()))
        )


def test_groups_of_an_axis_hold_every_rank_once_and_differ_in_that_axis_only():
    for layout in layouts():
        for some in range(1, len(layout.axes) + 1):
            for axes in itertools.permutations(layout.axes, some):
                groups = layout.groups(*axes)
                assert sorted(itertools.chain(*groups)) == list(range(layout.size))
                assert len(groups) * math.prod(layout.sizes[axis] for axis in axes) == layout.size
                assert groups == sorted(groups)
                for group in groups:
                    places = [layout.coordinates(rank) for rank in group]
                    for axis in set(layout.axes) - set(axes):
                        assert len({place[axis] for place in places}) == 1
                    order = [tuple(place[axis] for axis in axes) for place in places]
                    assert order == sorted(set(order))  # the axis named first is the outermost
                    assert layout.group_of(group[-1], *axes) == group


def test_known_groups():
    layout = Layout({"dp": 2, "pp": 3, "tp": 2})
    assert layout.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert layout.groups("pp") == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    assert layout.groups("dp") == [[rank, rank + 6] for rank in range(6)]
    assert layout.groups("dp", "tp") == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert layout.groups("tp", "dp") == [[0, 6, 1, 7], [2, 8, 3, 9], [4, 10, 5, 11]]
    assert [layout.stride(axis) for axis in layout.axes] == [6, 2, 1]
    assert repr(layout) == "Layout(dp=2, pp=3, tp=2)"


def test_layouts_are_equal_with_the_same_axes_in_the_same_order():
    one, same, turned = Layout({"dp": 2, "tp": 2}), Layout({"dp": 2, "tp": 2}), Layout({"tp": 2, "dp": 2})
    assert one == same and hash(one) == hash(same) and one != turned and one != "dp"
    one.sizes["dp"] = 5
    assert one == same


def test_axes_that_cross_nodes():
    layout = Layout({"dp": 2, "pp": 2, "tp": 2})
    crossing = {k: [axis for axis in layout.axes if layout.crosses(axis, k)] for k in (1, 2, 3, 4, 6, 8, 100)}
    assert crossing == {
        1: ["dp", "pp", "tp"], 2: ["dp", "pp"], 3: ["dp", "pp", "tp"], 4: ["dp"], 6: ["dp", "pp"], 8: [], 100: [],
    }  # fmt: skip
    assert layout.crossing("tp", 3) == [[2, 3]]
    assert [layout.node_of(rank, 3) for rank in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]
    turned = Layout({"tp": 2, "pp": 2, "dp": 2})  # tensor parallelism outside: now it is what crosses
    assert [turned.crosses(axis, 4) for axis in turned.axes] == [True, False, False]


@pytest.mark.parametrize(
    "ask, words",
    [
        (lambda: Layout({}), "ranks by axis"),
        (lambda: Layout([2, 2]), r"\[2, 2\]"),
        (lambda: Layout({"dp": 0}), "'dp' has size 0"),
        (lambda: Layout({"dp": 2, "tp": -1}), "'tp' has size -1"),
        (lambda: Layout({"dp": 2.0}), "'dp' has size 2.0"),
        (lambda: Layout({"dp": True}), "'dp' has size True"),
        (lambda: Layout({3: 2}), "axis 3"),
        (lambda: Layout({"": 2}), "axis ''"),
        (lambda: Layout({"d p": 2}), "axis 'd p'"),
        (lambda: Layout({"dp": 2}).groups("tp"), "no axis 'tp'.*'dp'"),
        (lambda: Layout({"dp": 2}).groups(), "no axis was named"),
        (lambda: Layout({"dp": 2, "tp": 2}).groups("tp", "tp"), "an axis twice"),
        (lambda: Layout({"dp": 2, "tp": 2}).rank(dp=1), "tp missing"),
        (lambda: Layout({"dp": 2, "tp": 2}).rank(dp=1, tp=0, pp=0), "no axis 'pp'"),
        (lambda: Layout({"dp": 2, "tp": 2}).rank(dp=2, tp=0), "dp=2.*0 to 1"),
        (lambda: Layout({"dp": 2, "tp": 2}).coordinates(4), "rank=4.*0 to 3"),
        (lambda: Layout({"dp": 2, "tp": 2}).coordinates(-1), "rank=-1"),
        (lambda: Layout({"dp": 2, "tp": 2}).node_of(0, 0), "ranks_per_node=0"),
    ],
)
def test_what_makes_no_mesh_is_refused_by_name(ask, words):
    with pytest.raises(RefusedError, match=words):
        ask()


def test_the_nearest_sizes_that_fit():
    assert nearest({"dp": 2, "tp": 2}, 8) == [{"dp": 2, "tp": 4}, {"dp": 4, "tp": 2}]
    assert nearest({"dp": 2, "tp": 8}, 8) == [{"dp": 1, "tp": 8}, {"dp": 2, "tp": 4}]
    assert nearest({"dp": 4, "pp": 4, "tp": 8}, 64) == [
        {"dp": 2, "pp": 4, "tp": 8}, {"dp": 4, "pp": 2, "tp": 8}, {"dp": 4, "pp": 4, "tp": 4},
    ]  # fmt: skip
    assert nearest({"dp": 3}, 7) == [{"dp": 7}]
    for world in WORLDS:  # by search over all sizes, and the sizes themselves where they fit
        for sizes in itertools.product(range(1, 5), repeat=2):
            found = nearest({"a": sizes[0], "b": sizes[1]}, world)
            far = {f: sum(abs(math.log(n / o)) for n, o in zip(f, sizes, strict=True)) for f in products(world, 2)}
            assert {tuple(f.values()) for f in found} <= {f for f in far if far[f] <= min(far.values()) + 1e-6}
            if math.prod(sizes) == world:
                assert [tuple(f.values()) for f in found] == [sizes]
                check_fits({"a": sizes[0], "b": sizes[1]}, world)


# -- the mesh: real ranks ------------------------------------------------------------------------------------------


@pytest.mark.ranks
@pytest.mark.parametrize(
    "sizes", [{"pp": 3}, {"dp": 2, "tp": 3}, {"tp": 3, "cp": 1, "dp": 2}, {"a": 2, "b": 2, "c": 2, "d": 1}]
)
def test_groups_of_real_ranks_are_those_of_the_layout(sizes):
    layout = Layout(sizes)

    def on_rank(group):
        mesh = Mesh(group, sizes)
        assert mesh.group is group and mesh.layout == layout and mesh.sizes == sizes
        found = {}
        for some in range(1, len(sizes) + 1):
            for axes in itertools.permutations(sizes, some):
                part = mesh[axes] if some > 1 else mesh[axes[0]]
                assert part is mesh[axes] and part.rank == part.global_ranks.index(group.rank)
                total = all_reduce(torch.tensor([2**group.rank]), part)
                found[axes] = (part.global_ranks, int(total))
        assert all(mesh[axis].rank == place for axis, place in mesh.coordinates.items())
        ranks = [mesh.rank(**layout.coordinates(rank)) for rank in range(group.size)]
        return found, mesh.coordinates, ranks, mesh.rank(), repr(mesh)

    for rank, (found, place, ranks, own, words) in enumerate(launch(on_rank, layout.size, transport="local").results):
        assert place == layout.coordinates(rank) and ranks == list(range(layout.size)) and own == rank
        assert words.startswith("Mesh(") and f"rank {rank} is" in words
        for axes, (members, total) in found.items():
            assert list(members) == layout.group_of(rank, *axes)
            assert total == sum(2**r for r in members)


@pytest.mark.ranks
@pytest.mark.parametrize("transport", few(WIRES))
def test_bytes_stay_inside_the_axis(transport):
    numbers = {"dp": 600, "pp": 60, "tp": 6}
    layout = Layout({"dp": 2, "pp": 2, "tp": 2})

    def on_rank(group, axes):
        mesh = Mesh(group, layout.sizes)
        for axis in axes:
            all_reduce(torch.zeros(numbers[axis]), mesh[axis], algorithm="ring")

    def sent(axes):
        return launch(on_rank, 8, axes, transport=transport).trace.bytes_between()

    made = sent([])  # what it takes to make the mesh, and nothing more to make its groups
    assert max(map(sum, made)) <= 16 * 7
    for axes in (["dp"], ["pp"], ["tp"], ["tp", "dp"]):
        matrix = sent(axes)
        for a, b in itertools.product(range(8), repeat=2):
            apart = [axis for axis in layout.axes if layout.coordinates(a)[axis] != layout.coordinates(b)[axis]]
            here = apart[0] if len(apart) == 1 and apart[0] in axes else None
            expected = cost_of("all_reduce", "ring").bytes_by_rank(numbers[here], 4, 2)[0] if here else 0
            assert matrix[a][b] - made[a][b] == expected, (axes, a, b)


@pytest.mark.ranks
def test_a_mesh_of_a_part_of_the_world_and_the_nodes_of_its_run():
    def on_rank(group):
        half = group.split(group.rank // 6)
        mesh = Mesh(half, {"dp": 3, "tp": 2})
        crosses = {axis: mesh.crosses_nodes(axis) for axis in mesh.sizes}
        return mesh["tp"].global_ranks, mesh["dp"].global_ranks, mesh.nodes, crosses, mesh.draw().table()[3]

    network = Network(nodes=3, ranks_per_node=4)
    results = launch(on_rank, 12, transport="local", clock="virtual", network=network).results
    assert [r[0] for r in results] == [(r // 2 * 2, r // 2 * 2 + 1) for r in range(12)]
    assert results[9][1] == (7, 9, 11)
    assert results[0][2] == [0, 0, 0, 0, 1, 1] and results[6][2] == [1, 1, 2, 2, 2, 2]
    assert results[0][3] == results[6][3] == {"dp": True, "tp": False}
    assert results[6][4]["rank"] == 3 and results[6][4]["node"] == 2


def refusals(work, size):
    def caught(group):
        try:
            work(group)
        except RefusedError as refusal:
            return str(refusal)
        return "not refused"

    return launch(caught, size, transport="local", timeout=20).results


@pytest.mark.ranks
def test_sizes_that_do_not_fit_are_refused_on_every_rank_with_the_nearest_that_do():
    said = refusals(lambda group: Mesh(group, {"dp": 2, "tp": 2}), 6)
    assert len(set(said)) == 1
    for words in ("dp=2, tp=2", "2 x 2 = 4 places", "6 ranks", "dp=2, tp=3 or dp=3, tp=2", "or use 4 ranks"):
        assert words in said[0]


@pytest.mark.ranks
@pytest.mark.parametrize(
    "of_rank, words",
    [
        (lambda r: {"dp": 3, "tp": 1} if r == 2 else {"tp": 1, "dp": 3}, ["rank 2 (dp=3, tp=1)", "rank 0 has (tp=1"]),
        (lambda r: {"dp": 3} if r else {"pp": 3}, ["rank 0 has (pp=3)", "rank 1 (dp=3)"]),
        (lambda r: {"dp": 4 if r == 1 else 3}, ["rank 1 (mesh dp=4", "dp=3"]),
        (lambda r: {"dp": "three" if r == 2 else 3}, ["rank 2 (mesh axis 'dp' has size 'three'"]),
    ],
)
def test_what_one_rank_brings_all_hear_of(of_rank, words):
    said = refusals(lambda group: Mesh(group, of_rank(group.rank)), 3)
    assert len(set(said)) == 1 and all(word in said[0] for word in words), said[0]


@pytest.mark.ranks
def test_an_axis_that_is_not_there():
    said = refusals(lambda group: Mesh(group, {"dp": 2})["tp"], 2)
    assert "no axis 'tp'" in said[0] and "'dp'" in said[0]
