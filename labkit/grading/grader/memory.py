"""Peak memory of a run, so that both doors decide alike, and so that a rank cannot say much less than it took.

In a notebook labkit's sampler counts tensors: each storage once, the rank's own copy of its input included, at each
message, mark and end (labkit/wire/sampler.py). The sandbox knows from the kernel how much a rank's process grew,
which also has code pages and buffers of messages in it: 3 to 6 MB for a program with messages, a few tenths of a MB
more or less from run to run. That is too coarse for tensors of some MB; so the same sampler runs in the rank, and the
kernel keeps watch over what it says:

    peak = max(what the sampler counted, growth of the process - ALLOWANCE)

For an honest program the first is larger, and is the notebook's number to the byte. A program that forges its
sampler hides at most ALLOWANCE, less what it needs itself. A check that must hold against forgers uses inputs well
above ALLOWANCE.
"""

from __future__ import annotations

import re
from typing import Any

from labkit.cost.units import MB
from labkit.grading.sandbox import Evidence as Seen

ALLOWANCE = 12 * MB
WATCHED = "labkit_watched"
PROBE = f'''
def {WATCHED}(*arguments, labkit_function, **kwargs):
    """Runs an answer as a notebook's check does that watches memory: [result, bytes of tensors at the peak]."""
    from labkit.wire.sampler import Sampler

    def own(value):
        if type(value) in (list, tuple):
            return type(value)(map(own, value))
        if type(value) is dict:
            return {{key: own(item) for key, item in value.items()}}
        return value.clone() if hasattr(value, "clone") else value

    def looking(do):
        def call(*args, **kwargs):
            sampler.sample()
            return do(*args, **kwargs)
        return call

    function = globals().get(labkit_function)
    if function is None:
        raise NotImplementedError(labkit_function)
    sampler = Sampler("resident")
    group = arguments[-1]
    group.context.sampler = sampler
    for word in ("send", "recv", "exchange", "isend", "irecv", "run_collective"):
        setattr(group, word, looking(getattr(group, word)))
    result = function(*map(own, arguments[:-1]), group, **kwargs)
    sampler.sample()
    return [result, sampler.peak()]
'''
_FRAME = re.compile(rf'  File "<answer [^>]*>", line \d+, in ({WATCHED}|call)\n(?:    .*\n)*')


def watched(name: str, kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The call that is made in place of `name` with `kwargs`, where PROBE stands below the answers."""
    return WATCHED, {"labkit_function": name, **kwargs}


def unpacked(seen: Seen) -> tuple[list[Any], list[int]]:
    """Results and peak bytes by rank, of a watched call."""
    results, peaks = [], []
    for answer, grown in zip(seen.results, seen.peak_bytes, strict=True):
        said = answer[1] if isinstance(answer, list) and len(answer) == 2 and type(answer[1]) is int else 0
        results.append(answer[0] if isinstance(answer, list) and answer else answer)
        peaks.append(max(said, grown - ALLOWANCE))
    return results, peaks


def without_probe(traceback: str) -> str:
    """A traceback without the frames of PROBE."""
    return _FRAME.sub("", traceback)
