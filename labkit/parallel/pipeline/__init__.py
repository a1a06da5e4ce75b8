"""Pipeline parallelism: schedules as data, and one door to each of their uses.

    naive, gpipe, one_f_one_b, interleaved   (stages, microbatches) -> Schedule: what each rank does, in order
    zb_h1, zb_h2, zb_v, pipedream            the same, without a bubble
    labels(schedule), from_labels(rows)      PyTorch's notation, both ways
    validate(schedule)                       is everything there, in an order that can run? What does it hold?
    simulate(schedule, Costs(...))           when everything begins and ends
    Pipeline(modules, group, loss).execute   the schedule on real ranks; or execute(schedule, modules, group, ...)
    gpt_stages(config, schedule, group)      this rank's part of a GPT
    with_messages(schedule)                  the same schedule with its sends and receives written out

Names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.parallel.pipeline.analysis.high_water import Report
    from labkit.parallel.pipeline.analysis.messages import with_messages
    from labkit.parallel.pipeline.analysis.simulation import simulate
    from labkit.parallel.pipeline.analysis.timeline import Timeline
    from labkit.parallel.pipeline.analysis.validation import validate
    from labkit.parallel.pipeline.costs import Costs
    from labkit.parallel.pipeline.faulty import ScheduleError, Wait
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
    from labkit.parallel.pipeline.reading import from_labels
    from labkit.parallel.pipeline.running.pipeline import Pipeline, execute
    from labkit.parallel.pipeline.running.stages import GPTStage, gpt_stages
    from labkit.parallel.pipeline.running.step import StepResult
    from labkit.parallel.pipeline.schedule import Schedule, label, labels
    from labkit.parallel.pipeline.schedules import gpipe, interleaved, naive, one_f_one_b, pipedream
    from labkit.parallel.pipeline.zero_bubble import zb_h1, zb_h2, zb_v

__all__ = [
    "Backward", "Compute", "Costs", "Forward", "GPTStage", "InputGradient", "Instruction", "Message", "Pipeline",
    "RecvActivation", "RecvGradient", "Report", "Schedule", "ScheduleError", "SendActivation", "SendGradient",
    "StepResult", "Timeline", "Update", "Wait", "WeightGradient", "execute", "from_labels", "gpipe", "gpt_stages",
    "interleaved", "label", "labels", "naive", "one_f_one_b", "pipedream", "simulate", "validate", "with_messages",
    "zb_h1", "zb_h2", "zb_v",
]  # fmt: skip

# No module is called like a name in this table: importing a submodule would put it in the place of the function.
_HOME = {
    **dict.fromkeys(("Backward", "Compute", "Forward", "InputGradient", "Instruction", "Message", "RecvActivation",
                     "RecvGradient", "SendActivation", "SendGradient", "Update", "WeightGradient"), "instructions"),
    "Schedule": "schedule", "label": "schedule", "labels": "schedule", "from_labels": "reading", "Costs": "costs",
    **dict.fromkeys(("gpipe", "interleaved", "naive", "one_f_one_b", "pipedream"), "schedules"),
    **dict.fromkeys(("zb_h1", "zb_h2", "zb_v"), "zero_bubble"),
    "ScheduleError": "faulty", "Wait": "faulty",
    "Report": "analysis.high_water", "Timeline": "analysis.timeline", "simulate": "analysis.simulation",
    "validate": "analysis.validation", "with_messages": "analysis.messages",
    "Pipeline": "running.pipeline", "execute": "running.pipeline", "StepResult": "running.step",
    "GPTStage": "running.stages", "gpt_stages": "running.stages",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
