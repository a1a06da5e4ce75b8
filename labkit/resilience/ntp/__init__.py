"""Nonuniform tensor parallelism: replicas of different width train one model together.

shard_map.py   which shards each rank holds and computes with, and which it sums over the replicas
"""

from .replicas import Replicas
from .shard_map import ShardMap, naive_messages, shard_map
from .sync import NonuniformSync

__all__ = ["NonuniformSync", "Replicas", "ShardMap", "naive_messages", "shard_map"]
