"""A task for alignment that takes seconds: a language model of bytes, and people who like different vowels in a word.

    task = prepared(seed=0)                           a policy, pairs of its responses that were judged, a reward model
    fleet = Fleet(placement, group, task.make)        see `labkit.align.fleet`
    mean_truth(fleet.models["policy"])                what the rewards only stand for, because here it is known

language.py      the language model, on Python's language reference; prompts
truth.py         the known truth: a plain function of a response's bytes
tuning.py        supervised tuning on good responses
preferences.py   pairs of responses, judged by Bradley-Terry from the truth
reward_model.py  what learns from the pairs
prepared.py      all of it for a seed
"""

from labkit.align.task.language import CONFIG, END, PROMPT, ROOM, pretrained, prompts
from labkit.align.task.preferences import Pair, preferences
from labkit.align.task.prepared import Task, mean_truth, prepared
from labkit.align.task.reward_model import accuracy, reward_model
from labkit.align.task.truth import truth
from labkit.align.task.tuning import tuned

__all__ = ["CONFIG", "END", "PROMPT", "ROOM", "Pair", "Task", "accuracy", "mean_truth", "preferences", "prepared",
           "pretrained", "prompts", "reward_model", "truth", "tuned"]  # fmt: skip
