"""From a folder of submissions to results: what `labkit grade` does before anything is put into a gradebook.

submissions.py   find notebooks, read whatever lies there, take the answer cells and nothing else
door.py          the door from a check to a submission in the sandbox
one.py           one submission, exercise by exercise: a `Result`
batch.py         all of them: in parallel, resumable, one bad submission never in the way of another
results.py       `Result` and `Graded`, and their JSON, which all other parts of grading read
"""

from labkit.grading.grader.results import Given, Graded, GraderInfo, Handed, Result, ResultError

__all__ = ["Given", "Graded", "GraderInfo", "Handed", "Result", "ResultError"]
