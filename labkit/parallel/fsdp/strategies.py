"""Who shards with whom. Two groups say it all: ranks that cut a unit among them, and ranks that hold the same shard.

    strategy        cut among        copied across     freed after forward    bytes sent in a step, M = parameters
    full_shard      all N ranks      nobody            yes                    3 (N-1)/N M
    shard_grad_op   all N ranks      nobody            no                     2 (N-1)/N M
    no_shard        nobody           all N ranks       no                     2 (N-1)/N M (an all-reduce)
    hybrid          the S of a node  the R nodes       yes                    3 (S-1)/S M + 2 (R-1)/R M/S

Of hybrid only the last term crosses between nodes (Zhao et al. 2023, section 3.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from labkit.optim.precision.codec import Codec
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid")


@dataclass(frozen=True)
class Sharding:
    """shard_group: the ranks among which units are cut. replicate_group: those that hold this rank's shard too.

    reshard: whether a unit is let go between forward and backward. algorithm: of all-gather, reduce-scatter and
    all-reduce. param_wire: how parameters are encoded for the all-gather; None for as they are.
    """

    shard_group: Group
    replicate_group: Group
    reshard: bool
    algorithm: str
    param_wire: Codec | None = None

    @property
    def groups(self) -> list[Group]:
        """The groups of more than one rank that this rank is in; one at least."""
        return [g for g in (self.shard_group, self.replicate_group) if g.size > 1] or [self.shard_group]

    @property
    def ranks(self) -> int:
        """Over how many ranks gradients are averaged."""
        return self.shard_group.size * self.replicate_group.size


def sharding(
    strategy: str, group: Group, replicate_group: Group | None, reshard: bool | None, algorithm: str,
    param_wire: Codec | None = None,
) -> Sharding:  # fmt: skip
    """The two groups of a strategy. Every rank of `group` calls it; nothing is sent.

    replicate_group: for "hybrid" only; `group` is then the ranks that shard. Without it `group` is all ranks, and each
    node shards by itself. reshard: None for what the strategy does by itself.
    """
    if strategy not in STRATEGIES:
        near = get_close_matches(str(strategy), STRATEGIES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise RefusedError(f"strategy={strategy!r}: known are {', '.join(map(repr, STRATEGIES))}{hint}")
    if replicate_group is not None and strategy != "hybrid":
        raise RefusedError(f"replicate_group goes with strategy='hybrid', not with {strategy!r}")
    if param_wire is not None and not isinstance(param_wire, Codec):
        raise RefusedError(f"param_wire={param_wire!r}: a Codec of labkit.optim.precision, or None")
    alone = group.subgroup([group.rank])
    keeps = strategy in ("shard_grad_op", "no_shard")
    if strategy == "no_shard":
        shard, replicate = alone, group
    elif strategy == "hybrid":
        shard, replicate = (group, replicate_group) if replicate_group is not None else _by_node(group)
    else:
        shard, replicate = group, alone
    return Sharding(shard, replicate, not keeps if reshard is None else reshard, algorithm, param_wire)


def _by_node(group: Group) -> tuple[Group, Group]:
    """(the ranks of my node, the ranks in my place on all nodes)."""
    each = group.ranks_per_node
    if each == group.size or group.size % each:
        raise RefusedError(
            f"strategy='hybrid' shards in a node and replicates across nodes, and the {group.size} ranks of this group "
            f"are {'all on one node' if each == group.size else f'not whole nodes of {each}'}: launch with "
            "network=Network(nodes=2, ranks_per_node=...), or pass the ranks that shard as `group` and those that hold "
            "the same shard as `replicate_group`"
        )
    node, place = divmod(group.rank, each)
    mine = group.subgroup(range(node * each, (node + 1) * each))
    return mine, group.subgroup(range(place, group.size, each))
