"""Results that may be off by rounding, and inputs in lists, which are a rank's own memory as tensors are."""

from __future__ import annotations

import pytest
import torch

from labkit import collectives
from labkit.grading.checks.notebook import NotebookStudent
from labkit.grading.checks.student import Evidence, NotRight, near_is_equal

pytestmark = pytest.mark.ranks

WANT = torch.tensor([1.0, -2000.0])


def judged(result, within, slips=None):
    """What expect_results says of one rank's result where WANT is expected; "" if nothing."""
    try:
        NotebookStudent({}, 1, "x").expect_results(Evidence([result]), [WANT], slips, within=within)
    except NotRight as error:
        return str(error)
    return ""


def test_entries_may_be_off_by_a_part_of_the_largest():
    assert judged(WANT + torch.tensor([0.1, 0.1]), 1e-4) == ""
    assert "1 of 2 entries are wrong" in judged(WANT + torch.tensor([0.3, 0.1]), 1e-4)
    assert "entry [0] is 1.1" in judged(WANT + torch.tensor([0.1, 0.0]), 0.0)
    assert judged([WANT + 0.1], 1e-4) and judged((WANT + 0.1).double(), 1e-4) and judged(WANT[:1], 1e-4)
    assert "nan" in judged(torch.tensor([float("nan"), -2000.0]), 1e-4)


def test_a_slip_is_recognized_within_the_same_room():
    slips = {"That is the double.": [2 * WANT]}
    assert judged(2 * WANT + 0.1, 1e-4, slips) == "That is the double."
    assert judged(2 * WANT + 1.0, 1e-4, slips) != "That is the double."


def test_whole_numbers_are_never_near():
    assert torch.equal(near_is_equal(torch.tensor([3]), torch.tensor([4]), 1.0), torch.tensor([3]))
    got, want = (
        near_is_equal([torch.tensor([1.0001]), "a"], [torch.tensor([1.0]), "b"], 0.01),
        [torch.tensor([1.0]), "a"],
    )
    assert torch.equal(got[0], want[0]) and got[1] == "a"


def changes_and_doubles(mine, group):
    for x in mine:
        x += 1
    copies = [x.clone() for x in mine]
    for x in copies:
        collectives.all_reduce(x, group, algorithm="ring")
    return mine


@pytest.mark.parametrize("form", [list, tuple])
def test_tensors_in_a_list_are_copied_and_counted_also_inside_a_collective(form):
    inputs = [form(torch.ones(50_000) for _ in range(4)) for _ in range(2)]
    student = NotebookStudent({"f": changes_and_doubles}, 1, "x")
    run = student.run("f", 2, inputs, memory=True)
    held = 4 * 50_000 * 4
    assert all(2 * held <= peak < 2.5 * held for peak in run.peak_bytes), run.peak_bytes
    assert all(torch.equal(x, torch.ones(50_000)) for mine in inputs for x in mine)
