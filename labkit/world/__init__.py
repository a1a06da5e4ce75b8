"""Processes: start a world of ranks, watch it, and bring home what it did."""

from .engine import launch, start, warm
from .job import Failure, Job, RankFailed, Run
from .spec import Spec

__all__ = ["Failure", "Job", "RankFailed", "Run", "Spec", "launch", "start", "warm"]
