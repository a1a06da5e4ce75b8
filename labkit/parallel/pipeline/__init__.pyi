# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .analysis.high_water import Report as Report
from .analysis.messages import with_messages as with_messages
from .analysis.simulation import simulate as simulate
from .analysis.timeline import Timeline as Timeline
from .analysis.validation import validate as validate
from .costs import Costs as Costs
from .faulty import ScheduleError as ScheduleError, Wait as Wait
from .instructions import (
    Backward as Backward,
    Compute as Compute,
    Forward as Forward,
    InputGradient as InputGradient,
    Instruction as Instruction,
    Message as Message,
    RecvActivation as RecvActivation,
    RecvGradient as RecvGradient,
    SendActivation as SendActivation,
    SendGradient as SendGradient,
    Update as Update,
    WeightGradient as WeightGradient,
)
from .reading import from_labels as from_labels
from .running.pipeline import Pipeline as Pipeline, execute as execute
from .running.stages import GPTStage as GPTStage, gpt_stages as gpt_stages
from .running.step import StepResult as StepResult
from .schedule import Schedule as Schedule, label as label, labels as labels
from .schedules import (
    gpipe as gpipe,
    interleaved as interleaved,
    naive as naive,
    one_f_one_b as one_f_one_b,
    pipedream as pipedream,
)
from .zero_bubble import v_half as v_half, zb_h1 as zb_h1, zb_h2 as zb_h2, zb_v as zb_v
