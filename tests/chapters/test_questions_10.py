"""The questions of chapter 10: keys beside numbers worked out by hand or simulated, and what their texts claim."""

from __future__ import annotations

from itertools import permutations

import pytest

from labkit import cost
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Choices, Order, Question
from labkit.parallel import pipeline as pp
from labkit.parallel.pipeline import Backward, Costs, Forward, Schedule, labels, simulate, validate

CHAPTER = load_chapter("10_pipeline_parallelism")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}
UNIT = Costs(1e-3, 1e-3, 1e-3)


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("bubble-of-eight", "100 * 7 / 39"),
        ("five-percent", "7 * 19"),
        ("mark-of-rank-3", "13"),
        ("chunks-of-a-rank", "100 * 7 / (4 * 32 + 7)"),
        ("idle-of-zb-h1", "7 * 14"),
        ("twenty-times", "4 * 6 * 2 * 7 / 8 / 2"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "word"),
    [
        ("bubble-of-eight", "21.875", "useful time"),
        ("five-percent", "140", "useful time"),
        ("mark-of-rank-3", "12", "warmup + 1"),
        ("mark-of-rank-3", "64", "GPipe"),
        ("chunks-of-a-rank", "5.46875", "useful time"),
        ("chunks-of-a-rank", "17.95", "one chunk"),
        ("idle-of-zb-h1", "210", "1F1B"),
        ("idle-of-zb-h1", "42", "ZB-H2"),
        ("twenty-times", "24", "very large group"),
    ],
)
def test_a_known_slip_is_told_its_reason(id: str, typed: str, word: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and word in told.why


def test_the_simulator_agrees_with_the_keys() -> None:
    line = simulate(pp.one_f_one_b(8, 32), UNIT)
    assert QUESTIONS["bubble-of-eight"].mark(100 * line.bubble).right
    assert simulate(pp.one_f_one_b(8, 133), UNIT).bubble <= 0.05 < simulate(pp.one_f_one_b(8, 132), UNIT).bubble
    assert QUESTIONS["mark-of-rank-3"].mark(validate(pp.one_f_one_b(16, 64)).peak[3]).right
    quarter = Costs(0.25e-3, 0.25e-3, 0.25e-3)
    assert QUESTIONS["chunks-of-a-rank"].mark(100 * simulate(pp.interleaved(8, 32, 4), quarter).bubble).right
    split = simulate(pp.zb_h1(8, 24), Costs(0.010, 0.012, 0.008))
    assert QUESTIONS["idle-of-zb-h1"].mark(split.idle[0] / 1e6).right


def test_predictions_declare_what_the_run_of_the_chapter_shows() -> None:
    assert CHAPTER.forecast("naive", {"p": 4}).declared == pytest.approx((25, 1))
    assert (
        CHAPTER.forecast("in-flight", {"p": 4, "m": 8}).declared == validate(pp.one_f_one_b(4, 8)).peak == (4, 3, 2, 1)
    )
    line = simulate(pp.zb_h1(4, 8), Costs(0.01, 0.01, 0.01))
    declared = CHAPTER.forecast("zero-bubble", {"p": 4, "m": 8, "seconds": 0.01}).declared
    assert declared == pytest.approx((line.idle[0] / 1e6, validate(pp.zb_h1(4, 8)).peak[3])) == (30, 4)
    assert "= 90 ms" in CHAPTER.forecast("zero-bubble", {"p": 4, "m": 8, "seconds": 0.01}).prompt


def test_the_order_of_rank_2_is_that_of_1f1b() -> None:
    question = QUESTIONS["order-of-a-rank"]
    assert isinstance(question, Order)
    assert [label.removeprefix("2") for label in labels(pp.one_f_one_b(4, 3))[2]] == list(question.items)


def test_what_repairs_the_deadlock_does_and_what_does_not_does_not() -> None:
    """Two ranks that swap an activation and a gradient, each as the choices say."""
    late = labels(pp.with_messages(pp.one_f_one_b(2, 2), receive="late"))
    with pytest.raises(pp.ScheduleError, match="deadlock"):
        validate(pp.from_labels(late))
    row = late[1]
    first, then = row.index("1SEND_B0"), row.index("1RECV_F1")
    row[first], row[then] = row[then], row[first]  # rank 1 receives the activation before it sends the gradient
    validate(pp.from_labels(late))
    row = late[0]
    first, then = row.index("0SEND_F1"), row.index("0RECV_B0")
    row[first], row[then] = row[then], row[first]  # now both ranks receive first
    with pytest.raises(pp.ScheduleError, match="deadlock"):
        validate(pp.from_labels(late))


def test_the_best_cut_beside_a_heavy_head() -> None:
    question = QUESTIONS["heavy-head"]
    assert isinstance(question, Choices)

    def seconds(cut: list[int]) -> float:
        each = [1e-3 * n for n in [*cut[:-1], cut[-1] + 2]]
        return simulate(pp.one_f_one_b(4, 64), Costs(each, each, each)).seconds

    found = {choice.text: seconds([int(n) for n in choice.text.split(", ")]) for choice in question.choices}
    assert all(sum(map(int, text.split(", "))) == 30 for text in found)
    best = min(found, key=lambda text: found[text])
    assert sorted(found.values())[1] > 1.05 * found[best]
    assert [choice.text for choice in question.choices if choice.right] == [best]


def test_twice_as_many_half_as_large_microbatches_halve_the_bytes_of_1f1b_alone() -> None:
    for make, times in ((pp.one_f_one_b, 0.5), (pp.gpipe, 1.0)):
        before, after = max(validate(make(4, 8)).peak), max(validate(make(4, 16)).peak)
        assert after / 2 / before == times


def test_the_textbooks_fewer_stages_are_more() -> None:
    question = QUESTIONS["fewer-stages"]
    assert isinstance(question, Choices)
    right = next(choice.text for choice in question.choices if choice.right)
    assert "from 19% to 33%" in right and 15 / 79 == pytest.approx(0.19, abs=0.005)


@pytest.mark.parametrize(
    "typed",
    ["the gradient of the weights", "weight gradient", "gradients of its weights", "W", "dW", "weights",
     "parameter gradients", "the gradient with respect to the weights"],
)  # fmt: skip
def test_what_nobody_waits_for_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["nobody-waits"].mark(typed).right


@pytest.mark.parametrize(
    ("typed", "word"), [("the input gradient", "waits for that"), ("activations", "waits for that")]
)
def test_the_other_half_is_told_apart(typed: str, word: str) -> None:
    told = QUESTIONS["nobody-waits"].mark(typed)
    assert not told.right and word in told.why


def greedy(stages: int, microbatches: int, limit: int) -> Schedule:
    """Each rank does a backward as soon as there is one, else a forward if it keeps fewer than `limit`."""
    done: dict[tuple[str, int, int], int] = {}
    ranks: list[list[Forward | Backward]] = [[] for _ in range(stages)]
    free, forwards, backwards, now = [0] * stages, [0] * stages, [0] * stages, 0
    while min(backwards) < microbatches:
        for rank in range(stages):
            f, b = forwards[rank], backwards[rank]
            if free[rank] > now:
                continue
            back = b < f and done.get(("F", rank, b), now + 1) <= now and (
                rank == stages - 1 or done.get(("B", rank + 1, b), now + 1) <= now)  # fmt: skip
            if back:
                ranks[rank].append(Backward(b))
                done["B", rank, b] = free[rank] = now + 2
                backwards[rank] += 1
            elif f < microbatches and f - b < limit and (rank == 0 or done.get(("F", rank - 1, f), now + 1) <= now):
                ranks[rank].append(Forward(f))
                done["F", rank, f] = free[rank] = now + 1
                forwards[rank] += 1
        now += 1
    return Schedule(ranks, microbatches)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (3, 6), (4, 8), (4, 16), (8, 16)])
def test_what_section_4_calls_possible_is_possible_and_no_less(stages: int, microbatches: int) -> None:
    """With two microbatches in flight: the bound of the round trip, and one forward and backward more."""
    made = greedy(stages, microbatches, 2)
    assert max(validate(made).peak) == 2
    bound = microbatches * stages * 3 // 2
    assert simulate(made, UNIT).makespan == (bound + 3) * 1_000_000


def test_no_order_of_a_small_pipeline_beats_the_bound_of_section_4() -> None:
    """All orders of 2 ranks and 3 microbatches that keep one microbatch in flight at most: 3 round trips."""
    steps = [kind(k) for kind in (Forward, Backward) for k in range(3)]
    lists = [order for order in permutations(steps) if _one_at_a_time(order)]
    seen = set()
    for first in lists:
        for second in lists:
            try:
                seen.add(simulate(Schedule([first, second], 3), UNIT).makespan)
            except pp.ScheduleError:
                continue
    assert min(seen) == 3 * 2 * 3 * 1_000_000


def _one_at_a_time(order: tuple[Forward | Backward, ...]) -> bool:
    kept = 0
    for position, step in enumerate(order):
        kept += 1 if isinstance(step, Forward) else -1
        if kept > 1 or (isinstance(step, Backward) and Forward(step.microbatch) not in order[:position]):
            return False
    return True


@pytest.mark.parametrize("p", [2, 3, 4, 7])
def test_what_is_said_of_borders_and_of_stale_weights(p: int) -> None:
    """A microbatch crosses v p - 1 borders each way. On rank 0 its weights get p - 1 updates before it is back."""
    for v in (1, 2, 4):
        assert len(simulate(pp.interleaved(p, 2 * p, v), UNIT).messages) == 2 * p * 2 * (v * p - 1)
    row = [label[1:] for label in labels(pp.pipedream(p, 3 * p))[0]]
    for k in range(p - 1, 3 * p):
        between = row[row.index(f"F{k}") : row.index(f"B{k}")]
        assert sum(label.startswith("U") for label in between) == p - 1


def test_the_slowest_stage_is_not_all_that_counts() -> None:
    """Section 8 with 3 ranks: the shortest step is not that of the cut whose slowest stage is fastest."""
    layer, scores = cost.layer_flops(1, 8192, 4096), 2 * 8192 * 4096 * 128_256
    passes = (layer.forward, layer.input_gradient, layer.weight_gradient)

    def step(cut: list[int]) -> tuple[float, float]:
        heads = [0] * (len(cut) - 1) + [scores]
        times = Costs(*([(n * one + head) / 400e12 for n, head in zip(cut, heads, strict=True)] for one in passes))
        line = simulate(pp.one_f_one_b(len(cut), 2 * len(cut)), times)
        return line.seconds, max(line.busy)

    (even, even_slowest), (fewer, fewer_slowest) = step([11, 11, 10]), step([12, 11, 9])
    assert fewer < even and fewer_slowest > even_slowest
    (even, even_slowest), (fewer, fewer_slowest) = step([8, 8, 8, 8]), step([9, 9, 8, 6])
    assert fewer < 0.92 * even and fewer_slowest < even_slowest
