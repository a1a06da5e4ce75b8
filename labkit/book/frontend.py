"""Whether someone is there to press a button."""

from __future__ import annotations

import os
import sys
import time

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
