"""Whether someone is there to press a button."""

from __future__ import annotations

import os
import sys


def live() -> bool:
    """True in a notebook kernel with a reader in front of it; False in scripts and in runs that only check.

    `LABKIT_HEADLESS=1` (or 0) decides, where it is set; nbval is recognised by the variable pytest sets.
    """
    told = os.environ.get("LABKIT_HEADLESS")
    if told is not None:
        return told in ("", "0")
    if "PYTEST_CURRENT_TEST" in os.environ or "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")
