"""Gradients that arrive in another order on one rank, and what comes of it where a bucket leaves as soon as it is full.

A rank that computes two independent parts of a model in another order has this. A GPT is a chain and has no such parts.
So here the gradients come as ever, and only the hooks of some of them are called later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit import RankFailed, book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing
from labkit.chapters.c04_data_parallelism.steps import step_of

Hook = Callable[[Tensor], None]
SAYS = {"the same": "averaged", "mixed": "layers mixed", "error": "sizes differ: error", "never": "never begins"}
ORDINALS = dict(enumerate(("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"), 1))


def arrive_late(some: Collection[nn.Parameter], after: Collection[nn.Parameter]) -> None:
    """Hooks that are registered on `some` from now on are called when all those of `after` have been."""
    waiting: list[tuple[Hook, Tensor]] = []
    missing = set(after)

    def held_back(hook: Hook, p: Tensor) -> None:
        if missing:
            waiting.append((hook, p))
        else:
            hook(p)

    def then_the_others(hook: Hook, p: Tensor) -> None:
        hook(p)
        missing.discard(p)
        while waiting and not missing:
            late, q = waiting.pop(0)
            late(q)

    for parameters, through in ((some, held_back), (after, then_the_others)):
        for p in parameters:
            really = p.register_post_accumulate_grad_hook

            def register(hook: Hook, really: Any = really, through: Any = through) -> Any:
                return really(partial(through, hook))

            p.register_post_accumulate_grad_hook = register  # type: ignore[method-assign]


def outcome(run: Any) -> list[Tensor] | str:
    """The gradient of each rank; the first line of the error if the run failed."""
    if run.failures:
        return str(RankFailed(run.failures[0], run)).splitlines()[0]
    gradients: list[Tensor] = run.results
    return gradients


def distances(gradients: list[Tensor], right: Tensor) -> list[float]:
    """How far each rank's gradient is from the right one, as a part of that one's length."""
    return [((g - right).norm() / right.norm()).item() for g in gradients]


def _in_bytes(error: str, trace: Any) -> str:
    """A mismatch of two tensors as the bytes that ranks sent, and to which all-reduce of the step."""
    pattern = r"Mismatch: (ranks? .+?) called all_reduce on (\w+)\[(\d+)\] .+, but (ranks? .+?) called all_reduce on "
    found = re.match(pattern + r"(\w+)\[(\d+)\] .+ \(call (\d+) of the group\)", error)
    if found is None:
        return error
    odd, kind, few, others, other_kind, many, call = found.groups()
    begun = min(span.start for span in trace.spans("step"))
    before = sum(c.rank == 0 and not c.nested and c.start < begun for c in trace.collectives())
    sent = [f"{int(count) * getattr(torch, dtype).itemsize:,}" for count, dtype in ((few, kind), (many, other_kind))]
    which = int(call) - before
    named = sum(int(b or a) - int(a) + 1 for a, b in re.findall(r"(\d+)(?: to (\d+))?", f"{odd}, {others}"))
    missing = trace.world_size - named
    rest = f"; the other rank{'s were' if missing > 1 else ' was'} not there yet" if missing else ""
    return (
        f"an error in the {ORDINALS.get(which, f'{which}th')} all-reduce of the step, because "
        f"{odd} sent {sent[0]} bytes, and {others} sent {sent[1]}{rest}."
    )


def told(came: list[Tensor] | str, k: int, stage_c: Any) -> str:
    """What came of it that rank 1 has sent bucket `k` after the next one. stage_c: the run in which it did not."""
    journeys, right = step_of(stage_c).journeys, stage_c.results[0]
    sizes = listing([f"{journeys[n].nbytes:,}" for n in (k, k + 1)])
    if isinstance(came, str):
        return f"buckets {k} and {k + 1} ({sizes} bytes): {_in_bytes(came, stage_c.trace)}"
    zero, one, *_ = distances(came, right)
    return (
        f"buckets {k} and {k + 1} ({sizes} bytes): no error. Rank 0's gradient is {zero:.2%} away from "
        f"that of stage C, and rank 1's {one:.2%}."
    )


Came = Mapping[int, list[Tensor] | str]  # by the bucket that was late on rank 1: its `outcome`


def like_stage_c(runs: Mapping[str, Any], stage_c: Any) -> book.Conclusion:
    """Whether every rank of each run ended with the gradient of stage C. runs: by the name of the wrapper."""
    right = stage_c.results[0]
    off = [name for name, run in runs.items() if not all(torch.allclose(g, right, atol=1e-6) for g in run.results)]
    return book.conclude(
        {"wrong == 0": "Yes: the one-page wrapper that is printed below, labkit's and PyTorch's all leave the "
         "gradient of stage C on every rank, to $10^{{-6}}$.",
         "True": "Not all of them do: with that of {off} the gradient is another one."},
        wrong=len(off), off=listing(off),
    )  # fmt: skip


def show(runs: Sequence[Any], stage_c: Any, by: Callable[..., Any] | None = None) -> book.Conclusion:
    """Draw which buckets were added together, and say what came of it. by: as `outcomes`.

    runs: one with the first bucket late on rank 1, and one with the second to last.
    """
    from IPython.display import display

    late = 0, len(step_of(stage_c).journeys) - 2
    came = {k: outcome(run) for k, run in zip(late, runs, strict=True)}
    display(pairs(came, stage_c))
    return outcomes(came, stage_c, by)


def pairs(came: Came, stage_c: Any) -> book.Figure:
    """Which bucket of rank 0 is added to which one of rank 1, all-reduce by all-reduce, and what that does.

    The order is the one that was asked for, and whether the ranks kept to it is seen in their gradients.
    """
    sizes = [journey.nbytes for journey in step_of(stage_c).journeys]
    title, left, told, rows = "Which buckets are added together", 112.0, list[str](), list[Row]()
    slot = (WIDTH - 120.0) / len(sizes)
    for k, found in came.items():
        mixed = isinstance(found, str) or max(distances(found, stage_c.results[0])) > 1e-6
        theirs = [*range(k), k + 1, k, *range(k + 2, len(sizes))] if mixed else list(range(len(sizes)))
        how = ["the same" if a == b else "error" if sizes[a] != sizes[b] else "mixed" for a, b in enumerate(theirs)]
        if "error" in how:
            how[how.index("error") + 1 :] = ["never"] * (len(sizes) - how.index("error") - 1)
        which = f"Bucket {k} late on rank 1"
        added = [
            f"bucket {a} of rank 0 is added to bucket {b} of rank 1" for a, b in enumerate(theirs) if how[a] == "mixed"
        ]
        added += [f"bucket {a} of rank 0 cannot be added to bucket {b} of rank 1, which has another size"
                  for a, b in enumerate(theirs) if how[a] == "error"]  # fmt: skip
        told.append(f"{which}: {listing(added) if added else 'each bucket is added to the same bucket of the others'}.")
        rows += [{"late": f"bucket {k}", "all-reduce": a + 1, "rank 0 sends": f"bucket {a}",
                  "rank 1 sends": f"bucket {b}", "what happens": how[a]} for a, b in enumerate(theirs)]  # fmt: skip
    said = " ".join(told)
    svg = Svg(WIDTH, title, said)
    y = heading(svg, "emulated", said) + 6
    for number, k in enumerate(came):
        svg.text(8, y + 12, f"Bucket {k} late on rank 1, from the first all-reduce to the last", bold=True)
        svg.text(8, y + 54, "rank 0 sends", 11.5)
        svg.text(8, y + 108, "rank 1 sends", 11.5)
        for column, row in enumerate(rows[number * len(sizes) : (number + 1) * len(sizes)]):
            x, what = left + column * slot, row["what happens"]
            for line, rank in ((y + 36, 0), (y + 90, 1)):
                name = str(row[f"rank {rank} sends"])
                bucket = int(name.split()[1])
                look = SERIES[bucket % len(SERIES)]
                wide = (slot - 14) * sizes[bucket] / max(sizes)
                svg.rect(x, line, wide, 26, look.colour, look.hatch, ON_COLOUR, "3 3" if what == "never" else "")
                svg.text(x, line - 3, name, 10.5) if rank == 0 else svg.text(x, line + 39, name, 10.5)
            good = what == "the same"
            svg.line(x + 14, y + 64, x + 14, y + 88, "" if good else "4 3", 1.5 if good else 3)
            svg.text(x + 22, y + 80, SAYS[str(what)], 11, bold=not good)
        y += 150
    return book.Figure(title, "emulated", said, rows, svg.render(y))


def outcomes(came: Came, stage_c: Any, by: Callable[..., Any] | None = None) -> book.Conclusion:
    """What came of it, for each bucket that was late on rank 1, and what that means. by: what has sent them; it is said
    where that is the book's and not the reader's."""
    right = stage_c.results[0]
    first, *_, last = (not isinstance(what, str) for what in came.values())
    wrong = sum(isinstance(what, str) or max(distances(what, right)) > 1e-6 for what in came.values())
    return book.conclude(
        {"books": "**Not yours yet.** With the *book's* `{name}`:\n\n", "True": ""},
        "\n".join(f"- {told(what, k, stage_c)}" for k, what in came.items()).replace("{", "{{").replace("}", "}}"),
        "\n\n",
        {
            "wrong == 0": "Both gradients are those of stage C.",
            "first": "The first two buckets have the same size, because the blocks of the model are alike. So no "
            "rank could notice that rank 1 had sent them in the other order: two all-reduces added the gradients of "
            "one layer to those of another, without an error. Rank 1 also writes the first sum "
            "into bucket 1 and the second into bucket 0, and {others} the opposite. So the ranks do not even "
            "hold the same wrong gradient, and the replicas drift apart.",
            "True": "At this width the first two buckets have different sizes. labkit compares what the ranks send, "
            "and so it raises an error. If they had the same size, the gradients of one layer would be added to "
            "those of another without an error.",
        },
        {
            "wrong == 0": "",
            "last": "In the second run buckets {k} and {l} have the same size as well, so their gradients "
            "are mixed, too.",
            "first": "In the second run buckets {k} and {l} have different sizes. labkit compares what "
            "the ranks send, and so it raises an error.",
            "True": "In the second run the sizes of buckets {k} and {l} differ as well.",
        },
        wrong=wrong, first=first, last=last, k=max(came), l=max(came) + 1, n=stage_c.trace.world_size,
        others="the other ranks do" if stage_c.trace.world_size > 2 else "rank 0 does",
        name=by and by.__name__, books=by is not None and book.whose(by) != "your",
    )  # fmt: skip
