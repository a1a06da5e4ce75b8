"""The code that computes a line, to change and to run."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

from labkit.book.frontend import INSIDE, Panel
from labkit.chapters.cA_errata import agreeing, apart as one_line, pictures
from labkit.course import errata
from labkit.course.errata import Erratum, erratum, groups
from labkit.course.errors import CourseError

TITLES = {
    "half-the-gpus": "price of 512 GPUs for 19 hours",
    "twenty-or-nine": "all-reduce, InfiniBand over NVLink",
    "where-warmup-begins": "learning rate at the first step of a warmup",
    "another-drop": "samples lost with a smaller batch",
    "bert-links": "link that BERT-Base needs",
    "ceiling-of-three": "speed of 8 GPUs over one",
    "daily-checkpoint": "work lost at a failure",
    "dense-trillions": "parameters of a run",
    "each-microbatch": "idle time of four stages",
    "early-layers-first": "which layer is first",
    "equal-tokens": "error of a weighted average",
    "exceptional-or-routine": "speed of 1,000 GPUs",
    "experts-of-two": "room for two experts",
    "fewer-stages-of-32": "bubble of 32 stages",
    "fixed-lengths": "lengths of DPO's sequences",
    "fifty-gigabytes": "activations of one sequence",
    "fp8-under-bf16": "range of FP8 under BF16",
    "hierarchical-both": "hierarchical all-reduce of 3 GB",
    "latency-bound": "part of latency in a hop",
    "lowest-bandwidth": "data parallelism over pipeline",
    "more-memory-for-less-bubble": "memory for a smaller bubble",
    "more-than-double": "samples of a doubled batch",
    "no-infinity": "infinities of a format",
    "one-of-678": "one interruption of 678",
    "one-rank-or-all": "what 1F1B saves on one rank",
    "only-recourse": "175B by ZeRO-3 on 64 GPUs",
    "orders-of-magnitude": "orders that 0.01 % saves",
    "parameter-storage": "GPUs for four models",
    "part-of-the-time": "utilization of PPO",
    "pools-of-nothing": "GPUs left for a pool",
    "pools-that-wait": "GPU time used by two pools",
    "power-of-the-failed": "power of 30 GPUs for 32",
    "prompts-in-the-cache": "KV cache with the prompts",
    "rejoin-left-out": "effective time of 12 replicas",
    "seven-on-eighty": "state of 7B on one GPU",
    "single-digits": "utilization over InfiniBand",
    "superlinear": "computing of 70B over 1B",
    "ten-to-forty": "communication in a step of 175B",
    "two-bases": "tax of 5 minutes in 10",
    "two-of-three": "collectives of full sharding",
    "warmup-and-one": "microbatches of the first stage",
    "zero1-none": "bytes of ZeRO-1 over plain",
    "zero1-on-eighty": "175B by ZeRO-1, of one GPU",
}  # of the lines that have no name elsewhere
CASE = "hierarchical-both"  # the line of the case
# Lines whose computation shows nothing that their sentence does not say
NO_SUM = ("dense-trillions", "no-infinity", "early-layers-first", "bound-without-rate", "two-of-three", "nic-names")


def changeable(always: str = "") -> list[tuple[str, str]]:
    """The lines with something to compute, group by group: what each is called, and its id.

    That of the case is left to the reader to find. always: a line that is there in any case.
    """
    left_out = {CASE, *NO_SUM} - {always}
    return [
        (f"{e.id}: {_label(e)}", e.id)
        for kind in groups()
        for e in errata().values()
        if e.kind == kind and e.id not in left_out
    ]


def _label(entry: Erratum) -> str:
    """What a line is called in the list: by its pencil's question, as a number of section 2, or by its own title."""
    asked = one_line.pencils().get(entry.id)
    return asked.label if asked else agreeing.NAMES.get(entry.id) or TITLES[entry.id]


class Computed(Panel):
    """Any line, with the code that computes it: to change and to run, without a cell."""

    def __init__(self, entry: Erratum) -> None:
        super().__init__()
        self.entry = entry

    def words(self) -> str:
        """What the line says, and why that cannot be."""
        e = self.entry
        read = f", which we read as {pictures.needed(e)}" if e.quote and " " in e.says and e.id not in NO_SUM else ""
        return f"{e.source}, {e.place}. {e.what}\nIt says: {e.stated}{read}."

    def ours(self) -> str:
        return f"{pictures.COMES[self.entry.comes]}: {pictures.told(self.entry)}"

    def __repr__(self) -> str:
        return f"{self.words()}\n\n{one_line.pasted(self.entry)}\n\n{self.ours()}"

    def run(self, code: str) -> str:
        """What a reader's version of the code comes to, and whether the source would be right, or what is wrong."""
        if not code.strip():
            return "The box is empty. Press Reset to have the arithmetic back."
        try:
            number = one_line.value(code)
        except TypeError as wrong:
            return f"The last line must be a number. (TypeError: {wrong})"
        except TimeoutError as late:
            return f"No number: {late}."
        except KeyboardInterrupt:
            return "You have interrupted it, so there is no number."
        except Exception as wrong:
            return f"{type(wrong).__name__}: {wrong}"
        e, right = self.entry, replace(self.entry.claim(), found=number).agrees
        verdict = f"With that the source {'would be right' if right else 'is not right'}: it says {e.stated}"
        needs = f", which needs {pictures.needed(e)}" if e.quote and e.id not in NO_SUM else ""
        same = code.strip() == one_line.pasted(e)
        comes = pictures.told(e, number) if same else f"{pictures.found(e, number)} with your inputs"
        return f"It comes to this: {comes}. {verdict}{needs}."

    def _made(self) -> Any:
        from ipywidgets import HTML, Button, Dropdown, HBox, Layout, Textarea, VBox

        wide = Layout(width="740px", max_width=INSIDE)
        chosen = Dropdown(options=changeable(self.entry.id), value=self.entry.id, description="finding", layout=wide)
        words, code, came = HTML(), Textarea(layout=wide, rows=6, continuous_update=False), HTML()
        button, reset = Button(description="Run"), Button(description="Reset")
        ran: list[str] = []  # the code that ran last, once there is one

        def tell(said: str) -> None:
            came.value = f'<p role="status" aria-live="polite">{escape(said)}</p>'

        def show(id: str) -> None:
            self.entry = erratum(id)
            words.value = f"<p>{escape(self.words())}</p>"
            ran[:] = [one_line.pasted(self.entry)]
            code.value, code.rows = ran[0], _rows(ran[0])
            tell(self.ours())

        def run(typed: str, again: bool = False) -> None:
            """Run what is in the box when it arrives: a press of the button can arrive before it."""
            if again or ran != [typed]:
                ran[:] = [typed]
                tell("It runs ...")
                tell(self.run(typed))

        chosen.observe(lambda change: show(change["new"]), "value")
        code.observe(lambda change: run(change["new"]), "value")
        button.on_click(lambda _: run(code.value, again="interrupted" in came.value))
        reset.on_click(lambda _: show(self.entry.id))
        show(self.entry.id)
        return VBox([chosen, words, code, HBox([button, reset]), came])


def _rows(code: str) -> int:
    """Lines of a box that shows all of the code, long lines wrapped."""
    return 1 + sum(1 + len(line) // 85 for line in code.splitlines())


def computed(id: object) -> Computed | pictures.Said:
    """A line with the code that computes it, or a sentence where there is none of that id."""
    try:
        return Computed(erratum(id))
    except CourseError as wrong:
        return pictures.Said(str(wrong))
