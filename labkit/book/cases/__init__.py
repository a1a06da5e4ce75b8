"""Case files: jobs that really fail, evidence that costs minutes of a fleet, and a verdict.

training.training(group, sizes, steps)   the job that fails: replicas, shared layers, and a norm over all ranks
hung.plan(seed, size)                    who does what, in which step
hung.investigate(title, truth, step, ..) one case that stands still: run, looked at, and all its evidence
board.case(case)                         a case file on the page, called as `book.case`
numbers, struck                          trainings whose numbers go wrong; a job that is struck while it runs
"""

from __future__ import annotations
