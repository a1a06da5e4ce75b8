"""The shipped runs of alignment: whole, with their provenance, and one of them made again."""

from __future__ import annotations

import pytest

from labkit.bench.align_rewards import WAYS, measured, runs
from labkit.data.runs import FOLDER, alignment

kept = alignment()


def test_the_file_is_small_says_where_it_comes_from_and_has_every_run():
    assert (FOLDER / "alignment.json").stat().st_size < 20_000
    seeds = sorted({run.seed for run in kept.runs})
    assert len(seeds) >= 5 and f"--seeds {len(seeds)} --steps {kept.steps} " in kept.provenance.command
    assert sorted((run.way, run.seed) for run in kept.runs) == sorted((way, seed) for way in WAYS for seed in seeds)
    assert all(run.beta == WAYS[run.way][1] and (run.kl is None) == run.way.startswith("DPO") for run in kept.runs)


@pytest.mark.long
@pytest.mark.ranks
@pytest.mark.parametrize("way", ["DPO, beta 0.1", "PPO, no KL"])
def test_a_run_made_again_is_the_shipped_one(way):
    (shipped,) = [run for run in kept.of(way) if run.seed == 1]
    again = measured(way, 1, kept.steps)
    assert again["before"] == pytest.approx(shipped.before, abs=2e-3)
    assert again["after"] == pytest.approx(shipped.after, abs=0.03)  # another processor rounds differently


def test_a_row_has_the_numbers_of_its_run(monkeypatch):
    monkeypatch.setattr(
        "labkit.bench.align_rewards.measured", lambda way, seed, steps: {"before": seed / 3, "after": steps}
    )
    found = runs(2, 7)
    assert len(found) == 2 * len(WAYS)
    assert found[1] == {"way": "PPO, beta 0.05", "beta": 0.05, "seed": 1, "before": 0.3333, "after": 7.0}
