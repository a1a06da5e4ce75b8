"""The questions of chapter 4: keys beside numbers worked out by hand, and what their texts claim."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit import Link, book, cost
from labkit.chapters.c04_data_parallelism import arithmetic, panels
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Question

CHAPTER = load_chapter("04_data_parallelism")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("mean-of-means", "(30 * 2 + 10 * 6) / 40"),
        ("left-out", "10500 - 13 * 768"),
        ("global-batch-of", "32 * 6 * 5"),
        ("last-bucket", "14 * (50 / 8 / 10 + 0.02)"),  # 14 messages of 6.25 MB at 10 MB a ms, and 0.02 ms each
        ("bytes-accumulated", "2 * 15 / 16 * 2 / 8"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "word"),
    [
        ("mean-of-means", "4", "plain average"),
        ("mean-of-means", "20", "the mean of the numbers of samples"),
        ("mean-of-means", "21", "21 is not it. Add up the gradients of all samples"),
        ("left-out", "12", "one sample of each rank"),
        ("last-bucket", "0", "Behind what"),
    ],
)
def test_a_known_slip_is_told_its_reason(id: str, typed: str, word: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and word in told.why


def test_predictions_declare_what_the_run_of_the_chapter_shows() -> None:
    seconds, nbytes = [10e-3, 10e-3, 20e-3], [100_000, 100_000, 50_000]
    links = cost.Links(0.2e-3, 1 / 50e6)
    step, flat = (
        cost.data_parallel_step(seconds, nbytes, 4, links, forward=0.02, bucket_bytes=size, first_bucket_bytes=size)
        for size in (100_000, 1e9)
    )
    model = arithmetic.StepModel(0.02, tuple(seconds), tuple(nbytes), 4)
    values = model.about_buckets(100_000, Link(50e6, 0.2e-3))
    assert values["step"] == step and values["flat"] == flat
    told = CHAPTER.forecast("exposed", values)
    assert told.declared == pytest.approx((1.2 + 1.5 * 50_000 / 50e6 * 1e3,)), "the last bucket, full at the end"
    assert "3 buckets" in told.prompt and "| 0 | 100 | 30 | 34.2 |" in told.prompt, "since the step began, not its half"
    assert "| 1 | 100 | 40 | ? |" in told.prompt and "| 2 | 50 | 60 | ? |" in told.prompt
    assert "The backward pass ends at 60 ms." in told.prompt
    question, *rest = told.prompt.strip().split("\n\n")
    assert question.endswith("stay exposed after the backward pass in stage C?") and len(rest) == 3, "it is bold"
    assert CHAPTER.forecast("late-steps", {"chance": 0.02, "steps": 50}).declared == pytest.approx(
        (100 * (1 - 0.98**8), 100 * (1 - 0.98**32))
    )
    assert "Your number is the whole message" in told.why([flat.exposed / 1e-3], [2.7])
    assert "Your number is bucket 1 alone, the one before the last. When it is back, bucket 2" in told.why([4.2], [2.7])
    close = arithmetic.StepModel(0.02, (10e-3, 30e-3, 0.0), (100_000, 100_000, 50_000), 4)
    late = CHAPTER.forecast("exposed", close.about_buckets(100_000, Link(50e6, 0.2e-3)))
    assert late.declared == pytest.approx((4.2 + 2.7,)), "both are full at the end"
    assert "Your number is bucket 2 alone, the last one. But the one before it is still" in late.why([2.7], [6.9])
    assert "Your number is bucket 1 alone, the one before the last." in late.why([4.2], [6.9])
    assert "Nothing would be exposed" in told.why([0.0], [2.7])
    assert "Count what travels" in told.why([20.0], [2.7]) and told.why([2.72], [2.7]) == told.why(None, [2.7]) == ""
    assert "a bucket of $n$ bytes takes $2(N-1)\\,(\\alpha + n\\beta / N)$" in told.prompt
    for n in (2, 4, 7):
        one = 2 * (n - 1) * (0.2e-3 + 50_000 / 50e6 / n)
        assert one == pytest.approx(cost.ring_all_reduce_time(50_000, n, 0.2e-3, 1 / 50e6))
    sizes = {
        "names": list("abcde"),
        "latency": 2e-3,
        "near_latency": 0.2e-3,
        "ranks": 4,
        "total": 9,
        "bandwidth": 50e6,
        "table": "| a |",
        "dots": "",
    }
    pick = CHAPTER.forecast("bucket-size", sizes | {"best": 3})
    assert pick.declared == (3,) and pick.choices == tuple("abcde")  # type: ignore[attr-defined]
    assert "with the 4 ranks of this run each bucket pays $2(N-1)\\,\\alpha$ = 12 ms" in pick.prompt
    assert "of latencies there, and 1.2 ms on the near link." in pick.prompt
    question, *rest = pick.prompt.strip().split("\n\n")
    assert question.endswith("is the step fastest on the far link?") and len(rest) == 2, "only it is bold"
    assert "every bucket pays the latencies" in pick.why([0], [3]) and pick.why([3], [3]) == ""


def test_the_table_of_sizes_has_what_it_takes_to_work_out_the_fastest() -> None:
    model = arithmetic.StepModel(0.02, (10e-3, 10e-3, 10e-3, 5e-3, 5e-3), (100, 100, 100, 50, 50), 4)
    link = Link(50e6, 2e-3)
    rows = model.about_sizes([50, 150, 1000], link, link)["table"].split("\n")[2:]
    assert rows == [
        "| 5 | 0.1 · 0.1 · … · 0.05 | 30 · 40 · … · 60 |",
        "| 3 | 0.2 · 0.15 · 0.05 | 40 · 55 · 60 |",
        "| 1 | 0.4 | 60 |",
    ]
    fast = Link(50e6, 1e-3)  # a bucket of 6 ms is back before the next one is full: all are shown
    about = model.about_sizes([50, 150, 1000], fast, fast)
    assert about["table"].split("\n")[2] == "| 5 | 0.1 · 0.1 · 0.1 · 0.05 · 0.05 | 30 · 40 · 50 · 55 · 60 |"
    assert about["dots"] == "" and "never idle" in model.about_sizes([50, 150, 1000], link, link)["dots"]
    gaps = arithmetic.StepModel(0.02, (10e-3, 1e-3, 1e-3, 1e-3, 1e-3, 30e-3), (100, 100, 100, 100, 100, 300), 4)
    some = gaps.about_sizes([50, 500], link, link)  # in the second row the link is idle between its two buckets
    assert some["table"].split("\n")[2:] == [
        "| 6 | 0.1 · 0.1 · … · 0.3 | 30 · 31 · … · 64 |",
        "| 2 | 0.5 · 0.3 | 34 · 64 |",
    ]
    assert "In the other rows it may be idle between two buckets" in some["dots"]
    step = model.step(50, link)
    by_hand = 30e-3 + 5 * 6 * 2e-3 + cost.ring_all_reduce_time(400, 4, 0, 1 / 50e6)
    assert step.seconds == pytest.approx(by_hand), "from the first time, the number of buckets and all bytes"


class Said:
    """A prediction that was answered with the choice at this position."""

    predicted = True

    def __init__(self, position: int) -> None:
        self.values = (position,)

    def compare(self, right: int, mark: str) -> book.Table:
        return book.Table(caption="" if self.values[0] == right else "either")


def test_a_wrong_size_is_told_what_speaks_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {1.0: 30.0, 2.0: 20.0, 3.0: 25.0}
    monkeypatch.setattr(arithmetic, "milliseconds", lambda run: run)
    many, right, few = (arithmetic.beside_fastest(Said(k), runs).caption for k in range(3))
    assert "every bucket pays the latencies" in many and right == "" and "a large bucket is full late" in few
    assert "within 1%" not in many + few
    runs[3.0] = 20.1
    assert "within 1% of it" in arithmetic.beside_fastest(Said(2), runs).caption


def test_the_choices_are_named_by_their_buckets() -> None:
    model = arithmetic.StepModel(0.02, (2e-3,) * 20, (40_000,) * 20, 4)
    near, far = Link(50e6, 0.2e-3), Link(50e6, 2e-3)
    five = model.five_sizes(near, far)
    about = model.about_sizes(five, near, far)
    assert about["names"][-1] == "1 bucket for the whole gradient"
    assert about["names"][0].startswith("20 buckets, each closed at ")


@pytest.mark.parametrize(("least", "ticks"), [(7.3, 10), (0.11, 0.2), (5, 5), (1, 1), (23, 50), (0.04, 0.05)])
def test_the_ticks_of_an_axis_are_round_numbers(least: float, ticks: float) -> None:
    assert arithmetic._round_step(least) == pytest.approx(ticks)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_the_five_sizes_are_those_of_the_panel_or_the_panel_has_them_too(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = Link(50e6, 0.2e-3), Link(50e6, 2e-3)
    five = arithmetic.StepModel(0.02, (2e-3,) * 20, (40_000,) * 20, ranks).five_sizes(near, far)
    assert {75e3, 250e3, 410e3} & set(five), "sizes that the opening has as well"
    monkeypatch.setattr(book, "workbench", lambda step, controls, *rest, **options: controls["bucket_kB"])
    sizes: list[float] = panels.buckets(lambda: None, {}, ranks, [*five, 91_300.0])
    assert {nbytes / 1000 for nbytes in five} <= set(sizes) and set(sizes) > set(panels.SIZES) and 91.3 in sizes
    assert sizes == sorted(sizes) and panels.buckets(lambda: None, {}, ranks, [75e3, 1e3]) == panels.SIZES


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_the_five_sizes_hold_the_fastest_of_both_links_and_differ_in_their_buckets(ranks: int) -> None:
    near, far = Link(50e6, 0.2e-3), Link(50e6, 2e-3)
    model = arithmetic.StepModel(0.02, (2e-3,) * 20, (40_000,) * 20, ranks)
    five = model.five_sizes(near, far)
    assert len(five) == 5 == len({len(model.step(nbytes, near).buckets) for nbytes in five})
    every = model.range_of_sizes()
    for link in (near, far):
        best = [min(model.step(nbytes, link).seconds for nbytes in some) for some in (five, every)]
        assert best[0] <= best[1]


def test_a_plan_names_the_best_bucket_of_a_model_that_is_worked_out_by_hand() -> None:
    said, rows = arithmetic.plan(1e9, 0.3, 2, Link(1e9, 0.0))
    single = rows[-1]
    assert single["step, ms"] == pytest.approx(300 + 2000), "2 GB go once over a link of 1 GB a second"
    assert rows[0]["step, ms"] <= single["step, ms"] and "2 GB" in said
    assert "less than 1% of the step is exposed" in arithmetic.plan(200e6, 0.4, 8, Link(400e9, 5e-6))[0]
    assert "more than 99% of the step is exposed" in arithmetic.plan(10e9, 0.02, 2, Link(1e9, 5e-6))[0]
    assert "is ever cut" not in said, "a hundredth of it is 20 MB, less than PyTorch's bucket"


def test_of_sizes_that_are_equally_good_the_default_is_taken_and_else_the_smallest() -> None:
    said, rows = arithmetic.plan(10e9, 2.0, 256, Link(400e9, 5e-6))
    default = rows[0]
    assert [row["buckets"] for row in rows] == ["PyTorch's default", "a single one"]
    assert default["step, ms"] == pytest.approx(2000 + 510 * (5e-3 + 200e6 / 256 / 400e9 * 1e3)), "the last of 100"
    assert "takes 2 s, and equal buckets of 200 MB to 4 GB come within 1% of that." in said
    assert "So does PyTorch's default, and you can leave it as it is: less than 1%" in said
    said, rows = arithmetic.plan(1.5e9, 0.4, 32, Link(25e9, 20e-6))
    assert "takes 411 ms, and equal buckets of 120 MB to 150 MB come within 1% of that." in said
    assert "The smallest of these sizes is large enough: with it 3% of the step is exposed." in said
    assert rows[0]["buckets"] == "of 120 MB" and rows[0]["number"] == 25
    assert rows[0]["step, ms"] < rows[1]["step, ms"] / 1.01, "else the default would do"
    said, rows = arithmetic.plan(50e6, 0.02, 256, Link(1e9, 500e-6))
    assert "takes 474 ms, and equal buckets of 100 MB make it. But even then 96% of the step is exposed" in said
    assert "the network is too slow for this model. Send less often" in said
    assert rows[0]["buckets"] == "of 100 MB" and rows[0]["step, ms"] == rows[-1]["step, ms"]


def test_a_gradient_that_is_larger_than_a_bucket_is_told_why_it_is_a_bucket_of_its_own() -> None:
    said, rows = arithmetic.plan(1.5e9, 0.4, 32, Link(25e9, 20e-6))
    assert rows[1]["number"] == 100 and said.endswith(
        "Each of the 100 gradients has 30 MB, more than PyTorch's default of 25 MiB, and no gradient is ever "
        "cut. So with that default each of them is a bucket of its own, and the latencies are paid 100 times in place "
        "of 25."
    )


def test_the_curves_begin_at_the_computing_and_what_a_reader_has_tried_on_one_link_is_called_so_on_the_other() -> None:
    model = arithmetic.StepModel(0.02, (2e-3,) * 20, (40_000,) * 20, 4)
    links = {"near": Link(50e6, 0.2e-3), "far": Link(50e6, 2e-3)}
    drawn = arithmetic.step_by_size(model, links, {}, 75e3)
    assert drawn.badge == "simulated" and "The horizontal dashed line marks the 60 ms of comp" in drawn.sentence
    assert drawn.svg.count(">60 ms of computing<") == 2 and drawn.svg.count(">your best<") == 1 == drawn.svg.count(
        ">your best, near<"
    )
    assert "runs on the far link (emulated)" in drawn.svg


@pytest.mark.parametrize(
    ("low", "peak", "ticks"),
    [(60, 320, [50 * k for k in range(1, 8)]), (60, 87.6, [60, 65, 70, 75, 80, 85, 90]),
     (60, 460, [0, 100, 200, 300, 400, 500])],
)  # fmt: skip
def test_an_axis_has_round_numbers_at_equal_distances_and_one_at_both_ends(
    low: float, peak: float, ticks: list[float]
) -> None:
    assert arithmetic._ticks(low, peak) == pytest.approx(ticks)


@pytest.mark.parametrize("id", ["what-breaks-it", "same-on-every-rank", "not-free"])
def test_a_hint_for_a_choice_that_is_not_named_speaks_for_itself(id: str) -> None:
    hints = [choice.missed for choice in QUESTIONS[id].choices if choice.right]  # type: ignore[attr-defined]
    assert not any(hint.split()[0] in ("It", "Its", "They", "Then") for hint in hints)


def test_the_default_of_a_plan_has_a_small_first_bucket() -> None:
    _, rows = arithmetic.plan(50e6, 0.4, 8, Link(25e9, 20e-6))
    assert rows[0]["buckets"] == "PyTorch's default"
    assert rows[0]["number"] == 5, "2 gradients of 1 MB fill 1 MiB, and 27 of the other 98 fill 25 MiB"


def test_what_is_said_of_rare_delays_is_so() -> None:
    law = cost.RareDelay(1, 1, 0.001)
    assert law.stalled_steps(2000) == pytest.approx(1 - 0.999**2000) and law.stalled_steps(8) < 0.01


@pytest.mark.parametrize(
    "typed",
    ["data", "the data", "same data", "the same batch", "their batches", "they all read the same batch", "Examples",
     "the sampler", "inputs", "the training data", "all ranks read the same data"],
)  # fmt: skip
def test_what_ranks_should_not_share_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["same-loss"].mark(typed).right


@pytest.mark.parametrize("typed", ["weights", "the gradient", "the seed", "learning rate", "the loss", "the weather"])
def test_what_they_may_share_is_no_answer(typed: str) -> None:
    told = QUESTIONS["same-loss"].mark(typed)
    assert not told.right and (typed == "the weather") is told.why.startswith(
        "“the weather” is not it. Two things decide"
    )


@pytest.mark.parametrize(
    ("each", "seldom", "even", "says"),
    [
        (3.27, 4.07, 4.08, "In this run the number of updates decides the loss"),
        (3.48, 3.96, 4.37, "but in this run four small ones lower it more still"),
        (3.3, 4.2, 4.0, "more samples in each of them do not make up for that"),
        (3.9, 3.5, 4.4, "This run is too short to show it"),
        (7.7, 3.68, 3.4, "a loss jumps up again, and ends 4.30 above its lowest point"),
    ],
)
def test_accumulation_is_told_for_every_result(each: float, seldom: float, even: float, says: str) -> None:
    """The cell as it stands, on losses that runs of some widths and seeds have had."""
    cells = json.loads((Path(__file__).parents[2] / "notebooks/04_data_parallelism.ipynb").read_text())["cells"]
    (source,) = ["".join(cell["source"]) for cell in cells if cell["id"] == "accumulate-cost"]
    steps, trace = 8, SimpleNamespace(sends=[SimpleNamespace(src=0, step=1, nbytes=1000)])
    every = SimpleNamespace(results=[({1: 4.66, 4: even, 16: each}, 1)], trace=trace)
    fourth = SimpleNamespace(results=[({4: 4.67, 16: seldom}, 4)], trace=trace)
    before, _, conclusion = source.partition("book.conclude(")
    names = {"cost": cost, "book": book, "bench": SimpleNamespace(ran={1: every, 4: fourth}), "steps": steps,
             "world_size": 4, "config": SimpleNamespace(num_parameters=1000)}  # fmt: skip
    exec(before, names)
    assert says in eval("book.conclude(" + conclusion, names).text
