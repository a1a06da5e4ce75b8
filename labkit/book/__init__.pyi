# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .breakdown import step_breakdown as step_breakdown
from .cases.board import CaseFile as CaseFile, VerdictFirst as VerdictFirst, case as case
from .chapter import Chapter as Chapter, open_chapter as open_chapter
from .charts import bars as bars
from .conclusions import Conclusion as Conclusion, conclude as conclude
from .curves import cost_curves as cost_curves
from .cutting import cuts as cuts
from .dealing import ShardBoard as ShardBoard, shard_board as shard_board
from .diagnosing import diagnosis as diagnosis
from .explorers import Explorer as Explorer, Slider as Slider, explorer as explorer
from .figure import Figure as Figure
from .frontend import live as live
from .ft_figure import replicas as replicas
from .line_chart import lines as lines
from .listing import source as source
from .marks import badge as badge, quoted as quoted
from .matrix import byte_matrix as byte_matrix
from .meshes import mesh as mesh
from .predicting import PredictFirst as PredictFirst, Prediction as Prediction
from .quizzes import Quiz as Quiz
from .recorder import record as record
from .recording import Replay as Replay
from .schedules import schedule as schedule
from .shards import shard_layouts as shard_layouts
from .stepper import Stepper as Stepper, replay as replay
from .tables import Table as Table
from .timelines import timeline as timeline
from .topologies import topology as topology
from .waits import wait_for as wait_for
from .watching import Dashboard as Dashboard, dashboard as dashboard
