"""The links of a run as one value."""

import pytest

from labkit import cost
from labkit.cost import Links


def test_nodes_and_the_slowest_link():
    links = Links(1e-6, 1e-10, 4, inter_beta=1e-9)
    assert links.nodes(8) == (2, 4) and links.layered(8) and not links.layered(4)
    assert links.between == (1e-6, 1e-9)
    assert links.slowest(8) == (1e-6, 1e-9) and links.slowest(4) == (1e-6, 1e-10)
    assert Links(5, 7, 1, 1, 2).slowest(3) == (1, 2)  # a rank a node: there are no links inside
    assert Links(5, 7, 2, 1, 2).slowest(4) == (5, 7) and Links(5, 7).nodes(6) == (1, 6)


@pytest.mark.parametrize("wrong, word", [
    (lambda: Links(-1, 0), "alpha"), (lambda: Links(0, float("nan")), "beta"), (lambda: Links(0, 0, 0), "at least 1"),
    (lambda: Links(0, 0, 2, -1), "between nodes"), (lambda: Links(1, 1, 4).slowest(6), "must divide the 6 ranks"),
])  # fmt: skip
def test_what_cannot_be_is_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        wrong()


def test_only_the_hierarchical_algorithm_profits_from_nodes():
    links = Links(1e-6, 1e-10, 4, 1e-5, 1e-9)
    ring, layered = (cost.cost_of("all_reduce", a) for a in ("ring", "hierarchical"))
    assert ring.seconds_on(1e9, 16, links) == ring.seconds(1e9, 16, 1e-5, 1e-9)
    assert layered.seconds_on(1e9, 16, links) == pytest.approx(
        ring.seconds(1e9, 4, 1e-6, 1e-10) + ring.seconds(2.5e8, 4, 1e-5, 1e-9)
    )
