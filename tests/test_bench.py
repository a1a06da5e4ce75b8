"""Benchmarks run, and their arithmetic is right. What they measure is never asserted."""

import pytest
from slices import few

from labkit.bench import ratios

pytestmark = pytest.mark.ranks


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
    few(
        [
            ("collectives", ["--ranks", "2", "--mib", "1", "--pairs", "2"]),
            ("trace", ["--pairs", "2"]),
            ("workbench", ["--pairs", "2"]),
            (
                "loose",
                [
                    "--parts",
                    "synchrony,server,rows",
                    "--seeds",
                    "1",
                    "--clocks",
                    "2",
                    "--workers",
                    "1",
                    "--updates",
                    "5",
                    "--pairs",
                    "2",
                    "--rows",
                    "1000",
                ],
            ),
            (
                "hybrid",
                [
                    "--parts",
                    "context,rivals,search",
                    "--ranks",
                    "2",
                    "--positions",
                    "64",
                    "--pairs",
                    "2",
                    "--gpus",
                    "64",
                ],
            ),
            (
                "model-parallel",
                ["--parts", "tensor,pipeline", "--ranks", "2", "--batches", "1", "--microbatch", "1", "--pairs", "2"],
            ),
        ]
    ),  # fmt: skip
)
def test_a_small_benchmark_runs_and_prints_its_ratio(name, arguments, capsys, tmp_path):
    from labkit.cli import main

    assert main(["bench", name, *arguments, "--json", str(tmp_path / "out.json")]) in (0, None)
    assert "A/A" in capsys.readouterr().out and (tmp_path / "out.json").exists()


def found(seconds, losses):
    from labkit.bench.in_turn import Found

    return Found(seconds, ([t / 2 for t in seconds[0]], seconds[1]), losses)


def test_steps_that_are_not_the_same_are_no_comparison():
    from labkit.bench.in_turn import row

    seconds = [1.0, 2.0], [2.0, 2.0]
    table = row([found(seconds, ([0.5], [0.5]))], ranks=1)
    assert table["ranks"] == 1 and table["time ratio"] == pytest.approx(0.75)
    assert table["CPU ratio"] == pytest.approx(0.375)
    with pytest.raises(RuntimeError, match="not the same steps"):
        row([found(seconds, ([0.5], [0.6]))], ranks=1)
    with pytest.raises(RuntimeError, match="not the same steps"):
        row([found(seconds, ([], []))], ranks=1)  # nobody knows a loss


def test_the_slowest_rank_of_a_step_counts():
    from labkit.bench.in_turn import row

    fast, slow = ([1.0, 1.0], [1.0, 1.0]), ([2.0, 4.0], [1.0, 2.0])
    table = row([found(fast, ([], [])), found(slow, ([0.5], [0.5]))])
    assert table["labkit ms"] == 3000 and table["PyTorch ms"] == 1500 and table["time ratio"] == 2


def test_the_benchmark_of_narrow_replicas_is_the_same_in_every_run(capsys, tmp_path):
    import json

    from labkit.cli import main

    found = []
    for n in range(2):
        path = tmp_path / f"{n}.json"
        main(["bench", "ntp", "--width", "2", "--lost", "1", "--ratios", "0.03", "--json", str(path)])
        found.append(json.loads(path.read_text()))
    assert found[0] == found[1]
    assert 0 <= found[0]["reshard"][0]["backward slower"] < 0.04 and found[0]["naive"][0]["naive / map"] > 1
