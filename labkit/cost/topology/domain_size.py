"""How well GPUs are used, by the size of the NVLink domain: Figure 2 of the article on nonuniform tensor parallelism.

Its authors search all mixes of tensor, pipeline and data parallelism with a simulator of their own and show the best:
at 32K GPUs 68 percent with domains of 8 and 87 with 32. Here the search is the same and the simulator is
`domain_job.configuration`, with its assumptions by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product

from labkit.cost.refuse import whole
from labkit.cost.shapes import Shape
from labkit.cost.topology.domain_job import ARTICLE_SHAPE, ARTICLE_TOKENS, Assumptions, Configuration, configuration
from labkit.cost.topology.levels import Topology
from labkit.cost.topology.machines import scale_up

QUOTED = {8: 0.68, 32: 0.87}  # section 3.5.4: utilisation of a GPU by NVLink domain, 32K GPUs


def concurrency_limit(gpus: int, tensor: int, sequences: int) -> float:
    """The most that any mix of this tensor parallelism can use of the GPUs, however fast they send.

    sequences * tensor / gpus, at most 1: a batch has so many microbatches, each keeps one group of `tensor` GPUs busy
    at a time, and there are gpus / tensor groups. 2,048 sequences, TP8 on 32,768 GPUs: a half.
    """
    whole(gpus=gpus, tensor=tensor, sequences=sequences)
    return min(1.0, sequences * tensor / gpus)


def configurations(
    topology: Topology,
    sequences: int,
    *,
    tensor_limit: int | None = None,
    shape: Shape = ARTICLE_SHAPE,
    assumptions: Assumptions | None = None,
) -> list[Configuration]:
    """All cuts of a model that fit into memory, the best used first.

    Tensor parallelism divides the heads and is at most `tensor_limit`, by default what the innermost level holds; a
    pipeline has at most as many chunks as layers. sequences: of one batch.
    """
    assume = Assumptions() if assumptions is None else assumptions
    limit = topology.levels[0].holds if tensor_limit is None else tensor_limit
    whole(sequences=sequences, tensor_limit=limit)
    found = []
    for tensor in (t for t in range(1, min(limit, shape.heads) + 1) if shape.heads % t == 0):
        for pipeline in range(1, shape.layers + 1):
            data, left = divmod(topology.gpus, tensor * pipeline)
            if left or data > sequences:
                continue
            # Stages and replicas lie differently only if there are stages, and a domain has room for more than one.
            orders = (True, False) if pipeline > 1 and tensor < topology.levels[0].holds else (True,)
            counts = _chunk_counts(shape.layers, pipeline, sequences, data) if assume.interleave else [1]
            found += [
                configuration(topology, tensor, pipeline, chunks, sequences, shape=shape, assumptions=assume,
                              data_outermost=outermost)
                for chunks, outermost in product(counts, orders)
            ]  # fmt: skip
    fitting = [one for one in found if one.memory <= assume.memory]
    return sorted(fitting, key=lambda one: -float(f"{one.utilisation:.9g}"))


def best_configuration(
    gpus: int,
    domain: int,
    *,
    tensor_limit: int | None = None,
    shape: Shape = ARTICLE_SHAPE,
    tokens: int = ARTICLE_TOKENS,
    assumptions: Assumptions | None = None,
) -> Configuration:
    """The cut that uses `gpus` GPUs best, in NVLink domains of `domain`.

    tensor_limit: the widest tensor parallelism; by default the domain. tokens: of one batch.
    Raises ValueError if domains do not divide the GPUs, sequences the tokens, or nothing fits into memory.
    """
    whole(tokens=tokens)
    if tokens % shape.sequence:
        raise ValueError(f"tokens must be whole sequences of {shape.sequence}, and {tokens} are not")
    machine, sequences = scale_up(gpus, domain), tokens // shape.sequence
    found = configurations(machine, sequences, tensor_limit=tensor_limit, shape=shape, assumptions=assumptions)
    if not found:
        raise ValueError(
            f"no mix of tensor, pipeline and data parallelism fits on {gpus} GPUs: allow a wider tensor_limit, more "
            "memory or more tokens a batch"
        )
    return found[0]


def utilisation(
    gpus: int,
    domain: int,
    *,
    tensor_limit: int | None = None,
    shape: Shape = ARTICLE_SHAPE,
    tokens: int = ARTICLE_TOKENS,
    assumptions: Assumptions | None = None,
) -> float:
    """The part of the time in which GPUs compute under the best cut. Arguments of `best_configuration`.

    32,000 GPUs: 88.4 percent in domains of 32 (the article: 87). In domains of 8 it is 78.1 with tensor parallelism of
    any width and 44.7 with at most 8 (the article: 68): see `concurrency_limit`.
    """
    return best_configuration(
        gpus, domain, tensor_limit=tensor_limit, shape=shape, tokens=tokens, assumptions=assumptions
    ).utilisation


def utilisation_rows(
    gpus: Iterable[int],
    domains: Iterable[int],
    tensor_limits: Iterable[int | None] = (None,),
    *,
    shape: Shape = ARTICLE_SHAPE,
    tokens: int = ARTICLE_TOKENS,
    assumptions: Assumptions | None = None,
) -> list[dict[str, object]]:
    """Figure 2 as a table: for each number of GPUs, domain and limit of tensor parallelism the best cut.

    With the part of a step that each cause takes. A limit of None is the domain.
    """
    rows: list[dict[str, object]] = []
    for size, domain, limit in product(gpus, domains, tensor_limits):
        best = best_configuration(size, domain, tensor_limit=limit, shape=shape, tokens=tokens, assumptions=assumptions)
        rows.append({
            "GPUs": size, "domain": domain, "TP at most": domain if limit is None else limit,
            "utilisation": best.utilisation, "cut": str(best), **best.lost,
        })  # fmt: skip
    return rows


def _chunk_counts(layers: int, pipeline: int, sequences: int, data: int) -> list[int]:
    """Chunks a rank that are worth trying: for each number of layers in a chunk, the fewest that hold all layers."""
    microbatches = math.ceil(sequences / data)
    if pipeline == 1 or microbatches % max(1, microbatches // pipeline):
        return [1]  # interleaving needs rounds of equal length
    counts = {math.ceil(layers / (pipeline * each)) for each in range(1, layers + 1)}
    return sorted(v for v in counts if pipeline * v <= layers)
