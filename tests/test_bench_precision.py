"""`labkit bench precision`: formulas are what is sent and kept, and the tables are the same in every run."""

from __future__ import annotations

import json

import pytest

from labkit.cli import main

pytestmark = pytest.mark.ranks


def test_formulas_are_what_is_sent_and_kept(capsys, tmp_path):
    path = tmp_path / "out.json"
    assert main(["bench", "precision", "--ranks", "3", "--steps", "3", "--seeds", "1", "--json", str(path)]) == 0
    assert "FP8 / FP32" in capsys.readouterr().out
    found = json.loads(path.read_text())
    for row in found["bytes"]:
        assert row["FP8"] == pytest.approx(row["formula"], rel=1e-4), row[""]  # shards of FSDP are not quite even
        assert row["FP8"] < 0.6 * row["FP32"]
    for row in found["links"]:
        assert row["MB"] == pytest.approx(row["formula"], rel=1e-12), row[""]
    for row in found["states"]:
        assert row["bytes a parameter"] == row["formula"], row[""]
    assert [row["further than BF16"] for row in found["layers"]][0] == 0 and len(found["layers"]) == 9
    assert found["links"][0]["ms"] > found["links"][1]["ms"] > found["links"][3]["ms"]


def test_times_are_the_same_in_every_run(tmp_path):
    found = []
    for n in range(2):
        path = tmp_path / f"{n}.json"
        main(["bench", "precision", "--parts", "links", "--ranks", "2", "--steps", "2", "--json", str(path)])
        found.append(json.loads(path.read_text()))
    assert found[0] == found[1]


def test_a_part_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "precision", "--parts", "wire"])
    assert "--parts wire: choose from bytes, links, states" in capsys.readouterr().err
