"""Benchmarks run, and their arithmetic is right. What they measure is never asserted."""

import pytest

from labkit.bench import ratios


def test_ratios_are_medians_of_pairs():
    assert ratios.ratio([2, 20, 6], [1, 10, 1]) == 2
    assert ratios.self_ratio([1, 2, 3, 3]) == pytest.approx(0.75)
    assert ratios.geometric_mean([2, 0.5]) == pytest.approx(1)


def test_the_order_alternates():
    calls = []
    ratios.alternate(lambda: calls.append("a") or 1.0, lambda: calls.append("b") or 1.0, 3)
    assert "".join(calls) == "abbaab"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("trace", ["--pairs", "2"]), ("collectives", ["--ranks", "2", "--mib", "1", "--pairs", "2"])],
)
def test_a_small_benchmark_runs_and_prints_its_ratio(name, arguments, capsys, tmp_path):
    from labkit.cli import main

    assert main(["bench", name, *arguments, "--json", str(tmp_path / "out.json")]) in (0, None)
    assert "A/A" in capsys.readouterr().out and (tmp_path / "out.json").exists()
