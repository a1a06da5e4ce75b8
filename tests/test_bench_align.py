"""`labkit bench align`: what it measures is within its bounds, and virtual times are the same in every run."""

from __future__ import annotations

import json

import pytest

from labkit.cli import main

pytestmark = pytest.mark.ranks


def measured(tmp_path, parts, *options):
    path = tmp_path / "out.json"
    assert main(["bench", "align", "--parts", parts, *options, "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_packing_has_four_times_the_tokens_a_second_of_padding(tmp_path):
    (row,) = measured(tmp_path, "packing", "--longest", "512", "--pairs", "3")["packing"]
    assert row["times as many tokens a second"] > 4
    assert row["padded positions"] == 8 * row["packed positions"] and row["loss differs by"] < 1e-5


@pytest.mark.long
def test_resharding_and_placements_are_what_is_foretold(tmp_path):
    found = measured(tmp_path, "resharding,placements", "--ranks", "8")
    assert all(1 <= row["time / least"] <= 1.2 for row in found["resharding"])
    assert all(abs(row["simulated / measured"] - 1) < 0.05 for row in found["placements"])
    colocated, swapped, separate, _ = found["placements"]
    assert separate["utilization"] < swapped["utilization"] < colocated["utilization"]
    assert swapped["kB on a device"] < colocated["kB on a device"] / 2
    assert found == measured(tmp_path, "resharding,placements", "--ranks", "8")


def test_what_does_not_exist_or_fit_is_refused(capsys):
    for options, words in ((["--parts", "wire"], "choose from packing"), (["--ranks", "3"], "need at least 4")):
        with pytest.raises(SystemExit):
            main(["bench", "align", *options])
        assert words in capsys.readouterr().err
