"""Fully sharded data parallelism: a rank keeps a shard of each unit, and gathers whole weights when it needs them.

ZeRO's third stage (Rajbhandari et al. 2020) as PyTorch arranges it (Zhao et al. 2023): unit by unit, so that gathering
one block's weights hides behind computing another. Read in this order:

    units.py           which modules are units, and which parameter belongs to which
    flat_parameter.py  one unit's parameters, side by side, and the shard of them that this rank keeps
    gather.py          forward: shards become parameters. Backward: gradients become a reduced shard
    saved.py           what the autograd graph keeps in place of a gathered weight
    schedule.py        when units are gathered, when they are let go, and what is fetched ahead
    reducing.py        reduce-scatter under backward, and sums over microbatches
    strategies.py      full_shard, shard_grad_op, no_shard, hybrid: who shards with whom
    building.py        from a plain module to units and shards, the same on every rank
    fully_shard.py     `FullyShard`, the door
    memory.py          what is held at the worst moment beside the shards
    join.py            ranks whose data ends at different steps
    clipping.py        the norm of all gradients, and clipping by it
    states.py          state dicts, whole and in parts, for a world of any size
    deferred.py        models that are never whole anywhere: weights drawn one by one, kept in part
"""
