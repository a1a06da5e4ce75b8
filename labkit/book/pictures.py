"""What the book draws for the rooms below it: see `labkit.pictures`."""

from labkit.parallel import Layout, Mesh
from labkit.parallel.pipeline import Schedule, ScheduleError, Timeline
from labkit.pictures import drawn_by
from labkit.resilience.diagnose import Verdict
from labkit.wire import Trace

from .diagnosing import diagnosis
from .meshes import mesh
from .schedules import schedule
from .timelines import timeline
from .waits import wait_for

drawn_by(Trace, timeline)
drawn_by(Layout, mesh)
drawn_by(Mesh, mesh)
drawn_by(Schedule, schedule)
drawn_by(Timeline, schedule)
drawn_by(ScheduleError, wait_for)
drawn_by(Verdict, diagnosis)
