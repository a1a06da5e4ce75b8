"""A chapter file of every kind, with keys that are easy to find again in an output."""

from __future__ import annotations

from pathlib import Path

from labkit.course.chapter_file import ChapterFile, read_chapter

VALUES = {"world_size": 8, "nbytes": 4_000_000}
SAMPLE = """
[[prediction]]
id = "bytes"
kind = "number"
prompt = "How many MB leave each of {world_size} ranks, with {format_bytes(nbytes)}?"
boxes = [
    { label = "MB from each", unit = "MB", answer = "617.25" },
    { label = "messages", answer = "2 * world_size - 2", whole = true }
]

[[prediction]]
id = "who-waits"
kind = "choice"
prompt = "Who waits?"
choices = ["nobody", "rank 0", "all but rank 0"]
answer = "2"

[[prediction]]
id = "bubble"
kind = "sketch"
prompt = "Draw the waiting."
x = "[1, 2, 4, 8]"
y = "[0, 25, 50, 75, 100]"
x_label = "microbatches"
y_label = "% waiting"
answer = "[81.125, 67.5, 43.25, 27.375]"

[[quiz]]
id = "pick-one"
kind = "choice"
objective = "ring-bytes"
source = "a source"
prompt = "Which one for {world_size} ranks?"
explanation = "EXPLAINED-ONE"
choices = [
    { text = "alpha", right = true }, { text = "beta", why = "WHY-BETA" }, { text = "gamma", why = "WHY-GAMMA" },
]

[[quiz]]
id = "pick-some"
kind = "several"
objective = "ring-bytes"
source = "a source"
prompt = "Which ones?"
explanation = "EXPLAINED-SOME"
choices = [
    { text = "alpha", right = true, missed = "MISSED-ALPHA" }, { text = "beta", why = "WHY-BETA" },
    { text = "gamma", right = true }, { text = "delta", why = "WHY-DELTA" },
]

[[quiz]]
id = "a-number"
kind = "numeric"
objective = "ring-bytes"
source = "a source"
with = { size = "40 * MB", n = "5" }
prompt = "How many MB, with {format_bytes(size)} on {n} ranks?"
explanation = "EXPLAINED-NUMBER"
answer = "cost.ring_all_reduce_bytes(size, n) / MB"
unit = "MB"
tolerance = 0.01
slips = [
    { value = "size / MB", why = "WHY-WHOLE" },
    { value = "cost.ring_reduce_scatter_bytes(size, n) / MB", why = "WHY-HALF" },
]

[[quiz]]
id = "in-order"
kind = "order"
objective = "ring-bytes"
source = "a source"
prompt = "In which order?"
explanation = "EXPLAINED-ORDER"
items = ["forward", "backward", "all-reduce", "update"]
slips = [ { before = "update", after = "all-reduce", why = "WHY-UPDATE" } ]

[[quiz]]
id = "a-word"
kind = "text"
objective = "ring-bytes"
source = "a source"
prompt = "Which collective?"
explanation = "EXPLAINED-WORD"
accept = ["reduce-?scatter", "scatter-by-sum", "Scatter_And_Add"]
answer = "REDUCE-AND-SCATTER"
slips = [ { match = "^scatter$", why = "WHY-SCATTER" } ]
"""


def chapter(tmp_path: Path, text: str = SAMPLE, name: str = "99_sample") -> ChapterFile:
    """The sample as a loaded file; `text` in place of it."""
    path = tmp_path / f"c{name}" / "questions.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return read_chapter(path)
