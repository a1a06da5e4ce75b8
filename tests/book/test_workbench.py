"""A workbench: what a control changes, real ranks do; bursts, failures and refusals end in words, and nothing stays."""

from __future__ import annotations

import linecache
import os
import random
import threading
import time
from functools import partial
from typing import Any

import ipywidgets
import pytest
import torch
from jupyter_client.manager import start_new_kernel
from leftovers import alive, eventually

import labkit
import labkit.collectives
from labkit import book, cost
from labkit.book.workbenches import recorded
from labkit.book.workbenches.latest import PATIENCE, Latest
from labkit.book.workbenches.panel import Pane, _as_pinned
from labkit.book.workbenches.source import standing_alone, written
from labkit.collectives import all_reduce
from labkit.world import kept

from . import fake_trace


def reduce_once(group, algorithm, n):
    import os

    all_reduce(torch.ones(n), group, algorithm=algorithm)
    return os.getpid()


def race(world, algorithm, n):
    return world.run(reduce_once, algorithm, n)


def sent(run):
    return f"sent {run.trace.bytes_sent()}"


def bench(**more):
    controls = {"ranks": [2, 3, 4], "algorithm": ["ring", "tree"], "n": (1, 1000)}
    options = {"ranks": 2, "transport": "local"} | more
    return book.workbench(race, controls, [lambda run: book.timeline(run.trace), sent], title="A race", **options)


def pinned(panel):
    assert panel.box.children.index(panel.kept) > panel.box.children.index(panel._pictures), "what is new comes first"
    return "".join(getattr(part, "value", "") for part in panel.kept.children)


@pytest.fixture
def somebody(monkeypatch):
    """As in JupyterLab, but for a front end."""
    monkeypatch.setenv("LABKIT_HEADLESS", "0")


@pytest.mark.ranks
def test_without_a_reader_it_runs_once_and_is_words():
    one = bench()
    try:
        assert f"sent {cost.ring_all_reduce_bytes_by_rank(500, 4, 2)}" in one.text and "2 processes" in one.said
        assert "A race\nranks 2, algorithm ring, n 500\n" in repr(one) and "Timeline (measured)" in one.text
        bundle = one._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "image/svg+xml"}
        one.set(ranks=3, n=7)
        assert f"sent {cost.ring_all_reduce_bytes_by_rank(7, 4, 3)}" in one.text
    finally:
        one.close()


@pytest.mark.ranks
def test_a_control_that_moves_starts_ranks_and_changes_every_picture(somebody):
    one = bench()
    try:
        panel = one.panel
        assert one.wait(60) and len(panel.panes) == 2 and "2 processes" in panel.status.value
        plot = panel.panes[0]._plot
        for ranks, n in ((4, 500), (4, 9), (2, 9)):
            one.set(ranks=ranks, n=n)
            assert (
                one.wait(60)
                and panel.panes[1].words.value == f"<p>sent {cost.ring_all_reduce_bytes_by_rank(n, 4, ranks)}</p>"
            )
            assert panel.panes[0]._plot is plot and f"rank {ranks - 1}" in plot.layout.yaxis.ticktext
            assert f"rank {ranks}" not in plot.layout.yaxis.ticktext
        labels = [child.description for child in one.controls.values()]
        assert labels == ["ranks", "algorithm", "n"] and 'role="status"' in panel.status.value
    finally:
        one.close()


@pytest.mark.ranks
def test_a_burst_ends_with_the_settings_as_they_are_and_leaves_nothing(somebody):
    one, dice = bench(), random.Random(5)
    try:
        assert one.panel and one.wait(60)
        for _ in range(40):
            one.set(ranks=dice.choice([2, 3, 4]), n=dice.randrange(1, 1000), algorithm=dice.choice(["ring", "tree"]))
            time.sleep(dice.choice([0, 0, 0.01, 0.2]))
        one.set(ranks=3, algorithm="ring", n=77)
        assert one.wait(60)
        assert one.faces[1] == f"sent {cost.ring_all_reduce_bytes_by_rank(77, 4, 3)}", one.said
        pids = one.result.results
        assert threading.active_count() < 30
    finally:
        one.close()
    assert eventually(lambda: not any(map(alive, pids)))


@pytest.mark.ranks
def test_a_long_run_is_cancelled_by_the_next_change(somebody):
    def work(world, seconds):
        return world.run(lambda group: time.sleep(seconds) or seconds)

    one = book.workbench(work, {"seconds": [1000, 0]}, [lambda run: f"slept {run.results[0]}"], ranks=2)
    try:
        assert one.panel and not one.wait(0.5)
        one.set(seconds=0)
        assert one.wait(60) and one.faces == ["slept 0"], one.said
    finally:
        one.close()


@pytest.mark.ranks
def test_what_is_refused_is_told_without_a_picture_and_of_a_failure_who_waits_for_whom(somebody):
    def work(world, what):
        def fn(group):
            if what == "deadlock":
                group.recv(torch.zeros(1), 1 - group.rank)
            return what

        if what == "value":
            raise ValueError("no such thing")
        if what == "everybody":
            return world.run(lambda group: all_reduce(torch.ones(3), group, algorithm="rings"))
        return world.run(fn) if what != "bug" else {}[what]

    one = book.workbench(
        work, {"what": ["fine", "deadlock", "value", "everybody", "bug"]}, [lambda run: run.results[0]], ranks=2
    )
    try:
        assert one.panel and one.wait(60) and one.faces == ["fine"]
        for what, words in (("deadlock", "ranks 0 and 1 wait for each other"), ("value", "Refused: no such thing"),
                            ("everybody", "Refused: "), ("bug", "KeyError: 'bug'")):  # fmt: skip
            one.set(what=what)
            assert one.wait(60) and words in one.said and words.split()[0] in one.panel.status.value
            if what == "deadlock":
                assert "rank 0 for rank 1; rank 1 for rank 0" in one.faces[0].sentence
                assert "Who waits for whom" in one.panel.panes[0].words.value
            else:
                assert one.faces == (["fine"] if what == "bug" else [])
            one.set(what="fine")
            assert one.wait(60) and "2 processes" in one.said and one.faces == ["fine"]
    finally:
        one.close()


@pytest.mark.ranks
def test_what_is_pinned_stays_beside_what_comes_and_the_code_makes_the_same_run(somebody):
    one = bench()
    try:
        one.pin()  # nothing is there yet
        assert one.panel and one.wait(60)
        one.pin()
        first, timelines = one.faces[1], [one.faces[0]]
        one.set(n=3)
        assert (
            one.wait(60)
            and timelines.append(one.faces[0]) is None
            and f"Pinned (ranks 2, algorithm ring, n 500): {first}" in one.panel.panes[1].words.value
            and "n 500" in pinned(one.panel)
        )
        assert len(one.panel.panes[0]._plot.data) == len(one.faces[0].spec["data"]) and "<svg" not in pinned(one.panel)
        ends = [plot.layout.xaxis.range for plot in (one.panel.panes[0]._plot, one.panel.panes[0].kept[1])]
        units = {"time (s)": 1.0, "time (ms)": 1e-3, "time (µs)": 1e-6}  # a busy machine's first run may be in others
        axes = [timeline.spec["layout"]["xaxis"] for timeline in timelines]
        seconds = [axis["range"][1] * units[axis["title"]["text"]] for axis in axes]
        assert ends[0] == ends[1]
        assert ends[0][1] * units[axes[1]["title"]["text"]] == pytest.approx(max(seconds))
        names = {"labkit": labkit, "reduce_once": reduce_once}
        exec(one.code, names)
        assert names["run"].trace.bytes_sent() == one.result.trace.bytes_sent()
        assert 'labkit.world(2, transport="local")' in one.code and 'algorithm="ring", n=3' in one.code
    finally:
        one.close()


@pytest.mark.ranks
def test_a_function_whose_first_parameter_is_a_control_starts_its_ranks_itself(somebody):
    def by_itself(n=3, times=1):
        return labkit.launch(reduce_once, 2, "ring", n * times)

    one = book.workbench(by_itself, {"n": (1, 9), "times": (1, 9)}, [sent], ranks=2)
    try:
        assert one.panel and one.wait(60) and one.set(times=5).wait(60)
        names = {"labkit": labkit, "reduce_once": reduce_once}
        exec(one.code, names)
        assert "run = by_itself(n=3, times=5)" in one.code and "labkit.world" not in one.code
        assert sent(names["run"]) == one.faces[0] == "sent [60, 60]"
    finally:
        one.close()


@pytest.mark.ranks
def test_a_view_that_has_nothing_to_show_takes_no_room_and_has_nothing_that_is_pinned(somebody):
    def said(group, what=""):
        return what

    one = book.workbench(said, {"what": ["", "much"]}, [lambda run: run.results[0], lambda run: "always"], ranks=2)
    try:
        assert one.panel and one.wait(60)
        assert one.panel.panes[0].box.children == () and len(one.panel.panes[1].box.children) == 1
        assert "\n\n\n" not in one.text
        one.pin()
        one.set(what="much")
        assert one.wait(60) and "much" in one.panel.panes[0].words.value
        assert "inned" not in one.panel.panes[0].words.value and "Pinned" in one.panel.panes[1].words.value
        assert one.panel.kept.layout.display == "none", "words are compared where they stand"
    finally:
        one.close()


@pytest.mark.ranks
def test_pinned_curves_lie_behind_the_new_ones_and_a_replay_is_shown_and_played(somebody):
    def work(world, slope):
        return world.run(reduce_once, "ring", 8), slope

    def played(result):
        stepper = book.replay(result[0].trace, by="round")
        if result[1] == 2:
            stepper.open_at(3)
        return stepper

    views = [lambda r: book.lines({"a": [r[1] * x for x in range(5)]}), played]
    one = book.workbench(work, {"slope": (1, 5)}, views, ranks=3, transport="local")
    try:
        assert one.panel and one.wait(60)
        one.faces[1].next()
        kept_at = f'aria-label="{one.faces[1].text}"'
        one.pin()
        one.set(slope=5)
        assert one.wait(60)
        one.faces[1].next()
        there = one.faces[1].step
        one.set(slope=4)
        assert one.wait(60) and one.faces[1].step == there, "the step that the reader has chosen"
        one.faces[1].step = len(one.faces[1].frames) - 1
        one.set(slope=3)
        assert one.wait(60) and one.faces[1].step == one.faces[1].begin, "what was played to its end begins anew"
        one.faces[1].next()
        one.set(slope=2)
        assert one.wait(60) and one.faces[1].step == 3, "what opens at a step of its own does so"
        one.set(slope=3)
        assert one.wait(60) and one.faces[1].step == one.faces[1].begin, "and the next one does not"
        curves, stepper = one.panel.panes
        assert [trace.opacity for trace in curves._plot.data] == [0.35, None] and curves._plot.data[0].name == "pinned"
        assert stepper.box.children[0] is one.faces[1].widget and "all_reduce ring on 3 ranks" in one.text
        assert kept_at in pinned(one.panel) and "<svg" in pinned(one.panel), "at the step where it was pinned"
    finally:
        one.close()


def test_a_pinned_curve_has_the_colour_of_the_live_one_of_its_name_and_one_without_it_its_own_name():
    kept, live = (book.lines({name: [1, 2] for name in names}).spec["data"] for names in (["four"], ["two", "four"]))
    (same,) = _as_pinned(kept, live)
    assert same["line"]["color"] == live[1]["line"]["color"] != kept[0]["line"]["color"] and same["name"] == "pinned"
    (other,) = _as_pinned(kept, live[:1])
    assert other["line"]["color"] == kept[0]["line"]["color"] and other["name"] == "pinned: four"
    assert [band["showlegend"] for band in _as_pinned(live, live)] == [True, False], "one entry for all of them"


def test_a_single_point_that_is_pinned_stays_a_point_and_a_line_has_no_markers():
    data = book.lines({"a run": {4.0: 1.0}, "formula": [1, 2]}).spec["data"]
    assert ["markers" in band["mode"] for band in _as_pinned(data, data)] == [True, False]


def test_what_is_pinned_has_the_settings_of_its_own_run_and_not_those_that_are_asked_for(somebody):
    begun, go = threading.Event(), threading.Event()

    def work(world, n):
        if n == 5:
            begun.set()
            go.wait(60)
        return n

    one = book.workbench(work, {"n": (1, 9)}, [lambda n: f"n is {n}"], ranks=2)
    one.set(n=3)
    assert one.panel and one.wait(60)
    one.set(n=5)
    assert begun.wait(60)
    one.pin()
    go.set()
    assert one.wait(60) and one.faces == ["n is 5"]
    assert "Pinned (n 3): n is 3" in one.panel.panes[0].words.value


def test_a_button_pressed_while_a_picture_is_drawn_waits_and_a_view_that_fails_does_not_end_it(somebody):
    def work(world, n):
        return n

    def view(n):
        if n == 5:
            raise RuntimeError("no picture of 5")
        return f"n is {n}"

    one = book.workbench(work, {"n": (1, 9)}, [view], ranks=2)
    one.set(n=1)
    panel = one.panel
    assert one.wait(60)
    at_once, most, plain = [], [], panel.draw

    def slowly(faces, pinned):
        at_once.append(1)
        most.append(len(at_once))
        time.sleep(0.2)
        plain(faces, pinned)
        at_once.pop()

    panel.draw = slowly
    one.set(n=2)
    time.sleep(0.05)
    one.pin()
    one.set(n=3)
    assert one.wait(60) and one.faces == ["n is 3"] and max(most) == 1
    one.set(n=5)
    assert one.wait(60) and one.said == "RuntimeError: no picture of 5"
    one.set(n=6)
    assert one.wait(60) and one.faces == ["n is 6"]
    one.unpin()
    assert pinned(panel) == ""


@pytest.mark.ranks
def test_a_function_of_a_group_is_what_every_rank_does():
    one = book.workbench(reduce_once, {"n": (1, 9), "algorithm": ["ring"]}, [sent], ranks=3, transport="local")
    try:
        assert one.faces == [f"sent {cost.ring_all_reduce_bytes_by_rank(5, 4, 3)}"]
        names = {"labkit": labkit, "all_reduce": all_reduce, "torch": torch}
        exec(one.code, names)
        assert names["run"].trace.bytes_sent() == one.result.trace.bytes_sent()
    finally:
        one.close()


def test_a_call_that_is_too_long_for_a_line_has_a_line_for_each_argument(somebody):
    one = book.workbench(reduce_once, {"n": (1, 9), "algorithm": ["ring"]}, [sent], ranks=3, deadline=60, timeout=20)
    try:
        last = one.code.strip().splitlines()[-6:]
        assert last[0] == "run = labkit.launch(" and last[2:] == ["    3,", "    deadline=60,", "    timeout=20,", ")"]
        assert last[1].startswith("    lambda group: reduce_once(group, n=") and last[1].endswith("),")
    finally:
        one.close()


def test_controls_begin_at_the_defaults_of_the_run_and_at_the_ranks_that_are_asked_for():
    def work(world, n=7, on=False):
        return world.size, n, on

    one = book.workbench(work, {"ranks": (2, 8), "n": (1, 9), "on": True}, [str], ranks=6)
    assert one.faces == ["(6, 7, False)"]
    with pytest.raises(ValueError, match="ranks cannot be 9: it goes from 2 to 8"):
        book.workbench(work, {"ranks": (2, 8)}, [str], ranks=9)


def test_a_view_may_ask_for_a_control_that_the_run_takes_or_not() -> None:
    def work(world, n=7):
        return 2 * n

    def view(result, n, unit, other="x"):
        return f"{result} is twice {n} {unit}, {other}"

    one = book.workbench(work, {"n": (1, 9), "unit": ["m", "km"]}, [view, str])
    assert one.faces == ["14 is twice 7 m, x", "14"] and one.set(unit="km").faces[0] == "14 is twice 7 km, x"
    assert "unit" not in one.code.splitlines()[-1] and "n=7" in one.code


@pytest.mark.ranks
def test_a_control_is_grey_unless_another_has_its_value() -> None:
    def work(group, way="own", power=0):
        return power if way == "fixed" else None

    controls = {"way": ["own", "fixed"], "power": (0, 3)}
    one = book.workbench(work, controls, [str], ranks=1, only_when={"power": {"way": "fixed"}})
    try:
        assert one.controls["power"].disabled and not one.controls["way"].disabled
        one.set(way="fixed")
        assert not one.controls["power"].disabled
        one.set(way="own")
        assert one.controls["power"].disabled
    finally:
        one.close()
    for wrong in ({"size": {"way": "fixed"}}, {"power": {"size": 1}}):
        with pytest.raises(ValueError, match="only_when names 'size', and the controls are way, power"):
            book.workbench(work, controls, [str], ranks=1, only_when=wrong)


def test_bad_controls_are_refused_with_a_remedy():
    views = [str]
    for controls, words in (
        ({"size": [1]}, "takes no 'size', which a control sets, and no view asks for it: it takes world, algorithm"),
        ({}, "a control or more"),
        ({"n": object()}, "control 'n': .* is no list"),
    ):
        with pytest.raises(ValueError, match=words):
            book.workbench(race, controls, views)
    with pytest.raises(ValueError, match="a view or more"):
        book.workbench(race, {"n": (1, 3)}, [])
    with pytest.raises(labkit.RefusedError, match="no option 'transprot'"):
        book.workbench(race, {"n": (1, 3)}, views, transprot="local")


def test_a_widget_may_be_a_control_and_values_are_checked():
    one = book.workbench(lambda world, n: n, {"n": ipywidgets.IntText(4, description="numbers")}, [str])
    assert one.faces == ["4"] and one.controls["n"].description == "numbers"
    two = book.workbench(lambda world, n, b: (n, b), {"n": (1, 9, 2), "b": True}, [str])
    assert two.set(n=3, b=False).faces == ["(3, False)"]
    for values, words in (
        ({"n": 99}, "from 1 to 9"),
        ({"m": 1}, "no control 'm': they are n, b"),
        ({"b": "x"}, "cannot"),
    ):
        with pytest.raises(ValueError, match=words):
            two.set(**values)


def test_only_the_latest_is_done():
    begun, done = threading.Event(), []

    def work(settings):
        begun.set()
        time.sleep(0.2)
        done.append(settings["n"])
        return True

    latest = Latest(work, lambda: None)
    latest.ask({"n": 0})
    assert begun.wait(10)
    for n in range(1, 6):
        latest.ask({"n": n})
    assert latest.wait(10) and done[0] == 0 and done[-1] == 5 and len(done) < 6
    latest.close()
    assert eventually(lambda: not latest._thread.is_alive())


def slowly(group, a=0, b=0, c=0):
    time.sleep(PATIENCE)  # so that it ends just when it is to be cancelled
    return a, b, c


@pytest.mark.ranks
def test_after_a_burst_of_changes_the_picture_is_that_of_the_controls(somebody):
    controls = {name: (0, 50) for name in "abc"}
    one = book.workbench(slowly, controls, [lambda run: str(run.results[0])], ranks=2, transport="local")
    try:
        one.panel  # noqa: B018
        assert one.wait(30)
        for n in range(1, 16):
            one.set(a=n)
            one.set(b=n)
            one.set(c=n)
            assert one.wait(30) and one.result.results[0] == (n, n, n), (n, one.said)
    finally:
        one.close()


@pytest.mark.ranks
def test_a_run_that_takes_long_can_be_stopped_and_is_not_begun_again(somebody):
    one = book.workbench(slow_step, {"seconds": (0, 600)}, [lambda run: "slept"], ranks=2, transport="local")
    try:
        one.panel  # noqa: B018
        assert one.wait(60) and one.faces == ["slept"]
        one.set(seconds=600)
        assert eventually(lambda: one._world.kept and one._latest.busy)
        time.sleep(0.3)
        one.stop()
        assert one.wait(60) and one.said.startswith("Stopped") and eventually(lambda: not one._world.kept)
        assert "lk-old" in one.panel.box._dom_classes and "lk-busy" not in one.panel.box._dom_classes
        one.set(seconds=0)
        assert one.wait(60) and one.said.startswith("run on 2 processes")
    finally:
        one.close()


def slow_step(group, seconds=0):
    time.sleep(seconds)


@pytest.mark.ranks
def test_until_the_last_of_several_changes_is_drawn_what_is_seen_is_told_to_be_old(somebody):
    one = book.workbench(slowly, {"a": (0, 50), "b": (0, 50)}, [lambda run: str(run.results[0])], ranks=2)
    told: list[tuple[str, bool]] = []
    try:
        panel = one.panel
        assert one.wait(60)
        panel.tell, tell = lambda words, details, busy, old: (told.append((words, old)), tell(words, details, busy, old)), panel.tell  # fmt: skip  # noqa: E501
        drawn = one._draw

        def drawn_late():
            drawn()
            if one._at["a"] == 1 and one.settings["b"] == 0:
                one.set(b=7)  # while the first is drawn

        one._draw = drawn_late
        one.set(a=1)
        assert eventually(lambda: one.faces == ["(1, 7, 0)"]) and one.wait(30)
        done = [n for n, (words, _) in enumerate(told) if words.startswith("run on")]
        assert done == [len(told) - 1] and not told[-1][1], told
        assert all(old for words, old in told if words.endswith("running ...")), told
    finally:
        one.close()


def test_a_stop_that_comes_when_the_run_has_just_ended_has_stopped_nothing():
    go, begun, fine = threading.Event(), threading.Event(), True

    def work(settings):
        begun.set()
        return go.wait(10) and fine

    latest = Latest(work, go.set)
    for fine in (True, False):
        go.clear(), begun.clear()
        latest.ask({})
        assert begun.wait(10) and latest.stop() is not fine and latest.wait(10)
    assert not latest.stop()
    latest.close()


IN_A_KERNEL = """
import time
from labkit import book
def slow_step(group, seconds=0):
    time.sleep(seconds)
one = book.workbench(slow_step, {"seconds": (0, 600)}, [lambda run: "slept"], ranks=2)
one.panel
assert one.wait(60)
one.set(seconds=600)
"""


@pytest.mark.ranks
def test_an_interrupt_of_a_kernel_that_runs_no_cell_ends_the_run_of_a_workbench(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_HEADLESS", raising=False)
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    manager, client = start_new_kernel(env=environment)
    said: list[str] = []

    def run(source):
        client.execute_interactive(source, output_hook=lambda told: said.append(str(told["content"])), timeout=60)

    try:
        run(IN_A_KERNEL)
        run("import time; time.sleep(0.3); print('busy:', one._latest.busy)")
        assert "busy: True" in "".join(said), said
        manager.interrupt_kernel()
        run("one.wait(60); print(one.said)")
        assert "Stopped: all ranks have ended" in "".join(said), said
        run("one.set(seconds=0); one.wait(60); print(one.said)")
        assert "run on 2 processes" in "".join(said), said
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.ranks
def test_one_that_is_closed_while_its_ranks_start_leaves_none(somebody, monkeypatch):
    begun, closed, begin = threading.Event(), threading.Event(), kept.World._begin

    def slow_start(world, fn):
        begun.set()
        assert closed.wait(30)
        begin(world, fn)

    monkeypatch.setattr(kept.World, "_begin", slow_start)
    one = bench()
    one.panel  # noqa: B018
    assert begun.wait(30)
    one.close()
    closed.set()
    assert one.wait(30) and eventually(lambda: not one._world.kept)


def by_ring(x: Any, group: Any) -> Any:
    return ring_sum(x, group)


def counted_down(n: int = 3) -> int:
    return n and counted_down(n - 1)


ring_sum, first, answers = partial(labkit.collectives.all_reduce, algorithm="ring"), 3, {"slow": labkit.Link(1e6)}


def summed(group: Any, n: int = first, link: str = "slow") -> Any:
    ### a marker of the book's
    return by_ring(torch.ones(n + counted_down()), group), answers[link]


def test_code_stands_alone_with_partials_defaults_and_functions_that_call_themselves() -> None:
    code, names = standing_alone(summed), dict[str, Any](__name__="__main__")
    exec(compile(code, "<pasted>", "exec"), names)
    assert "a marker of the book" not in code and code.index("first = 3") < code.index("def summed")
    assert 'answers = {"slow": Link(bandwidth=1e6)}' in code, "what is not a default, and no more"
    assert 'ring_sum = partial(labkit.collectives.all_reduce, algorithm="ring")' in code
    assert names["answers"] == answers and names["counted_down"]() == 0
    assert names["summed"].__defaults__ == (3, "slow")
    assert written([1.9999999999999998e-05, 0.1, float("inf")]) == '[2e-05, 0.1, float("inf")]', "as a slider gives it"


def noted(group: Any, *rest: Any) -> tuple[object, ...]:
    return group, rest


def test_code_stands_alone_with_what_annotations_name() -> None:
    code = standing_alone(noted)
    assert "from typing import Any" in code
    exec(compile(code, "<pasted>", "exec", dont_inherit=True), {"__name__": "__main__"})


@pytest.mark.ranks
def test_a_recorded_control_calls_its_values_as_the_live_one_does(monkeypatch):
    monkeypatch.setenv("LABKIT_RECORD", "1")
    sizes, run = [("4 kB", 1000), ("8 kB", 2000)], lambda group, size=1000: size
    one = book.workbench(run, {"size": sizes}, [lambda run: str(run.results)], title="Labels", ranks=1)
    try:
        assert one._repr_mimebundle_()[recorded.GRID]["controls"] == [["size", ["4 kB", "8 kB"]]]
    finally:
        one.close()


@pytest.mark.ranks
def test_real_runs_over_a_grid_are_kept_for_pages_on_which_nothing_runs(monkeypatch):
    monkeypatch.setenv("LABKIT_RECORD", "1")
    one = bench()
    try:
        kept = one._repr_mimebundle_()[recorded.GRID]
        assert kept["controls"] == [["ranks", ["2", "3", "4"]], ["algorithm", ["ring", "tree"]], ["n", ["500", "1000"]]]
        assert kept["start"] == [0, 0, 0] and one.settings == {"ranks": 2, "algorithm": "ring", "n": 500}
        by_place = {tuple(run["at"]): run["html"] for run in kept["runs"]}
        assert len(by_place) == 12 <= recorded.MOST and all("<svg" in html for html in by_place.values())
        for r, n in ((0, 0), (2, 1)):
            sent_by_ring = cost.ring_all_reduce_bytes_by_rank([500, 1000][n], 4, [2, 3, 4][r])
            assert f"sent {sent_by_ring}" in by_place[r, 0, n]
        assert "sent [4000, 0]" not in by_place[0, 0, 0] != by_place[0, 1, 0]
    finally:
        one.close()


def test_a_plot_that_comes_back_to_the_page_is_a_new_one():
    """Off the page, a plot misses what is sent to it: its traces would be those of the run before."""
    pane = Pane()
    curves = [
        book.lines({"loss": [1.0, last]}, x="step", y="loss", title="Loss", sentence="") for last in (2.0, 3.0, 4.0)
    ]
    pane.put(curves[0], None)
    first = pane._plot
    pane.put(curves[1], None)
    assert pane._plot is first in pane.box.children, "on the page it is changed in place"
    pane.put("words alone", None)
    assert first not in pane.box.children
    pane.put(curves[2], None)
    assert pane._plot is not first and pane._plot in pane.box.children and first.comm is None, "and the old one closed"
    assert list(pane._plot.data[0].y)[-1] == 4.0


def test_a_timeline_that_is_pinned_is_drawn_in_the_unit_of_the_one_that_comes():
    """The first run of a world takes milliseconds where the next takes microseconds."""
    slow, fast = (book.timeline(fake_trace.ring(2, skew=seconds)) for seconds in (3e-3, 3e-5))
    axes = [one.spec["layout"]["xaxis"] for one in (slow, fast)]
    assert [axis["title"]["text"] for axis in axes] == ["time (ms)", "time (µs)"], "the two are in different units"
    pane = Pane()
    pane.put(fast, slow)
    drawn, kept = pane._plot.layout.xaxis, pane.kept[1].layout.xaxis
    assert drawn.range == kept.range and kept.range[1] == pytest.approx(1000 * axes[0]["range"][1])
    assert kept.title.text == drawn.title.text == "time (µs)"
    bars = [[one for one in data if one["type"] == "bar"] for data in (slow.spec["data"], pane.kept[1].data)]
    for bar, scaled in zip(*bars, strict=True):
        for key in ("x", "base"):
            assert list(scaled[key]) == pytest.approx([1000 * seconds for seconds in bar[key]])
    assert any(any(bar["base"]) for bar in bars[0])


def test_what_is_pasted_has_tables_of_functions_and_decorated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = (
        "from functools import cache\nfrom labkit import collectives\ncalls = {'ring': collectives.ring_all_reduce}\n\n"
        "@cache\ndef kept(n):\n    return n + 1\n\ndef use(x, group):\n    return calls['ring'], kept(1)\n"
    )
    monkeypatch.setitem(linecache.cache, "<a cell>", (len(cell), None, cell.splitlines(keepends=True), "<a cell>"))
    names: dict[str, Any] = {"__name__": "__main__", "In": [cell]}
    exec(compile(cell, "<a cell>", "exec"), names)
    pasted: dict[str, Any] = {"__name__": "__main__"}
    exec(standing_alone(names["use"]), pasted)
    assert pasted["use"](None, None) == (labkit.collectives.ring_all_reduce, 2)
