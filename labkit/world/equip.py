"""What a rank is given before its function runs, the same under both engines: seeds, transport, clock, sampler."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from labkit import collectives
from labkit.wire.clock import Clock, VirtualClock
from labkit.wire.context import Context, LinkModel
from labkit.wire.faults import RankFaults
from labkit.wire.recording import record as rec
from labkit.wire.sampler import Sampler
from labkit.wire.transports import Site, Sockets, Transport, kinds

from .spec import Spec


def make_transport(
    spec: Spec, rank: int, store: Any, addresses: Any, alive: Callable[[int], bool] | None,
    sockets: Callable[[], Sockets], limit: float,
) -> Transport:  # fmt: skip
    """The transport that the spec asks for; the rest is what its `Site` needs and the engine knows."""
    site = Site(rank, spec.world_size, store, addresses, alive, sockets, spec.timed, limit)
    return kinds()[spec.transport].make(site)


def process_groups(spec: Spec) -> str:
    """The backend of torch.distributed that belongs to the transport, "" if that of the device will do."""
    own = kinds()[spec.transport].process_groups
    return "" if own is None else own()


def make_context(
    spec: Spec, rank: int, page: rec.Page, *, transport: Transport, timeout: float, epoch: int, per_node: int,
    device: Any, link_model: LinkModel | None, faults: RankFaults,
) -> Context:  # fmt: skip
    """Seed everything and put the rank's parts together.

    timeout: seconds, the longest single wait. epoch: when the run began, in nanoseconds of this host's
    perf_counter. per_node: how many neighbouring ranks share a node. device: where the rank's tensors live, unless the
    transport has a place of its own for them.
    """
    import numpy as np
    import torch

    torch.set_num_threads(1)
    # Without an accelerator the one generator there is: the general call looks at all kinds of devices, and to do so
    # makes a rank copy as much of the memory that it shares as a whole all-reduce does.
    built = torch.version.cuda or torch.version.hip or torch.backends.mps.is_built()
    (torch.manual_seed if built else torch.default_generator.manual_seed)(spec.seed)
    random.seed(spec.seed)
    np.random.seed(spec.seed % 2**32)
    network = spec.network
    link_to = (lambda peer: network.link(rank, peer, per_node)) if network is not None else None
    clock = (VirtualClock if spec.clock == "virtual" else Clock)(epoch, link_to)
    sampler = Sampler(spec.memory) if spec.memory else None
    return Context(
        rank, spec.world_size, rec.Recorder(page), clock, transport, collectives, timeout, spec.backend,
        device if transport.device is None else transport.device,
        network, per_node, link_model, faults, sampler, spec.check,
    )  # fmt: skip
