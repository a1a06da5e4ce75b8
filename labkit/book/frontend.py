"""Whether someone is there to press a button, and what a chapter shows to whoever is."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from labkit.telling import live as live

VIEW = "application/vnd.jupyter.widget-view+json"


def await_run_all(seconds: float = 0.5) -> None:
    """Call it before an error that is to end Run All: wait until the cells that follow have arrived at the kernel.

    JupyterLab sends them one by one. A kernel drops those that have arrived when one fails; on a busy machine the
    others would run after the stop, out of their order. seconds: with a core to spare, up to six times as many without.
    """
    if "IPython" in sys.modules:
        from IPython import get_ipython

        if getattr(get_ipython(), "kernel", None) is not None:
            time.sleep(seconds * min(6.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))))


def cell_id() -> str:
    """The id of the cell that runs, as JupyterLab tells it; "" where nobody does."""
    try:
        from IPython import get_ipython

        return str(get_ipython().kernel.get_parent("shell")["metadata"].get("cellId") or "")
    except (AttributeError, KeyError, LookupError, TypeError):
        return ""


def when_interrupted(call: Callable[[], object]) -> None:
    """Have `call` answer an interrupt that comes while no cell runs, which the kernel would ignore; the first one given
    stays. It runs in a thread of its own, since a signal may come in the midst of anything."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kernel: Any = getattr(shell, "kernel", None)
    if getattr(kernel, "saved_sigint_handler", None) is signal.SIG_IGN:  # what ipykernel sets when the cell is over
        kernel.saved_sigint_handler = lambda *_: threading.Thread(target=call, name="labkit-interrupted").start()


def namespace() -> Mapping[str, Any]:
    """The names of the notebook, or of the script that runs."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    names: Mapping[str, Any] = shell.user_ns if shell is not None else vars(sys.modules["__main__"])
    return names


def show(shown: object) -> None:
    """Display it in a notebook; elsewhere print it."""
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from IPython.display import display

        display(shown)
    else:
        print(repr(shown))


INSIDE = "calc(100% - 4px)"  # as wide as a control may be: it has a margin of 2 px on each side


class Panel:
    """A widget of a chapter's own, made when first shown; without a reader, its words (`repr`)."""

    def __init__(self) -> None:
        self._box: Any = None

    def _made(self) -> Any:
        raise NotImplementedError

    @property
    def box(self) -> Any:
        if self._box is None:
            self._box = self._made()
            self._box.add_class("lk-own")
        return self._box

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        told: dict[str, Any] = {"text/plain": repr(self)}
        return told | {VIEW: self.box._repr_mimebundle_()[VIEW]} if live() else told
