"""How a client and the service find out whether they belong together, before anything else is said.

The service speaks first: who it is, its protocol, its labkit, and a number used once. The client proves by a keyed
hash of both sides' numbers that it knows the token, and the service proves the same in its answer. The token itself
never travels, neither side can be replayed, and hashes are compared in constant time.
"""

from __future__ import annotations

import hmac
import os
from typing import Any

from labkit import __version__

from .errors import BY_NAME, BadCall, Trouble, WrongToken, WrongVersion

SERVICE = "labkit quorum"
PROTOCOL = 1


def new_token() -> str:
    """A fresh secret: 128 random bits as text."""
    return os.urandom(16).hex()


def nonce() -> str:
    return os.urandom(16).hex()


def proof(token: str, who: str, first: str, second: str) -> str:
    """What only one who knows the token can say, for this one connection. who: "client" or "service"."""
    return hmac.new(token.encode(), f"{who} {first} {second}".encode(), "sha256").hexdigest()


def same(a: object, b: str) -> bool:
    """Whether two hashes are equal, in a time that does not tell where they differ."""
    return isinstance(a, str) and hmac.compare_digest(a.encode(), b.encode())


def hello(own: str) -> dict[str, Any]:
    """What the service says first. own: its number used once."""
    return {"service": SERVICE, "protocol": PROTOCOL, "labkit": __version__, "nonce": own}


def answer(token: str, greeted: dict[str, Any], own: str) -> dict[str, Any]:
    """The client's answer to `hello`. WrongVersion if the service is of another version."""
    check_version(greeted, "the quorum service", "this process")
    shown = proof(token, "client", str(greeted.get("nonce")), own)
    return {"protocol": PROTOCOL, "labkit": __version__, "nonce": own, "proof": shown}


def admit(token: str, own: str, answered: dict[str, Any]) -> dict[str, Any]:
    """The service's verdict on `answer`: its own proof. Raises WrongVersion or WrongToken."""
    check_version(answered, "the client", "the quorum service")
    theirs = str(answered.get("nonce"))
    if not same(answered.get("proof"), proof(token, "client", own, theirs)):
        raise WrongToken("the token is not the one this quorum service was started with")
    return {"ok": {"proof": proof(token, "service", own, theirs)}}


def check_version(said: dict[str, Any], who: str, here: str) -> None:
    """Raise WrongVersion unless the other side speaks this protocol and runs this labkit."""
    theirs, ours = (said.get("protocol"), said.get("labkit")), (PROTOCOL, __version__)
    if theirs != ours:
        raise WrongVersion(
            f"{who} runs labkit {theirs[1]} with protocol {theirs[0]}, {here} labkit {ours[1]} with protocol "
            f"{ours[0]}: install the same version everywhere and restart what is older"
        )


def refusal(error: Trouble) -> dict[str, Any]:
    """An error as a message."""
    return {"error": type(error).__name__, "message": str(error)}


def raise_refusal(message: dict[str, Any]) -> None:
    """Raise the error that a message carries, if it carries one."""
    if "error" in message:
        raise BY_NAME.get(str(message["error"]), BadCall)(str(message.get("message", "")))
