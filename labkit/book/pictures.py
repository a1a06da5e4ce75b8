"""What the book draws for the rooms below it: see `labkit.pictures`."""

from labkit.book.layouts.meshes import mesh
from labkit.book.timelines.diagnosing import diagnosis
from labkit.book.timelines.schedules import schedule
from labkit.book.timelines.timelines import timeline
from labkit.book.timelines.waits import wait_for
from labkit.parallel import Layout, Mesh
from labkit.parallel.pipeline import Schedule, ScheduleError, Timeline
from labkit.pictures import drawn_by
from labkit.resilience.diagnose import Verdict
from labkit.wire import Trace

drawn_by(Trace, timeline)
drawn_by(Layout, mesh)
drawn_by(Mesh, mesh)
drawn_by(Schedule, schedule)
drawn_by(Timeline, schedule)
drawn_by(ScheduleError, wait_for)
drawn_by(Verdict, diagnosis)
