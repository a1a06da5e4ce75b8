"""What a chapter shows: figures of runs, a stepper through recorded collectives, source listings, small marks.

    timeline(trace)              who did what when
    schedule(schedule)           what each rank of a pipeline does, and where it is idle; also of a simulation or a run
    case(case)                   a case file: evidence to buy, a verdict to give
    diagnosis(verdict)           who holds up a job: operations, and ranks inside them
    wait_for(error)              who waits for whom in a schedule that is a deadlock
    byte_matrix(trace)           who sent how much to whom
    mesh(layout, 4)              ranks, axes and nodes: who works with whom
    topology(machine, mesh)      a machine level by level, and which of its wires the axes of a mesh need
    replay(trace)                step through a recorded collective, chunk by chunk
    record(trace)                the data behind it, to compute with
    cost_curves(curves, points)  time against size: the model, and the reader's measurements
    bars(values)                 measured beside computed
    lines(values)                a loss by step, an error by size
    cuts(chain, ranks)           how ranks share the matrices of a product
    shard_layouts(map)           who computes with each shard, who sums it, and which ones move in between
    shard_board(12, 4, 3)        the same to deal out by hand
    step_breakdown(trace)        where each rank's time went
    explorer(title, sliders, fn) sliders for a model's assumptions, and what it says of them
    source(fn)                   labkit's own lines
    badge, quoted                marks
    conclude(sentence, x=1)      a sentence that follows the result, kept with its numbers
    dashboard(job)               a live view of a job, while it runs; of a fault-tolerant run with its replicas
    replicas(run)                what happened to the replicas of a fault-tolerant run
    live()                       whether a reader is there to press buttons
    open_chapter(name)           predictions, quizzes and records of a chapter

Every figure is a `Figure`: plotly, an SVG and words in one, with `.table()` for its numbers. Names load when first
used, and neither plotly nor anywidget is imported before something needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.book.breakdown import step_breakdown
    from labkit.book.cases.board import CaseFile, VerdictFirst, case
    from labkit.book.chapter import Chapter, open_chapter
    from labkit.book.charts import bars
    from labkit.book.conclusions import Conclusion, conclude
    from labkit.book.curves import cost_curves
    from labkit.book.cutting import cuts
    from labkit.book.dealing import ShardBoard, shard_board
    from labkit.book.diagnosing import diagnosis
    from labkit.book.explorers import Explorer, Slider, explorer
    from labkit.book.figure import Figure
    from labkit.book.frontend import live
    from labkit.book.ft_figure import replicas
    from labkit.book.line_chart import lines
    from labkit.book.listing import source
    from labkit.book.marks import badge, quoted
    from labkit.book.matrix import byte_matrix
    from labkit.book.meshes import mesh
    from labkit.book.predicting import PredictFirst, Prediction
    from labkit.book.quizzes import Quiz
    from labkit.book.recorder import record
    from labkit.book.recording import Replay
    from labkit.book.schedules import schedule
    from labkit.book.shards import shard_layouts
    from labkit.book.stepper import Stepper, replay
    from labkit.book.tables import Table
    from labkit.book.timelines import timeline
    from labkit.book.topologies import topology
    from labkit.book.waits import wait_for
    from labkit.book.watching import Dashboard, dashboard

__all__ = [
    "CaseFile", "Chapter", "Conclusion", "Dashboard", "Explorer", "Figure", "PredictFirst", "Prediction", "Quiz",
    "Replay", "ShardBoard", "Slider", "Stepper", "Table", "VerdictFirst", "badge", "bars", "byte_matrix", "case",
    "conclude", "cost_curves", "cuts", "dashboard", "diagnosis", "explorer", "lines", "live", "mesh", "open_chapter",
    "quoted", "record", "replay", "replicas", "schedule", "shard_board", "shard_layouts", "source", "step_breakdown",
    "timeline", "topology", "wait_for",
]  # fmt: skip

# No module is called like a name in this table: importing a submodule would put it in the place of the function.
_HOME = {
    "CaseFile": "cases.board", "VerdictFirst": "cases.board", "case": "cases.board",
    "Chapter": "chapter", "PredictFirst": "predicting", "Prediction": "predicting", "Quiz": "quizzes",
    "Explorer": "explorers", "Slider": "explorers", "explorer": "explorers",
    "open_chapter": "chapter", "Figure": "figure", "Replay": "recording", "Stepper": "stepper", "Table": "tables",
    "Conclusion": "conclusions", "conclude": "conclusions",
    "badge": "marks", "bars": "charts", "cuts": "cutting", "lines": "line_chart", "byte_matrix": "matrix",
    "cost_curves": "curves",
    "quoted": "marks", "record": "recorder", "replay": "stepper", "source": "listing", "step_breakdown": "breakdown",
    "live": "frontend", "replicas": "ft_figure",
    "mesh": "meshes", "timeline": "timelines", "topology": "topologies", "schedule": "schedules", "wait_for": "waits",
    "ShardBoard": "dealing", "shard_board": "dealing", "shard_layouts": "shards",
    "diagnosis": "diagnosing", "Dashboard": "watching", "dashboard": "watching",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
