"""Keys of chapter 11 and what its checks compare with: slips are told apart, bytes are those of the library's runs, and
the rubric's times are those of the formula."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from slips import every_draw, letters_have_reasons, tell_apart

from labkit import cost
from labkit.chapters.c11_context_parallelism.checks import heads_read, swapped_bytes, zigzag_attention
from labkit.grading.answers import find_key
from labkit.parallel.context.blocks import pairs
from labkit.parallel.context.layouts import positions_of
from labkit.parallel.context.masks import Mask

CHAPTER = "11_context_parallelism"
RING = every_draw(N=[8, 16, 32], tokens=[131072, 262144], g=[4, 8])
BLOCK = every_draw(tflops=[400, 500, 600], both=[100, 200, 900], g=[4, 8, 16], N=[16, 32, 64])
WAITS = every_draw(N=[4, 6, 8, 12], t=[16, 32, 64])
HEADS = every_draw(h=[32, 64], g=[4, 8, 16], N=[2, 4], tokens=[65536, 131072])
SHARED = every_draw(k=[256, 512, 1024], gpus=[16, 32, 64])
KEYS = [
    (RING, "forward_mb backward_mb all_gather_mb times_held"),
    (BLOCK, "tokens_each tokens_of_text tokens_backward"),
    (WAITS, "busiest_percent idle_percent striped_times zigzag_faster"),
    (HEADS, "ulysses_mb ring_mb fewest_ranks most_ranks"),
    (SHARED, "logits_gb one_rank_gb fewest_to_fit"),
]


def answer(name, **numbers):
    return find_key(CHAPTER, name, **numbers).answer


@pytest.mark.parametrize("draws, name", [(draws, name) for draws, names in KEYS for name in names.split()])
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(draws, name):
    tell_apart(find_key(CHAPTER, name, **numbers) for numbers in draws)


@pytest.mark.parametrize(
    "name, right, letters", [("what_shortens", "ace", "abcdef"), ("what_is_divided", "bce", "abcde")]
)
def test_letters_have_a_reason_each(name, right, letters):
    letters_have_reasons(find_key(CHAPTER, name), right, letters)


def test_numbers_worked_out_by_hand():
    assert answer("forward_mb", N=16, tokens=131072, g=8) == pytest.approx(15 * 2 * 8 * 128 * 8192 * 2 / 1e6)
    assert answer("backward_mb", N=16, tokens=131072, g=8) == pytest.approx((15 + 2 * 16) * 33.554432)
    assert answer("tokens_each", tflops=500, both=900, g=4, N=16) == pytest.approx(2 / 16 * 500e12 / 450e9)
    assert answer("logits_gb", k=1024, gpus=16) == pytest.approx(538, rel=1e-3)
    assert answer("fewest_ranks", h=64, g=8, N=2, tokens=65536) == 16  # 160/16 heads against 16; 144/8 against 16


@pytest.mark.parametrize("numbers", WAITS[::3])
def test_waiting_is_counted_in_pairs_of_the_masks(numbers):
    n, t = numbers["N"], numbers["t"]
    places = [positions_of(r, n, n * t, "contiguous") for r in range(n)]
    work = [sum(pairs(q, k, Mask()) for k in places) for q in places]
    assert answer("busiest_percent", **numbers) == pytest.approx(100 * max(work) / sum(work))
    assert answer("idle_percent", **numbers) == pytest.approx(100 * (1 - work[0] / work[-1]))
    assert answer("zigzag_faster", **numbers) == pytest.approx(n * work[-1] / sum(work))


def test_the_backward_pass_hides_at_a_fifth_more_tokens():
    for numbers in BLOCK:
        assert answer("tokens_backward", **numbers) == pytest.approx(1.2 * answer("tokens_each", **numbers))


@pytest.mark.parametrize("n, heads, kv_heads", [(1, 6, 2), (2, 6, 6), (4, 8, 4), (4, 8, 2), (4, 4, 1)])
def test_bytes_of_heads_are_those_of_the_formula_where_groups_fit(n, heads, kv_heads):
    keys = [len(read) for read in heads_read(n, heads, kv_heads)]
    lengths = [5 + r for r in range(n)]
    formula = cost.ulysses_bytes_by_rank(lengths, heads, kv_heads, 3, itemsize=8, passes="forward")
    assert swapped_bytes(lengths, heads, keys, 3) == formula


def test_heads_of_keys_that_a_group_cuts_are_sent_once():
    assert heads_read(3, 6, 2) == [[0], [0, 1], [1]] and heads_read(4, 12, 3) == [[0], [0, 1], [1, 2], [2]]
    keys = [len(read) for read in heads_read(3, 6, 2)]
    copied = cost.ulysses_bytes_by_rank([4] * 3, 6, 2, 3, itemsize=8, passes="forward")
    assert all(own < more for own, more in zip(swapped_bytes([4] * 3, 6, keys, 3), copied, strict=True))


def test_zigzag_is_attention_over_the_whole_text():
    q, k, v = torch.randn(3, 2, 24, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    right, causes = zigzag_attention(q, k, v, 3)
    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    for rank, (out, _) in enumerate(right):
        assert torch.allclose(out, whole[:, positions_of(rank, 3, 24, "zigzag")])
    for why, wrong in causes["out"].items():
        assert not all(torch.allclose(a, b[0]) for a, b in zip(wrong, right, strict=True)), why


def test_the_rubric_has_the_times_of_the_formula():
    path = Path(__file__).parents[2] / "solutions" / f"{CHAPTER}.ipynb"
    if not path.exists():
        pytest.skip("a student's copy has no solutions")
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]}
    rubric = cells["a-ring-of-your-own-rubric"]
    for layout in ("contiguous", "zigzag"):
        for tokens in (24, 32):
            times = [
                1000 * cost.ring_attention_seconds(4, 4 * tokens, layout, 1e-5, 512 * tokens / (mb * 1e6))
                for mb in (2, 3, 4)
            ]
            said = "{:.1f}, {:.1f} or {:.1f} ms".format(*times)
            assert said in rubric, said
