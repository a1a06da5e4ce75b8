# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .cases.board import CaseFile as CaseFile, VerdictFirst as VerdictFirst, case as case
from .drawing.charts import bars as bars
from .drawing.curves import cost_curves as cost_curves
from .drawing.figure import Figure as Figure
from .drawing.line_chart import lines as lines
from .drawing.listing import source as source
from .drawing.marks import badge as badge, quoted as quoted
from .drawing.matrix import byte_matrix as byte_matrix
from .drawing.tables import Table as Table
from .explorers import Explorer as Explorer, Slider as Slider, explorer as explorer
from .fault_tolerant.figure import replicas as replicas
from .frontend import live as live
from .layouts.cutting import cuts as cuts
from .layouts.dealing import ShardBoard as ShardBoard, shard_board as shard_board
from .layouts.meshes import mesh as mesh
from .layouts.shards import shard_layouts as shard_layouts
from .layouts.topologies import topology as topology
from .reading.chapter import (
    Chapter as Chapter,
    ParameterError as ParameterError,
    allow as allow,
    open_chapter as open_chapter,
)
from .reading.conclusions import Conclusion as Conclusion, around as around, conclude as conclude, whose as whose
from .reading.predicting import PredictFirst as PredictFirst, Prediction as Prediction
from .reading.quizzes import Quiz as Quiz
from .stepping.player import Player as Player, play as play
from .stepping.recorder import record as record
from .stepping.recording import Replay as Replay
from .stepping.stepper import Stepper as Stepper, replay as replay
from .timelines.breakdown import step_breakdown as step_breakdown
from .timelines.diagnosing import diagnosis as diagnosis
from .timelines.schedules import schedule as schedule
from .timelines.timelines import timeline as timeline
from .timelines.waits import wait_for as wait_for
from .turns import in_turn as in_turn
from .watching import Dashboard as Dashboard, dashboard as dashboard
from .workbenches.bench import Workbench as Workbench, workbench as workbench
