"""What gradient accumulation saves and costs, against sums written out."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost.units import GB

sizes, counts, times = st.integers(1, 64), st.integers(1, 32), st.floats(1e-3, 10)


@given(compute=times, communication=times, k=counts)
def test_a_step_written_out(compute, communication, k):
    once = sum([compute] * k) + communication
    assert cost.accumulated_step_seconds(compute, communication, k) == pytest.approx(once)
    each = sum([compute + communication] * k)
    assert cost.accumulated_step_seconds(compute, communication, k, exchange_each=True) == pytest.approx(each)
    assert cost.accumulation_overhead(compute, communication, k) == pytest.approx((once - k * compute) / (k * compute))


@given(params=st.integers(0, 10**9), size=sizes, k=counts, itemsize=st.sampled_from([2, 4]))
def test_bytes_of_k_microbatches(params, size, k, itemsize):
    half = (size - 1) / size * params * itemsize  # one reduce-scatter or one all-gather
    whole = {0: 2 * half, 1: 2 * half, 2: 2 * half, 3: (1 + 2 * k) * half}
    each = {0: 2 * k * half, 1: (k + 1) * half, 2: (k + 1) * half, 3: 3 * k * half}
    for stage in range(4):
        sent = [
            cost.accumulation_bytes_per_step(params, size, stage, k, exchange_each=e, itemsize=itemsize)
            for e in (False, True)
        ]
        assert sent == pytest.approx([whole[stage], each[stage]])
    assert cost.accumulation_bytes_per_step(params, size, 3, 1) == pytest.approx(
        cost.zero_bytes_per_step(params, size, 3)
    )


def test_the_gradient_that_stays():
    # 7B in 16 bits: 14 GB, however many microbatches, unless it is cut and exchanged each time.
    assert cost.accumulation_gradient_bytes(7e9, 64, 0) == 14 * GB
    assert cost.accumulation_gradient_bytes(7e9, 64, 1, exchange_each=True) == 14 * GB
    assert cost.accumulation_gradient_bytes(7e9, 64, 2) == cost.accumulation_gradient_bytes(7e9, 64, 3) == 14 * GB
    for stage in (2, 3):
        assert cost.accumulation_gradient_bytes(7e9, 64, stage, exchange_each=True) == 14 * GB / 64


def test_three_quarters_of_the_exchanges():
    assert cost.exchanges_saved(4) == 0.75 and cost.exchanges_saved(1) == 0


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.accumulated_step_seconds(0, 1, 4), "compute .*0"),
        (lambda: cost.accumulated_step_seconds(1, -1, 4), "communication .*-1"),
        (lambda: cost.accumulation_overhead(1, 1, 0), "microbatches .*0"),
        (lambda: cost.accumulation_bytes_per_step(1, 4, 4, 2), "stage .*4"),
        (lambda: cost.accumulation_bytes_per_step(1, 4, 3, 2.5), "microbatches .*2.5"),
        (lambda: cost.accumulation_gradient_bytes(-1, 4, 2), "params .*-1"),
        (lambda: cost.exchanges_saved(0), "microbatches .*0"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()
