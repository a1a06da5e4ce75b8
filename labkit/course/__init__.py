"""The course around the chapters: what each one is for, its questions, its words. No widgets and no PyTorch here.

    load()             the course file: chapters, objectives, minutes, prerequisites, sources
    header(3)          the first cell of a chapter
    errata()           where the sources contradict themselves, each computed: appendix A
    glossary()         terms in English and Chinese
    notation()         letters of formulas, with units, and where the sources use them otherwise
    coverage()         which chapter answers which question, fallacy or system of the sources

Names load when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
