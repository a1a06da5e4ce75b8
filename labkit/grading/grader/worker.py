"""The process that grades one submission after another: `python -I worker.py FD`, lines of JSON both ways.

In it are the hidden checks and the seed; the submissions' code is not, and is not a child of it but of the sandbox's
template. It says before each exercise that it begins, so that the batch knows at which one it ended, if it does.
"""

import json
import os
import signal
import socket
import sys
import traceback
from typing import Any

HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def main(fd: int) -> None:
    sys.path.insert(0, HOME)  # the very labkit that the batch runs
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the sandbox's folder is cleared
    with socket.socket(fileno=fd) as sock, sock.makefile("r", encoding="utf-8") as line:

        def say(**what: Any) -> None:
            sock.sendall(json.dumps(what).encode() + b"\n")

        try:
            _serve(line, say)
        except BrokenPipeError:  # the batch is gone
            os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from here on it ends by itself, and clears up


def _serve(line: Any, say: Any) -> None:
    from pathlib import Path

    from labkit.grading.grader.one import How, grade_one
    from labkit.grading.grader.pristine import Pristine
    from labkit.grading.grader.results import from_json, to_json
    from labkit.grading.grader.submissions import read_submission

    plan = json.loads(line.readline())
    overlay = Path(plan["overlay"]) if plan["overlay"] else None
    pristine = {Path(path).stem: Pristine(Path(path), overlay) for path in plan["sources"]}
    say(ready=True)
    while text := line.readline():
        task = json.loads(text)
        try:
            book = pristine[task["notebook"]]
            submission = read_submission(Path(plan["folder"]), task["student"], book.source)
            before = from_json(task["before"]) if task["before"] else None
            if before is not None and before.submission.sha256 != submission.handed.sha256:
                before = None
            result = grade_one(
                submission, book, How(**plan["how"], factor=task["factor"]), task["only"], before, task["condemned"],
                lambda exercise: say(begun=exercise),
            )  # fmt: skip
            say(result=to_json(result))
        except Exception as error:
            say(failed=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())


if __name__ == "__main__":
    main(int(sys.argv[1]))
