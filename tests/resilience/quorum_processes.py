"""A leader of a replica as a process of its own, without PyTorch, told what to do over pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import labkit

ROOT = Path(labkit.__file__).parents[1]

LEADER = """
import json, sys
from labkit.resilience.quorum import QuorumClient
address, token, replica, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
client = QuorumClient(address, token)
incarnation = client.register(replica, 0, 1).incarnation
beat = client.beat(replica, incarnation, every=every)
print(json.dumps(incarnation), flush=True)
for line in sys.stdin:
    try:
        said = client.join(replica, incarnation, **json.loads(line)).to_json()
    except Exception as why:
        said = {"error": type(why).__name__, "words": str(why)}
    print(json.dumps(said), flush=True)
beat.stop()
"""


class Leader:
    """Checked in and beating when this returns. `join` sends, `answer` waits."""

    def __init__(self, service: Any, replica: int, every: float = 0.05, before: str = ""):
        self.replica = replica
        self.process = subprocess.Popen(
            [sys.executable, "-c", before + LEADER, service.address, service.token, str(replica), str(every)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.incarnation = self.answer()

    def join(self, step: int, **options: Any) -> Leader:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"step": step, **options}) + "\n")
        self.process.stdin.flush()
        return self

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def replicas(self) -> list[int]:
        """Who is in the quorum that it is answered with."""
        said = self.answer()
        assert "members" in said, said
        return [m["replica"] for m in said["members"]]

    def kill(self, by: int = signal.SIGKILL) -> None:
        self.process.send_signal(by)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
