"""A slip is the solution with a few other lines, and says so when those lines are not there."""

from __future__ import annotations

import json

import pytest

from labkit.grading.checks.zoo import changed, slip, solution, zoo_of

TEXT = "def f(x):\n    y = x\n    y += 1\n    y += 1\n    return y"


def test_lines_go_come_and_stay():
    assert changed(TEXT, "-    y = x\n+    y = 2 * x") == TEXT.replace("y = x", "y = 2 * x")
    assert changed(TEXT, "     y = x\n-    y += 1") == TEXT.replace("    y += 1\n", "", 1)
    assert changed(TEXT, "     y = x\n+    # more") == TEXT.replace("y = x\n", "y = x\n    # more\n")


def test_places_are_those_of_the_solution_in_any_order():
    change = "-    return y\n+    return 0\n\n-    y = x\n+    y = 0\n+    return y"
    assert changed(TEXT, change).split("\n")[1:3] == ["    y = 0", "    return y"]
    assert changed(TEXT, change).endswith("    return 0")
    upper, lower = reversed(change.split("\n\n"))
    assert changed(TEXT, f"{upper}\n\n{lower}") == changed(TEXT, change) != TEXT


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("-    y += 2", "0 places, not one, of the solution have these lines:\n    y \\+= 2"),
        ("-    y += 1", "2 places"),
        ("+    y = 3", "places, not one"),
        ("y = x", "'y = x' begins with none of"),
        ("     y = x\n     y += 1\n\n     y = x\n+    y = 0", "lie over each other"),
    ],
)
def test_lines_that_are_not_there_once_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        changed(TEXT, change)


def test_a_file_of_slips_is_read_with_the_solutions_beside_it(tmp_path):
    (tmp_path / "01_x").mkdir()
    answer = TEXT.replace("    y = x", "    ### BEGIN SOLUTION\n    y = x * ONE") + "\n    ### END SOLUTION\n\n\ng = 1"
    told = {"labkit": {"exercise": "more", "role": "answer"}}
    cells = [{"cell_type": "code", "metadata": told, "source": answer.splitlines(keepends=True)}]
    (tmp_path / "01_x.ipynb").write_text(json.dumps({"cells": cells}))
    zoo = tmp_path / "01_x" / "mutants.py"
    zoo.write_text(
        "from labkit.grading.checks.zoo import slip\n\nONE = 1\n\ntwice = slip(\n"
        '    "more", "f", says="twice", at=2, change="""\n-    return y\n+    return 2 * y\n""")\n'
    )
    (one,) = zoo_of(zoo)
    assert (one.name, one.entry, one.at, one.says, one.right) == ("more: twice", "f", 2, "twice", False)
    assert one.body(3) == 10 and one.body.__name__ == "twice"
    assert one.source.startswith("def f(x):") and "SOLUTION" not in one.text and "return 2 * y" in one.source
    zoo.write_text(zoo.read_text().replace("-    return y", "-    return z"))
    with pytest.raises(ValueError, match=r"01_x/mutants.py, twice: 0 places"):
        zoo_of(zoo)
    with pytest.raises(ValueError, match="no answer g in an exercise more"):
        solution(tmp_path / "01_x.ipynb", "more", "g")


def test_a_slip_names_its_sentence():
    with pytest.raises(ValueError, match="part of the sentence"):
        slip("more", "f", says="", change="")
