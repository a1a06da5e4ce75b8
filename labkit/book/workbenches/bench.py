"""A workbench: controls that start real ranks when they change, and pictures of what the ranks did.

    def race(group, algorithm, kilobytes):                # on as many ranks as the control `ranks` says
        return all_reduce(torch.ones(250 * kilobytes), group, algorithm=algorithm)

    book.workbench(race, {"ranks": [2, 4, 8], "algorithm": ["ring", "tree"], "kilobytes": (1, 1000)},
                   views=[lambda run: book.timeline(run.trace), said])

A control is given as ipywidgets abbreviates it: a list (one of these), (least, most) or (least, most, step), True or
False; or as a widget. A change cancels the run that is under way and starts the next, with the settings as they are
then: runs never queue up, and they go on in a thread of their own, so that the kernel stays free. Without a reader the
workbench runs once, and is words.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from itertools import zip_longest
from typing import Any

from labkit.book.drawing.figure import Figure
from labkit.book.drawing.tables import Table
from labkit.book.frontend import VIEW, cell_id, when_interrupted
from labkit.book.reading.kernel import missing
from labkit.book.stepping.player import Player
from labkit.book.timelines.waits import wait_for
from labkit.book.workbenches import recorded
from labkit.book.workbenches.latest import Latest
from labkit.book.workbenches.source import standing_alone, written
from labkit.telling import live
from labkit.wire.errors import RefusedError
from labkit.world import RankFailed, World

BUSY = "running ...", "starting processes and running ..."
STOPPED = "Stopped: all ranks have ended. Move a control to run again."
LINE = 79  # characters of a line of code that fits beside the sidebar
RANKS = "ranks"  # the control that says how many there are
UNITS = {"us": "µs", "ms": "ms", "s": "s", "kB": "kB", "MB": "MB", "GB": "GB"}  # that end the name of a control

Face = Figure | Player | Table | str
View = Callable[..., Face]
_of_cell: weakref.WeakValueDictionary[str, Workbench] = weakref.WeakValueDictionary()
_shown: weakref.WeakSet[Workbench] = weakref.WeakSet()


class Workbench:
    """What `workbench` returns. `settings`: where the controls are. `result`: what the last run returned. `faces`: what
    the views made of it. `said`: how the last run went. `text`: all of it in words. `code`: the same run as a cell."""

    def __init__(
        self, run: Callable[..., Any], controls: Mapping[str, Any], views: Sequence[View], title: str, ranks: int,
        options: Mapping[str, Any], only_when: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        from ipywidgets import Widget

        if not controls or not views:
            raise ValueError("a workbench needs a control or more, and a view or more")
        takes = inspect.signature(run).parameters
        first, self._takes = next(iter(takes), ""), set(takes)
        self._on_ranks, self._by_itself = first == "group", first in controls
        self._asked = {view: _asked_for(view) & set(controls) for view in views}
        for name in controls:
            if name != RANKS and name not in takes and not any(name in asked for asked in self._asked.values()):
                raise ValueError(
                    f"{run.__name__} takes no {name!r}, which a control sets, and no view asks for it: "
                    f"it takes {', '.join(takes)}"
                )
        self._only_when = only_when or {}
        for name in {*self._only_when, *(other for others in self._only_when.values() for other in others)}:
            if name not in controls:
                raise ValueError(f"only_when names {name!r}, and the controls are {', '.join(controls)}")
        World(ranks, **options).close()  # refuses options that cannot work
        self.controls = {name: _widget(name, given) for name, given in controls.items()}
        begin = {RANKS: ranks} | {n: p.default for n, p in takes.items() if p.default is not p.empty}
        given = {name for name, control in controls.items() if not isinstance(control, Widget)}
        self.set(**{name: value for name, value in begin.items() if name in given})
        self.title, self._run, self._views, self._ranks, self._options = title, run, list(views), ranks, dict(options)
        self.most_recorded = recorded.MOST  # runs that are kept for pages on which nothing runs
        self.result: Any = None
        self.faces: list[Face] = []
        self.said = "not run yet"
        self._at: dict[str, Any] = {}  # the settings of what is shown, from which the controls may have moved on
        self._pinned: tuple[dict[str, Any], list[Face]] | None = None
        self._world: World | None = None
        self._panel: Any = None
        self._drawing = threading.RLock()
        self._latest = Latest(self._work, self._cancel)
        self._grey()
        for widget in self.controls.values():
            widget.observe(self._moved, "value")
        if place := cell_id():
            if place in _of_cell:
                _of_cell[place].close()  # the cell was run again
            _of_cell[place] = self
        if not live():
            self._work(self.settings)

    @property
    def settings(self) -> dict[str, Any]:
        return {name: widget.value for name, widget in self.controls.items()}

    def set(self, **values: Any) -> Workbench:
        """Move controls, by name. Raises ValueError for one that is not there, or a value that it cannot have."""
        for name, value in values.items():
            if name not in self.controls:
                raise ValueError(f"there is no control {name!r}: they are {', '.join(self.controls)}")
            widget = self.controls[name]
            try:
                widget.value = value
            except Exception as why:  # traitlets has an error of its own
                raise ValueError(f"{name} cannot be {value!r}: {why}") from None
            if widget.value != value:
                raise ValueError(f"{name} cannot be {value!r}: it goes from {widget.min} to {widget.max}")
        return self

    def wait(self, seconds: float | None = None) -> bool:
        """Until the run with the settings as they are is over; whether that came true in time."""
        return self._latest.wait(seconds)

    def stop(self) -> None:
        """End the run that is under way; the next change of a control starts one again."""
        if self._latest.busy and self._latest.stop():
            before = f"\nWhat you see below is the run before, with {self.told(self._at)}." if self.faces else ""
            self._tell(STOPPED + before, old=True)

    def pin(self) -> None:
        """Keep what is shown, to compare the next runs with."""
        if self.faces:
            self._pinned = self._at, self.faces
            self._draw()

    def unpin(self) -> None:
        """Let go what is kept."""
        self._pinned = None
        self._draw()

    def close(self) -> None:
        """End its ranks. The pictures stay."""
        self._latest.close()
        if self._world is not None:
            self._world.close()

    @property
    def code(self) -> str:
        """A cell that makes the same run, and needs no other."""
        settings = self.settings
        ranks = settings.pop(RANKS, self._ranks)
        given = [f"{name}={written(value)}" for name, value in self._options.items()]
        told = "".join(f", {name}={written(value)}" for name, value in settings.items() if name in self._takes)
        of_pictures = {name: value for name, value in settings.items() if name not in self._takes}
        note = f"# of the pictures alone: {self.told(of_pictures)}\n" if of_pictures else ""
        name = self._run.__name__
        if self._on_ranks:
            each = f"lambda group: {name}(group{told})" if told else name
            call = _call("run = labkit.launch", [each, str(ranks), *given]) + "\n"
        elif self._by_itself:
            call = f"run = {name}({told.removeprefix(', ')})\n"
        else:
            call = _call("with labkit.world", [str(ranks), *given]) + f" as world:\n    run = {name}(world{told})\n"
        with contextlib.suppress(OSError, TypeError):
            return standing_alone(self._run, self._options) + "\n\n" + note + call
        return "import labkit\n\n" + note + call

    @property
    def text(self) -> str:
        """Title, settings, how it went, and what the pictures show."""
        where = self.told(self.settings)
        return "\n\n".join([f"{self.title}\n{where}\n{self.said}", *filter(None, map(_words, self.faces))])

    def told(self, settings: Mapping[str, Any]) -> str:
        """Settings in words, each by the label of its control."""
        return ", ".join(
            f"{self.controls[name].description} {self._called(name, value)}" for name, value in settings.items()
        )

    def _called(self, name: str, value: Any) -> Any:
        """A value as its control shows it: what is chosen from a dict is called by its key."""
        options = getattr(self.controls.get(name), "options", None)
        return (
            next((key for key, one in options.items() if one == value), value) if isinstance(options, dict) else value
        )

    @property
    def still(self) -> str:
        """How it went and what the views made of it, as HTML for a page on which nothing moves."""
        from labkit.book.workbenches.panel import still

        return f"<p>{escape(self.said)}</p>" + "".join(map(still, self.faces))

    def show(self, settings: dict[str, Any]) -> None:
        """Run with these settings, and show what comes of it, wherever the controls are. For when nobody reads."""
        self._work(settings)

    # -- running -----------------------------------------------------------------------------------------------

    def _grey(self) -> None:
        """A control that changes nothing with the other settings as they are cannot be moved."""
        settings = self.settings
        for name, others in self._only_when.items():
            self.controls[name].disabled = any(settings[other] != value for other, value in others.items())

    def _moved(self, change: object) -> None:
        self._grey()
        if live():
            self._tell(BUSY[0], busy=True, old=True)
            self._latest.ask(self.settings)
        else:
            self._work(self.settings)

    def _work(self, settings: dict[str, Any]) -> bool:
        """Whether it came to its end, be it a failure: False where it was stopped."""
        try:
            return self._run_and_show(settings)
        except Exception as why:  # of a view, or of what shows it: the next change is to be heard
            told = missing(why) if isinstance(why, NameError) else ""
            self._tell(told or f"{type(why).__name__}: {why}", old=True)
            return True
        finally:
            if self._latest.closed and self._world is not None:
                self._world.close()  # closed while its ranks were starting

    def _run_and_show(self, settings: dict[str, Any]) -> bool:
        begun = time.perf_counter()
        world = self._world_of(settings.get(RANKS, self._ranks))
        if live():  # the end of the run before may have told itself after these settings were asked for
            self._tell(BUSY[not world.kept], busy=True, old=True)
        rest = {name: value for name, value in settings.items() if name != RANKS and name in self._takes}
        try:
            run = partial(self._run, **rest)
            result = world.run(run) if self._on_ranks else run() if self._by_itself else run(world)
            faces = [
                _where_it_was(before, view(result, **{name: settings[name] for name in self._asked[view]}))
                for view, before in zip_longest(self._views, self.faces) if view
            ]  # fmt: skip
        except RankFailed as failed:
            if failed.failure.kind == "stopped":
                return False
            if failed.failure.error == "RefusedError" and not failed.failure.awaits:
                return self._show_refusal(failed.failure.message)  # every rank has: there is nobody to wait for
            self._show_failure(failed, settings)
            return True
        except (RefusedError, ValueError) as why:
            return self._show_refusal(why)
        self.result, self.faces, self._at = result, faces, settings
        how = _how(world.size, time.perf_counter() - begun, result)
        self._tell("drawing ..." if live() else how)
        self._draw()
        if self._latest.outdated:
            self._tell(BUSY[0], busy=True, old=True)
        else:
            self._tell(how)
        return True

    def _show_refusal(self, why: object) -> bool:
        self.result, self.faces = None, []  # what an earlier run has shown is not of these settings
        self._draw()
        self._tell(f"Refused: {why}")
        return True

    def _show_failure(self, failed: RankFailed, settings: dict[str, Any]) -> None:
        """Who waited for whom, in place of what the run would have shown."""
        self.result, self.faces, self._at = None, [wait_for(failed, told=True)], settings
        self._draw()
        said, _, rest = str(failed).partition("\n")
        self._tell(said, "" if failed.failure.awaits else rest.strip())

    def _world_of(self, ranks: int) -> World:
        if self._world is None or self._world.size != ranks:
            if self._world is not None:
                self._world.close()
            self._world = World(ranks, **self._options)
        return self._world

    def _cancel(self) -> None:
        if self._world is not None:
            self._world.stop()

    # -- showing -----------------------------------------------------------------------------------------------

    def _tell(self, words: str, details: str = "", busy: bool = False, old: bool = False) -> None:
        """words: how it goes. details: what only few want to read. busy: a run is under way.
        old: what is shown is of other settings than those of the controls."""
        self.said = f"{words}\n\n{details}" if details else words
        if self._panel is not None:
            self._panel.tell(words, details, busy, old)

    def _draw(self) -> None:
        with self._drawing:  # a button is pressed in one thread, and a run ends in another
            if self._panel is not None:
                self._panel.draw(self.faces, self._pinned)

    @property
    def panel(self) -> Any:
        """The controls and pictures as one widget, made when first shown."""
        if self._panel is None:
            from labkit.book.workbenches.panel import Panel

            self._panel = Panel(self)
            _shown.add(self)
            when_interrupted(_stop_all)
            self._draw()
            if live() and not self.faces:
                self._tell(BUSY[1], busy=True, old=True)
                self._latest.ask(self.settings)
            else:
                self._tell(self.said)
        return self._panel

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        if not live():
            pictures = [_still(face).svg for face in self.faces if isinstance(face, Figure | Player)]
            bundle: dict[str, Any] = {"text/plain": self.text}
            bundle |= {"image/svg+xml": pictures[0]} if pictures else {}
            return bundle | ({recorded.GRID: recorded.record(self)} if recorded.wanted() else {})
        return {"text/plain": self.text, VIEW: self.panel.box._repr_mimebundle_()[VIEW]}


def workbench(
    run: Callable[..., Any], controls: Mapping[str, Any], views: Sequence[View], *, title: str = "", ranks: int = 4,
    only_when: Mapping[str, Mapping[str, Any]] | None = None, **options: Any,
) -> Workbench:  # fmt: skip
    """Controls that start `run(world, **settings)` on real ranks when they change, and what `views` make of its result.

    run: gets a kept world (`labkit.world`), and the value of each control by its name; its defaults are where they
    begin. If its first parameter is called `group`, it is what every rank does, and a Run is its result; if that is a
    control, `run` starts its ranks itself.
    `ranks`, where there is such a control, decides the size of the world, and begins at `ranks`.
    views: functions of what `run` returns: a Figure, pictures to play (`book.replay`, `book.play`), a Table, or
    words; "" where there is nothing to show. A parameter with the name of a control gets its value, so that `run` need
    not return it, and need not even take it. Where a rank fails, the picture is who waits for whom.
    only_when: {control: {other: value}}: the control is grey unless each of the others has this value.
    options: of the world. Raises ValueError for controls that `run` does not take, RefusedError for options.
    """
    return Workbench(run, controls, views, title or _label(run.__name__), ranks, options, only_when)


def _stop_all() -> None:
    for bench in list(_shown):
        bench.stop()


def _asked_for(view: View) -> set[str]:
    """The parameters of a view beside the first, which gets what `run` returns."""
    try:
        return set([*inspect.signature(view).parameters][1:])
    except ValueError:  # a built-in such as `str` has no signature
        return set()


def _how(ranks: int, seconds: float, result: Any) -> str:
    """How long it took; starting ranks and drawing apart, where the result tells the time of the run itself.

    A result whose `run` is None needed no ranks, and a Run may be one of more or fewer ranks than those of the world.
    """
    if getattr(result, "run", result) is None:
        return f"computed in {seconds:.1f} s, without a run"
    ranks = getattr(getattr(result, "spec", None), "world_size", ranks)
    processes = f"{ranks} process{'es' * (ranks > 1)}"
    ran = getattr(result, "seconds", seconds)
    if ran > seconds + 0.05:  # its result was kept
        return f"run before on {processes}, in {ran:.2f} s"
    return f"run on {processes} in {ran:.2f} s" + (
        f", {seconds:.1f} s with {'their' if ranks > 1 else 'its'} start" if seconds > ran + 0.5 else ""
    )


def _call(name: str, arguments: Sequence[str]) -> str:
    """A call in one line, or with a line for each argument where one line would be too long to read."""
    line = f"{name}({', '.join(arguments)})"
    return line if len(line) <= LINE else f"{name}(\n" + "".join(f"    {one},\n" for one in arguments) + ")"


def _where_it_was(before: Face | None, face: Face) -> Face:
    """A replay shows the step to which the reader had moved the one before it, if both have as many: to compare. One
    that had been played to its end begins anew, and one that opens at a step of its own does so."""
    if isinstance(before, Player) and isinstance(face, Player) and len(before.frames) == len(face.frames):
        if not face.placed:
            face.step = face.begin if before.step in (before.begin, len(before.frames) - 1) else before.step
    return face


def _label(name: str) -> str:
    """`link speed`, or `latency (µs)` where the name ends with a unit."""
    words, _, unit = name.rpartition("_")
    return f"{words.replace('_', ' ')} ({UNITS[unit]})" if words and unit in UNITS else name.replace("_", " ")


def _widget(name: str, given: Any) -> Any:
    """The widget of a control, with its name as a visible label."""
    from ipywidgets import Checkbox, Dropdown, Widget
    from ipywidgets.widgets.interaction import interactive

    made = given if isinstance(given, Widget) else interactive.widget_from_abbrev(given)
    if made is None:
        raise ValueError(f"control {name!r}: {given!r} is no list, no (least, most), no True or False, and no widget")
    made.description = made.description or _label(name)
    made.style.description_width = "initial"
    if isinstance(made, (Checkbox, Dropdown)) and made.layout.width is None:
        made.layout.width = "auto"  # as wide as its words: four lists stand in one row
        made.layout.margin = "2px 18px 2px 2px"
    return made


def _words(face: Face) -> str:
    return face if isinstance(face, str) else face.text() if isinstance(face, Table) else _still(face).text


def _still(face: Figure | Player) -> Figure:
    return face.still if isinstance(face, Player) else face
