"""The causes of FT-HSDP's table 1 as rows, each to be sorted into one of the five ways to break."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from labkit import cost
from labkit.book.frontend import INSIDE, Panel
from labkit.wire.errors import RefusedError

DEATH, HANG, CRAWL, NAN, SILENT = KINDS = ("death", "hang", "crawl", "NaN", "silent data corruption")

# By cause the kinds that are right, and what is seen of it.
SEEN: dict[str, tuple[tuple[str, ...], str]] = {
    "GPU HBM3 Memory": ((DEATH,), "error correction finds what it cannot correct, the driver reports it (Xid 94 or "
                        "95), and the process is ended at once"),
    "PCIe Device": ((DEATH, HANG), "a GPU off the bus gives an error in the next call, or its process never comes "
                    "back from the driver"),
    "NCCL Watchdog Timeouts": ((HANG,), "the process ends only because a timer has run out: before that everybody "
                               "waited, without an error"),
    "Faulty GPU Compute": ((DEATH, NAN, SILENT), "a unit that fails is reported, and one that miscalculates gives a "
                           "number that is wrong or is no number"),
    "Software Bug": ((DEATH, HANG), "it raises, or a rank leaves out a call and the others wait"),
    "Host Maintenance": ((DEATH,), "somebody takes the host out, so its processes end and their connections close"),
    "Kernel Fault": ((DEATH, HANG), "a panic takes the host down, and a lock-up leaves it there without an answer"),
    "System Reboot": ((DEATH, HANG), "an orderly one closes all connections; a host that loses its power closes none, "
                      "and is waited for"),
    "Numerics/Silent Data Corruption": ((NAN, SILENT), "its name says both: a loss that is NaN, or a number that is "
                                        "wrong and looks like any other"),
    "Network Switch/Cable": ((HANG, CRAWL), "messages do not arrive and are waited for, or arrive after many tries"),
    "SSD": ((DEATH, HANG), "a disk that is read-only raises an I/O error, and one that does not answer leaves a rank "
            "waiting for its data"),
    "GPU SRAM Memory": ((DEATH,), "as with HBM, error correction finds it, and the process is ended"),
    "Unknown": (KINDS, "nobody has found out, so no answer can be refused"),
    "System Memory": ((DEATH,), "a machine check that cannot be corrected ends the process or the host"),
    "System Cooling": ((CRAWL, DEATH), "what gets hot lowers its clock first, and is switched off when that is not "
                       "enough"),
    "GPU Thermal Interface + Sensor": ((CRAWL, DEATH), "a GPU that is hot, or believes so, lowers its clock, and stops "
                                       "when that is not enough"),
}  # fmt: skip


def told(cause: str, kind: str | None) -> str:
    """What to say to a reader who has sorted `cause` into `kind`; "" where nothing was chosen."""
    if cause not in SEEN or kind not in (None, *KINDS):
        raise RefusedError(f"{cause!r} as {kind!r}: the kinds are {', '.join(KINDS)}; the causes are {', '.join(SEEN)}")
    if kind is None:
        return ""
    right, seen = SEEN[cause]
    if kind not in right:
        return f"✗ Not {kind}: {seen}."
    others = [one for one in right if one != kind]
    return f"✓ Right. {' or '.join(others)} would be right, too: {seen}." if others else f"✓ Right: {seen}."


class Sorting(Panel):
    """A list of kinds for each cause, and a button that checks them all. chosen: cause -> kind, so far."""

    def __init__(self) -> None:
        super().__init__()
        self.causes = {cause.name: cause.count for cause in cost.FT_HSDP_FAILURES.causes}
        self.chosen: dict[str, str | None] = dict.fromkeys(self.causes)

    def check(self, chosen: Mapping[str, str | None]) -> str:
        """Sort some of the causes from Python, and be told about each; then how many are right."""
        answers = {cause: told(cause, kind) for cause, kind in chosen.items()}
        self.chosen.update(chosen)
        return "\n".join([*(f"{cause}: {said}" for cause, said in answers.items() if said), self.summary])

    @property
    def right(self) -> list[str]:
        return [cause for cause, kind in self.chosen.items() if kind in SEEN[cause][0]]

    @property
    def summary(self) -> str:
        """How many rows are right, and at the end what that tells of the 678 interruptions."""
        line = f"{len(self.right)} of {len(self.causes)} rows are right."
        if len(self.right) < len(self.causes):
            return line
        sure = {kind: sum(n for cause, n in self.causes.items() if SEEN[cause][0] == (kind,)) for kind in KINDS}
        total = sum(self.causes.values())
        both = total - sum(sure.values())
        return (
            f"{line} Of {total} interruptions, {sure[DEATH]} were deaths and {sure[HANG]} hangs for sure. The other "
            f"{both} could be of several kinds: the name of a part does not say what was seen."
        )

    def __repr__(self) -> str:
        rows = [f"  {cause}, {count}: {self.chosen[cause] or '...'}" for cause, count in self.causes.items()]
        return "\n".join([f"Sort each cause into one of: {', '.join(KINDS)}", *rows, self.summary])

    def _made(self) -> Any:
        from ipywidgets import HTML, Button, Dropdown, Layout, VBox

        look = {"style": {"description_width": "250px"}, "layout": Layout(width="480px", max_width=INSIDE)}
        lists = {
            cause: Dropdown(options=[("-", None), *((kind, kind) for kind in KINDS)], description=f"{cause}, {count}",
                            value=self.chosen[cause], **look)
            for cause, count in self.causes.items()
        }  # fmt: skip
        said = {cause: HTML() for cause in self.causes}
        summary, button = HTML(), Button(description="Check", layout=Layout(width="120px"))

        def check(_: object) -> None:
            self.check({cause: one.value for cause, one in lists.items()})
            for cause, one in lists.items():
                said[cause].value = escape(told(cause, one.value))
            summary.value = f'<p role="status" aria-live="polite">{escape(self.summary)}</p>'

        button.on_click(check)
        return VBox([*(one for cause in lists for one in (lists[cause], said[cause])), button, summary])
