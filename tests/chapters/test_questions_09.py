"""The questions of chapter 9: keys beside numbers worked out by hand, and what their texts claim."""

from __future__ import annotations

import pytest

from labkit import cost
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Question

CHAPTER = load_chapter("09_tensor_parallelism")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("columns-of-qkv", "(16 + 1 + 1) * 128"),
        ("bytes-of-a-layer", "4 * 1.5 * 2 * 4096 * 8192 * 2 / 10**6"),
        ("border-or-layers", "6 * 4 * 7 / 4 / 2"),
        ("ten-and-twenty-four", "(10 + 24 / 8) / (34 / 8)"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "word"),
    [
        ("columns-of-qkv", "6144", "16 queries share one key"),
        ("columns-of-qkv", "2048", "its value come to it"),
        ("bytes-of-a-layer", "402.65", "forward pass"),
        ("bytes-of-a-layer", "1073.7", "limit of many ranks"),
        ("border-or-layers", "24", "two messages"),
        ("ten-and-twenty-four", "8", "24 were cut already"),
    ],
)
def test_a_known_slip_is_told_its_reason(id: str, typed: str, word: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and word in told.why


@pytest.mark.parametrize("typed", ["reduce-scatter", "a reduce scatter", "Reduce_Scatter", "reducescatter"])
def test_the_partner_of_a_gather_may_be_written_in_many_ways(typed: str) -> None:
    assert QUESTIONS["partner-of-gather"].mark(typed).right


@pytest.mark.parametrize(
    ("typed", "word"),
    [("all-reduce", "twice as much"), ("all-gather", "a sum"), ("scatter", "summed, too"), ("nothing", "come back")],
)
def test_another_collective_is_told_why_it_is_not_the_partner(typed: str, word: str) -> None:
    told = QUESTIONS["partner-of-gather"].mark(typed)
    assert not told.right and word in told.why


def test_predictions_declare_what_the_run_of_the_chapter_shows() -> None:
    assert CHAPTER.forecast("four-orders", {"n": 4}).declared == (1, 2, 2, 2)
    assert CHAPTER.forecast("bytes-by-degree", {"degrees": [2, 4, 8]}).declared == pytest.approx((1, 1.5, 1.75))
    told = CHAPTER.forecast("across-nodes", {"inside": 12e-3, "sending": 2e-3, "ratio": 9, "factor": 1 + 8 * 2 / 12})
    assert told.declared == pytest.approx((28 / 12,)), "10 ms of computing, and 9 times 2 ms"
    assert "12 ms" in told.prompt and "9 times slower" in told.prompt


def test_the_numbers_of_the_textbook_that_the_chapter_quotes() -> None:
    """Sections 1.4 and 1.4.2.3. Bytes that a rank sends for one microbatch at t = 8; 134 MB takes 7/4 for 2."""
    example = {"batch": 4, "sequence": 2048, "hidden": 4096}
    payload = cost.tensor_parallel_payload_bytes(**example)
    assert payload == pytest.approx(67e6, rel=0.01) and 2 * payload == pytest.approx(134e6, rel=0.01)
    layer = cost.tensor_parallel_bytes(**example, layers=1, size=8)
    assert layer / 4 == pytest.approx(117.4e6, rel=0.001)
    assert 96 * 4 * 2 * payload == pytest.approx(51e9, rel=0.02) and 96 * layer == pytest.approx(45.1e9, rel=0.001)

    one = {"batch": 1, "sequence": 2048, "hidden": 12288, "layers": 96, "heads": 96}
    assert cost.zero_state_bytes(175e9, 64, 3) + 50e9 == pytest.approx(93.75e9), "the wall of the textbook"
    assert cost.activation_bytes(**one) == pytest.approx(275.4e9, rel=0.001), "not 50 GB"
    assert cost.tensor_parallel_activation_bytes(**one, size=8) == pytest.approx(55.6e9, rel=0.001)


def test_what_is_said_of_widths_and_of_utilization_is_so() -> None:
    reached, wires = 0.5 * 989e12, cost.wires
    palm, mt_nlg = 18_432, 20_480
    for width in (palm, mt_nlg):
        for wire, size in ((wires.NVLINK, 64), (wires.INFINIBAND, 8)):
            assert cost.least_hidden_size(size, reached, wire) < width < cost.least_hidden_size(2 * size, reached, wire)
        assert cost.least_hidden_size(2, reached, wires.ETHERNET) > width
    layer = cost.tensor_parallel_layer(4, 2048, 12288, 8, reached, wires.INFINIBAND)
    kept = [0.5 * layer.compute / (layer.compute + ports * layer.communication) for ports in (1, 8)]
    assert kept[0] == pytest.approx(0.2, abs=0.03) and kept[1] < 0.1


def test_gathered_weights_and_summed_activations_send_the_same_at_four_and_a_half_widths_of_tokens() -> None:
    hidden, ranks = 512, 8
    tokens = 9 * hidden // 2
    summed = cost.tensor_parallel_bytes(1, tokens, hidden, 1, ranks)
    gathered = cost.zero_bytes_per_step(12 * hidden**2, ranks, 3)
    assert summed == pytest.approx(gathered)
