"""Keys of chapter 6: slips are told apart, the sources' numbers come out, references agree with runs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from random import Random

import pytest
import torch
from grading.zoo_runs import animals, exercises, judged, sentences, source
from slices import few
from slips import every_draw, letters_have_reasons

import labkit
from labkit import collectives, cost
from labkit.chapters.c06_scaling_efficiency import checks as reference
from labkit.cost.units import GB, MS, US
from labkit.grading.answers import find_key
from labkit.grading.checks.fresh import Fresh
from labkit.grading.checks.pristine import preamble
from labkit.grading.grader import memory
from labkit.grading.grader.door import Pace, SandboxStudent
from labkit.grading.sandbox import open_sandbox

CHAPTER = "06_scaling_efficiency"


WORK = every_draw(N=[4, 8, 16, 32], compute_ms=[1200, 1500, 1800, 2400], messages_ms=[60, 90, 150, 240])
PARTS = every_draw(s_percent=[2, 4, 5], N=[8, 16, 32], f_percent=[20, 30, 40])
DOUBLING = every_draw(compute_ms=[40, 80, 120], alpha_us=[100, 200, 400])
STALLS = every_draw(base_ms=[150, 180, 200], stall_ms=[400, 540, 600], percent=[20, 30, 40], delay_ms=[10, 15, 20])
FACTORS = every_draw(mfu=[40, 45, 50], efficiency=[60, 70, 80], times=[2, 3], N=[512, 1024, 2048])
JOULES = every_draw(gigabytes=[3, 14, 26], nodes=[2, 4, 16])
SIZES = every_draw(t16=[400, 420, 440], more=[8, 12, 16], error=[1, 2])
ALIKE = every_draw(compute_ds=[20, 21, 24], messages=[12, 14, 16], percent=[40, 50, 60])
OF = {
    ("weak_percent", "strong_percent"): WORK,
    ("share_there", "ceiling"): PARTS,
    ("best_power",): DOUBLING,
    ("stalled_percent", "times_the_wait", "longer_ms"): STALLS,
    ("useful_gpus", "new_efficiency", "gain"): FACTORS,
    ("joules_ring", "joules_two_levels"): JOULES,
    ("by_bytes", "by_messages", "error_ms"): SIZES,
    ("a_percent", "b_percent", "a_at_best"): ALIKE,
    ("half_at", "best_size"): [{}],
}
NUMBERS = {name: draws for names, draws in OF.items() for name in names}


def key(name, **numbers):
    return find_key(CHAPTER, name, **numbers)


@pytest.mark.parametrize("name", NUMBERS)
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    """Two slips may meet in the numbers of one student; then the reason is that of one of them."""
    told, known = set(), set()
    for numbers in NUMBERS[name]:
        one = key(name, **numbers)
        assert one.mark(one.answer).right
        known |= {why for _, why in one.slips}
        for wrong, why in one.slips:
            feedback = one.mark(wrong)
            assert not feedback.right and any(text in feedback.why for _, text in one.slips), (wrong, feedback.why)
            told |= {why} if why in feedback.why else set()
    assert told == known


def test_letters_have_a_reason_each():
    for name, right, letters in (("what_went_wrong", "b", "abcd"), ("what_saves", "cde", "abcdef")):
        letters_have_reasons(key(name), right, letters)


def test_the_numbers_of_the_sources():
    gpt2 = key("weak_percent", N=8, compute_ms=1800, messages_ms=11.7)
    assert gpt2.mark("99.35 %").right and "Compare times of the same work" in gpt2.mark("12.42 %").why
    a = key("a_percent", compute_ds=21, messages=14, percent=0)
    assert a.mark("13.04 %").right and "as the textbook does here" in a.mark("37.5 %").why
    assert key("b_percent", compute_ds=21, messages=14, percent=0).mark("54.5 %").right
    assert key("a_at_best", compute_ds=21, messages=14, percent=0).mark("14.3 %").right
    assert "as the textbook does" in key("ceiling", s_percent=2, N=8, f_percent=30).mark(1 / 0.3).why
    assert "is right for messages" in key("ceiling", s_percent=2, N=8, f_percent=30).mark(18.7).why
    assert key("useful_gpus", mfu=50, efficiency=50, times=2, N=1024).mark(256).right
    assert "The team of the textbook" in key("useful_gpus", mfu=50, efficiency=50, times=2, N=1024).mark(512).why
    stall = cost.RareDelay.fitted(0.180, 0.340, 0.720, 1024)
    told = {"base_ms": 180, "stall_ms": 540, "percent": 100 * stall.stalled_steps(1024), "delay_ms": 10}
    assert key("stalled_percent", **told).answer == pytest.approx(100 * stall.stalled_steps(2048))
    waits = [stall.expected_maximum(n) - stall.base for n in (1024, 2048)]
    assert key("times_the_wait", **told).answer == pytest.approx(waits[1] / waits[0])
    assert key("longer_ms", **told).answer == pytest.approx(10 * math.log(2), rel=1e-3)


# The formulas, on real ranks and the virtual clock ----------------------------------------------------------------


def timed(program, n, *args, **network):
    options = {"intra": labkit.Link(bandwidth=1 * GB, latency=0)} | network
    return labkit.launch(program, n, *args, clock="virtual", network=labkit.Network(**options))


def step_of_one(group, compute, numel):
    group.compute(compute)
    collectives.all_reduce(torch.ones(numel), group, "sum", algorithm="ring")


@pytest.mark.ranks
def test_weak_and_strong_efficiency_are_those_of_runs():
    n, compute, messages = 4, 0.040, 0.006  # a ring of n ranks at 1 GB/s takes `messages`
    numel = round(messages * 1e9 / 4 * n / (2 * (n - 1)))
    told = {"N": n, "compute_ms": compute / MS, "messages_ms": messages / MS}
    weak = timed(step_of_one, n, compute, numel).trace.duration
    assert key("weak_percent", **told).answer == pytest.approx(100 * compute / weak, rel=1e-3)
    strong = timed(step_of_one, n, compute / n, numel).trace.duration
    assert key("strong_percent", **told).answer == pytest.approx(100 * compute / n / strong, rel=1e-3)


def divided(group, part, serial):
    group.compute(part / group.size + serial)


@pytest.mark.ranks
def test_amdahls_part_in_a_divided_step():
    n, s = 8, 0.04
    one, many = (timed(divided, size, 0.1 * (1 - s), 0.1 * s).trace.duration for size in (1, n))
    f = 0.1 * s / many
    assert key("share_there", s_percent=100 * s, N=n, f_percent=20).answer == pytest.approx(100 * f)
    assert key("ceiling", s_percent=2, N=n, f_percent=100 * f).answer == pytest.approx(1 / s)
    assert key("half_at").mark("(1 + s) / s").right
    half = timed(divided, 26, 0.1 * (1 - s), 0.1 * s).trace.duration  # 1 + 1 / 0.04
    assert cost.strong_efficiency(one, half, 26) == pytest.approx(0.5)


def doubling(group, compute):
    group.compute(compute / group.size)
    collectives.all_reduce(torch.ones(1), group, "sum", algorithm="recursive_doubling")


@pytest.mark.ranks
def test_the_best_power_of_two_is_the_best_in_runs():
    link = labkit.Link(bandwidth=100 * GB, latency=400 * US)
    took = {n: timed(doubling, n, 0.008, intra=link).trace.duration for n in (2, 4, 8, 16, 32)}
    best = min(took, key=took.get)
    assert key("best_power", compute_ms=8, alpha_us=400).answer == best == 16
    peak = 0.008 * math.log(2) / (400 * US)
    assert best / 2 < peak < 2 * best and key("best_size").mark("A/c*ln(2)").right


@pytest.mark.ranks
@pytest.mark.parametrize("nodes", [2, 3])
def test_joules_are_those_of_the_bytes_of_a_run(nodes):
    def ring(group):
        collectives.all_reduce(torch.ones(8 * nodes * 60), group, "sum", algorithm="ring")

    def levels(group):
        collectives.all_reduce(torch.ones(8 * nodes * 60), group, "sum", algorithm="hierarchical")

    for name, program in (("joules_ring", ring), ("joules_two_levels", levels)):
        run = timed(program, 8 * nodes, nodes=nodes, ranks_per_node=8)
        joules = sum(
            cost.movement_joules(b, 7.5 if a // 8 == c // 8 else 35.0)
            for a, row in enumerate(run.trace.bytes_between())
            for c, b in enumerate(row)
        )
        gigabytes = 8 * nodes * 60 * 4 / GB
        assert key(name, gigabytes=gigabytes, nodes=nodes).answer == pytest.approx(joules), name


def test_the_error_of_a_forecast_is_its_spread_over_many_measurements():
    dice = Random(1)
    said = []
    for _ in range(3000):
        t16, t64 = dice.gauss(400, 1), dice.gauss(412, 1)
        said.append(key("by_messages", t16=t16, more=t64 - t16, error=1).answer)
    mean = sum(said) / len(said)
    spread = math.sqrt(sum((x - mean) ** 2 for x in said) / len(said))
    assert spread == pytest.approx(key("error_ms", t16=400, more=12, error=1).answer, rel=0.05)


# The references of the programs' checks, against labkit's own trace ----------------------------------------------


def a_step(group):
    dice = Random(f"a {group.rank}")
    beside = []
    for _ in range(3):
        group.compute(dice.uniform(0.002, 0.004))
        beside.append(collectives.all_reduce(torch.ones(300_000), group, "sum", algorithm="ring", async_op=True))
    for handle in beside:
        handle.wait()


@pytest.mark.ranks
def test_efficiency_and_hidden_part_of_a_real_trace():
    run = timed(a_step, 4)
    busy = run.trace.step_breakdown()
    spans = run.trace.collectives()
    kernels = run.trace.spans("compute")
    records = []
    for rank in range(4):
        found = {}
        for name, boxes in (("computing", kernels), ("messages", spans)):
            found[name] = torch.tensor([[round(b.start * 1e6), round(b.end * 1e6)] for b in boxes if b.rank == rank])
        records.append(found)
    (efficiency, hidden), *_ = reference.step_and_hidden(records)
    total = max(row["total"] for row in busy)
    assert efficiency == pytest.approx(sum(row["compute"] for row in busy) / 4 / total, rel=1e-3)
    assert 0 < hidden < 1


def late(group, steps):
    dice = Random(f"b {group.rank}")
    for _ in range(steps):
        group.compute(0.001 + dice.expovariate(1 / 0.002) + (0.004 if group.rank == 1 else 0))
        collectives.all_reduce(torch.ones(3000), group, "sum", algorithm="ring")


@pytest.mark.ranks
def test_waiting_and_the_guilty_rank_of_a_real_trace():
    run = timed(late, 3, 12)
    true = torch.tensor(
        [[[round(c.start * 1e6), round(c.end * 1e6)] for c in run.trace.collectives() if c.rank == r] for r in range(3)]
    )
    waited, moved, guilty = reference.waits(true)
    assert guilty == 1 and waited[1] < min(waited[0], waited[2])
    for rank, row in enumerate(run.trace.step_breakdown()):
        assert waited[rank] + moved[rank] == pytest.approx((row["total"] - row["compute"]) * 1e6, abs=100)
        assert moved[rank] == pytest.approx(12 * 4 * 4000 / 1e9 * 1e6, abs=30)  # 4 chunks of 4 kB, 1 GB/s


def test_the_shortest_step_is_the_shortest():
    for ms, samples in (((10, 15, 31), 9), ((7, 7), 5), ((20, 3), 4), ((5,), 3)):
        every = itertools.product(range(samples + 1), repeat=len(ms))
        best = min(max(s * m for s, m in zip(x, ms, strict=True)) for x in every if sum(x) == samples)
        assert reference.shortest_step(ms, samples) == best


def test_an_awkward_number_of_samples_is_found_for_all_speeds():
    draw = Fresh(1, "test").tensor
    for n in (3, 4):
        for _ in range(50):
            ms = [10 + 5 * u + v for u, v in draw(n, 2, dtype=torch.uint8).tolist()]
            many = reference.awkward(ms, 40)
            rates = 1 / torch.tensor(ms).double()
            shares = (many * rates / rates.sum()).round().long()
            shares[-1] += many - shares.sum()
            assert 40 <= many < 140 and (shares * torch.tensor(ms)).max() > reference.shortest_step(ms, many)


def slips_of(seed, n, what):
    draw = Fresh(seed, "test").tensor
    if what == "profiles":
        want, *slips = reference.step_and_hidden(reference.profiles(draw, n, 6))
    else:
        want, slips = reference.forecast(reference.logs(draw, n, (4, 12, 28), 8), (4, 12, 28), 256)
    return list(zip(want, slips, strict=True))


@pytest.mark.parametrize("what, n", [("profiles", 3), ("profiles", 4), ("logs", 1), ("logs", 3), ("logs", 4)])
def test_known_mistakes_in_records_differ_from_what_is_right(what, n):
    alike = Counter()  # by chance: another size in the same check tells them apart then
    for seed in range(40):
        for want, slips in slips_of(seed, n, what):
            for sentence, wrong in slips.items():
                wrong = wrong if isinstance(wrong, list) else [wrong]
                alike[sentence] += all(abs(w - want) <= 1e-6 * max(1, abs(want)) for w in wrong)
    assert len(alike) > 8 and max(alike.values()) <= 1, alike


def test_late_profiles_have_one_guilty_rank_that_is_not_the_most_frequent():
    for seed, n in itertools.product(range(40), (3, 4)):
        for twins in (False, True)[: n - 2]:
            records, true = reference.late_profiles(Fresh(seed, "test").tensor, n, 12 + seed % 7, twins)
            waited, _, guilty = reference.waits(true)
            begins = true[..., 0]
            often = int(begins.argmax(0).mode().values)
            lost = int(begins[often].sum())
            without = begins.clone()
            without[guilty] = begins[[r for r in range(n) if r != guilty]].max(0).values.minimum(begins[guilty])
            gained = int((begins.max(0).values - without.max(0).values).sum())
            assert lost and gained > 2000 and guilty != often
            assert twins == (waited.index(min(waited)) != guilty), (seed, n)
            for rank, r in enumerate(records):
                off = r["all_reduce"] - r["barrier"] - true[rank]
                assert not off.any() and r["barrier"] > 0
            assert len({r["barrier"] for r in records}) == n


# Both doors -----------------------------------------------------------------------------------------------------

EVIDENCE = (
    "gathers_the_profiles", "a_gather_for_each_step", "in_the_order_of_the_ranks",
    "a_leader_for_each_node", "the_whole_log_to_everyone", "searches_for_the_step", "by_hand_in_the_right_order",
)  # fmt: skip


@pytest.mark.ranks
@pytest.mark.parametrize(
    "animal", few(a for a in animals(CHAPTER) if a.body.__name__ in EVIDENCE), ids=lambda a: a.name
)
def test_both_doors_give_the_same_marks_and_sentences(animal, monkeypatch):
    monkeypatch.setenv("LABKIT_SLOW_MACHINE", "5")
    here = judged(CHAPTER, animal.exercise, {animal.entry: animal.body})
    opened = exercises(CHAPTER)
    answers = [preamble(source(CHAPTER), opened), animal.source, memory.PROBE]
    with open_sandbox(answers, Pace(4.0).limits()) as box:
        there = opened.judge(animal.exercise, SandboxStudent(box, here.seed, animal.exercise, Pace(4.0)))
    assert [(m.points, m.sentence) for m in there.marks] == [(m.points, m.sentence) for m in here.marks]
    assert here.state == ("right" if animal.right else "partly") and animal.says in sentences(here)
