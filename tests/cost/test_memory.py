"""What training holds in memory, against the sources and against the formulas as their authors write them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost.units import GB, TB

sizes = st.integers(1, 64)


@pytest.mark.parametrize(("model", "gigabytes"), [("7B", 112), ("70B", 1120), ("175B", 2800)])
def test_the_sources_training_states(model, gigabytes):
    assert cost.state_bytes(cost.SHAPES[model].params) == gigabytes * GB


def test_sixteen_bytes_by_different_parts():
    assert cost.state_parts(1, "mixed") == cost.StateBytes(2, 2, 12)
    assert cost.state_parts(1, "single") == cost.StateBytes(4, 4, 8)
    assert cost.state_bytes(1, "mixed") == cost.state_bytes(1, "single") == 16
    assert cost.state_parts(7e9).parameters == 14 * GB and cost.state_parts(7e9).gradients == 14 * GB


def test_five_billion_parameters_fill_a_gpu():
    assert cost.largest_model() == 5e9
    assert cost.largest_model(40 * GB) == 2.5e9


def test_seven_billion_do_not_fit_where_the_source_says_they_do():
    assert cost.state_bytes(7e9) == 1.4 * cost.GPU_MEMORY
    assert cost.devices_to_hold(cost.state_bytes(7e9)) == 2


def test_five_gpus_hold_the_weights_of_gpt3_and_not_its_training():
    params = cost.SHAPES["175B"].params
    assert cost.state_parts(params).parameters == 350 * GB
    assert cost.devices_to_hold(350 * GB) == 5
    assert cost.devices_to_hold(cost.state_bytes(params)) == 35


@pytest.mark.parametrize(("gigabytes", "devices"), [(0, 1), (80, 1), (80.1, 2), (1120, 14), (1494, 19)])
def test_devices_to_hold(gigabytes, devices):
    assert cost.devices_to_hold(gigabytes * GB) == devices


def test_the_activations_of_the_source():
    s = cost.SHAPES["175B"]
    full = cost.activation_bytes(4, s.sequence, s.hidden, s.layers, s.heads)
    assert round(full / TB, 3) == 1.102
    assert round(cost.checkpointed_activation_bytes(4, s.sequence, s.hidden, s.layers) / GB, 2) == 19.33


@given(b=sizes, s=sizes, h=sizes, layers=sizes, a=sizes)
def test_activations_are_the_papers_formula(b, s, h, layers, a):
    assert cost.activation_bytes(b, s, h, layers, a) == pytest.approx(s * b * h * (34 + 5 * a * s / h) * layers)
    assert cost.checkpointed_activation_bytes(b, s, h, layers) == 2 * s * b * h * layers
    assert cost.checkpointed_activation_bytes(b, s, h, layers, itemsize=4) == 4 * s * b * h * layers
    # Without dropout: 32 for the values, and one of the five for the scores in 16 bits is two bytes.
    assert cost.activation_bytes(b, s, h, layers, a, dropout=False) == layers * (32 * s * b * h + 2 * a * s * s * b)
    assert cost.activation_bytes(b, s, h, layers, a, scores=False) == layers * 34 * s * b * h
    single = cost.activation_bytes(b, s, h, layers, a, itemsize=4, dropout=False, scores=False)
    assert single == 64 * s * b * h * layers


def test_shapes_have_about_the_parameters_of_their_names():
    for shape in cost.SHAPES.values():
        assert 0.9 < shape.matrix_params / shape.params < 1
    assert cost.SHAPES["175B"].matrix_params == 12 * 96 * 12288**2


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.state_bytes(-1), "params .*-1"),
        (lambda: cost.state_bytes(float("nan")), "params .*nan"),
        (lambda: cost.state_bytes(1, "half"), "precision .*'mixed', 'single'.*'half'"),
        (lambda: cost.activation_bytes(0, 1, 1, 1, 1), "batch .*0"),
        (lambda: cost.activation_bytes(1, 1.5, 1, 1, 1), "sequence .*1.5"),
        (lambda: cost.checkpointed_activation_bytes(1, 1, 1, True), "layers .*True"),
        (lambda: cost.largest_model(0), "memory .*0"),
        (lambda: cost.devices_to_hold(1, -80), "memory .*-80"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()


@given(b=sizes, s=sizes, h=sizes, layers=sizes, a=sizes)
def test_what_each_strategy_keeps(b, s, h, layers, a):
    shape = (b, s, h, layers, a)
    kept = {name: cost.kept_activation_bytes(*shape, name) for name in cost.ACTIVATION_STRATEGIES}
    assert kept["all"] == cost.activation_bytes(*shape)
    assert kept["selective"] == 34 * s * b * h * layers and kept["full"] == 2 * s * b * h * layers
    # While a layer is computed again it is there whole: its scores, or all of it.
    again = {name: cost.peak_activation_bytes(*shape, name) - kept[name] for name in kept}
    assert again == {"all": 0, "selective": 5 * a * s * s * b, "full": 34 * s * b * h + 5 * a * s * s * b}


def test_175b_on_64_gpus_does_fit_with_checkpoints():
    """The textbook's memory wall: 43.8 GB of state and "about 50 GB" of activations at batch 1 are more than 80 GB."""
    shape = cost.SHAPES["175B"]
    one = (1, shape.sequence, shape.hidden, shape.layers, shape.heads)
    peak = {name: round(cost.peak_activation_bytes(*one, name) / GB, 1) for name in cost.ACTIVATION_STRATEGIES}
    # By the formula with which it has 1.1 TB and 19.3 GB at batch 4, no strategy takes 50 GB at batch 1.
    assert peak == {"all": 275.4, "selective": 84.2, "full": 7.7}
    assert round(cost.checkpointed_activation_bytes(*one[:4]) / GB, 2) == round(19.33 / 4, 2) == 4.83
    # State, two gathered layers, one whole gradient and checkpoints: 62.4 GB. No tensor parallelism is needed for it.
    units = [int(shape.params / shape.layers)] * shape.layers
    held = cost.zero_state_bytes(shape.params, 64, 3) + cost.gathered_bytes(units) + cost.gradient_unit_bytes(units)
    held += cost.peak_activation_bytes(*one, "full")
    assert round(held / GB, 1) == 62.4 and held < cost.GPU_MEMORY
    # And twice as many GPUs halve the state.
    assert cost.zero_state_bytes(shape.params, 128, 3) == 21.875 * GB


@given(units=st.lists(st.integers(0, 1000), max_size=12), prefetch=st.integers(0, 4), itemsize=st.sampled_from([2, 4]))
def test_the_peak_of_gathered_units(units, prefetch, itemsize):
    most = 0
    for first in range(len(units)):
        there = [unit for index, unit in enumerate(units) if first <= index <= first + prefetch]
        most = max(most, sum(there) * itemsize)
    assert cost.gathered_bytes(units, itemsize, prefetch) == most
    assert cost.gradient_unit_bytes(units, itemsize) == max([0, *units]) * itemsize


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: cost.kept_activation_bytes(1, 1, 1, 1, 1, "some"), "strategy .*'all', 'selective', 'full'.*'some'"),
        (lambda: cost.kept_activation_bytes(1, 1, 1, 1, 0, "full"), "heads .*0"),
        (lambda: cost.peak_activation_bytes(0, 1, 1, 1, 1, "all"), "batch .*0"),
        (lambda: cost.gathered_bytes([1, -1]), r"units\[1\] .*-1"),
        (lambda: cost.gathered_bytes([1], prefetch=-1), "prefetch .*-1"),
        (lambda: cost.gradient_unit_bytes([1], itemsize=0), "itemsize .*0"),
    ],
)
def test_strategies_that_cannot_be_are_refused(call, named):
    with pytest.raises(ValueError, match=named):
        call()
