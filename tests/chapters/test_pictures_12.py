"""What chapter 12 draws and computes agrees with what its ranks did, and with published numbers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from chapters import wrong_12

import labkit
from labkit import cost
from labkit.book.drawing.style import BLUE, ORANGE
from labkit.chapters.c12_experts import flying, hot, layers, pictures, same, shapes, travel, you_write
from labkit.collectives import all_gather, all_reduce
from labkit.models import MoEConfig, next_token_loss

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "12_experts.ipynb"


@pytest.fixture
def page():
    """Names of the page's own functions, made of the book's parts, with two experts on each of four ranks."""
    cells = {c["id"]: "".join(c["source"]) for c in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]}
    names = {"torch": torch, "next_token_loss": next_token_loss, "same": same, "experts": 8,
             "all_gather": all_gather, "layers": layers}  # fmt: skip
    names |= {
        name: getattr(you_write, name) for name in ("route", "through_experts", "within_capacity", "average_gradients")
    }
    for cell in ("mixture", "one-queue", "divided-bench", "train", "over-nodes"):
        exec(cells[cell].split("\n\n\npanels.")[0], names)
    return names


def layer(group, capacity, drop, skew=2.0, experts=8):
    made = layers.timed(group, MoEConfig(experts, 2, capacity=capacity, drop=drop))
    made(layers.alike(made, 48, skew))
    return made.told


@pytest.mark.ranks
@pytest.mark.parametrize(("capacity", "drop"), [(None, "position"), (1.0, "position"), (1.25, "probability")])
def test_queues_are_those_of_the_run(capacity, drop):
    run = labkit.launch(layer, 4, capacity, drop, clock="virtual")
    told = run.results
    every = flying.choices_of(told)
    assert len(every) == 96 and sum(c.kept for c in every) == sum(flying.rows_by_rank(told))
    for e, n in enumerate(told[0].load):
        places = sorted(c.place for c in every if c.expert == e)
        assert places == list(range(n))
        kept = sum(c.kept for c in every if c.expert == e)
        assert kept == (n if told[0].slots is None else min(n, told[0].slots))
        assert all(c.kept == (c.place < kept) for c in every if c.expert == e), "those that are kept stand first"
    spans = [sum(s.attrs["rows"] for s in run.trace.spans("experts") if s.rank == r) for r in range(4)]
    assert spans == flying.rows_by_rank(told)
    words = [text for _, text in flying.flying(run).frames]
    assert f"{96 - sum(flying.rows_by_rank(told))} of 96 choices are dropped" in words[3]


@pytest.mark.ranks
def test_the_number_of_ranks_changes_nothing_in_who_is_dropped():
    kept = []
    for size in (1, 2, 4, 8):
        told = labkit.launch(layer, size, 1.0, "position", clock="virtual").results
        kept.append([row for one in told for row in one.kept])
    assert kept[0] == kept[1] == kept[2] == kept[3] and not all(all(row) for row in kept[0])


def of_the_page(group, forward, skew, keep=None):
    made = layers.yours(group, forward, 8, keep=keep)
    result = made(layers.alike(made, 48, skew))
    return result, made.happened


@pytest.mark.ranks
@pytest.mark.parametrize("skew", [0.0, 6.0])
def test_the_layer_of_the_page_computes_and_sends_what_it_should(page, skew):
    run = labkit.launch(of_the_page, 4, page["mixture"], skew, clock="virtual")
    labkits = labkit.launch(lambda g: (m := layers.timed(g, MoEConfig(8, 2)))(layers.alike(m, 48, skew)), 4)
    for (result, _), right in zip(run.results, labkits.results, strict=True):
        assert torch.allclose(result, right, atol=1e-6)
    run.results[:] = [happened for _, happened in run.results]
    assert pictures.bytes_of(run, layers.WIDTH) == run.trace.bytes_sent()


@pytest.mark.ranks
@pytest.mark.parametrize(("by", "drop"), [("position", "position"), ("weight", "probability")])
def test_the_queue_of_the_page_drops_whom_labkit_drops(page, by, drop):
    slots = cost.expert_capacity(48, 8, 1.0, choices=2)
    keep = partial(page["one_queue"], slots=slots, by=by)
    run = labkit.launch(of_the_page, 4, page["mixture"], 2.0, keep)
    theirs = labkit.launch(layer, 4, 1.0, drop).results
    assert [happened.kept for _, happened in run.results] == [one.kept for one in theirs]
    assert any(not all(row) for one in theirs for row in one.kept)


@pytest.mark.ranks
def test_by_way_of_the_node_every_row_comes_home_in_fewer_messages(page):
    def trip(group, name):
        rows, expert = layers.crossing_rows(group, 12, width=3)
        group.step(1)
        result = page[name](rows, expert, lambda x, e: x * (group.rank + 1), group, 1)
        return torch.equal(result, rows * (expert[:, None] + 1))

    crossed, said, drawn = [], [], []
    for name in ("through_experts", "by_way_of_the_node"):
        run = labkit.launch(trip, 8, name, clock="virtual")
        assert run.results == [True] * 8
        figure = pictures.crossing(run)
        said.append(figure.sentence)
        drawn.append(figure.svg.count(f'stroke="{ORANGE}" stroke-width="1.8"'))
        crossed.append(sum(m.src // 4 != m.dst // 4 for m in run.trace.sends if m.step == 1))
    assert 0 < crossed[1] < crossed[0] and drawn == [16, 4], "a line for each pair of ranks that talk"
    assert "talks to 4 ranks of other nodes" in said[0] and "talks to 1 rank of other nodes" in said[1]
    assert f"{crossed[1]} messages" in said[1]


@pytest.mark.ranks
def test_beside_one_device_only_a_wrong_divisor_makes_a_difference(page):
    for by, factor in (("all ranks", 1), ("the replicas", 2), ("nothing", 4)):
        run = labkit.launch(page["three_steps"], 4, by)
        experts, others = run.results[0][0][0]
        assert run.results[0][1] == factor and others < 1e-12 and experts == pytest.approx(factor - 1, abs=1e-12)
        words = pictures.compared(run, "SGD").sentence
        times = f"is {factor} times that of" if factor > 1 else "is that of"
        assert f"{times} one device" in words and ("rounding" in words) == (factor == 1)


@pytest.mark.ranks
def test_two_orders_of_a_queue_drop_equally_many_and_a_skew_makes_one_rank_busy(page):
    slots = cost.expert_capacity(48, 8, 1.0, choices=2)
    runs = []
    for by in ("position", "weight"):
        keep = partial(page["one_queue"], slots=slots, by=by)
        runs.append(labkit.launch(lambda *a: of_the_page(*a)[1], 4, page["mixture"], 2.0, keep, clock="virtual"))
    figure = pictures.two_queues(*runs)
    lost = [pictures.dropped(run) for run in runs]
    assert sum(lost[0]) == sum(lost[1]) > 0 and lost[0] != lost[1]
    assert [row["dropped by weight"] for row in figure.rows] == lost[1]
    assert f"has {slots} places" in figure.sentence and f"rank 3 loses {lost[0][3]}." in figure.sentence
    even, skewed = (
        labkit.launch(lambda *a: of_the_page(*a)[1], 4, page["mixture"], skew, clock="virtual") for skew in (0.0, 6.0)
    )
    there = pictures.way_there(skewed, layers.WIDTH)
    rank, received, times = pictures.busiest(there)
    assert rank == layers.LOVED // 2 and times > pictures.busiest(pictures.way_there(even, layers.WIDTH))[2]
    assert received == sum(row[rank] for row in there)
    figure = pictures.there_and_back(skewed, layers.WIDTH)
    assert f"rank {rank} receives most" in figure.sentence
    ways = [[[row[f"to {c}"] for c in range(4)] for row in figure.rows[k : k + 4]] for k in (0, 4, 8)]
    row = 4 * layers.WIDTH
    rows = [[(n - 8) // (row + 8) for n in line] for line in ways[0]]
    assert all(ways[1][s][r] == rows[r][s] * row for r in range(4) for s in range(4) if r != s), "results of those rows"
    assert ways[2] == [list(map(int, line)) for line in skewed.trace.bytes_between()]


def test_what_is_said_of_a_step_of_training():
    class Run:
        results = [[hot.Step(5.0, [4, 4, 4, 4]), hot.Step(4.0, [8, 8, 0, 0])]]

    words = [text for _, text in hot.shares(Run()).frames]
    assert words == [
        "Step 1: 50% of the tokens choose expert 0, which is 1 times the mean. Every expert gets some.",
        "Step 2: 100% of the tokens choose expert 0, which is 2 times the mean. 2 of 4 experts get none.",
    ]


def test_the_parameters_of_mixtral():
    assert shapes.MIXTRAL.all == pytest.approx(46.7e9, rel=1e-3)
    assert shapes.MIXTRAL.active == pytest.approx(12.9e9, rel=2e-3)


def test_the_example_of_the_queue_has_the_loads_that_it_says():
    for seed in (0, 1, 7):
        assert layers.waiting_line(seed=seed).bincount().tolist() == list(layers.LOADS)


def test_a_layer_waits_for_its_busiest_rank_and_not_for_its_busiest_expert() -> None:
    steps = [hot.Step(0.0, [8, 0, 2, 2]), hot.Step(0.0, [6, 2, 2, 2])]
    assert hot.imbalance(steps) == pytest.approx([8 / 3, 2]) and hot.imbalance(steps, 2) == pytest.approx(
        [4 / 3, 4 / 3]
    )
    assert hot.late(steps, 2) == pytest.approx(4 / 3)


def test_how_alike_tokens_are_is_the_mean_cosine_of_two_different_ones() -> None:
    every = (torch.eye(3), torch.ones(3, 3), torch.tensor([[1.0, 0], [2, 0], [0, 3]]))
    assert [hot.cosine(tokens) for tokens in every] == pytest.approx([0, 1, 1 / 3], abs=1e-6)


WRONG = {
    "that leaves the results sorted": ("return y", "What your function returned. 19 results are wrong (framed)."),
    "that returns nothing": ("return None", "What your function returned. 24 results are missing."),
    "where nothing travels": ("return 10 * x_md", "What your function returned. 24 results are wrong (framed)."),
    "that returns the rows": ("return x_md", "What your function returned. 24 results are wrong (framed)."),
    "that is right": ("result = torch.empty_like(y); result[order] = y; return result", ""),
}


@pytest.mark.ranks
@pytest.mark.parametrize("name", WRONG)
def test_a_journey_is_played_as_it_really_went(name) -> None:
    end, words = WRONG[name]
    known: dict = {"torch": torch, "__name__": "reader"}
    alone = f"def through_experts(x_md, expert_m, compute, group, per_rank):\n    {end}"
    exec(alone if "x_md" in end else wrong_12.through(end=end), known)

    player = travel.yours(labkit.launch, 4, known["through_experts"], 2)
    assert len(player.frames) == (3 if words else 7)
    assert not words or player.frames[2][1] == words
    assert ("nothing at any rank" in player.frames[1][1]) == ("x_md" in end)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("which", "why", "key"),
    [("expert_m[order] % per_rank", "as e1", "10 rows came with the number"), ("expert_m", "by e", "came with")],
)
def test_a_wrong_result_says_why_in_its_box(which, why, key) -> None:
    known: dict = {"torch": torch, "__name__": "reader"}
    exec(wrong_12.through(which=which), known)

    player = travel.yours(labkit.launch, 4, known["through_experts"], 2)
    svg = "".join(svg for svg, _ in player.frames[1:])
    assert why in svg and "A dashed frame: wrong." in svg and key in player.frames[1][1]


@pytest.mark.ranks
def test_dropped_choices_do_not_fly() -> None:
    run = labkit.launch(layer, 4, 1.0, "position", clock="virtual")
    kept = sum(flying.rows_by_rank(run.results))
    words = flying.flying(run).frames[1][1]
    assert f"{kept} of 96 choices fly" in words and f"The other {96 - kept} " in words


@pytest.mark.ranks
@pytest.mark.parametrize(("shared", "overlap", "words"), [(50, True, "has finished"), (400, True, "still works"),
                                                          (50, False, "results are back")])  # fmt: skip
def test_a_shared_expert_is_hidden_as_long_as_rows_travel(shared, overlap, words) -> None:
    def forward(group):  # type: ignore[no-untyped-def]
        made = layers.with_shared(group, 8, shared, overlap)
        made(layers.alike(made, 64, 0.0))

    run = labkit.launch(forward, 4, clock="virtual", network=travel.far_apart(4))
    figure = pictures.shared_expert(run, overlap)
    assert words in figure.sentence and figure.svg.count(">shared expert<") == 4 * (shared > 100)
    work = [row for row in figure.rows if row["works at"] == "shared expert"]
    assert pictures.free(run) == pytest.approx(min(
        row["to (µs)"] - row["from (µs)"] for row in figure.rows if row["works at"] == "rows"), abs=1)  # fmt: skip
    assert len(work) == 4 and all(abs(row["to (µs)"] - row["from (µs)"] - shared) <= 1 for row in work)


def test_bars_of_a_cure_stand_beside_those_of_nothing() -> None:
    class Cured:
        results = [[hot.Step(5.0, [8, 4, 4, 0]), hot.Step(4.0, [4, 4, 4, 4])]]

    class Alone:
        results = [[hot.Step(5.0, [8, 4, 4, 0]), hot.Step(4.0, [8, 8, 0, 0])]]

    svg, words = hot.shares(Cured(), beside=Alone()).frames[-1]
    assert words.endswith("is 1 times the mean. Every expert gets some. With nothing the busiest one has 2 times.")
    player = hot.shares(Cured(), beside=Alone())
    assert player.label == player.widget.label == "Picture", "a picture is not a step of training"
    assert "Empty: the same step with nothing." in svg and "Empty" not in hot.shares(Cured()).frames[-1][0]


@pytest.mark.ranks
@pytest.mark.parametrize(("size", "said"), [(3, True), (4, False)])
def test_where_a_column_is_a_single_rank_the_picture_says_so(page, size, said) -> None:
    page["experts"] = 2 * size
    run = labkit.launch(page["three_steps"], size, "the replicas")
    assert ("A column is a single rank" in pictures.compared(run, "SGD", "the replicas").sentence) == said


def test_the_choice_of_the_page_adds_the_bias_for_who_is_chosen_and_not_for_the_weight(page) -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0]])
    experts, weights = page["chosen"](logits, 2, torch.tensor([3.0, -5.0, 0.0]))
    assert experts.tolist() == [[0, 2]] and torch.allclose(weights, torch.tensor([[1.0, 0.0]]).softmax(-1))


@pytest.mark.ranks
def test_a_gradient_that_is_none_is_told() -> None:
    with pytest.raises(labkit.RankFailed, match="NoneType. A gradient .* had no part in the loss"):
        labkit.launch(lambda group: all_reduce(None, group), 2)


def test_a_capacity_is_a_line_over_the_load_crossed_above_and_dotted_below() -> None:
    load, slots = [9, 1, 4, 2], 4
    kept = sum(min(n, slots) for n in load)
    point = pictures.Paid(1 - kept / sum(load), 1 - kept / (4 * slots), 2.0, load, slots)
    player = pictures.trade({1.0: point})
    assert player.frames[0][1] == (
        "With a factor of 1 an expert has 4 slots. 31% of the choices are dropped, and 31% of the slots stay empty."
    )
    svg = player.frames[0][0]
    assert svg.count('stroke-dasharray="2 2"') == 2, "experts 1 and 3 have empty slots"
    assert svg.count(f'fill="{BLUE}"') == 4 and "4 slots each" in svg


def test_what_logits_have_in_common_is_all_or_nothing_or_a_part() -> None:
    same, one = torch.tensor([[1.0, -1.0]]).expand(1, 2, 2), torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]])
    assert hot.common(same + torch.tensor([[[0.0], [7.0]]])) == pytest.approx(1), "a constant of a token says nothing"
    assert hot.common(one) == pytest.approx(0)
    assert hot.common(torch.tensor([[[2.0, -2.0], [0.0, 0.0]]])) == pytest.approx(0.5)


def test_the_loss_of_the_task_is_a_mean_over_the_ranks_and_the_last_half() -> None:
    class Run:
        results = [[hot.Step(9.0, [1]), hot.Step(4.0, [1])], [hot.Step(8.0, [1]), hot.Step(2.0, [1])]]

    assert hot.task(Run()) == 3
