"""Strategies: how ranks share the training of one model, written against `Group` and `labkit.collectives` only.

    DataParallel(module, group)      every rank holds the model, and a part of the batch: `labkit.parallel.data`
    Sampler(count, group, batch=8)   which examples a rank sees
    FullyShard(module, group)        every rank holds a shard of each block: `labkit.parallel.fsdp`
    ZeRO1, ZeRO2, ZeRO3              the same with the training state cut among ranks: `labkit.parallel.zero`
    Mesh(group, {"dp": 2, "tp": 2})  names for the axes along which ranks work together, a group for each
    Layout({"dp": 2, "tp": 2})       the same as numbers only: coordinates, groups, nodes
    TensorParallelGPT(config, group) every rank holds a part of each matrix: `labkit.parallel.tensor`, whose layers are
    ColumnParallelLinear, RowParallelLinear, TensorParallelBlock
    VocabParallelEmbedding(...)      a vocabulary cut among ranks, and the loss of logits that are cut along it,
    vocab_parallel_cross_entropy     which no rank ever holds as a whole
    ContextParallel(group)           every rank holds a part of each sequence: `labkit.parallel.context`
    ExpertParallel(group)            every rank holds some experts, and tokens go to them: `labkit.parallel.expert`
    Server(...), Client(...)         some ranks hold the weights, the others compute gradients: `labkit.parallel.server`
    ShardedEmbeddings(tables, ...)   large tables cut among ranks; touched rows travel: `labkit.parallel.embedding`
    Hybrid(group, model, config)     all of them at once, along the axes of a mesh: `labkit.parallel.hybrid`
    Pipeline(modules, group, loss)   every rank holds some layers, and runs a schedule: `labkit.parallel.pipeline`
    checkpoint(function, *inputs)    activations computed again in backward, in place of kept
    kernels(module, group, seconds)  stand-in kernels: layers that take a given time on the virtual clock

Below them: `flat` (many tensors side by side), `same` and `agree` (ranks that brought different things), `unfit`
(gradients that no strategy may use), `reach` (what an output depends on).

Names load when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
