"""Numbers that chapter 16 and its quiz say in words are those of the cost functions and of the library."""

import json
import math
from pathlib import Path

import pytest
import torch

from labkit import cost
from labkit.align import group_advantages
from labkit.align.batching import first_fit_decreasing
from labkit.align.fleet import Asynchronous
from labkit.align.task import ROOM, prepared
from labkit.chapters.c16_alignment import drawings
from labkit.course.chapter_file import load_chapter

NOTEBOOK = json.loads((Path(__file__).parents[2] / "notebooks/16_alignment.ipynb").read_text())
TEXT = {cell["id"]: "".join(cell["source"]) for cell in NOTEBOOK["cells"]}


def test_what_the_page_says_in_words():
    def preferred(apart):
        return f"{1 / (1 + math.exp(-apart)):.0%}"

    assert f"a difference of 1 it is {preferred(1)}, and with 3 it is {preferred(3)}" in TEXT["s7"]
    pairs = prepared.__wrapped__.__defaults__[2]
    assert f"divided by {ROOM}," in TEXT["s7"] and f"from {pairs} pairs" in TEXT["s7"]
    assert f"cut off at {Asynchronous(1).cap:g}," in TEXT["s6"]
    frames = [words for _, words in drawings.advantages().frames]
    assert all(f"{guess:.1f}" in frames[0] for guess in drawings.EXPECTED)
    assert f"The reward is {drawings.REWARD:g}." in frames[1]
    group = torch.tensor([[3.0, 1.0, 2.0, 1.0]])
    told = f"mean is {group.mean():g} and their deviation {group.std():.2f}, so every token of the first one has the"
    assert "rewards of 3, 1, 2 and 1, their " + told in TEXT["s9"]
    assert f"advantage {float(group_advantages(group)[0, 0]):+.2f}." in TEXT["s9"]


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("gpus-of-four-models", (f"{18 * 60:,} GB", f"{18 * 60 / 80:g} GPUs")),
        ("cache-of-a-rollout", (f"{cost.kv_cache_bytes(32, 8, 128, 2048, 64) / 1e9:.1f} GB",)),
        ("one-model-a-pool", (f"= {cost.separate_seconds(64, 32, 8, 8, False):g} minutes",
                              f"= {cost.colocated_seconds(64, 32, 16):g} minutes")),
        ("padding-of-a-batch", (f"{cost.padding_waste([1024] + [256] * 7):.1%}", f"{1024 + 7 * 256:,} tokens",
                                "three rows")),
        ("loss-at-the-start", (f"{math.log(2):.3f}",)),
        ("which-loss-of-a-token", (f"= \u2212{-min(-1.5, -1.2):g}",)),
    ],
)  # fmt: skip
def test_what_the_explanations_say(id, words):
    said = load_chapter("16_alignment").questions[id]["explanation"]
    assert all(word in said for word in words), said
    assert len(first_fit_decreasing([1024] + [256] * 7, 1024)) == 3
