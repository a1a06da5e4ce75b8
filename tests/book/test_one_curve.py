"""A single curve has nothing to be compared with: its figure tells the two ends instead of who is fastest."""

from __future__ import annotations

from labkit import book


def test_one_curve_with_its_measurements():
    points = {"a message": {100: [2e-6, 3e-6, 4e-6], 10**6: [1e-3]}}
    figure = book.cost_curves({"a message": lambda n: 2e-6 + n * 1e-9}, points)
    assert figure.sentence == (
        "By the model 100 B take 2.1 µs, 1 MB take 1 ms. Measured 100 B take 3 µs, 1 MB take 1 ms."
    )
    assert "fastest" not in figure.text


def test_measurements_alone_and_a_curve_alone():
    points = book.cost_curves({}, {"a message": {100: [3e-6], 10**6: [1e-3]}})
    assert points.sentence == "Measured 100 B take 3 µs, 1 MB take 1 ms."
    curve = book.cost_curves({"a message": lambda n: n * 1e-9}, sizes=(1e3, 1e6))
    assert curve.sentence == "By the model 1 kB take 1 µs, 1 MB take 1 ms."


def test_two_curves_are_compared_as_before():
    curves = {"slow": lambda n: 2e-9 * n, "quick": lambda n: 1e-9 * n}
    assert book.cost_curves(curves).sentence == "By the model quick is fastest throughout."
    assert "fastest" in book.cost_curves(curves).text


def test_what_a_clock_counted_is_not_called_measured():
    curves, points = {"a": lambda n: 1e-9 * n, "b": lambda n: 2e-9 * n}, {"a": {10: [1e-8]}, "b": {10: [2e-8]}}
    figure = book.cost_curves(curves, points, sizes=(1, 100), badge="emulated")
    assert figure.sentence.endswith("In the runs a is fastest at every size.") and "easured" not in figure.text
