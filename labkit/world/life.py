"""One rank's process, as its host sees it: the ends of its pipes, its output in whole lines, how it is."""

from __future__ import annotations

import os
import signal
from typing import Any

from .channel import Channel, Closed
from .process import is_ending


class RankProcess:
    """A rank from its fork to its burial; one that is restarted is `born` again."""

    def __init__(self, rank: int):
        self.rank, self.pid, self.status = rank, 0, None  # type: int, int, int | None
        self.control: Channel | None = None
        self.output = -1
        self.text = b""
        self.result = False
        self.over = False  # has said how it ended, or is dead
        self.stopped = False
        self.doomed = False  # was sent SIGKILL
        self.again = False  # is to be restarted as soon as it is buried

    def born(self, control: Channel, output: int) -> None:
        """It was forked: the host's ends of its control socket and of its output."""
        os.set_blocking(output, False)
        self.control, self.output = control, output
        self.status, self.over, self.result, self.stopped = None, False, False, False
        self.doomed = self.again = False

    def release(self) -> None:
        """Close the host's ends, in a process that is not the host."""
        if self.control is not None:
            self.control.close()
        if self.output >= 0:
            os.close(self.output)

    def tell(self, message: Any) -> None:
        """Send the rank a message; one that is gone is told nothing."""
        try:
            if self.control is not None:
                self.control.send(message)
        except Closed:
            pass

    def signal(self, number: int) -> None:
        """Send its process a signal, if there is one."""
        if self.status is None and self.pid:
            self.doomed = self.doomed or number == signal.SIGKILL
            os.kill(self.pid, number)

    @property
    def is_dying(self) -> bool:
        """Whether its end is certain, and not yet heard of."""
        return self.status is None and not self.over and (self.doomed or is_ending(self.pid))

    def close_control(self) -> None:
        """It is gone: nothing more is heard from it."""
        if self.control is not None:
            self.control.close()
            self.control = None

    def lines(self) -> str:
        """What it wrote since the last call, in whole lines; "" for nothing."""
        if self.output < 0:
            return ""
        try:
            while True:
                data = os.read(self.output, 1 << 16)
                if not data:
                    os.close(self.output)
                    self.output = -1
                    break
                self.text += data
                if len(data) < 1 << 16:
                    break
        except BlockingIOError:
            pass
        whole, newline, self.text = self.text.rpartition(b"\n")
        return (whole + newline).decode("utf-8", "replace")

    def rest(self) -> str:
        """The unfinished last line of a rank that is gone."""
        text, self.text = self.text, b""
        return text.decode("utf-8", "replace") + "\n" if text else ""
