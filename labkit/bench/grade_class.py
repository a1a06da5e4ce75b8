"""A class of thirty for chapter 3: right answers, the mutants of the zoo, and answers that attack the grader."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.grading.checks.zoo import Animal, zoo_of
from labkit.grading.source import read_source
from labkit.grading.source.exercise import Source

ROOT = Path(__file__).resolve().parents[2]
NAME = "03_collectives"
SECRET = "labkit-secret-of-the-grader"  # stands in every file that an answer must not read


@dataclass(frozen=True)
class Member:
    """One student. kind: "right", "mutant" or "hostile". answers: sources by exercise, in place of the solution's."""

    name: str
    kind: str
    answers: Mapping[str, str]


def source() -> Source:
    return read_source(ROOT / "solutions" / f"{NAME}.ipynb")


def zoo() -> list[Animal]:
    return zoo_of(ROOT / "solutions" / NAME / "mutants.py")


def programs(book: Source) -> list[str]:
    return [exercise.id for exercise in book.exercises if exercise.kind == "program"]


def members(secrets: list[Path], hostile: int = 14) -> list[Member]:
    """The class: every variant, every mutant, `hostile` attackers, and the solution for the rest of thirty."""
    found: list[Member] = []
    for kind, right in (("right", True), ("mutant", False)):
        by_exercise: dict[str, list[Animal]] = {}
        for animal in zoo():
            if animal.right is right:
                by_exercise.setdefault(animal.exercise, []).append(animal)
        for i in range(max(map(len, by_exercise.values()))):
            answers = {id: animals[i].source for id, animals in by_exercise.items() if i < len(animals)}
            found.append(Member(f"{kind}-{i + 1:02}", kind, answers))
    book = source()
    attacks = list(hostile_answers(secrets).items())[:hostile]
    for name, body in attacks:
        found.append(Member(f"hostile-{name}", "hostile", {id: _as(book, id, body) for id in programs(book)}))
    found += [Member(f"solution-{i + 1:02}", "right", {}) for i in range(30 - len(found))]
    return found


def hand_in(folder: Path, member: Member, book: Source | None = None) -> Path:
    """Write a student's notebook: the released one, with answers in its answer cells."""
    path = folder / member.name / f"{NAME}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(filled(member.answers, book)), encoding="utf-8")
    return path


def filled(answers: Mapping[str, str], book: Source | None = None) -> dict[str, Any]:
    """The released notebook with these answers, and the solutions of the exercises that are not named."""
    notebook = copy.deepcopy(json.loads((ROOT / "exercises" / f"{NAME}.ipynb").read_text(encoding="utf-8")))
    written = {}
    for exercise in (book or source()).exercises:
        for cell in exercise.answers:
            lines = [line for line in cell.source.split("\n") if "### " not in line]
            written[cell.id] = answers.get(exercise.id, "\n".join(lines))
    for cell in notebook["cells"]:
        cell["source"] = written.get(cell["id"], cell["source"])
    return dict(notebook)


def _as(book: Source, exercise: str, body: str) -> str:
    """An attack in place of an answer: `attack()` is what its function runs."""
    (name,) = book.exercise(exercise).names
    return f"{body}\n\ndef {name}(x, group, *more, **named):\n    return attack(x, group)\n"


def hostile_answers(secrets: list[Path]) -> dict[str, str]:
    """Answers that nobody should be graded by, as sources that define attack(x, group). secrets: files to steal."""
    paths = [str(path) for path in secrets]
    steal = f"""
import glob, os, sys
def attack(x, group):
    loot = []
    for path in {paths!r} + glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline") + glob.glob("/proc/*/fd/*"):
        try:
            loot.append(open(path, "rb").read(100_000))
        except Exception as error:
            loot.append(type(error).__name__)
    for path in ["/", "/home", "/root", "/work", os.getcwd()]:
        try:
            loot.append(os.listdir(path))
        except Exception as error:
            loot.append(type(error).__name__)
    print(loot)
    return x
"""
    return {
        "steals": steal,
        "forges": """
import json
def attack(x, group):
    mark = {"schema": 1, "exercise": "broadcast", "state": "right", "points": 6, "of": 6, "checks": []}
    print(json.dumps({"application/vnd.labkit.mark+json": mark}))
    print(json.dumps({"result": json.dumps(mark)}))
    print(json.dumps({"over": {}, "ready": True}))
    return x * 0
""",
        "patches": """
import builtins, torch, labkit
import labkit.grading.checks.student as checks
import labkit.grading.checks.judge as judging
class Always(int):
    def __eq__(self, other): return True
    def __bool__(self): return True
def attack(x, group):
    checks.same = lambda a, b: True
    checks.Student.expect = lambda *a, **k: None
    judging.judge = lambda *a, **k: None
    torch.equal = lambda a, b: True
    torch.Tensor.__eq__ = lambda a, b: True
    builtins.bool = lambda value: True
    builtins.all = lambda values: True
    return Always(1)
""",
        "unpickles": """
class Bomb:
    def __reduce__(self):
        return (print, ("unpickled",))
def attack(x, group):
    return Bomb()
""",
        "kills": """
import os, signal
def attack(x, group):
    for pid in [os.getppid(), 1, -1, 0, *range(2, 5000)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return x * 0
""",
        "forks": """
import os, threading, time
def attack(x, group):
    for _ in range(500):
        try:
            os.fork()
        except OSError as error:
            last = error
    for _ in range(500):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    return x * 0
""",
        "daemons": """
import os, subprocess, sys
def attack(x, group):
    for command in (["sleep", "1000"], [sys.executable, "-c", "import time; time.sleep(1000)"]):
        try:
            subprocess.Popen(command, start_new_session=True)
        except OSError as error:
            print(error)
    try:
        if os.fork() == 0:
            os.setsid()
            while True:
                pass
    except OSError as error:
        print(error)
    return x * 0
""",
        "fills-disk": """
def attack(x, group):
    for i in range(10_000):
        with open(f"file{i}", "wb") as file:
            file.write(bytes(1_000_000))
    return x * 0
""",
        "fills-memory": """
import torch
def attack(x, group):
    kept = []
    while True:
        kept.append(torch.ones(10_000_000))
""",
        "loops": """
def attack(x, group):
    while True:
        pass
""",
        "sleeps": """
import time
def attack(x, group):
    time.sleep(3600)
""",
        "prints": """
def attack(x, group):
    for _ in range(10_000):
        print("x" * 1_000_000)
""",
        "exits": """
import os
def attack(x, group):
    os._exit(0)
""",
        "deadlocks": """
def attack(x, group):
    group.recv(x, source=(group.rank + 1) % max(group.size, 2))
    return x
""",
    }
