"""How things look: colours that colour-blind readers can tell apart, and a second sign beside every colour.

A thing that is told by its colour is told by a hatch, a dash or a marker as well, so that a figure survives
grey print. Colours are those of Okabe & Ito (2008), light enough for dark text on top of them.
Figures have no background of their own: text is a grey that reads on a white page and on a dark one.
"""

from __future__ import annotations

from dataclasses import dataclass

INK_ON_WHITE = "#333"
INK = "#777"  # text and axes: contrast about 4.4 on white and 4.2 on the dark page of JupyterLab
ON_COLOUR = "#111"  # text on top of a filled box
GRID = "rgba(128,128,128,0.28)"
CLEAR = "rgba(0,0,0,0)"
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"

BLUE, ORANGE, GREEN, RED = "#56b4e9", "#e69f00", "#2fb38a", "#d55e00"
PURPLE, YELLOW, DEEP_BLUE, GREY = "#cc79a7", "#f0e442", "#3d8fc6", "#bdbdbd"

BADGES = {
    "measured": "seen here, in the run just made",
    "emulated": "real processes, but shaped links, stand-in kernels or a virtual clock",
    "simulated": "computed by a model",
    "quoted": "taken from a source",
    "recorded": "from runs over many seeds, made once with labkit and shipped with it",
}


@dataclass(frozen=True)
class Look:
    """One item of a legend: a colour, and the hatch, dash and marker that say the same without it."""

    colour: str
    hatch: str  # names of plotly's bar patterns: "", "/", "\\", "x", "-", "|", "+", "."
    dash: str  # names of plotly's line styles
    marker: str  # names of plotly's marker symbols


SERIES = (
    Look(BLUE, "", "solid", "circle"),
    Look(ORANGE, "/", "dash", "square"),
    Look(GREEN, "x", "dot", "diamond"),
    Look(RED, "-", "dashdot", "triangle-up"),
    Look(PURPLE, ".", "longdash", "x"),
    Look(YELLOW, "\\", "longdashdot", "triangle-down"),
    Look(DEEP_BLUE, "|", "2px,2px,8px,2px", "cross"),
    Look(GREY, "+", "12px,3px,2px,3px,2px,3px", "star"),
)

# What the time of a rank goes into. One look each, in the timeline and in the breakdown alike.
KINDS = {
    "compute": Look(ORANGE, "\\", "solid", "circle"),
    "span": Look("#e3e3e3", "|", "dash", "circle"),
    "send": Look(BLUE, "", "solid", "square"),
    "receive": Look("#7fd0b5", ".", "dot", "diamond"),
    "transfer": Look(BLUE, "x", "solid", "square"),
    "waiting": Look("none", "/", "dash", "x"),
    "overlapped": Look(GREEN, ".", "dot", "diamond"),
    "other": Look(GREY, "+", "longdash", "cross"),
}


def series(index: int) -> Look:
    """The look of the `index`-th line or bar of a chart. Eight exist; a chart with more of them says too much."""
    if not 0 <= index < len(SERIES):
        raise ValueError(f"a chart shows at most {len(SERIES)} series, this one has number {index + 1}: split it")
    return SERIES[index]


def checked_badge(kind: str) -> str:
    """`kind` itself, if it is one of the four marks that a number may carry."""
    if kind not in BADGES:
        raise ValueError(f"badge {kind!r} does not exist: use one of {', '.join(BADGES)}")
    return kind
