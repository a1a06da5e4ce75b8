"""One run of a sweep, in a process of its own, started by `labkit sweep` only: `python -m` and this module's name.

The task comes as a line of text on standard input, which then stays open: when it closes, the sweep is gone, and this
run ends its kernel and itself.
"""

import ast
import os
import signal
import sys
import threading
from pathlib import Path

from labkit.commands.run import execute


def main() -> int:
    """Execute one notebook. Returns the exit code of `labkit run`; what went wrong goes to standard error."""
    source, kept, cwd, values, timeout = ast.literal_eval(sys.stdin.readline())
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    problem, code = execute(Path(source), Path(kept), values, timeout, Path(cwd))
    if problem:
        print(problem, file=sys.stderr)
    return code


def _end_with_the_sweep() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # the thread above still reads
