"""The source of exercises: an instructor's notebook read, checked, and released to students.

source = read_source(Path("solutions/03_collectives.ipynb"))   # refuses a broken one, naming exercise and cell
source.exercises[0].points
release(source.notebook)                                       # what a student receives
leaks(source.notebook, student_notebook)                       # lines of it that a student must not see
"""

from labkit.grading.source.exercise import Exercise, Source
from labkit.grading.source.leaks import leaks, secrets_of
from labkit.grading.source.problems import Problem, SourceError
from labkit.grading.source.read import read_notebook, read_source
from labkit.grading.source.release import release

__all__ = [
    "Exercise",
    "Problem",
    "Source",
    "SourceError",
    "leaks",
    "read_notebook",
    "read_source",
    "release",
    "secrets_of",
]
