"""Keys of chapter 2: slips are told apart, the sources' numbers come out, and the clocks and chains agree with runs."""

from __future__ import annotations

import math

import pytest
import torch
from slips import every_draw

import labkit
from labkit.cost import wires
from labkit.cost.units import GB, MS, US
from labkit.grading.answers import find_key

CHAPTER = "02_ranks_and_messages"


PING_PONG = every_draw(empty_us=[40, 60, 80, 100], full_us=[500, 600, 800])
KEYS = [
    *((name, g) for name in ("alpha_us", "bandwidth") for g in PING_PONG),
    *(("third_us", g | {"kB": kB}) for g in PING_PONG for kB in (100, 200, 400)),
    *(("megabytes_needed", {"percent": p}) for p in (75, 80, 90, 95)),
    *(("times_the_bandwidth", {"GB_per_second": both}) for both in (600, 900)),
    *(("times_as_fast", g) for g in every_draw(GB_per_second=[600, 900], kB=[64, 100, 250])),
    *(("overhead", {"steps": k}) for k in (2, 4, 8, 16)),
    *(("exposed_ms", g) for g in every_draw(N=[4, 6, 8, 12], c=[3, 5], m=[7, 8, 9])),
    *(
        (name, g)
        for name in ("virtual_return", "real_return", "ends_at")
        for g in every_draw(a=[4, 6, 8], b=[30, 35, 40], c=[3, 5, 7], MB=[9, 10, 12])
    ),
    *((name, {}) for name in ("size_for_share", "sync_ms", "overlapped", "time_in_pieces", "best_pieces")),
]


def label(value):
    return "-".join(map(str, value.values())) if isinstance(value, dict) else value


@pytest.mark.parametrize("name, numbers", KEYS, ids=label)
def test_no_slip_is_right_and_each_gets_a_reason(name, numbers):
    """Two slips may meet in the numbers of one student; then the reason is that of one of them."""
    key = find_key(CHAPTER, name, **numbers)
    assert key.mark(key.answer).right
    whys = [why for _, why in key.slips]
    for wrong, _ in key.slips:
        feedback = key.mark(wrong)
        assert not feedback.right and any(why in feedback.why for why in whys), (wrong, feedback.why)


def test_every_slip_is_told_apart_by_some_numbers():
    for name in {name for name, _ in KEYS}:
        keys = [find_key(CHAPTER, name, **numbers) for same, numbers in KEYS if same == name]
        for i in range(len(keys[0].slips)):
            assert any(key.slips[i][1] in key.mark(key.slips[i][0]).why for key in keys), (name, keys[0].slips[i])


def test_the_numbers_of_the_sources():
    both = find_key(CHAPTER, "times_the_bandwidth", GB_per_second=900)
    assert "source's number" in both.mark(36).why and both.mark("18 x").right
    assert find_key(CHAPTER, "sync_ms").mark("11.67 ms").right
    assert "source's number" in find_key(CHAPTER, "sync_ms").mark("5.8 ms").why
    assert find_key(CHAPTER, "overhead", steps=4).mark("0.162 %").right
    assert "half of the right one" in find_key(CHAPTER, "overhead", steps=4).mark("0.081 %").why
    assert find_key(CHAPTER, "megabytes_needed", percent=50).mark(f"{wires.NVLINK.half_size} bytes").right


def question_and_answer(group, a, b, c, size):
    x = torch.zeros(size * 250_000)
    if group.rank == 0:
        group.compute(a * MS)
        group.send(x, to=1)
        group.recv(x, source=1)
    else:
        group.compute(b * MS)
        group.recv(x, source=0)
        group.compute(c * MS)
        group.send(x, to=0)


LINK = labkit.Network(intra=labkit.Link(bandwidth=1 * GB, latency=1 * MS))


NUMBERS = {"a": 6, "b": 40, "c": 5, "MB": 9}


@pytest.mark.ranks
def test_the_virtual_clock_says_what_the_keys_say():
    trace = labkit.launch(question_and_answer, 2, *NUMBERS.values(), clock="virtual", network=LINK).trace
    (question,), (answer,) = [[m for m in trace.sends if m.src == rank] for rank in (0, 1)]
    assert find_key(CHAPTER, "virtual_return", **NUMBERS).mark(question.end / MS).right
    assert find_key(CHAPTER, "ends_at", **NUMBERS).mark(answer.arrived / MS).right


@pytest.mark.ranks
def test_in_real_time_the_send_returns_when_the_receiver_has_computed():
    """Ranks do not begin at the same moment, so the end of rank 1's computing stands for its `b` ms."""
    trace = labkit.launch(question_and_answer, 2, *NUMBERS.values(), network=LINK).trace
    busy = min((span for span in trace.spans("compute") if span.rank == 1), key=lambda span: span.start)
    (question,) = [m for m in trace.sends if m.src == 0]
    assert busy.end - busy.start >= 0.9 * find_key(CHAPTER, "real_return", **NUMBERS).answer * MS
    assert question.end >= busy.end


def around(group, compute):
    mine, theirs = torch.zeros(1_000_000), torch.zeros(1_000_000)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for _ in range(group.size - 1):
        handles = group.isend(mine, to=right), group.irecv(theirs, source=left)
        group.compute(compute)
        for handle in handles:
            handle.wait()
        mine, theirs = theirs, mine
    group.compute(compute)


@pytest.mark.ranks
@pytest.mark.parametrize("c", [3, 8])
def test_blocks_in_a_ring_take_the_time_of_the_formula(c):
    """A block of 4 MB takes 5 ms on this link."""
    took = labkit.launch(around, 4, c * MS, clock="virtual", network=LINK).trace.duration
    assert took == pytest.approx((c + 3 * max(c, 5)) * MS)
    assert find_key(CHAPTER, "overlapped").mark("c + (N-1)*max(c, m)").right


def relay(group, nbytes, pieces):
    parts = torch.zeros(nbytes, dtype=torch.uint8).tensor_split(pieces)
    handles = []
    for part in parts:
        if group.rank > 0:
            group.recv(part, source=group.rank - 1)
        if group.rank < group.size - 1:
            handles.append(group.isend(part, to=group.rank + 1))
    for handle in handles:
        handle.wait()


@pytest.mark.ranks
def test_pieces_along_a_chain_take_the_time_of_the_formula_and_the_best_number_is_best():
    size, nbytes, alpha, beta = 5, 1_200_000, 20 * US, 1e-9
    network = labkit.Network(intra=labkit.Link(bandwidth=1 / beta, latency=alpha))

    def formula(k):
        return (k + size - 2) * (alpha + nbytes / k * beta)

    for k in (1, 2, 10):
        took = labkit.launch(relay, size, nbytes, k, clock="virtual", network=network).trace.duration
        assert took <= formula(k) * (1 + 1e-6)  # a link may begin a message while the latency of another passes
        assert took >= formula(k) - k * alpha
    best = math.sqrt((size - 2) * nbytes * beta / alpha)
    assert all(formula(best) < formula(best + by) for by in (-1, 1))
    assert find_key(CHAPTER, "best_pieces").mark("(N-2)^0.5 * (M*beta/alpha)^(1/2)").right
