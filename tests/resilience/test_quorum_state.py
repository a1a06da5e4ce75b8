"""Every quorum that can come about, in whatever order things happen: see `quorum_world` for what is checked."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from .quorum_world import OPERATIONS, World

OPERATION = st.tuples(st.sampled_from(sorted(set(OPERATIONS))), st.integers(0, 3), st.integers(0, 7))


@given(st.lists(OPERATION, max_size=120), st.integers(1, 3), st.booleans())
def test_no_order_of_events_gives_two_quorums_at_once_or_mixes_states(operations, least, explicit) -> None:
    World(min_replicas=least, explicit=explicit).run(operations)


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_long_walks_form_many_quorums_of_every_kind(replicas, explicit) -> None:
    seen = {"same id": 0, "new id": 0, "recovering": 0, "retry": 0, "commits": 0, "rollback": 0}
    for seed in range(12):
        world = World(replicas, explicit=explicit)
        world.random(1000 * replicas + seed, 600)
        seen["commits"] += world.commits
        for a, b in zip(world.formed, world.formed[1:], strict=False):
            seen["same id" if a.id == b.id else "new id"] += 1
            seen["recovering"] += bool(b.recovering)
            seen["retry"] += b.step == a.step
            seen["rollback"] += b.step < a.step
    if replicas == 1:
        del seen["recovering"]
    if replicas > 2:
        del seen["rollback"]  # all holders of a state have to die at once
    assert all(seen.values()), seen
