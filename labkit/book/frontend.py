"""Whether someone is there to press a button."""

from __future__ import annotations

import os
import sys
import time

VIEW = "application/vnd.jupyter.widget-view+json"


def live() -> bool:
    """True in a notebook kernel with a reader in front of it; False in scripts and in runs that only check.

    `LABKIT_HEADLESS=1` (or 0) decides, where it is set. Otherwise nobody is there under nbval (recognised by the
    variable pytest sets), without a kernel, and when the request to run the cell says that nobody will answer a
    question (`allow_stdin` false, as nbclient, papermill and nbconvert say; JupyterLab says true).
    """
    told = os.environ.get("LABKIT_HEADLESS")
    if told is not None:
        return told in ("", "0")
    if "PYTEST_CURRENT_TEST" in os.environ or "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    kernel = getattr(shell, "kernel", None)
    return kernel is not None and _asks(kernel)


def _asks(kernel: object) -> bool:
    """Whether the request being served lets the kernel ask questions; true for requests that do not say."""
    try:
        request = kernel.get_parent("shell")  # type: ignore[attr-defined]
        return bool(request["content"].get("allow_stdin", True))
    except (AttributeError, KeyError, LookupError, TypeError):
        return True


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
