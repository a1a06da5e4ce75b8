"""`python -m labkit.resilience.quorum --replicas 4`: the service in the foreground, until it is interrupted.

The token is taken from LABKIT_QUORUM_TOKEN, or a new one is printed. With `--child` (used by `QuorumService`) options
come as one line of JSON on standard input, the address leaves on standard output, and the end of the input ends it.
"""

from __future__ import annotations

import json
import os
import sys

from .errors import BadCall
from .greeting import new_token
from .loop import Loop
from .sockets import listen
from .state import QuorumState


def main(argv: list[str]) -> int:
    """Serve. Returns the exit code."""
    return _child() if argv == ["--child"] else _by_hand(argv)


def _child() -> int:
    # Read to the end of the line and no further: nothing may wait in a buffer when the loop takes over.
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(0, 1)
        if not data:
            return 1
        line += data
    asked = json.loads(line)
    try:
        listener = listen(asked["host"], asked["port"])
    except BadCall as why:
        print(json.dumps({"error": str(why)}), flush=True)
        return 1
    state = QuorumState(first_id=asked["first_id"], **asked["rules"])
    for replica, incarnation in enumerate(asked["incarnations"]):
        state.slots[replica].incarnation = incarnation
    loop = Loop(state, asked["token"], listener, parent=0)
    print(json.dumps({"address": listener.getsockname()[:2]}), flush=True)
    os.close(1)
    loop.run()
    loop.close()
    return 0


def _by_hand(argv: list[str]) -> int:
    import argparse  # not needed where it has to start fast

    from .rules import Rules

    parser = argparse.ArgumentParser(
        prog="python -m labkit.resilience.quorum", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; only this machine reaches the default")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--spares", type=int, default=Rules.spares)
    parser.add_argument("--min-replicas", type=int, default=Rules.min_replicas)
    for name in ("join", "first", "heartbeat", "reconnect", "linger"):
        parser.add_argument(f"--{name}", type=float, default=getattr(Rules, name), metavar="SECONDS")
    options = vars(parser.parse_args(argv))
    host, port = options.pop("host"), options.pop("port")
    token = os.environ.get("LABKIT_QUORUM_TOKEN") or new_token()
    try:
        state = QuorumState(**options)
        listener = listen(host, port)
    except BadCall as why:
        parser.error(str(why))
    address = "{}:{}".format(*listener.getsockname()[:2])
    print(f"quorum service for {options['replicas']} replicas at {address}", flush=True)
    if "LABKIT_QUORUM_TOKEN" not in os.environ:
        print(f"token: {token}", flush=True)
    loop = Loop(state, token, listener)
    try:
        loop.run()
    except KeyboardInterrupt:
        loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
