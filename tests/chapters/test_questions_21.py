"""The questions and claims of chapter 21: keys beside numbers worked out by hand, and what the texts say of them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from statistics import correlation, fmean

import numpy as np
import pytest

import labkit
from labkit import cost
from labkit.cost import topology
from labkit.cost.simulators.clusters import METHODS
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Question
from labkit.data.runs import BUSY_TRIALS, FleetTrial, fleet_trials
from labkit.models import GPTConfig
from labkit.resilience.fleet_trial import POLICIES, simulated
from labkit.resilience.ntp.pacing import paced_step

CHAPTER = load_chapter("21_hundred_thousand_gpus")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}
GPUS, DRAWN = 32_768, 200
CLUSTER = cost.Cluster()


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("between-at-scale", f"{24 * 60 / (1.5 * 6.144):.2f}"),
        ("width-16", f"{100 * 0.998**16:.3f}"),
        ("rounding-of-samples", f"{100 / 12:.3f}"),
        ("oversubscribed", "80 / 48"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "word"),
    [
        ("between-at-scale", "19.5", "8 GPUs"),
        ("between-at-scale", "960", "6,144"),
        ("width-16", "99.8", "one GPU"),
        ("rounding-of-samples", "6.25", "can be cut"),
        ("oversubscribed", "2.667", "from below"),
        ("oversubscribed", "0.6", "other way round"),
        ("name-the-sorting", "boosting", "faster"),
        ("name-the-sorting", "spares", "on top"),
    ],
)
def test_a_known_slip_is_told_its_reason(id: str, typed: str, word: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and word in told.why


@pytest.mark.parametrize("typed", ["packing", "Packing", "it packs them", "packing of domains", "bin-packing"])
def test_packing_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["name-the-sorting"].mark(typed).right


def test_predictions_declare_what_the_chapter_shows() -> None:
    told = CHAPTER.forecast("clock-or-random", {"every": 18, "restart": 10, "interval": 10}).declared
    assert told == pytest.approx((0, 42.9), abs=0.05)
    (lost,) = CHAPTER.forecast("one-in-a-thousand", {"failed": 32, "gpus": GPUS}).declared
    assert lost == pytest.approx(6.07, abs=0.005)
    assert CHAPTER.forecast("spare-domains", {"domains": 1024}).declared == (16, 90)


# -- sections 2 and 3 ----------------------------------------------------------------------------------------------


def difference(runs: list[FleetTrial]) -> tuple[cost.Estimate, cost.Estimate, float]:
    """Simulated less measured, the same in steps of a run, and how it goes with the number of failures."""
    more = [simulated(run) - run.measured for run in runs]
    steps = runs[0].time / runs[0].usual
    return (cost.Estimate.of(more), cost.Estimate.of(steps * x for x in more),
            correlation([len(run.strikes) for run in runs], more))  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_the_simulator_is_half_a_step_from_the_quiet_runs(policy: str) -> None:
    """Section 2: 1 percent of the mean, more than three standard errors, half a step, whatever the failures."""
    runs = fleet_trials().of(policy)
    assert {run.seed for run in runs} == set(range(16)) and max(run.load for run in runs) < 1
    found = cost.Estimate.of(run.measured for run in runs)
    off, steps, with_failures = difference(runs)
    assert 0.005 < off.mean / found.mean < 0.015 and off.mean > 3 * off.error
    assert abs(steps.mean - 0.5) < 1.5 * steps.error < 0.3 and abs(with_failures) < 0.3
    assert sum(run.own_step / run.usual for run in runs) / len(runs) == pytest.approx(1, abs=0.005)
    assert {len(run.strikes) for run in runs} >= {2, 10} and found.deviation > 5 * off.deviation


@pytest.mark.parametrize("policy", POLICIES)
def test_the_busy_runs_have_another_bias_that_goes_with_the_failures(policy: str) -> None:
    runs, quiet = fleet_trials(BUSY_TRIALS).of(policy), fleet_trials().of(policy)
    assert {run.seed for run in runs} == set(range(12)) and min(run.load for run in runs) > 4
    off, _, with_failures = difference(runs)
    assert -0.02 < off.mean < 0 and with_failures < -0.5
    assert 1.055 < fmean(run.usual / run.own_step for run in runs) < 1.085  # 6 to 8 percent longer at first
    for busy, other in zip(runs, quiet, strict=False):  # the same failures were planned
        assert [r for _, r in busy.strikes] == [r for _, r in other.strikes]
        assert [at for at, _ in busy.strikes] == pytest.approx([at for at, _ in other.strikes], abs=0.06)


def test_the_recordings_name_no_computer() -> None:
    for kept in (fleet_trials(), fleet_trials(BUSY_TRIALS)):
        told = f"{kept.provenance}"
        assert "/tmp" not in told and "/work" not in told and kept.provenance.machine.startswith("2 shared CPU cores")


@pytest.mark.ranks
@pytest.mark.timeout(120)
def test_what_the_first_trial_breaks() -> None:
    """Section 1: 8 heads on 3 ranks take 5.6 s and not 5.333; messages of 1 ms add 7 percent to a step of 0.4 s."""
    model = GPTConfig(vocab=61, context=12, layers=2, heads=12, width=48, expansion=4)
    assert paced_step(replace(model, heads=8), (4, 3), (4, 4), full=4).seconds == pytest.approx(5.6)
    assert 4 / cost.narrow_speed(3, 4) == pytest.approx(5.333, abs=5e-4) and round(5.6 / 5.3333, 2) == 1.05
    slow = labkit.Network(nodes=1, ranks_per_node=7, intra=labkit.Link(bandwidth=1e9, latency=1e-3))
    sends = paced_step(model, (4, 3), (4, 3), full=4, sample=0.1, network=slow).seconds
    assert 1.06 < sends / 0.4 < 1.075


def test_rates_and_what_32k_gpus_lost() -> None:
    """Section 3: 51, 31 and 18 minutes; 3 to 5 percent of 153 minutes are 4.6 to 7.6; a factor of 2.8."""
    assert [round(cost.minutes_between_interruptions(rate, 98_304)) for rate in (2.3, 3.79)] == [51, 31]
    between = cost.minutes_between_interruptions(2.3, GPUS)
    assert round(between) == 153 and [round(part * between, 1) for part in (0.03, 0.05)] == [4.6, 7.6]
    assert cost.rate_of_interval(18, 100_000) / 2.3 == pytest.approx(2.8, abs=0.05)


def test_a_month_as_section_3_tells_it() -> None:
    month = 30 * 24 * 60
    gains, prices = [], []
    for every in (18, 30.93, 50.95):
        waits = cost.simulate_fleet(every, 10, 10, time=month, samples=10).effective
        goes = cost.simulate_fleet(every, 10, 3, 12, time=month, samples=10).effective
        back = cost.simulate_fleet(every, 10, 3, 12, 100 / 60, time=month, samples=10).effective
        assert max(x.error for x in (waits, goes, back)) < 0.004
        assert waits.mean == pytest.approx(cost.random_synchronous_effective_time(every, 10), abs=0.01)
        gains.append(100 * (goes.mean - waits.mean))
        prices.append(100 * (goes.mean - back.mean))
    assert 23.5 < gains[0] < 25 and 10.5 < gains[2] < 12  # 24 and 11 points
    assert all(2.5 < price < 7.5 for price in prices) and all(p < g / 3 for p, g in zip(prices, gains, strict=True))


def test_by_the_clock_nothing_is_ever_kept() -> None:
    clock = cost.simulate_fleet(18, 10, 10, interval=10, spacing="clock", time=43_200, samples=2)
    assert clock.effective.mean * 43_200 == pytest.approx(8)  # the last minutes, which no failure destroys
    drawn = cost.simulate_fleet(18, 10, 10, interval=10, time=43_200, samples=20).effective
    exact = cost.checkpoint_tax(10, 1e-6, 18, 10).goodput
    assert abs(drawn.mean - exact) < 4 * drawn.error and round(exact, 2) == 0.43
    assert round(cost.checkpoint_tax(100 / 3, 1e-6, 18, 10).goodput, 2) == 0.20


# -- sections 4 and 5 ----------------------------------------------------------------------------------------------


def test_the_third_digit_of_tp16() -> None:
    figure = {8: 0.992, 16: 0.985, 32: 0.969, 64: 0.939}
    ours = {t: cost.group_availability_of(GPUS, 32, t) for t in figure}
    assert [t for t in figure if round(ours[t], 3) != figure[t]] == [16]
    assert round(ours[16], 6) == 0.984485
    for other in (cost.group_availability_of(GPUS, 33, 16), cost.group_availability(0.001, 16)):
        assert round(other, 3) == 0.984
    meets = (cost.place_failures(32, GPUS, 16, 2000) > 0).sum(1)
    assert 0.17 < (meets < 32).mean() < 0.24 and round(1 - 31 / 2048, 5) == 0.98486  # one of five drawings


def test_availability_and_throughput_are_two_answers() -> None:
    """Section 4, and 1 of chapter 20: 94 % of the groups are whole; 10 and 19 % can be throughput only."""
    lost = 1 - cost.group_availability_of(GPUS, 32, 64)
    assert round(lost, 2) == 0.06 and round(math.log(0.81) / math.log(0.999)) == 211
    fell, packed = ([cost.loss_at(0.001, cost.Cluster(512, 64, groups, widths=(64,)), "dp-drop", packed=how,
                                  samples=DRAWN) for groups in (1, 2, 4, 8)] for how in (False, True))  # fmt: skip
    assert fell[0].mean < 0.10 < fell[1].mean < 0.19 < fell[2].mean
    for groups, found in zip((1, 2, 4, 8), fell, strict=True):  # 33 whole GPUs, and not one by chance in a thousand
        assert found.mean == pytest.approx(1 - cost.group_availability(0.001, 64 * groups), abs=0.01)
    assert all(lost < found.mean < 0.07 for found in packed)


def test_eighty_one_percent_hangs_on_the_start_and_on_the_repair() -> None:
    assert cost.time_above(0.001, GPUS, 15, cost.llama3_kinds()) == pytest.approx(0.82, abs=0.005)
    assert cost.time_above(0.001, GPUS, 15, cost.llama3_kinds(), start="steady") > 0.999
    assert cost.time_above(0.001, GPUS, 15, cost.llama3_kinds(1)) < 1e-5
    above = cost.draw_failures(GPUS, 15, DRAWN).time_above(0.001)
    assert 0.02 < above.deviation < 0.04


def test_80_percent_at_three_times_the_rate_goes_with_three_days() -> None:
    """Section 5: between the mean and the peak with 3 days; that peak is where figure 6 ends; 5 days give 67."""
    peaks, means = {}, {}
    for key in ((1, 5), (1, 3), (3, 5), (3, 3)):
        rate, kinds = key[0] * cost.LLAMA3_RATE, cost.llama3_kinds(key[1])
        peaks[key] = cost.draw_failures(GPUS, 15, DRAWN, rate=rate, kinds=kinds).peak().mean
        means[key] = cost.group_availability(cost.mean_failed(GPUS, kinds, rate) / GPUS, 64)
    at = {key: round(cost.group_availability_of(GPUS, round(peak), 64), 3) for key, peak in peaks.items()}
    assert at[3, 3] < 0.80 < means[3, 3] and round(means[3, 3], 2) == 0.81
    assert at[3, 3] == pytest.approx(0.775, abs=0.004) and at[3, 5] == pytest.approx(0.67, abs=0.005)
    assert 1000 * peaks[3, 3] / GPUS == pytest.approx(4, abs=0.05)  # the end of figure 6's axis
    assert [peaks[3, days] / peaks[1, days] for days in (5, 3)] == pytest.approx([2.79, 2.69], abs=0.05)


# -- sections 6 to 8 -----------------------------------------------------------------------------------------------


def test_figure_6_and_what_packing_is_worth() -> None:
    packed = {m: cost.loss_at(0.004, CLUSTER, m, samples=DRAWN).mean for m in METHODS}
    placed = cost.loss_at(0.004, CLUSTER, "dp-drop", packed=False, samples=DRAWN).mean
    assert round(packed["dp-drop"], 2) == 0.12 and 0.015 < packed["ntp"] < 0.03 and packed["ntp-pw"] == 0
    assert placed == pytest.approx(0.645, abs=0.01) and placed / packed["dp-drop"] == pytest.approx(5, abs=0.4)
    assert packed["dp-drop"] / packed["ntp"] == pytest.approx(8, abs=0.1)
    whole = cost.Cluster(speeds=tuple(cost.narrow_speed(w, 32, cost.WORK_480B) for w in (32, 30, 28)))
    assert whole.local_batches("ntp") == (8, 7, 6) and whole.local_batches("ntp-pw") == (8, 8, 7)
    slower = cost.Cluster(speeds=(1.0, *(0.99 * speed for speed in whole.pace[1:])))  # one percent decides
    assert round(8 * whole.pace[1], 3) == 7.004 and slower.local_batches("ntp") == (8, 6, 6)
    loss = [cost.loss_at(0.004, cluster, "ntp", samples=DRAWN).mean for cluster in (whole, slower)]
    assert [round(100 * x, 1) for x in loss] == [1.6, 3.1]
    boosted = CLUSTER.use(cost.place_failures(131, GPUS, 32, DRAWN), "ntp-pw").boosted_domains
    assert boosted.mean() / CLUSTER.domains == pytest.approx(0.12, abs=0.005)


def test_more_power_is_more_than_the_budget() -> None:
    boost = cost.PowerBoost()
    assert [round(boost.domain_power(w, 32), 3) for w in (30, 28)] == [1.027, 1.098]
    assert 32 / 28 < boost.speed(boost.limit) < 32 / 27 and 4 / 3 > boost.speed(boost.limit)


@cache
def needed(method: str) -> np.ndarray:
    trace = cost.draw_failures((CLUSTER.domains + 128) * 32, 15, DRAWN)
    return cost.spares_without_pause(trace, CLUSTER, method, 128)


def test_spare_domains_as_section_7_tells_them() -> None:
    ntp, drop = needed("ntp"), needed("dp-drop")
    assert ntp.max() == 16 and np.median(ntp) == 16 and ntp.min() >= 8 and not needed("ntp-pw").any()
    assert abs(drop.mean() - 76) < 1.5 and 86 <= np.percentile(drop, 97.5) <= 93
    assert 0.35 < (drop > 75).mean() < 0.65  # about every second job pauses with 75
    worst = cost.run_cluster(cost.draw_failures(GPUS, 15, DRAWN), CLUSTER, "ntp").worst
    assert worst.mean < 0.01 and worst.highest < 0.012  # a batch that is 1 percent smaller
    assert (round(worst.lowest * CLUSTER.batch), round(worst.highest * CLUSTER.batch)) == (7, 11)  # samples missed


def test_the_conclusion_about_the_blast_turns_with_a_width() -> None:
    wider = cost.Cluster(widths=(32, 30, 28, 24))
    loss = {(m, w.widths, b): cost.loss_at(0.001, w, m, blast=b, samples=DRAWN).mean
            for m in METHODS for w in (CLUSTER, wider) for b in (4, 8, 32)}  # fmt: skip
    assert loss["ntp", CLUSTER.widths, 8] == loss["dp-drop", CLUSTER.widths, 8] == loss["ntp-pw", CLUSTER.widths, 8]
    assert loss["ntp", CLUSTER.widths, 4] < loss["dp-drop", CLUSTER.widths, 4] / 4
    assert 3 < loss["dp-drop", wider.widths, 8] / loss["ntp", wider.widths, 8] < 4
    assert loss["ntp-pw", wider.widths, 8] == loss["ntp", wider.widths, 8]
    assert len({loss[m, w.widths, 32] for m in METHODS for w in (CLUSTER, wider)}) == 1  # a whole domain: all alike
    assert topology.nvl72().gpus == 72  # the rack that the article calls a node


# -- section 9 -----------------------------------------------------------------------------------------------------


def test_the_wires_as_section_9_tells_them() -> None:
    machine = topology.clos_buildings()
    assert [round(x, 6) for x in machine.tiers("rack").values()][1:] == [1, 7, 15, 30] and machine.gpus == 98_304
    near, far = ({"replica": 12, "shard": 1024, "tensor": 8}, {"shard": 1024, "replica": 12, "tensor": 8})
    seconds = [topology.collective_seconds(topology.place(machine, order)["shard"], "all_reduce", 500e6, "ring")
               for order in (near, far)]  # fmt: skip
    assert seconds[1] / seconds[0] == pytest.approx(4, abs=0.1)
    placed = topology.place(machine, near)
    assert [placed[a].crosses.name for a in near] == ["campus", "zone", "node"]  # type: ignore[union-attr]


def test_domains_of_8_and_32() -> None:
    used = topology.utilisation
    assert round(used(32_000, 32), 3) == 0.884 and round(used(32_000, 8), 3) == 0.447
    assert round(used(32_000, 8, tensor_limit=16), 2) == 0.78 and topology.concurrency_limit(32_000, 8, 2000) == 0.5
    bare = topology.Assumptions(tensor_overlap="none")
    assert round(used(32_000, 8, tensor_limit=16, assumptions=bare), 2) == topology.QUOTED[8]  # by chance: for
    assert round(used(32_000, 32, assumptions=bare), 2) == 0.79 != topology.QUOTED[32]  # the other is then wrong
    assert used(32_000, 32, assumptions=topology.Assumptions(tensor_overlap="all")) == pytest.approx(1.0)
