"""Who is at fault when a job stands still, slows down, or computes nonsense.

    Detector(job).wait(5)         watch a job of this process until somebody is at fault: a `Verdict`
    diagnose(reports)             the same from the reports of ranks, wherever they come from
    from_pytorch(folder)          the same from the dumps of PyTorch's own flight recorder
    Collector, Agent, report_to   reports of many hosts over a small channel
    stragglers(trace), since      who slows the others down
    FiniteGuard, SpikeGuard       NaN, infinities and jumps of the loss, before an update
    compare(state, group)         which replica holds other bits, and where
    replay(work, recorded, group) a step done again: transient, intermittent or persistent
    find_flip(...)                on which message of a ring all-reduce a bit flipped

Names load when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
