"""The shipped runs: read whole, with their provenance, and one of them made again."""

import json
import math
from dataclasses import asdict
from statistics import median

import pytest

from labkit.bench.large_batches import as_lines, grid
from labkit.bench.large_batches_recipes import BASE, LARGE, SMALL, Recipe, recipes, steps_of, train
from labkit.bench.large_batches_steps import (
    estimated_noise_scale,
    loss_of,
    model_of,
    steps_to_target,
    train_images,
    true_noise_scale,
    weights_at,
)
from labkit.data.runs import FOLDER, large_batches
from labkit.models import flat_gradient
from labkit.optim import fit_critical_batch

runs = large_batches()
POINTS = 0.05 + runs.rounding["accuracy"]


def test_the_file_is_small_says_where_it_comes_from_and_has_every_row():
    assert (FOLDER / "large_batches.json").stat().st_size < 100_000
    assert runs.provenance.command.startswith("labkit bench large-batches")
    assert {"python", "torch"} <= set(runs.provenance.versions) and runs.provenance.date in str(runs.provenance)
    seeds = {row.seed for row in runs.steps}
    assert len(seeds) >= 20 and seeds.isdisjoint(row.seed for row in runs.tuning)
    batches = sorted({row.batch for row in runs.steps})
    assert len(runs.steps) == len(batches) * len(seeds)
    for batch in batches:  # the rate was chosen among the tuning runs, and is not at their edge
        rates = sorted({row.lr for row in runs.tuning if row.batch == batch})
        chosen = {row.lr for row in runs.steps if row.batch == batch}
        assert len(chosen) == 1 and rates[0] < chosen.pop() < rates[-1]
    expected = {(r.name, r.optimizer, r.batch, r.warm) for r in recipes()}
    assert {(r.recipe, r.optimizer, r.batch, r.warm) for r in runs.recipes} == expected
    assert {row.seed for row in runs.recipes} == seeds
    assert len(runs.rates) == 4 * len(grid())


@pytest.mark.parametrize("batch, seed", [(512, 0), (32, 5), (8, 11)])
def test_a_run_made_again_takes_the_steps_of_the_shipped_row(batch, seed):
    (row,) = [row for row in runs.steps if (row.batch, row.seed) == (batch, seed)]
    again = steps_to_target(batch, row.lr, seed)
    assert again.steps == pytest.approx(row.steps, rel=0.02 + runs.rounding["steps"])


@pytest.mark.parametrize("name", ["SGD, square root", "LARS + warmup", "Adam, linear + warmup", "LAMB + warmup"])
def test_a_recipe_made_again_ends_where_the_shipped_row_does(name):
    (recipe,) = [r for r in recipes() if r.name == name]
    (row,) = [r for r in runs.recipes if (r.recipe, r.seed) == (name, 3)]
    assert row.lr == pytest.approx(recipe.lr, rel=1e-3)
    assert train(recipe, 3).accuracy == pytest.approx(row.accuracy, abs=POINTS)


def test_the_same_run_twice_is_the_same_to_the_last_bit():
    recipe = recipes()[6]
    assert train(recipe, 1) == train(recipe, 1)
    assert steps_to_target(64, 0.5, 1) == steps_to_target(64, 0.5, 1)


def test_a_limit_and_an_overflow_are_reported_not_hidden():
    assert steps_to_target(64, 0.01, 0, limit=3).steps is None
    assert steps_to_target(64, 1e6, 0, limit=50).steps is None
    wild = train(Recipe("wild", "SGD", LARGE, 1e6), 0)
    assert wild.worst == wild.loss == math.inf and wild.accuracy < 0.5
    with pytest.raises(ValueError, match="another rate"):
        weights_at(0.01, lr=1e-5, seed=0, batch=2, limit=20)


def test_the_base_rates_train_well_and_stand_near_the_edge_of_what_their_optimizer_can_take():
    for optimizer, base in BASE.items():
        small = [r for r in runs.rates if r.optimizer == optimizer and r.batch == SMALL]
        accuracy = {lr: median(r.accuracy for r in small if r.lr == lr) for lr in {r.lr for r in small}}
        assert accuracy[base] > 0.95 and accuracy[base] > max(accuracy.values()) - 0.02
    assert steps_of(SMALL) > 30 * steps_of(LARGE)


def test_linear_scaling_breaks_every_seed_and_is_mended():
    accuracy = {r.name: [row.accuracy for row in runs.recipes if row.recipe == r.name] for r in recipes()}
    good = {name: sum(a > 0.9 for a in values) for name, values in accuracy.items()}
    assert good["SGD, linear"] == 0 and good["Adam, linear"] <= 2
    assert good["SGD, linear + warmup"] == 0  # warmup is no cure for a rate that is always too large
    assert min(good[name] for name in ("Adam, linear + warmup", "Adam, square root")) >= 22
    assert min(good[name] for name in ("SGD, square root", "LARS + warmup", "LAMB + warmup")) >= 12


def test_the_fit_explains_the_shipped_medians():
    points = [(batch, median(steps)) for batch, steps in runs.steps_by_batch().items()]
    fit = fit_critical_batch(points)
    assert fit.residual < 0.15
    assert min(b for b, _ in points) < fit.critical < max(b for b, _ in points)


def test_the_true_noise_scale_is_that_of_single_gradients():
    model, images = model_of(2), train_images()
    signal, noise = true_noise_scale(model)
    model.zero_grad()
    loss_of(model, images).backward()
    assert signal == pytest.approx(float(flat_gradient(model).square().sum()), rel=1e-4)
    single = 0.0
    for i in range(len(images.y)):
        model.zero_grad()
        loss_of(model, type(images)(images.x[i : i + 1], images.y[i : i + 1])).backward()
        single += float(flat_gradient(model).double().square().sum()) / len(images.y)
    assert noise == pytest.approx(single - signal, rel=1e-4)
    found = estimated_noise_scale(model, ranks=4, per_rank=8, steps=150, seed=0).estimate(0.999)
    assert found.low < noise / signal < found.high < 2 * found.low


def test_what_is_written_is_what_is_read(tmp_path):
    raw = json.loads((FOLDER / "large_batches.json").read_text())
    path = tmp_path / "copy.json"
    path.write_text(as_lines(raw))
    copy = large_batches(str(path))
    assert asdict(copy) == asdict(runs)
    raw["recipes"][0]["loss"][0] = None
    path = tmp_path / "infinite.json"
    path.write_text(as_lines(raw))
    assert large_batches(str(path)).recipes[0].loss == math.inf
