"""The accuracy experiment: the update rule, each sample once, what is said of runs, and the shipped ones."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from labkit import cost
from labkit.resilience.accuracy import experiment as accuracy
from labkit.resilience.accuracy.claims import Shift, at_end, difference, during, flattened, shift
from labkit.resilience.accuracy.experiment import (
    BATCH,
    EVERY,
    FIRST,
    LONG,
    REPLICAS,
    SHORT,
    STEPS,
    Setting,
    batches,
    settings,
    train,
)
from labkit.resilience.accuracy.stacked import Stacked
from labkit.wire.errors import RefusedError

# Settings


def test_fourteen_settings_and_their_names():
    found = settings()
    assert len(found) == len({s.name for s in found}) == 14
    assert Setting(3, LONG, "sqrt").name == "for600_3reps_lr_sqrt"
    for setting in found:
        assert cost.samples_lost(2, setting.length, setting.lost, REPLICAS, STEPS) == pytest.approx(
            (setting.steps - STEPS) / STEPS
        )
    # The long outages are 4,000 of 11,000 steps, as in the paper; the first one over before the second begins.
    assert LONG / STEPS == pytest.approx(4 / 11, abs=0.005)
    for length, (first, second) in FIRST.items():
        assert first + length < second and second + length < STEPS


def test_who_is_healthy():
    setting = Setting(3, SHORT)
    first, second = FIRST[SHORT]
    assert setting.healthy(first - 1) == list(range(REPLICAS)) == setting.healthy(first + SHORT)
    assert setting.healthy(first) == list(range(3, 12)) == setting.healthy(first + SHORT - 1)
    assert setting.healthy(second) == [0, 1, 2, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("wrong", [(0, 150), (12, 150), (1, 0), (1, 60), (1, 150, "cubic"), (-1, 150)])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(RefusedError):
        Setting(*wrong)


# Samples and updates


@pytest.mark.parametrize("setting", [Setting(), Setting(1, LONG), Setting(3, SHORT)])
def test_every_run_trains_equally_many_samples_and_each_once(setting, monkeypatch):
    # In place of the text, samples that say their number.
    count = len(accuracy.samples(validation=False))
    monkeypatch.setattr(accuracy, "samples", lambda validation: torch.arange(count)[:, None])
    seen, step = [], -1
    for step, healthy, chosen_snc in batches(setting, [0]):
        assert healthy == len(setting.healthy(step))
        assert chosen_snc.shape == (1, BATCH * healthy, 1)
        seen += chosen_snc.flatten().tolist()
    assert step + 1 == setting.steps
    assert len(seen) == len(set(seen)) == STEPS * REPLICAS * BATCH


def test_a_replica_that_comes_back_goes_on_where_it_stopped():
    setting = Setting(1, SHORT)
    whole = [chosen_snc[0] for _, _, chosen_snc in batches(Setting(), [0])]
    faulty = [chosen_snc[0] for _, _, chosen_snc in batches(setting, [0])]
    begin = FIRST[SHORT][0]
    assert faulty[begin].equal(whole[begin][BATCH:])  # replica 0 is away, the others train what they would have
    assert faulty[begin + SHORT][:BATCH].equal(whole[begin][:BATCH])
    assert faulty[begin + SHORT][BATCH:].equal(whole[begin + SHORT][BATCH:])


def test_another_seed_or_order_draws_other_samples():
    _, _, two = next(batches(Setting(), [0, 1]))
    _, _, other = next(batches(Setting(order=1), [0]))
    assert not two[0].equal(two[1]) and not two[0].equal(other[0])
    assert next(batches(Setting(), [1]))[2][0].equal(two[1])


def test_seeds_beside_each_other_train_as_each_by_itself():
    together = train(Setting(), [0, 5, 7], until=EVERY)
    for i, seed in enumerate((0, 5, 7)):
        assert train(Setting(), [seed], until=EVERY)[0].losses[0] == pytest.approx(together[0].losses[i], abs=1e-4)
    assert len(set(together[0].losses)) == 3


def test_a_model_of_the_stack_is_the_textbooks():
    model = Stacked([3, 4])
    found = accuracy.samples(validation=True)[:6]
    by_hand = []
    for sample in found.tolist():
        x = torch.cat([model.embedding_svd[1][byte] for byte in sample[:-1]])
        hidden = torch.tanh(x @ model.hidden_sxh[1] + model.hidden_bias_s1h[1, 0])
        scores = hidden @ model.scores_shv[1] + model.scores_bias_s1v[1, 0]
        by_hand.append(-torch.log_softmax(scores, 0)[sample[-1]])
    losses = model.losses(found.expand(2, -1, -1)).tolist()
    assert losses[1] == pytest.approx(torch.stack(by_hand).mean().item(), rel=1e-5)
    with pytest.raises(ValueError, match="at least one"):
        Stacked([])


def test_one_backward_pass_for_all_is_the_sum_over_replicas_divided_by_their_number(monkeypatch):
    monkeypatch.setitem(FIRST, SHORT, (5, 500))
    setting = Setting(3, SHORT, "sqrt")
    (together,) = train(setting, [3], until=EVERY)
    (one_by_one,) = train(setting, [3], until=EVERY, one_by_one=True)
    assert together.samples == (5 * 12 + 45 * 9) * BATCH == one_by_one.samples
    assert together.losses[0] == pytest.approx(one_by_one.losses[0], abs=1e-4)


@pytest.mark.parametrize("how", ["none", "linear", "sqrt"])
def test_the_rate_follows_the_healthy(how, monkeypatch):
    rates = []

    class Recorded(torch.optim.AdamW):
        def step(self, *args, **kwargs):
            rates.append(self.param_groups[0]["lr"])
            return super().step(*args, **kwargs)

    monkeypatch.setattr(torch.optim, "AdamW", Recorded)
    monkeypatch.setitem(FIRST, SHORT, (4, 500))
    train(Setting(3, SHORT, how), [0], until=8)
    faulty = list(rates)
    rates.clear()
    train(Setting(), [0], until=8)
    expected = [1.0] * 4 + [cost.intervention_factor(how, 9, 12)] * 4
    assert [a / b for a, b in zip(faulty, rates, strict=True)] == pytest.approx(expected)
    assert rates == sorted(rates) and rates[0] == pytest.approx(accuracy.RATE / accuracy.WARM)  # warmup, by the step


def test_runs_with_faults_are_those_without_up_to_the_first_fault():
    until = min(min(first) for first in FIRST.values())
    assert train(Setting(3, LONG, "linear"), [1], until=until) == train(Setting(), [1], until=until)
    faulty = train(Setting(3, LONG, "none"), [1], until=until + EVERY)
    assert faulty[-1].losses != train(Setting(), [1], until=until + EVERY)[-1].losses


# What is said of runs


def row(lost=0, length=0, how="none", seed=0, losses=lambda step, samples: 0.0, order=0):
    setting = Setting(lost, length, how, order)
    steps = [*range(EVERY, setting.steps + 1, EVERY)]
    steps += [setting.steps] if steps[-1] != setting.steps else []
    away = [REPLICAS - len(setting.healthy(step)) for step in range(setting.steps)]
    samples = [BATCH * (step * REPLICAS - sum(away[:step])) for step in steps]
    values = [losses(a, b) for a, b in zip(steps, samples, strict=True)]
    return SimpleNamespace(lost=lost, length=length, intervention=how, order=order, seed=seed, steps=steps,
                           samples=samples, losses=values)  # fmt: skip


def test_a_loss_that_depends_on_samples_only_differs_at_equal_steps_and_not_at_equal_samples():
    def losses(step, samples):
        return 3 - samples / 10_000

    base, faulty = row(losses=losses), row(3, LONG, losses=losses)
    assert all(abs(d) < 1e-12 for _, d in difference(faulty, base, "samples"))
    assert at_end(faulty, base, "samples") == pytest.approx(0)
    assert at_end(faulty, base, "steps") == pytest.approx(
        BATCH * 2 * LONG * 3 / 10_000
    )  # the samples that were not trained
    first = dict(difference(faulty, base, "steps"))
    assert first[100] == 0 and first[150] == pytest.approx(BATCH * 50 * 3 / 10_000)
    assert during(faulty, base, "steps") > 0


def test_a_loss_that_depends_on_steps_only_is_the_other_way_round():
    def losses(step, samples):
        return 3 - step / 1000

    base, faulty = row(losses=losses), row(1, LONG, losses=losses)
    assert all(abs(d) < 1e-12 for _, d in difference(faulty, base, "steps"))
    assert at_end(faulty, base, "samples") == pytest.approx(-(faulty.steps[-1] - STEPS) / 1000)
    assert during(faulty, base, "samples") < 0


def test_only_looks_well_inside_an_outage_count_as_away():
    begin = FIRST[LONG][0]

    def losses(step, samples):
        return 1.0 if begin + LONG / 3 < step <= begin + LONG else 0.0

    inside = during(row(3, LONG, losses=losses), row(), "steps")
    assert inside == pytest.approx(0.5, abs=0.05)  # one of the two outages


def test_shifts_are_of_pairs_with_the_same_seed():
    rows = [row(seed=s, losses=lambda a, b, s=s: s) for s in range(4)]
    rows += [row(3, SHORT, "sqrt", seed=s, losses=lambda a, b, s=s: s + 0.1 + 0.01 * s) for s in range(4)]
    found = shift(rows, at_end, "steps", lost=3, length=SHORT, intervention="sqrt")
    assert found.mean == pytest.approx(0.115) and found.clear
    spread = math.sqrt(sum((0.01 * s - 0.015) ** 2 for s in range(4)) / 3)
    assert found.spread == pytest.approx(spread) and found.error == pytest.approx(spread / 2)
    with pytest.raises(ValueError, match="no runs"):
        shift(rows, at_end, "steps", lost=1)
    with pytest.raises(ValueError, match="'steps' or 'samples'"):
        difference(rows[0], rows[1], "hours")
    with pytest.raises(ValueError, match="1 seed"):
        Shift.of([1.0])


@pytest.mark.parametrize(("none", "root", "closer"), [(0.03, 0.01, 0.02), (0.03, -0.01, 0.02), (-0.01, 0.03, -0.02)])
def test_flatter_is_closer_to_the_run_without_faults_on_either_side(none, root, closer):
    rows = [row(seed=s, losses=lambda a, b, s=s: s) for s in range(3)]
    for how, by in (("none", none), ("sqrt", root)):
        rows += [row(3, SHORT, how, seed=s, losses=lambda a, b, s=s, by=by: s + by) for s in range(3)]
    assert flattened(rows, 3, SHORT).mean == pytest.approx(closer)
