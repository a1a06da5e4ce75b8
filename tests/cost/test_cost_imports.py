"""`labkit.cost` is at the bottom of the house: plain Python, no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import labkit.cost
import labkit.cost.simulators

ROOT = Path(labkit.cost.__file__).parents[2]


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in memory after `statement` in a fresh interpreter."""
    code = f"{statement}; import sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    return set(done.stdout.split())


def test_cost_does_not_load_torch():
    modules = loaded_by("import labkit.cost")
    assert "labkit" in modules
    assert not {"torch", "numpy", "plotly", "sklearn"} & modules


def test_nothing_else_of_labkit_is_loaded():
    code = "import labkit.cost, sys; print(*(n for n in sys.modules if n.startswith('labkit.')))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert {name.split(".")[1] for name in done.stdout.split()} == {
        "cost",
        "pictures",
        "wire",
    }  # of `wire` its door alone


def test_no_two_files_offer_the_same_name():
    """A door takes all that its files offer: the second of two equal names would hide the first."""
    apart = ("labkit.cost.topology", "labkit.cost.planner")  # what these offer stays in their rooms
    rooms = [
        module for name, module in sys.modules.items() if name.startswith("labkit.cost.") and not name.startswith(apart)
    ]
    offered = [name for room in rooms if not hasattr(room, "__path__") for name in getattr(room, "__all__", ())]
    assert sorted(offered) == sorted(set(offered)) and len(offered) > 200
    assert all(hasattr(labkit.cost, name) for name in offered)
