"""Over three hundred injected faults, and whom the diagnosis names: a slice in ordinary tests, all in the long lane.

What can be told exactly is asserted to be; what cannot (whether the sender or the receiver of a message that stands
still is at fault) must be among the suspects. `records` is the verdict from records alone, `heard` the one that also
knows which ranks have gone silent.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict

import pytest

from .diagnose_corrupt import flipped_messages, wrong_ranks
from .diagnose_ends import disagreements, drops, kills, raises
from .diagnose_slow import stragglers_of
from .diagnose_worlds import any_moment, hangs, mesh_program, overlapped_program, pipeline_program

pytestmark = pytest.mark.ranks

AIM = 0.978  # the FT-HSDP paper, section 2.3
M, P, A = mesh_program, pipeline_program, overlapped_program

SLICE = {
    "hang": [
        lambda: hangs(M, {"dp": 2, "tp": 2}, "local", cases=4),
        lambda: hangs(P, {"dp": 2, "pp": 2}, "local", cases=3),
    ],
    "any moment": [lambda: any_moment(M, {"dp": 2, "tp": 2}, "local", cases=3)],
    "kill": [lambda: kills(M, {"dp": 2, "tp": 2}, "local", cases=1)],
    "raise": [lambda: raises(M, {"dp": 4}, "local", cases=1)],
    "drop": [lambda: drops(M, {"dp": 4}, "local", cases=2)],
    "mismatch": [lambda: disagreements({"dp": 2, "tp": 2}, "local", ("dtype", "skip", "order"))],
    "slow": [lambda: stragglers_of(M, {"dp": 2, "tp": 2}, cases=8)],
}

WHOLE = {
    "hang": [
        *(lambda s=s: hangs(M, s, "local", cases=9) for s in ({"dp": 2}, {"dp": 3}, {"dp": 2, "tp": 2},
                                                              {"dp": 2, "pp": 2, "tp": 2}, {"dp": 2, "tp": 3})),
        *(lambda a=a: hangs(M, {"dp": 2, "tp": 4}, "local", a, 8) for a in ("tree", "recursive_doubling", "naive")),
        lambda: hangs(M, {"dp": 2, "tp": 2}, "gloo", cases=9),
        lambda: hangs(M, {"dp": 5}, "gloo", "ring", 8),
        lambda: hangs(P, {"dp": 1, "pp": 4}, "local", cases=8),
        lambda: hangs(P, {"dp": 2, "pp": 3}, "local", cases=8),
        lambda: hangs(P, {"dp": 2, "pp": 2}, "gloo", cases=8),
        lambda: hangs(A, {"dp": 4}, "local", cases=8),
        lambda: hangs(A, {"dp": 2, "tp": 2}, "local", cases=8),
    ],
    "native": [lambda: hangs(M, {"dp": 4}, "gloo", "native", 8)],
    "any moment": [
        lambda: any_moment(M, {"dp": 2, "tp": 2}, "local", cases=10),
        lambda: any_moment(M, {"dp": 2, "tp": 4}, "local", cases=8),
        lambda: any_moment(P, {"dp": 2, "pp": 2}, "local", cases=8),
        lambda: any_moment(A, {"dp": 4}, "local", cases=6),
    ],
    "large messages": [lambda: any_moment(M, {"dp": 4}, "local", cases=8, numbers=1 << 21)],
    "kill": [
        lambda: kills(M, {"dp": 2, "tp": 2}, "local", cases=5),
        lambda: kills(P, {"dp": 2, "pp": 3}, "local", cases=5),
        lambda: kills(M, {"dp": 2, "tp": 2}, "gloo", cases=5),
    ],
    "raise": [
        lambda: raises(M, {"dp": 2, "tp": 2}, "local", cases=4), lambda: raises(P, {"dp": 2, "pp": 2}, "gloo", cases=4),
    ],
    "drop": [
        lambda: drops(M, {"dp": 4}, "local", cases=6), lambda: drops(M, {"dp": 2, "tp": 2}, "local", cases=6),
        lambda: drops(P, {"dp": 2, "pp": 2}, "local", cases=6), lambda: drops(M, {"dp": 4}, "gloo", cases=4),
    ],
    "mismatch": [
        *(lambda s=s: disagreements(s, "local") for s in ({"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "tp": 3})),
        lambda: disagreements({"dp": 2, "tp": 2}, "gloo"),
    ],
    "slow": [
        *(lambda s=s: stragglers_of(M, s, cases=12) for s in ({"dp": 2}, {"dp": 5}, {"dp": 2, "pp": 2, "tp": 2})),
        lambda: stragglers_of(P, {"dp": 2, "pp": 2}, cases=8), lambda: stragglers_of(A, {"dp": 2, "tp": 2}, cases=8),
    ],
    "corrupt": [lambda n=n: wrong_ranks(n)[0] for n in (3, 4, 5, 8)],
}  # fmt: skip
# Records alone may leave two ends of a message, or all ranks inside a library's collective.
AMBIGUOUS = {"native", "any moment", "large messages"}


def table(found) -> str:
    """A line for each kind of case: how many, how many exact from records alone and with silence, suspects else."""
    lines = [f"{'cases of':16} {'n':>4} {'records':>8} {'heard':>6} {'among':>6}  suspects where not exact"]
    for kind, cases in found.items():
        more = Counter(len(c.plain.suspects) for c in cases if not c.exact)
        lines.append(f"{kind:16} {len(cases):4} {sum(c.exact for c in cases):8} {sum(c.exact_heard for c in cases):6} "
                     f"{sum(c.among for c in cases):6}  {dict(sorted(more.items())) or ''}")  # fmt: skip
    return "\n".join(lines)


def wrong(cases, exactly: bool) -> list[str]:
    return [f"{c.what}\n  truth {sorted(c.truth)}: {c.plain}\n  with silence: {c.heard}"
            for c in cases if not (c.exact if exactly else c.among)]  # fmt: skip


@pytest.mark.parametrize("kind", list(SLICE))
def test_the_culprit_is_named(kind) -> None:
    cases = [case for batch in SLICE[kind] for case in batch()]
    assert not wrong(cases, False), "\n".join(wrong(cases, False))
    assert all(c.exact_heard for c in cases), "\n".join(wrong(cases, True))
    assert kind in AMBIGUOUS or not wrong(cases, True), "\n".join(wrong(cases, True))


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_of_all_cases_as_many_as_in_the_paper_are_exact() -> None:
    found = defaultdict(list)
    begun = time.monotonic()
    for kind, batches in WHOLE.items():
        for batch in batches:
            found[kind] += batch()
    print(f"\n{table(found)}\n{time.monotonic() - begun:.0f} s")
    every = [case for of_kind in found.values() for case in of_kind]
    assert not wrong([case for case in every if not case.truth], True)  # where nothing was done nobody is accused
    cases = [case for case in every if case.truth]
    assert len(cases) >= 200
    assert not wrong(cases, False), "\n".join(wrong(cases, False))
    told = [case for kind, of_kind in found.items() if kind not in AMBIGUOUS for case in of_kind if case.truth]
    assert sum(c.exact for c in told) >= AIM * len(told), "\n".join(wrong(told, True))
    assert sum(c.exact_heard for c in cases) >= AIM * len(cases), "\n".join(wrong(cases, True))


def test_two_replicas_that_differ_are_both_suspects() -> None:
    cases, _ = wrong_ranks(2)
    assert all(c.among for c in cases) and not any(c.exact for c in cases if "persistent" in c.what)
    assert all(c.exact for c in cases if "transient" in c.what or "clean" in c.what)


@pytest.mark.parametrize("size", [2, 4, pytest.param(7, marks=pytest.mark.long)])
def test_a_flipped_bit_is_traced_to_the_message_that_it_hit(size) -> None:
    for way, found in flipped_messages(size, cases=8):
        if found is None:
            continue  # a bit of a number so small that the sum did not notice
        ways, verdict = found
        assert way in ways and set(way) <= set(verdict.suspects)
        assert set(ways) == {way} or len(set(ways)) == 2


def test_who_computes_wrongly_and_whether_once_or_always() -> None:
    cases, said = wrong_ranks(4)
    assert not wrong(cases, True), "\n".join(wrong(cases, True))
    assert all(told == ("clean" if asked == "replica" else asked) for asked, told in said), said
