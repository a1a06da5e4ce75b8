"""Where the service listens."""

from __future__ import annotations

import socket

from .errors import BadCall


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. BadCall if that cannot be."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError, TypeError) as why:
        raise BadCall(f"the quorum service cannot listen at {host}:{port}: {why}") from why
