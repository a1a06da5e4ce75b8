"""A small class: results as the grader leaves them, some of them written by students who try something."""

from labkit.grading.grader.results import TO_MARK, Given, Graded, GraderInfo, Handed, Result

EVIL = '<script>alert("x")</script>'
TRACE = 'Traceback (most recent call last):\n  cell "answer-1", line 3, in my_ring\n    return x[9]\nIndexError: 9'


def graded(exercise, state="right", points=None, of=2.0, *, text=None, output="", hidden=False, sentence="", detail="",
           check_hash="c0ffee"):  # fmt: skip
    """An exercise with one check, or a free response `text`."""
    if points is None:
        points = of if state == "right" else 0.0
    marks = ()
    if text is None:
        state_of_check = "wrong" if state == "partly" else state
        marks = (
            Given("sends_only_what_it_must", "bytes", points, of, sentence or "Right.", state_of_check, detail, hidden),
        )
    kind = "explanation" if text is not None else "program"
    return Graded(exercise, f"About {exercise}", kind, state, points, of, check_hash, 0.5, text, output, marks)


def result(student, *exercises, notebook="03_collectives", received="2026-11-20T18:00:00+00:00", sha256=None,
           problems=(), tier="userns"):  # fmt: skip
    """The notebook of one student."""
    handed = Handed(f"{student}/{notebook}.ipynb", sha256 or f"{hash((student, notebook)) & 0xFFFFFFFF:064x}", received,
                    tuple(problems))  # fmt: skip
    return Result(student, notebook, handed, GraderInfo("0.1.0", "5" * 64, "", "seed-ab12", tier), exercises, 4.2)


def small_class():
    """Ada: all right. Bob: partly, with an error and hostile texts. Cem: one stub, late."""
    sentence = "rank 1 sent 48 bytes; a ring sends 32: was a part sent twice?"
    why = graded("why", TO_MARK, of=8.0, text="Rank 2 waits first.")
    return [
        result("ada", graded("ring"), graded("tree", of=4.0), why),
        result(
            "bob", graded("ring", "partly", 1.0, sentence=sentence, output=f"{EVIL}\nhello"),
            graded("tree", "error", of=4.0, sentence=EVIL, detail=TRACE + EVIL, hidden=True),
            graded("why", TO_MARK, of=8.0, text=f'=HYPERLINK("http://x")\n{EVIL}'),
            problems=[f"cell {EVIL} is there twice: the first one counts"],
        ),
        result(
            "cem", graded("ring", "wrong", sentence=sentence), graded("tree", "unattempted", of=4.0),
            graded("why", "unattempted", of=8.0, text=""), received="2026-11-22T10:00:00+00:00",
        ),
    ]  # fmt: skip
