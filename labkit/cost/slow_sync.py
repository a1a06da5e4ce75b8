"""The slow gradient synchronization of the textbook chapter (its Example 1.1), recomputed.

128 nodes of 8 GPUs reduce a gradient. The chapter gives NVLink 300 GB/s, "bidirectional", InfiniBand 200
Gb/s = 25 GB/s a port, an expected 239.8 ms for one flat ring and 48.5 ms for a hierarchical all-reduce, 100
ms observed, and 60 percent of the InfiniBand throughput on the affected uplinks. It gives neither the
message size nor the formulas.

What its two numbers need (`flat_seconds`, `stated_hierarchical_seconds`):

- flat, 239.8 ms: 2 * 1023/1024 * M / (25 GB/s), one port in one direction and no latency. To four digits
  only a message of M = 3.00 GB gives it (`message_bytes`): 1.5 billion parameters in 16 bits, the chapter's
  GPT-2.
- hierarchical, 48.5 ms: 2 * 127/128 * (M/8) / (25 GB/s) = 29.77 ms between nodes, which leaves 18.7 ms
  inside them. Of all whole eighths of M, at the full 300 GB/s, only 15/8 M (18.75 ms) fits: a reduce-scatter
  of 7/8 M and a broadcast of the whole M, or, with the same total, an all-reduce of 14/8 M and one more
  share of M/8. Together 48.52 ms.

What is wrong or missing there:

- An all-gather is enough to end with: 14/8 M, 17.5 ms, in all 47.27 ms
  (`hierarchical_seconds(both_directions=True)`).
- "Bidirectional" bandwidth is the sum of both directions, and a ring uses one direction to send: 150 GB/s.
  Then the same recipe takes 67.27 ms (`stated_hierarchical_seconds(one_direction=True)`), and with the
  all-gather 64.77 ms (`hierarchical_seconds()`). InfiniBand was counted in one direction.
- 29.77 ms needs a port for each of the 8 GPUs; the flat ring was given a single port of a node. If 8 GPUs
  share one port the hierarchical algorithm is slower than the flat ring
  (`hierarchical_seconds(ports_per_node=1)`), and with 8 ports 8 flat rings at once need no more than the
  hierarchical one (`rings_seconds`). The factor of 5 comes from the ports.
- 60 percent between nodes makes 29.77 ms into 49.61 ms, and the total 68.36 ms (the chapter's rates) or
  84.61 ms (one direction), not 100 (`seconds_at_uplink_fraction`). Phases inside the node that run at full
  speed do not make the end-to-end efficiency "lower still" but higher: 48.52 / 68.36 = 71 percent. For 100
  ms the uplinks would have to run at 37 or 46 percent (`uplink_fraction_for`), or the phases inside the node
  be slow as well.
- The 60 percent may be an average over the operation, for ports rest while the node works inside. Then a run
  without any fault shows 61 percent, 29.77 of 48.52 ms, and 60 percent over 100 ms are a message of 6.05 GB
  (`message_of_counter`), for which the recipe takes 97.8 ms. What the counter averages over is not said.
- Measured by ideal over observed, 100 ms is an efficiency of 48.5 percent. Measured by what crosses a port
  during the whole operation, it is 30 percent (`average_port_fraction`): only so are the phases inside the
  node a loss.
"""

from __future__ import annotations

from labkit.cost.collectives.checks import check
from labkit.cost.collectives.hierarchical import flat_ring_all_reduce_time, hierarchical_all_reduce
from labkit.cost.collectives.ring import ring_all_reduce, ring_reduce_scatter
from labkit.cost.units import GB, Gb

NODES, RANKS_PER_NODE = 128, 8
SIZE = NODES * RANKS_PER_NODE
NVLINK_BOTH_DIRECTIONS = 300 * GB  # bytes per second
PORT = 200 * Gb  # one InfiniBand HDR port, in one direction
GRADIENT = 3 * GB  # 1.5e9 parameters of 2 bytes; the example leaves it out
OBSERVED = 0.100  # seconds
UPLINK_FRACTION = 0.60


def message_bytes(flat_seconds: float) -> float:
    """The message that one flat ring reduces in `flat_seconds`: 0.2398 s needs 3.00 GB."""
    return flat_seconds / ring_all_reduce.time(1, SIZE, 0, 1 / PORT)


def flat_seconds(nbytes: float = GRADIENT) -> float:
    """One ring over all 1,024 GPUs at the pace of one InfiniBand port: 0.2398 s."""
    return flat_ring_all_reduce_time(
        nbytes, SIZE, 0, 1 / NVLINK_BOTH_DIRECTIONS, RANKS_PER_NODE, inter_alpha=0, inter_beta=1 / PORT
    )


def _between_nodes(nbytes: float, fraction: float = 1.0, ports_per_node: int = RANKS_PER_NODE) -> float:
    """All-reduce of each share over the nodes; `ports_per_node` ports serve 8 shares."""
    check(nbytes=nbytes)
    if not 0 < fraction <= 1:
        raise ValueError(f"a fraction of the throughput must be above 0 and at most 1, not {fraction!r}")
    if ports_per_node < 1:
        raise ValueError(f"a node needs at least one port, not {ports_per_node!r}")
    sharing = max(1.0, RANKS_PER_NODE / ports_per_node)
    return ring_all_reduce.time(nbytes / RANKS_PER_NODE, NODES, 0, sharing / (PORT * fraction))


def stated_phases(
    nbytes: float = GRADIENT, fraction: float = 1.0, one_direction: bool = False
) -> tuple[float, float, float]:
    """Seconds of the three phases of a recipe that gives the number of the chapter, which does not show its own.

    Reduce-scatter in the node, all-reduce of the share between nodes, broadcast of the whole in the node: 8.75, 29.77
    and 10.0 ms, with NVLink at the sum of both directions. `one_direction`: at half of it, 17.5, 29.77 and 20.0 ms.
    `fraction` of the throughput of the ports.
    """
    nvlink = NVLINK_BOTH_DIRECTIONS / (2 if one_direction else 1)
    inside = ring_reduce_scatter.time(nbytes, RANKS_PER_NODE, 0, 1 / nvlink)
    return inside, _between_nodes(nbytes, fraction), nbytes / nvlink


def stated_hierarchical_seconds(nbytes: float = GRADIENT, fraction: float = 1.0, one_direction: bool = False) -> float:
    """The sum of `stated_phases`: 0.0485 s, as the chapter has it; 0.0673 s with NVLink in one direction."""
    return sum(stated_phases(nbytes, fraction, one_direction))


def hierarchical_seconds(
    nbytes: float = GRADIENT,
    fraction: float = 1.0,
    ports_per_node: int = RANKS_PER_NODE,
    both_directions: bool = False,
) -> float:
    """Reduce-scatter, all-reduce of the share, all-gather: 0.0648 s with NVLink at 150 GB/s a direction.

    `both_directions`: count NVLink at 300 GB/s, as the chapter does (0.0473 s). `ports_per_node`: InfiniBand
    ports that the 8 GPUs of a node share. `fraction` of their throughput.
    """
    nvlink = NVLINK_BOTH_DIRECTIONS / (1 if both_directions else 2)
    inside = hierarchical_all_reduce.time(nbytes, RANKS_PER_NODE, 0, 1 / nvlink, RANKS_PER_NODE)
    return inside + _between_nodes(nbytes, fraction, ports_per_node)


def rings_seconds(nbytes: float = GRADIENT, rings: int = RANKS_PER_NODE) -> float:
    """`rings` flat rings at once, an equal share of the tensor each, leaving the node by different ports.

    Each of 8 GPUs sends to the next GPU for all rings but the one for which it holds the port. The slower of
    port and NVLink (150 GB/s in one direction) sets the pace: 0.0350 s for 8 rings.
    """
    if not 1 <= rings <= RANKS_PER_NODE:
        raise ValueError(f"a node has a port for each of 1 to {RANKS_PER_NODE} rings, not {rings!r}")
    port = ring_all_reduce.time(nbytes / rings, SIZE, 0, 1 / PORT)
    # With fewer rings than GPUs some GPU passes on all of them.
    inside = min(rings, RANKS_PER_NODE - 1) / rings
    nvlink = ring_all_reduce.time(nbytes, SIZE, 0, 2 / NVLINK_BOTH_DIRECTIONS) * inside
    return max(port, nvlink)


def seconds_at_uplink_fraction(
    fraction: float = UPLINK_FRACTION, nbytes: float = GRADIENT, stated: bool = True, one_direction: bool = False
) -> float:
    """The whole operation when ports run at `fraction` of their throughput and NVLink at all of its own.

    0.0684 s by the recipe of `stated_phases`, 0.0871 s with its NVLink in one direction; 0.0846 s for
    `hierarchical_seconds`, which also ends with an all-gather (`stated=False`).
    """
    if not stated:
        return hierarchical_seconds(nbytes, fraction)
    return stated_hierarchical_seconds(nbytes, fraction, one_direction)


def uplink_fraction_for(
    seconds: float = OBSERVED, nbytes: float = GRADIENT, stated: bool = True, one_direction: bool = False
) -> float:
    """The fraction of the ports' throughput that would explain `seconds`, if NVLink runs at full speed.

    0.366 for the observed 0.1 s by the recipe of `stated_phases`, 0.476 with its NVLink in one direction, 0.458 for
    `stated=False`. Raises ValueError if the time is shorter than full throughput allows.
    """
    ideal = seconds_at_uplink_fraction(1.0, nbytes, stated, one_direction)
    between = _between_nodes(nbytes)
    if seconds < ideal:
        raise ValueError(f"{seconds!r} s is less than the {ideal:.4g} s of full throughput")
    return between / (seconds - (ideal - between))


def average_port_fraction(seconds: float = OBSERVED, nbytes: float = GRADIENT) -> float:
    """Bytes over a port during the whole operation, divided by what it could carry: 0.298 for 0.1 s.

    This is the one reading under which "lower still" holds: ports rest while the node works inside.
    """
    check(seconds=seconds)
    return _between_nodes(nbytes) / seconds


def message_of_counter(seconds: float = OBSERVED, fraction: float = UPLINK_FRACTION) -> float:
    """Bytes of the message, if `fraction` is the average of a port over the whole operation: 6.05 GB.

    1.5 GB over a port in 0.1 s. The recipe of `stated_phases` takes 0.0978 s for such a message, with no fault at all.
    A healthy run has 61 percent by that recipe: `average_port_fraction(stated_hierarchical_seconds())`.
    """
    check(seconds=seconds)
    if not 0 < fraction <= 1:
        raise ValueError(f"a fraction of the throughput must be above 0 and at most 1, not {fraction!r}")
    return fraction * seconds / _between_nodes(1.0)
