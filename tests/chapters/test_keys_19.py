"""Keys of chapter 19 and what its checks compare with: slips are told apart, the paper's numbers come out, histories
are those of the quorum service, and logs are what the library's own audit takes them for."""

from __future__ import annotations

from random import Random

import pytest
import torch
from slips import every_draw, letters_have_reasons, tell_apart

from labkit import cost
from labkit.chapters.c19_ft_hsdp import audit as logs, checks as reference, quorum as quorums
from labkit.grading.answers import find_key
from labkit.grading.checks.fresh import Fresh
from labkit.grading.checks.student import Evidence, NotRight
from labkit.resilience.audit import check
from labkit.resilience.audit.records import parse
from labkit.resilience.ft_hsdp import numbers
from labkit.resilience.quorum.state import QuorumState
from labkit.wire.errors import RefusedError

CHAPTER = "19_ft_hsdp"


def answer(name, **given):
    return find_key(CHAPTER, name, **given).answer


TIME = every_draw(every=[18, 20, 24], recovery=[8, 10, 12], n=[8, 10, 16])
WAITS = every_draw(step=[15, 20, 25], patience=[2, 3, 4], seconds=[2, 5, 8], every=[15, 18, 24])
STATE = every_draw(billions=[280, 405, 560], gpus=[512, 768, 1024], gigabits=[100, 200], behind=[2, 3])
BYTES = every_draw(megabytes=[1500, 2500, 4000], n=[6, 10, 14], ms=[1, 2, 3])
STEPS = every_draw(away=[1, 3, 4], n=[12, 16], length=[1200, 2000, 3500])
KEYS = [
    *((name, g) for name in ("all_stop", "one_stops", "with_return") for g in TIME),
    *((name, g) for name in ("stall_now", "stall_mended", "stall_detected", "effective_detected") for g in WAITS),
    *((name, g) for name in ("state_of_a_gpu", "seconds_on_the_way", "seconds_from_one", "most_in_a_step")
      for g in STATE),
    *((name, g) for name in ("in_flight", "pieces", "fewest_chunks", "steps_of_the_ring") for g in BYTES),
    *((name, g) for name in ("rate_linear", "rate_root", "noise_of_mean", "noise_of_linear_step") for g in STEPS),
    *(("samples_missing", g) for g in STEPS),
]  # fmt: skip


@pytest.mark.parametrize("name", sorted({name for name, _ in KEYS}))
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    tell_apart(find_key(CHAPTER, name, **numbers) for same, numbers in KEYS if same == name)


@pytest.mark.parametrize(
    "name, right, letters",
    [("why_not_shorter", "b", "abcd"), ("why_during_the_step", "c", "abcd"), ("why_the_root", "c", "abcd")],
)
def test_letters_have_a_reason_each(name, right, letters):
    letters_have_reasons(find_key(CHAPTER, name), right, letters)


def test_the_numbers_of_the_paper():
    paper = {"every": 18, "recovery": 10, "n": 12}
    assert find_key(CHAPTER, "all_stop", **paper).mark("44.4 %").right
    assert find_key(CHAPTER, "one_stops", **paper).mark("80.1 %").right
    assert find_key(CHAPTER, "with_return", **paper).mark("71.6 %").right
    assert "without the return" in find_key(CHAPTER, "with_return", **paper).mark(80.09).why
    waits = {"step": 20, "patience": 3, "seconds": 5, "every": 18}
    assert answer("stall_now", **waits) == cost.kill_stall_seconds() == 170
    assert answer("stall_mended", **waits) == cost.kill_stall_seconds(cost.stalls.FIXED) == 80
    assert answer("effective_detected", **waits) > answer("one_stops", **paper)
    assert answer("rate_root", away=1, n=12, length=1) == pytest.approx(0.957, abs=1e-3)
    assert answer("rate_linear", away=3, n=12, length=1) * answer("noise_of_mean", away=3, n=12, length=1) == (
        pytest.approx(answer("noise_of_linear_step", away=3, n=12, length=1))
    )
    for given in STATE:
        assert 1 <= answer("most_in_a_step", **given) == 20 // answer("seconds_on_the_way", **given)
    for given in BYTES:
        chunks = answer("fewest_chunks", **given)
        carried = 50e9 * given["ms"] / 1e3
        assert cost.ftar_in_flight_bytes(chunks=chunks) >= carried > cost.ftar_in_flight_bytes(chunks=chunks - 1)


# Histories of quorums -------------------------------------------------------------------------------------------------


def histories(count, events=60):
    return [quorums.history(Random(seed), 2 + seed % 5, events) for seed in range(count)]


def test_histories_keep_the_promises_of_the_service():
    seen = set()
    for moments in histories(40):
        known = 0
        for moment, found in moments:
            if found is None:
                continue
            rows = {x["replica"]: x for x in moment["replicas"]}
            assert all(rows[r]["alive"] and rows[r]["asks"] for r in found["members"])
            assert moment["least"] <= len(found["members"]) and set(found["healthy"]) <= set(found["members"])
            assert len({tuple(rows[r]["version"]) for r in found["healthy"]}) == 1
            lives = [] if moment["latest"] is None else moment["latest"]["lives"]
            busy = [r for r, life in lives if rows[r]["alive"] and rows[r]["life"] == life and not rows[r]["asks"]]
            waited = min((x["since"] for x in rows.values() if x["asks"]), default=0) + moment["patience"]
            assert not busy or moment["now"] >= waited  # never a second one beside those that are in a step
            assert found["id"] >= known
            seen.add("the same id" if found["id"] == known else "a new id")
            known = found["id"]
            seen |= quorums._kinds(moment, found)
        seen |= {kind for moment, found in moments if found is None for kind in quorums._kinds(moment, found)}
    assert seen >= {"the same id", "a new id", "one step, two states", "held by one that does not ask", "a failure",
                    "newcomers at a failure"}  # fmt: skip


def test_a_history_is_that_of_the_service_itself():
    """The first quorums of a run, asked of the state machine that the book's runs use."""
    state = QuorumState(3, join=quorums.PATIENCE, first=quorums.PATIENCE)
    rows = [quorums._row(r) for r in range(3)]
    latest, next_id, now = None, 1, 0.0
    for step in range(4):
        for r in range(3):
            if step == 0:
                rows[r]["life"] = state.begin(r, now)
            rows[r].update(asks=True, since=now, failed=step == 2, version=[step, latest["id"] if latest else 0])
            state.join(r, rows[r]["life"], step, now, (step, r), failed=step == 2, shrink_only=step == 2)
            state.tick(now)
        moment = {"latest": latest, "next_id": next_id, "now": now, "patience": 5.0, "least": 1, "replicas": rows}
        found, issued = quorums.right_decision(moment), state.latest
        assert found == {"id": issued.id, "members": [0, 1, 2], "healthy": [m.replica for m in issued.healthy]}
        latest = {"id": issued.id, "step": step, "lives": [[r, rows[r]["life"]] for r in range(3)]}
        next_id, now = state.next_id, now + 1
    assert latest["id"] == 2  # one failure, one new id


# Logs -----------------------------------------------------------------------------------------------------------------


def audited(lines):
    whole = []
    for text in lines:
        try:
            whole.append(parse(text))
        except RefusedError:
            assert not text.endswith("}")
    return check(whole, ranks=2, steps=14)


@pytest.mark.parametrize("spoil", ["", *logs.KINDS])
def test_the_audit_of_the_library_finds_spoilt_logs_and_no_others(spoil):
    for seed in range(12):
        lines, found = logs.make_log(seed, 2 + seed % 3, 2, 14, spoil)
        report = audited(lines)
        assert report.ok == (spoil == ""), (seed, report.problems)
        assert {kind for kind, step in found.items() if step is not None} == ({spoil} - {""})
        if spoil:
            assert any(f"{found[spoil]}" in text for text in report.problems)


# Lives ----------------------------------------------------------------------------------------------------------------


class Someone:
    """What the plans ask of a student."""

    def __init__(self, seed):
        self.seed, self._fresh = seed, Fresh(seed, "", None)

    def tensor(self, *shape):
        return self._fresh.tensor(*shape)

    def expect(self, holds, sentence, **values):
        if not holds:
            raise NotRight(sentence)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_lives_use_each_sample_once_and_end_in_one_state(n):
    for seed in range(8):
        inputs = reference.some_lives(Someone(seed), n, 14, 6, 3)
        results = reference.lives_expected(inputs)
        ends = [lives[-1] for lives in results if not isinstance(lives[-1], str)]
        assert any(isinstance(x, str) for lives in results for x in lives)
        final = max(ends, key=lambda state: state[1].sum())
        for replica, count in enumerate(final[1].tolist()):
            own = [s for life in results[replica] if not isinstance(life, str) for s in life[2]]
            trained = numbers(replica, 0, max(1, count), n).tolist()[:count]
            assert set(own) <= set(trained) and len(set(own)) == len(own)
        for wrong in ("own", "uncommitted", "everybody", "members", "late", "listed"):
            assert not reference.equal(reference.lives_expected(inputs, wrong), results), wrong


def test_votes_apply_where_all_agree_and_nowhere_else():
    for seed in range(8):
        for loss in ("", "vote", "decide", "commit"):
            inputs = reference.some_votes(Someone(seed), 4, 6, loss)
            results = [x for x in reference.votes_expected(inputs) if not isinstance(x, str)]
            assert len(results) == (4 if not loss else 3)
            assert all(reference.equal(x, results[0]) for x in results)
            good = [all(x["well"][k] for x in inputs) for k in range(6)]
            said = results[0][2]
            assert [word == "applied" for word in said if word != "lost"] == good[: len(said) - ("lost" in said)]
            assert ("lost" in said) == bool(loss)


def test_an_average_counts_those_that_trained():
    someone = Someone(3)
    inputs = reference.some_gradients(someone, 4, 6, {0, 2})
    assert all(torch.isfinite(x["gradient"]).all() == x["trained"] for x in inputs)
    with pytest.raises(NotRight, match="Nobody trained"):
        nobody = [{"gradient": torch.ones(2), "trained": False}] * 2
        reference.expect_average(someone, Evidence([None, torch.ones(2)]), nobody)
