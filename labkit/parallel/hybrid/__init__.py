"""Every axis at once: data, tensor, sequence, pipeline, context and expert parallelism of one GPT on one mesh.

    hybrid = Hybrid(group, GPTConfig(layers=4), HybridConfig(dp=2, pp=2, tp=2, microbatches=4), seed=1)
    loss = hybrid.step(inputs, targets)

Read in this order:

    config.py      what can be chosen, the axes of the mesh, the schedule
    checks.py      what cannot be, and why
    batch.py       which examples and positions a rank computes with, and how much they count
    part.py        this rank's layers, and what routers add to the loss
    experts.py     routers that count the tokens of all ranks
    replicas.py    what all ways to share out the training state have in common: what is held, and counted once
    plain.py, zeroed.py, sharded.py   data parallelism: whole, ZeRO, FSDP and HSDP
    building.py    from the configuration to parts and replicas
    norm.py        the norm of all gradients
    whole.py       the state as one device would have it, to save and to load
    hybrid.py      `Hybrid`, the door
"""
