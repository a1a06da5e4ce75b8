"""The parameter server against a ring: where its port is too narrow."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, strategies as st

from labkit import cost


def ring_wins(nbytes, workers, servers, alpha, beta):
    ring = cost.ring_all_reduce_time(nbytes, workers, alpha, beta)
    return ring < cost.server_exchange_time(nbytes, workers, servers, alpha, beta)


@given(st.integers(1, 10**9), st.integers(1, 20), st.floats(0, 1e-3), st.floats(1e-12, 1e-6))
def test_from_the_crossover_on_the_ring_is_faster_and_just_before_it_is_not(nbytes, servers, alpha, beta):
    assume(abs(nbytes * beta / servers - alpha) > 1e-6 * alpha)  # rounding decides a tie
    setting = servers, alpha, beta
    found = cost.server_crossover(nbytes, *setting)
    if found is None:
        assert not ring_wins(nbytes, 10**9, *setting)
        return
    assert all(ring_wins(nbytes, found + more, *setting) for more in (0, 1, 2, 10, 10**4))
    assert found == 2 or not ring_wins(nbytes, found - 1, *setting)


def test_more_servers_move_the_crossover_and_small_messages_have_none():
    assert cost.server_crossover(1e9, 1, 1e-6, 1e-10) == 2
    many = [cost.server_crossover(10e3, servers, 1e-5, 1e-8) for servers in (4, 8, 9)]
    assert many == sorted(many) and many[1] > 2
    assert cost.server_crossover(1000, 1, 1e-5, 1e-10) is None


def test_bytes():
    assert cost.server_worker_bytes(4000, parameters=3, servers=2) == 4000 + 2 * 7 * 40
    assert cost.server_step_bytes(4000, workers=5) == 20_000
    with pytest.raises(ValueError, match="servers must be a whole number"):
        cost.server_worker_bytes(4000, 3, 0)
