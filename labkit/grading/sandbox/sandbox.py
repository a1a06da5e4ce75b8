"""`Sandbox`: answer cells behind a wall, and the two questions that can be asked of them."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.wire.errors import RefusedError

from . import plain_data, probe, tiers
from .call import Call, hear
from .evidence import Evidence
from .limits import MAX_RANKS, Limits
from .nursery import NURSERY

_UIDS = itertools.count()
_FOUND: dict[str, str] = {}  # tier -> "" if it was tried and stands here, or why not


class Unavailable(RefusedError):
    """This machine, or this user, does not have the tier that was asked for."""


class Sandbox:
    """The answer cells of one submission. Each call runs them anew, in fresh processes, and then the function.

    tier: which walls stand. Use `open_sandbox`, which makes sure that they do.
    """

    def __init__(self, sources: Sequence[str], limits: Limits, tier: str):
        self.limits, self.tier = limits, tier
        self._sources = [str(s) for s in sources]
        self._folder = tempfile.mkdtemp(prefix=f"labkit-sandbox-{os.getpid()}-")
        self._start()

    def call(
        self, name: str, world_size: int, inputs: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None,
        seed: int = 0, rounds: bool = False,
    ) -> Evidence:  # fmt: skip
        """Call `name` on `world_size` ranks: fn(inputs[rank], group, **kwargs), or fn(group, **kwargs) without inputs.

        With `world_size` 0 there is one process and no group: fn(*inputs, **kwargs). Each rank gets its own input and
        no other's. Inputs and kwargs are data (`plain_data`); NotData is raised for what is none.
        rounds: also count messages that had to follow one another, which takes some ms a round.
        """
        if type(world_size) is not int or not 0 <= world_size <= MAX_RANKS:
            raise RefusedError(f"call({name!r}, {world_size!r}): a sandbox has 0 to {MAX_RANKS} ranks")
        if world_size and inputs is not None and len(inputs) != world_size:
            raise RefusedError(f"call({name!r}, {world_size}): needs an input for each rank, got {len(inputs)}")
        by_rank = (
            [list(inputs or ())] if not world_size else [[]] * world_size if inputs is None else [[x] for x in inputs]
        )
        return self._run("call", name, world_size, by_rank, dict(kwargs or {}), seed, rounds)

    def value(self, name: str, seed: int = 0) -> Evidence:
        """The value of a variable of the answer cells, as `results[0]`."""
        return self._run("value", name, 0, [[]], {}, seed)

    def report(self) -> str:
        """What is in force here, and what stays possible, in words."""
        return tiers.words(self.tier)

    def close(self) -> None:
        """End the sandbox; nothing of it stays."""
        self._control.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        uid = 1_000_000_000 + (os.getpid() % (1 << 15) << 15) + (next(_UIDS) % 512 << 6) if os.geteuid() == 0 else None
        if uid is not None:
            os.chmod(self._folder, 0o711)
        order = {"tier": self.tier, "home": self._folder, "limits": self.limits.as_data(), "uid": uid}
        self._control = NURSERY.warden(order)
        self._control.settimeout(30)
        answer = hear(self._control) or {}
        if "ready" not in answer:
            self.close()
            raise Unavailable(f"tier {self.tier!r} cannot be had here: {answer.get('refused', 'no answer')}")

    def _run(
        self,
        mode: str,
        name: str,
        size: int,
        inputs: list[list[Any]],
        kwargs: dict[str, Any],
        seed: int,
        rounds: bool = False,
    ) -> Evidence:
        if self._control.fileno() < 0:
            raise RefusedError("this sandbox is closed")
        jobs, lengths = [], []
        for rank, mine in enumerate(inputs):
            job = {
                "mode": mode, "name": name, "rank": rank, "size": size, "sources": self._sources, "inputs": mine,
                "kwargs": kwargs, "seed": seed, "wait": float(self.limits.wait),
            }  # fmt: skip
            jobs.append(plain_data.parts(job))
            lengths.append(sum(memoryview(part).nbytes for part in jobs[-1][1:]))
        evidence = Call(self._control, jobs, lengths, size, self.limits, rounds).run()
        if evidence.failure is not None and evidence.failure.kind == "sandbox":
            self._control.close()  # whatever state it is in, nothing of it is used again
            self._start()
        return evidence


def open_sandbox(
    answer_sources: Sequence[str], limits: Limits | None = None, tier: str = "best", untrusted_ok: bool = False
) -> Sandbox:
    """A sandbox that holds these answer cells, behind the best walls that stand here, or those of `tier`.

    A tier is tried before it is used: code inside it makes the attempts of `probe`, and all must fail.
    Raises Unavailable where no wall stands; tier "none", which is no wall, is refused unless `untrusted_ok`.
    """
    if sys.platform != "linux":
        raise Unavailable("graded code is confined by means of Linux: grade on a Linux machine, or in a container")
    if tier not in ("best", *tiers.TIERS):
        raise RefusedError(f"tier={tier!r}: there are {', '.join(tiers.TIERS)}, and 'best'")
    why = []
    for name in tiers.TIERS[:-1] if tier == "best" else [tier]:
        if name == "none":
            break
        trouble = stands(name)
        if not trouble:
            return Sandbox(answer_sources, limits or Limits(), name)
        why.append(f"{name}: {trouble}")
    if tier in ("best", "none") and untrusted_ok:
        return Sandbox(answer_sources, limits or Limits(), "none")
    if tier == "none":
        raise Unavailable("tier 'none' is no sandbox: graded code could read and write your files. Pass untrusted_ok")
    raise Unavailable(
        "no wall stands here (" + "; ".join(why) + "). Grade as root, or where user namespaces or "
        "Landlock are allowed; for code that you trust, pass untrusted_ok"
    )


def stands(tier: str) -> str:
    """Whether a tier works here, by trying it once: "" if so, else why not."""
    if tier not in _FOUND:
        try:
            _FOUND[tier] = _try(tier)
        except Unavailable as error:
            _FOUND[tier] = str(error)
    return _FOUND[tier]


def _try(tier: str) -> str:
    with tempfile.NamedTemporaryFile("w", prefix="labkit-canary-") as canary:
        canary.write("not for ranks")
        canary.flush()
        os.chmod(canary.name, 0o666)  # only the walls keep it
        with Sandbox([probe.SOURCE], Limits(seconds=20), tier) as box:
            works = box.call("works", 0)
            if works.failure is not None:
                return f"in it nothing works: {works.failure.text} {works.output[-300:]}"
            found = box.call("attempts", 0, [canary.name, os.getpid()])
            if found.failure is not None:
                return f"its test did not end well: {found.failure.text} {found.output[-300:]}"
            if found.results[0]:
                return f"it does not hold: a rank {', '.join(found.results[0])}"
    return ""


def tier_report(tier: str = "best") -> str:
    """In words: which walls stand here, which do not and why, what is in force, and what stays possible."""
    lines = []
    chosen = None
    for name in tiers.TIERS[:-1] if tier == "best" else [tier]:
        trouble = "" if name == "none" else stands(name)
        if not trouble:
            chosen = name
            break
        lines.append(f"Not {name}: {trouble}")
    if chosen is None:
        return "\n".join(["No wall stands here: grading is refused unless the code is trusted.", *lines])
    return "\n".join([tiers.words(chosen), *lines])
