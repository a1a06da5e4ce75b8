"""Exercises and marks by evidence: from an instructor's notebook to a student's, and from a submission to a mark.

    open_exercises(name)    the first line of an exercise notebook: checks are defined on what it returns
    checks/                 what a check is, and the door to a student's work in a notebook
    answers                 keys of derivations: numbers with units, formulas, choices, lists
    source/                 one notebook of the instructor, and what a student receives of it
    sandbox/, grader/       a student's code behind walls; a folder of submissions to results
    gradebook/, feedback/   results to tables, sheets to mark by hand, and pages

Names load when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
