"""What chapter 4 says in words that no cell computes: the numbers of its opening, and of ImageNet."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import labkit
import labkit.collectives
import labkit.parallel
from labkit import Link, Network, cost
from labkit.book import in_turn
from labkit.chapters.c04_data_parallelism import arithmetic, breaking, order, panels, pictures, reading
from labkit.chapters.c04_data_parallelism.machine import (
    BACKWARD,
    CAUSES,
    FORWARD,
    Trouble,
    one_step,
    packed_gpt,
    slow_gpt,
    text_loss,
)
from labkit.chapters.c04_data_parallelism.steps import milliseconds, step_of
from labkit.chapters.c04_data_parallelism.you_write import into_buckets, overlapped
from labkit.models import GPTConfig, flat_gradient
from labkit.parallel import Sampler

TEXT = (Path(__file__).parents[2] / "notebooks" / "04_data_parallelism.ipynb").read_text(encoding="utf-8")


def test_the_opening_says_how_long_the_step_is() -> None:
    nbytes = 4 * GPTConfig(layers=4).num_parameters
    average = 1e3 * cost.ring_all_reduce_time(nbytes, 4, 0.2e-3, 1 / 50e6)
    computing = 1e3 * (FORWARD + BACKWARD)
    assert "60 ms" in TEXT and computing == pytest.approx(60)
    assert "a gradient of 0.9 MB" in TEXT and nbytes / 1e6 == pytest.approx(0.9, abs=0.05)
    assert "nearly 28 ms" in TEXT and 27.5 < average < 28
    assert "takes 88 ms" in TEXT and round(computing + average) == 88
    assert "almost a third" in TEXT and 0.3 < average / (computing + average) < 1 / 3
    assert "so the 53 all-reduces pay 63.6 ms for latency alone" in TEXT and 53 * 1.2 == pytest.approx(63.6)
    assert "pays 1.2 ms of latencies" in TEXT and 1e3 * cost.ring_all_reduce_time(0, 4, 0.2e-3, 0) == pytest.approx(1.2)


def test_imagenet_does_not_divide_by_32_ranks() -> None:
    count = 1_281_167
    read = sum(sum(map(len, Sampler(count, (rank, 32), batch=256).epoch(0))) for rank in range(32))
    assert f"of the {count:,} training images of ImageNet (" in TEXT and f"32 ranks read {read - count} twice" in TEXT


@pytest.mark.ranks
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_run_of_the_chapter_takes_what_its_formula_says_also_with_a_straggler(size: int) -> None:
    link, nbytes = Link(50e6, 0.2e-3), 128_000

    def step(group):  # type: ignore[no-untyped-def]
        model = slow_gpt(group, last=1.5)
        buckets = into_buckets(list(model.parameters()), nbytes)
        with one_step(group):
            overlapped(text_loss(model, group), buckets, group)
        return link

    run = labkit.launch(step, size, clock="virtual", network=Network(nodes=size, ranks_per_node=1, inter=link))
    begun = {span.start for span in run.trace.spans("step")}
    assert len(begun) == 1, "all ranks begin at the same nanosecond"
    told = arithmetic.took(run)
    took, formula = re.findall(r"(?:took|takes) (.+?) \((?:emulated|simulated)\)", told)
    assert took.strip() == formula.strip() and "7 buckets" in told
    first, last = (step_of(run, rank=rank) for rank in (0, size - 1))
    assert first.total == last.total and first.exposed == last.exposed and last.waits == 0
    assert first.waits == pytest.approx(30e-3), "the last rank needs 90 ms for the 60 of the others"
    assert all(j.waits == 0 for j in last.journeys)
    early, late = first.journeys[0], last.journeys[0]
    assert early.start + early.waits == pytest.approx(late.called), "until the last rank has it"
    said, ends = pictures.first_and_last(run).sentence, [max(j.end for j in one.journeys) for one in (first, last)]
    for name, one, end in zip(("rank 0", f"rank {size - 1}"), (first, last), ends, strict=True):
        assert (f"{name} has them" in said.lower()) is (one.total - end > 1e-6)
    if size == 2:
        assert "finish at different times: rank 1 has them 0.2 ms earlier." in said
    if size > 2:  # of two ranks neither can send before the other one is there
        assert early.waits > 0.01 and "waits for the last rank" in pictures.first_and_last(run).svg
    assert all(j.end <= one.total + 1e-12 for one in (first, last) for j in one.journeys)


@pytest.mark.ranks
def test_every_mistake_of_a_rank_has_a_guard_or_is_refused_and_the_book_says_which() -> None:
    def two_steps(group, it, guard):  # type: ignore[no-untyped-def]
        way = it if group.rank == 1 else breaking.AGREED
        model, sgd, _ = breaking.wrapped(group, way, guard, 16, 0)
        text_loss(model, group, 1).backward()
        sgd.step()
        return [breaking.bad_numbers(model)], breaking.weights_of(model)

    def ends(it: str, guard: str) -> str:
        try:
            return breaking.verdict(labkit.launch(two_steps, 3, it, guard))
        except labkit.RankFailed as failed:
            return str(failed)

    assert "all weights are finite" in ends(breaking.AGREED, "none")
    assert "On every rank 1 of the" in ends(breaking.INFINITE, "none") and "no longer finite" in ends(
        breaking.INFINITE, "none"
    )
    assert "is NaN or infinite, and nothing of it was sent" in ends(breaking.INFINITE, "check_nan")
    ways = breaking.WIDER, breaking.AGREED
    wider, agreed = (sum(p.numel() for p in breaking.small_gpt(way, 16, 0).parameters()) for way in ways)
    assert wider > agreed
    assert "did not bring the same model" in ends(breaking.WIDER, "none")
    run = labkit.launch(breaking.refused(two_steps), 3, breaking.WIDER, "none")
    assert "All ranks refused" in breaking.verdict(run) and "rank 1:" in breaking.verdict(run)
    assert breaking.weights_after(run) == "No rank took a step."
    assert ends(breaking.UNUSED, "none").startswith("rank 1 raised RefusedError: backward ended without a gradient for")
    assert "All replicas are equal, bit for bit" in ends(breaking.UNUSED, "find_unused_parameters")


def test_the_quoted_bandwidths_of_section_7() -> None:
    assert "NVLink at 450 GB/s" in TEXT and cost.textbook.NVLINK_ONE_DIRECTION == 450e9
    assert "Ethernet at 1.25 GB/s" in TEXT and cost.textbook.TEN_GIGABIT == 1.25e9


@pytest.mark.ranks
def test_each_size_of_the_panels_makes_another_number_of_buckets_and_one_of_them_is_the_best() -> None:
    link = Link(50e6, 0.2e-3)
    network = Network(nodes=4, ranks_per_node=1, inter=link)

    def opening(group, nbytes):  # type: ignore[no-untyped-def]
        model = packed_gpt(group, nbytes)
        with one_step(group):
            text_loss(model, group).backward()

    runs = {kB: labkit.launch(opening, 4, 1000 * kB, clock="virtual", network=network) for kB in panels.SIZES}
    model = arithmetic.step_model(runs[1000])
    steps = {kB: model.step(1000 * kB, link) for kB in runs}
    for kB, run in runs.items():
        assert milliseconds(run) == pytest.approx(1e3 * steps[kB].seconds, rel=1e-4), "the opening goes by the formula"
    tried = panels.Tried()
    for run in runs.values():
        tried.length(run)
    assert list(tried.took) == [1000 * kB for kB in panels.SIZES], "the size is told from what the run has sent"
    counts = [len(step.buckets) for step in steps.values()]
    assert len(set(counts)) == len(counts)
    tensors = len(step_of(runs[1000]).ready)
    packed = f"even with 1 kB the {tensors} tensors of the model make only {counts[0]} packets"
    assert packed in TEXT, "no tensor is cut"
    best = model.step(model.fastest(model.range_of_sizes(), link), link)
    assert min(step.seconds for step in steps.values()) == pytest.approx(best.seconds)
    assert len(best.buckets) in counts
    assert "the best size lay between the smallest and the largest" in TEXT
    assert 1 < len(best.buckets) < max(counts) and best.seconds < 0.99 * min(steps[1].seconds, steps[1000].seconds)
    assert best.buckets[-1].ready == pytest.approx(BACKWARD), "what is left waits for the end of the backward pass"
    until = arithmetic.longest(runs[1], [link])
    assert [until, steps[1000].seconds] == pytest.approx([max(s.seconds for s in steps.values())] * 2)
    drawn = [re.findall(r'x="([\d.]+)"[^>]*>60<', pictures.step_picture(run, until).svg) for run in runs.values()]
    assert all(len(at) == 1 for at in drawn) and len({at[0] for at in drawn}) == 1, "pinned or not, 60 ms is one place"


@pytest.mark.ranks
def test_late_steps_are_those_in_which_a_rank_stalled_told_from_the_clock_alone() -> None:
    def stalling(group, stalls):  # type: ignore[no-untyped-def]
        for step in range(8):
            group.step(step)
            group.compute(2e-2 if (group.rank, step) in stalls else 1e-2)
            labkit.collectives.all_reduce(torch.ones(1), group, "avg", algorithm="tree")

    runs = {n: labkit.launch(stalling, n, [(0, 2), (1, 2), (1, 7)], clock="virtual") for n in (2, 3)}
    assert [t > 1.5e-2 for t in pictures.step_times(runs[3])] == [step in (2, 7) for step in range(8)]
    assert pictures.share_late(runs[2], 1e-2) == 0.25
    said = pictures.late_steps(runs, 1e-2, 0.02).sentence
    assert said.startswith("Late steps: 2 of 8 with 2 ranks") and "; 2 of 8 with 3 ranks, where 0 ± 1 are exp" in said
    assert said.endswith("(± is one standard deviation).")


CURES = {"disk": (50, 80), "GPU": (10, 120), "pauses": (50, 80)}  # other and computing, ms, of the late rank


@pytest.mark.ranks
@pytest.mark.parametrize("cause", CAUSES)
def test_a_hidden_cause_is_seen_in_the_row_that_does_not_wait(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = next(t for t in (Trouble(3, seed) for seed in range(99)) if t.hidden == (1, cause))

    def strange(group):  # type: ignore[no-untyped-def]
        group.step(1)
        trouble.read(group)
        trouble.compute(group)
        labkit.collectives.all_reduce(torch.ones(100), group)

    run = labkit.launch(strange, 3, clock="virtual")
    drawn = pictures.profile(run)
    assert "rank 1" not in drawn.sentence.lower(), "it is for the reader to find"
    assert pictures.who_is_late(run) == "Ranks 0 and 2 wait 40 ms for rank 1, and rank 1 waits for nobody."
    named = "other, ms", "computing, ms", "waiting, ms"
    usual = [10, 80, 40]
    rows = [[round(float(str(row[name])), 3) for name in named] for row in drawn.rows]
    assert rows == [usual, [*CURES[cause], 0], usual]
    pieces = [round(float(str(row["longest computing without a pause, ms"])), 3) for row in drawn.rows]
    assert pieces == [80, {"disk": 80, "GPU": 120, "pauses": 20}[cause], 80]
    assert pictures.suspected(run, trouble, 1, None).endswith("Now the cause.")
    assert pictures.suspected(run, trouble, 1, cause).startswith("Yes, it is rank 1, and you have named the cause.")
    for wrong in set(CAUSES) - {cause}:
        assert f"The rank is right, but {wrong!r} does not explain its row." in pictures.suspected(
            run, trouble, 1, wrong
        )
    assert "Rank 0 itself waits for 40 ms" in pictures.suspected(run, trouble, 0, cause)
    assert "Choose the late rank" in pictures.suspected(run, trouble, None, cause)
    diagnosis = pictures.diagnose(run, trouble)
    assert diagnosis.found and "Choose the late rank" in repr(diagnosis), "nobody is there to choose"
    monkeypatch.setenv("LABKIT_HEADLESS", "0")
    ranks, causes = diagnosis.box.children[0].children
    ranks.value, causes.value = 0, cause
    assert not diagnosis.found and "Rank 0 itself" in diagnosis.box.children[1].value
    ranks.value = 1
    assert diagnosis.found and "you have named the cause" in diagnosis.box.children[1].value
    ranks.value = 0
    assert diagnosis.found and "Rank 0 itself" in diagnosis.box.children[1].value, "what was found once stays found"


@pytest.mark.ranks
@pytest.mark.parametrize(("divide", "left"), [("world", -1.75), ("active", -2.0)])
def test_the_zeros_of_a_rank_that_has_left_count_unless_they_are_switched_off(divide: str, left: float) -> None:
    def two_steps(group):  # type: ignore[no-untyped-def]
        line = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(line.weight)
        model = labkit.parallel.DataParallel(line, group)
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        with model.join(step=sgd.step, divide=divide):
            for _ in range(1 if group.rank == 1 else 2):
                sgd.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
                sgd.step()
        return line.weight.item()

    assert labkit.launch(two_steps, 4).results == [left] * 4
    assert "divide_by_initial_world_size=False" in TEXT and 'divide=\\"active\\"' in TEXT and "three quarters" in TEXT


def test_the_panel_asks_what_was_averaged_where_a_rank_has_left() -> None:
    weights = torch.zeros(3)
    left, full = Shown([([0, 0], weights), ([0], weights)]), Shown([([0, 0], weights), ([0, 0], weights)])
    assert breaking.verdict(left).endswith("Equal is not yet right: what did the last step average?")
    assert breaking.verdict(full).endswith("all weights are finite.")
    full.results[0][0][:] = full.results[1][0][:] = [1, 3]
    said = "Weights that are not finite, of 3: on each rank 1 after step 1 and 3 after step 2."
    assert getattr(breaking.weights_after(full), "sentence", "") == said
    told = getattr(breaking.weights_after(left), "sentence", "")
    assert told == "All weights are finite. Rank 1 took no second step of its own."


class Shown:
    """What a view needs of a run."""

    def __init__(self, results: Any) -> None:
        self.results, self.trace = results, SimpleNamespace(badge="measured", world_size=len(results))


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([range(14), range(14, 27)], "All 27 samples were read, each of them once."),
        ([range(14), range(13, 27)], "All 27 samples were read, 1 of them twice."),
        ([range(14), range(14, 26)], "1 of 27 samples was never read, the others once."),
        ([range(27), range(27)], "Every rank read all 27 samples, in 1 step "),
        ([range(14), range(14)], "13 of 27 samples were never read, and 14 more than once."),
        ([range(14), range(14, 27)], "All 27 samples were read, each of them once. In the next epoch"),
    ],
)
def test_what_became_of_an_epoch_is_a_plain_sentence(batches: list[range], said: str) -> None:
    run = Shown([[[list(batch)], [list(batch)]] for batch in batches])
    assert reading.shares(run).startswith(said)
    assert reading.who_reads(run).step == 1, "a control that moves shows the whole epoch, to be played from there"


def test_a_rank_without_a_sample_in_the_last_step_is_named() -> None:
    def epoch(group):  # type: ignore[no-untyped-def]
        sampler = Sampler(reading.COUNT, (group.rank, group.size), batch=2, last="exact")
        return [[batch.tolist() for batch in sampler.epoch(number)] for number in (0, 1)]

    each = [[epoch(SimpleNamespace(rank=rank, size=n)) for rank in range(n)] for n in (4, 5, 2)]
    told = [reading.shares(Shown(one)).split(". ")[1] for one in each]
    assert told[0] == "In the last step rank 3 has no sample"
    assert [len(first) for first, _ in each[0]] == [4, 4, 4, 3]
    assert told[1:] == ["In the next epoch the ranks read them in another order (measured)."] * 2


def test_how_far_replicas_are_apart_stands_beside_the_size_of_a_weight() -> None:
    apart = [torch.tensor([[3.0, 4.0, 3.0, 4.0], [3.0 + x, 4.0, 3.0, 4.0]]) for x in (0.0, 1.0)]
    ways = [(way, way[-1]) for way in apart]
    drawn = pictures.drift([ways[0], ways[0]], ways)
    assert drawn.frames[0][1].startswith("After 0 steps a typical weight of this matrix is 3.5. Between")
    assert "differs by 0 (gradients averaged) and by 0.5 (not averaged)" in drawn.frames[1][1], "1 in four"
    said = drawn.frames[1][1]
    assert "averaged: in the end all weights are equal, bit for bit. Not averaged: in the end the weights d" in said


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_every_rank_and_every_cause_is_hidden_by_some_seed_and_the_same_for_the_same_one(ranks: int) -> None:
    found = [Trouble(ranks, seed).hidden for seed in range(400)]
    assert set(found) == set(product(range(ranks), CAUSES))
    assert found == [Trouble(ranks, seed).hidden for seed in range(400)]
    assert len({Trouble(4, seed).hidden[1] for seed in range(4)}) == 3, "a reader who tries 1, 2 and 3 meets all three"


def test_the_panel_of_passes_begins_with_what_the_cell_has_trained() -> None:
    def with_passes(world: Any, passes: int = 4) -> Any:
        return Shown([({n: 6.0 - passes if n == 4 else 5.0 for n in range(passes, 5, passes)}, passes)])

    bench = panels.passes(with_passes, 2, "local")
    assert "2.00 with passes = 4" in bench.text
    assert "4.00 with passes = 2" in bench.set(passes=2).text
    bench.close()


def test_where_the_replicas_have_gone_is_seen_before_anybody_presses_play() -> None:
    somewhere = [(way, way[-1]) for way in torch.rand(2, 5, 3)]
    drawn = pictures.drift(somewhere, somewhere)
    assert drawn.step == len(drawn.frames) - 1 == 4


@pytest.mark.parametrize("somebody", [True, False])
def test_of_several_runs_a_line_says_which_is_under_way_and_goes_in_the_end(
    somebody: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    class Line:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(data["text/plain"])

    monkeypatch.setenv("LABKIT_HEADLESS", "0" if somebody else "1")
    monkeypatch.setattr("IPython.display.display", lambda *data, **how: Line())
    seen = [(item, shown[-1:]) for item in in_turn((8, 32), "{} ranks")]
    if somebody:
        assert seen == [(8, ["1 of 2: 8 ranks ..."]), (32, ["2 of 2: 32 ranks ..."])] and shown[-1] == ""
    else:
        assert seen == [(8, []), (32, [])] and not shown


def test_the_curve_of_the_setting_stands_beside_that_with_an_update_after_each_pass() -> None:
    trace = SimpleNamespace(badge="measured")

    def run(curve: dict[int, float], passes: int) -> Any:
        return SimpleNamespace(results=[(curve, passes)], trace=trace)

    often = {n: 5 - n / 2 for n in range(1, 9)}
    drawn = pictures.losses(often, run({4: 4.4, 8: 4.0}, 4))
    assert drawn.sentence == (
        "After 8 passes the held-out loss is 1.00 with an update after each pass and 4.00 with passes = 4. "
        "After 2 updates it is 4.00 with an update after each pass and 4.00 with passes = 4."
    )
    each = "an update after each pass"
    assert drawn.rows[1] == {"pass": 2, each: 4.0}
    assert drawn.rows[7] == {"pass": 8, each: 1.0, "passes = 4": 4.0, "update, passes = 4": 2}
    alone = pictures.losses(often, run(often, 1))
    assert alone.sentence == "After 8 passes the held-out loss is 1.00 with an update after each pass."
    assert alone.rows == [{"pass": n, each: loss} for n, loss in often.items()]


def test_each_rank_has_a_row_of_what_it_holds() -> None:
    one = {"parameters": 10, "gradients": 10, "optimizer state": 20, "activations": 60}
    drawn = pictures.what_is_held(one, one | {"activations": 20}, 3)
    assert drawn.rows[1]["activations, bytes"] == 20 and drawn.svg.count(">rank ") == 4
    bars = [float(w) for w in re.findall(r'width="([\d.]+)" height="20"', drawn.svg)]
    assert len(bars) == 16 and bars[3] == pytest.approx(3 * bars[7]) and bars[3] == pytest.approx(6 * bars[0])


def test_the_best_packet_is_one_that_a_reader_has_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_HEADLESS", "0")
    tried, model = panels.Tried(), arithmetic.StepModel(0.02, (0.02, 0.02), (100, 100), 4)
    tried.ranks, tried.nbytes = 4, 200
    tried.took[1e6] = 88.0
    assert tried.best(model) is None, "nobody has chosen the first"
    tried.took |= {75e3: 67.0, 32e3: 70.0}
    assert tried.best(model) == 75e3
    assert tried.best(arithmetic.StepModel(0.02, (0.02, 0.02), (100, 100), 3)) is None, "that is another step"
    monkeypatch.setenv("LABKIT_HEADLESS", "1")
    assert tried.best(model) is None, "the grid of a static page is nobody's choice"


def test_what_grows_with_the_ranks_of_a_ring() -> None:
    for ranks, passes in ((8, 1), (8, 4), (32, 1)):
        samples, sent = 16 * ranks * passes, cost.ring_all_reduce_bytes(1, ranks)
        row = f"| {ranks} | {passes} | 16 | {samples} | {sent:.2f} $M$ | {16 * passes} |"
        assert row in TEXT, row


def test_wrappers_that_leave_another_gradient_are_named() -> None:
    right = Shown([torch.ones(3)])
    off = Shown([torch.ones(3), torch.zeros(3)])
    same = order.like_stage_c({"the page": right, "labkit": right}, right).text
    assert same.startswith("Yes: the one-page wrapper")
    assert "with that of labkit the" in order.like_stage_c({"the page": right, "labkit": off}, right).text


def test_errors_have_a_row_for_each_average_and_a_column_for_each_dtype() -> None:
    off = {("alike", torch.float32): 0.25, ("by samples", torch.float32): 1e-7, ("by samples", torch.float64): 1e-15}
    rows = [*pictures.errors(off, 4)]
    assert rows[0] == {"average": "alike", "relative error in float32": "2.5e-01"}
    assert list(rows[1].values()) == ["by samples", "1.0e-07", "1.0e-15"]


@pytest.mark.ranks
def test_several_steps_have_their_numbers_at_their_lanes_and_one_line_says_what_is_exposed() -> None:
    def step(group, nbytes):  # type: ignore[no-untyped-def]
        model = slow_gpt(group)
        with one_step(group):
            overlapped(text_loss(model, group), into_buckets(list(model.parameters()), nbytes), group)
        return flat_gradient(model)

    network = Network(nodes=2, ranks_per_node=1, inter=Link(50e6, 0.2e-3))
    runs = {name: labkit.launch(step, 2, nbytes, clock="virtual", network=network)
            for name, nbytes in (("A: many", 1), ("B: one", 1e7), ("C: some", 2e5))}  # fmt: skip
    drawn, steps = pictures.stages(runs), {name: step_of(run) for name, run in runs.items()}
    exposed = [f"{1e3 * one.exposed:.1f} ms ({name})" for name, one in steps.items()]
    assert drawn.sentence == f"Exposed after the computing: {exposed[0]}, {exposed[1]} and {exposed[2]}."
    for one in steps.values():
        assert f">{len(one.journeys)} all-reduce{'s' * (len(one.journeys) > 1)}, {1e3 * one.total:.1f} ms<" in drawn.svg
    assert pictures.stages({"B: one": runs["B: one"]}).sentence.startswith("1 all-reduce, ")
    model = arithmetic.step_model(runs["B: one"])
    step = model.step(2e5, Link(50e6, 0.2e-3))
    table = arithmetic.beside(model, 2e5, runs, model.forward + step.buckets[-1].end)
    assert "to the same gradients. Stage C leaves" in table.caption
    by_formula = [row["the formula (simulated)"] for row in table]
    assert by_formula == pytest.approx([len(step.buckets), 1e3 * step.seconds, 1e3 * step.exposed])
    runs["C: some"].results[0][0] += 1
    assert (
        "to different gradients." in arithmetic.beside(model, 2e5, runs, model.forward + step.buckets[-1].end).caption
    )


def test_the_page_says_that_a_right_average_agrees_up_to_rounding() -> None:
    """What is stored was said of the book's own function, so a sentence for wrong ones is a mistake of the cell."""
    cells = json.loads((Path(__file__).parents[2] / "notebooks" / "04_data_parallelism.ipynb").read_text())["cells"]
    (said,) = (cell["outputs"] for cell in cells if cell["id"] == "gradient-meaning")
    assert "in float64 the difference almost disappears" in json.dumps(said)


def test_how_many_times_as_many_bytes_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "notebooks" / "04_data_parallelism.ipynb").read_text()
    sent = {n: cost.ring_all_reduce_bytes(64 * n, n) / (64 * n) for n in (8, 32)}  # of a byte of gradient, by a rank
    assert f"{sent[8]:.2f} $M$" in page and f"{sent[32]:.2f} $M$" in page
    assert f"4 · {sent[32]:.2f} / {sent[8]:.2f} = {4 * sent[32] / sent[8]:.1f} times as many bytes" in page
