"""What one rank refuses, all ranks refuse, also where they are two crossed groups (hybrid)."""

from __future__ import annotations

from collections.abc import Callable

from labkit.parallel.agree import agree
from labkit.parallel.fsdp.strategies import Sharding
from labkit.wire.errors import Refused
from labkit.wire.group import Group


def agree_all(sharding: Sharding, problem: str | None) -> None:
    """Raise `Refused` on every rank if any of them has a problem, in words of one that has."""
    check_all(sharding, lambda group: agree(group, problem))


def check_all(sharding: Sharding, check: Callable[[Group], None]) -> None:
    """`check(group)` among those who shard together, and among those who hold the same; all ranks raise, or none.

    A rank that fails in one group still takes part in the other: its peers there wait for it.
    """
    groups = [g for g in (sharding.shard_group, sharding.replicate_group) if g.size > 1] or [sharding.shard_group]
    if len(groups) == 1:
        check(groups[0])
        return
    problem = None
    for group in groups:
        try:
            check(group)
        except Refused as refusal:
            problem = problem or str(refusal)
    for group in groups:  # every row tells its rows, then every column its columns: everybody knows
        try:
            agree(group, problem)
        except Refused as refusal:
            problem = problem or str(refusal)
    if problem is not None:
        raise Refused(problem)
