"""The status page under the eyes of a reader: another process, which looks at any moment."""

from __future__ import annotations

import os
import signal

from labkit.wire.recording import record as rec

READS = 30_000


def test_a_word_that_is_written_again_and_again_is_never_seen_as_another() -> None:
    """`struct.pack_into` clears before it writes: a page seemed to be empty again, and a rank outside of its call."""
    fd = rec.create_pages(1)
    page = rec.Page(fd, 0, 1)
    recorder = rec.Recorder(page)
    recorder.slot(rec.MAIN_SLOT, 5)
    page.count = 7
    writer = os.fork()
    if writer == 0:
        for _ in range(10**7):  # until it is killed
            page.count = 7
            recorder.slot(rec.MAIN_SLOT, 5)
        os._exit(0)
    try:
        seen = {(page.count, *(slot[1] for slot in page.slots())) for _ in range(READS)}
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        os.close(fd)
    assert seen == {(7, 5)}
