"""Pipeline parallelism: schedules as data, and one door to each of their uses.

    naive, gpipe, one_f_one_b, interleaved   (stages, microbatches) -> Schedule: what each rank does, in order
    zb_h1, zb_h2, zb_v, pipedream            the same, without a bubble
    labels(schedule), from_labels(rows)      PyTorch's notation, both ways
    validate(schedule)                       is everything there, in an order that can run? What does it hold?
    simulate(schedule, Costs(...))           when everything begins and ends
    with_messages(schedule)                  the same schedule with its sends and receives written out

Names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.parallel.pipeline.costs import Costs
    from labkit.parallel.pipeline.instructions import (
        Backward,
        Compute,
        Forward,
        InputGradient,
        Instruction,
        Message,
        RecvActivation,
        RecvGradient,
        SendActivation,
        SendGradient,
        Update,
        WeightGradient,
    )
    from labkit.parallel.pipeline.schedule import Schedule, labels
    from labkit.parallel.pipeline.schedules import gpipe, interleaved, naive, one_f_one_b, pipedream
    from labkit.parallel.pipeline.simulation import simulate
    from labkit.parallel.pipeline.timeline import Timeline
    from labkit.parallel.pipeline.zero_bubble import zb_h1, zb_h2

__all__ = [
    "Backward", "Compute", "Costs", "Forward", "InputGradient", "Instruction", "Message", "RecvActivation",
    "RecvGradient", "Schedule", "SendActivation", "SendGradient", "Timeline", "Update", "WeightGradient", "gpipe",
    "interleaved", "labels", "naive", "one_f_one_b", "pipedream", "simulate", "zb_h1", "zb_h2",
]  # fmt: skip

# No module is called like a name in this table: importing a submodule would put it in the place of the function.
_HOME = {
    **dict.fromkeys(("Backward", "Compute", "Forward", "InputGradient", "Instruction", "Message", "RecvActivation",
                     "RecvGradient", "SendActivation", "SendGradient", "Update", "WeightGradient"), "instructions"),
    "Schedule": "schedule", "labels": "schedule",
    **dict.fromkeys(("gpipe", "interleaved", "naive", "one_f_one_b", "pipedream"), "schedules"),
    **dict.fromkeys(("zb_h1", "zb_h2"), "zero_bubble"),
    "Costs": "costs", "Timeline": "timeline", "simulate": "simulation",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
