"""Keys of chapter 13 and what its checks compare with: slips are told apart, and bytes and sums are those of messages
that are listed one by one."""

from __future__ import annotations

import itertools

import pytest
import torch
from slips import every_draw, letters_have_reasons, tell_apart

from labkit import cost
from labkit.chapters.c13_embeddings import checks, keys, ports, runs
from labkit.grading.answers import find_key
from labkit.grading.checks.fresh import Fresh
from labkit.optim.synchrony.masking import from_fixed, to_fixed
from labkit.wire.errors import RefusedError

CHAPTER = "13_embeddings"


def answer(name, **numbers):
    return find_key(CHAPTER, name, **numbers).answer


BESIDE = every_draw(M=[200, 500, 1000], d=[64, 128, 256], N=[16, 32, 64], u=[20, 50, 100])
CUT = every_draw(N=[8, 16, 32], u=[20, 40], d=[64, 128, 256])
HOTTEST = every_draw(R=[16000, 64000, 128000], s=[0.9, 1.0, 1.1, 1.2], N=[8, 16, 32], b=[1000, 4000])
SERVER = every_draw(W=[8, 16, 32], n=[20, 50, 100], B=[10, 25], us=[5, 10, 20])
MASKS = every_draw(K=[100, 500, 1000], M=[4, 8, 16], lost=[5, 10, 20])
KEYS = [
    *((name, g) for name in ("adam_gb", "rowwise_gb", "fewest_gpus", "times_as_much") for g in BESIDE),
    *((name, g) for name in ("rows_mb", "columns_mb", "owner_mb") for g in CUT),
    *((name, g) for name in ("range_percent", "modulo_percent", "asked_percent", "ranks_when_double") for g in HOTTEST),
    *((name, g) for name in ("server_ms", "ring_ms", "servers_as_good", "break_even_kb") for g in SERVER),
    *((name, g) for name in ("pairs_of_clients", "most_bits", "largest_error", "disclosed") for g in MASKS),
]


@pytest.mark.parametrize("name", sorted({name for name, _ in KEYS}))
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    tell_apart(find_key(CHAPTER, name, **numbers) for same, numbers in KEYS if same == name)


@pytest.mark.parametrize("name, right", [("which_is_even", "c"), ("if_it_comes_late", "b")])
def test_letters_have_a_reason_each(name, right):
    letters_have_reasons(find_key(CHAPTER, name), right, "abcd")


def test_the_formula_is_right_in_any_form_and_its_slips_are_not():
    key = find_key(CHAPTER, "break_even")
    assert key.mark("a*B*W*(W-2)/(W*W-W+1)").right
    for wrong, why in key.slips:
        assert not key.mark(wrong).right and key.mark(wrong).why == why


@pytest.mark.parametrize("numbers", SERVER[::5])
def test_at_the_break_even_both_take_equally_long(numbers):
    nbytes = 1e3 * answer("break_even_kb", **numbers)
    links = (numbers["us"] * 1e-6, 1 / (numbers["B"] * 1e9))
    ring = cost.ring_all_reduce_time(nbytes, numbers["W"], *links)
    assert cost.server_exchange_time(nbytes, numbers["W"], 1, *links) == pytest.approx(ring)
    values = {"W": numbers["W"], "a": links[0], "B": numbers["B"] * 1e9}
    assert eval(find_key(CHAPTER, "break_even").answer, values) == pytest.approx(nbytes)


@pytest.mark.ranks
def test_a_server_takes_as_long_in_a_run_as_the_key_says():
    """4 workers and 100 kB, on the links of the chapter: 100 MB/s and 10 us."""
    took = ports.through_a_server(4)
    said = answer("server_ms", W=4, n=0.1, B=0.1, us=10)
    assert 1e3 * took == pytest.approx(said, rel=0.01)
    assert 1e3 * ports.around_a_ring(4, 25_000) == pytest.approx(answer("ring_ms", W=4, n=0.1, B=0.1, us=10), rel=0.01)


@pytest.mark.parametrize("numbers", BESIDE[::11])
def test_the_table_fits_on_the_fewest_gpus_and_on_no_fewer(numbers):
    fewest = answer("fewest_gpus", **numbers)
    assert answer("adam_gb", **numbers | {"N": fewest}) <= keys.ROOM
    assert fewest == 1 or answer("adam_gb", **numbers | {"N": fewest - 1}) > keys.ROOM
    weights = numbers["M"] * 1e6 * numbers["d"] * 4 / numbers["N"] / 1e9
    assert answer("adam_gb", **numbers) == pytest.approx(3 * weights)
    assert answer("rowwise_gb", **numbers) == pytest.approx(weights * (1 + 1 / numbers["d"]))


@pytest.mark.parametrize("numbers", CUT)
def test_bytes_of_a_step_are_those_of_a_list_of_its_messages(numbers):
    N, u, d = (numbers[name] for name in ("N", "u", "d"))
    asked = 1000 * u
    by_rows = sum(8 + 4 * d + 4 * d for _ in range(N - 1) for _ in range(asked // N))  # to each other rank
    assert answer("rows_mb", **numbers) == pytest.approx(by_rows / 1e6)
    by_columns = (N - 1) * asked * (8 + 2 * 4 * d // N)
    assert answer("columns_mb", **numbers) == pytest.approx(by_columns / 1e6)
    assert answer("owner_mb", **numbers) == pytest.approx((N - 1) * asked * 4 * d / 1e6)


@pytest.mark.parametrize("numbers", HOTTEST[::7])
def test_shares_are_sums_of_popularity(numbers):
    R, s, N, b = (numbers[name] for name in ("R", "s", "N", "b"))
    p = torch.arange(1, R + 1).double() ** -s
    p /= p.sum()
    assert answer("range_percent", **numbers) == pytest.approx(100 * p[: R // N].sum().item())
    assert answer("modulo_percent", **numbers) == pytest.approx(100 * p[::N].sum().item())
    assert answer("asked_percent", **numbers) == pytest.approx(100 * (1 - (1 - p[999].item()) ** b))
    ranks = answer("ranks_when_double", **numbers)
    assert p[0] >= 2 / ranks and p[0] < 2 / (ranks - 1)


@pytest.mark.parametrize("numbers", MASKS)
def test_with_the_most_bits_labkit_takes_the_largest_sum_and_with_one_more_it_is_too_large(numbers):
    K, M = numbers["K"], numbers["M"]
    bits = answer("most_bits", **numbers)
    x = torch.tensor([float(M), -float(M)])
    fixed = to_fixed(x, bits=bits, terms=K)
    total = torch.stack([fixed] * K).sum(0, dtype=torch.int32)
    assert torch.equal(from_fixed(total, bits=bits), K * x)
    with pytest.raises(RefusedError):
        to_fixed(x, bits=bits + 1, terms=K)


def test_secrets_are_those_of_all_pairs():
    numbers = {"K": 100, "M": 4, "lost": 5}
    pairs = list(itertools.combinations(range(100), 2))
    assert answer("pairs_of_clients", **numbers) == len(pairs)
    assert answer("disclosed", **numbers) == sum(a < 5 <= b for a, b in pairs)
    worst = torch.full((3,), 2.0**-17).double()  # half a step, in each of three clients
    off = (to_fixed(worst.float(), bits=16, terms=3).double() / 2**16 - worst).abs().sum()
    assert off == answer("largest_error", **numbers | {"K": 3})


# What programs are compared with -----------------------------------------------------------------------------------


def test_a_pooled_look_up_sends_what_a_list_of_its_messages_says():
    inputs = checks.bags(Fresh(7, "").tensor, [5, 0, 7], 4, 20)
    due = [2 * 8] * 3
    for rank, mine in enumerate(inputs):
        for ids in mine["ids"].tolist():
            for owner in {i % 3 for i in ids} - {rank}:
                due[rank] += 16 * sum(i % 3 == owner for i in ids)
                due[owner] += 8 * checks.DIM
    assert checks.pooled_bytes(inputs) == due
    assert any(len(set(ids)) < len(ids) for mine in inputs for ids in mine["ids"].tolist()), "some ids come twice"


def test_the_dense_optimizer_is_that_of_torch():
    inputs = checks.lessons(Fresh(3, "").tensor, [[4, 0, 5], [2, 3, 1]], 9)
    w = torch.nn.Parameter(checks.whole_table(inputs))
    sgd = torch.optim.SGD([w], lr=0.25, momentum=0.5)
    for t in range(3):
        w.grad = torch.zeros_like(w)
        for mine in inputs:
            w.grad.index_add_(0, mine["ids"][t], mine["gradients"][t])
        sgd.step()
    at_the_end = checks.dense_momentum(inputs, 0.25, 0.5, raw=True)
    for rank in range(2):
        torch.testing.assert_close(at_the_end[rank][0], w.detach()[rank::2])
    lazy = checks.answers.rested(inputs, 0.25, 0.5)
    right = checks.dense_momentum(inputs, 0.25, 0.5)
    assert all(
        torch.equal(a, b) for ours, theirs in zip(lazy, right, strict=True) for a, b in zip(ours, theirs, strict=True)
    )
    never = right[0][2] == 0
    assert torch.equal(right[0][0][never], inputs[0]["rows"][never]) and not right[0][1][never].any()


def test_masks_of_all_clients_cancel_and_those_of_a_lost_one_do_not():
    inputs = runs.crowd(Fresh(5, "").tensor, [True, True, False, True], 6, 3)
    sent = [runs.under_masks(mine["numbers"], mine["secrets"], c) for c, mine in enumerate(inputs) if c]
    numbers = torch.stack([mine["numbers"] for mine in inputs[1:]])
    assert torch.equal(torch.stack(sent).sum(0, dtype=torch.int32), numbers.sum(0, dtype=torch.int32))
    some = [0, 1, 3]
    left = torch.stack([sent[c] for c in some]).sum(0, dtype=torch.int32)
    mine = numbers[some].sum(0, dtype=torch.int32)
    assert not torch.equal(left, mine)
    secrets = [one["secrets"] for one in inputs[1:]]
    assert torch.equal(left - runs.answers.left_over([1, 2, 4], secrets, 6), mine)
    assert inputs[0]["came"] == [1, 2, 4] and "secrets" not in inputs[0]
