"""Taking up what was read: parameters, buffers, the optimizer's state and settings, random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .holdings import buffers, holdings
from .manifest import Manifest
from .needs import group_names, keys_of, name_of
from .optimizer_state import put, put_state, settings_for, shaped
from .random_state import derived_seed, seed_everything, set_random_state
from .training import Training


def take(training: Training, read: Mapping[str, Tensor], saved: Manifest) -> None:
    """Go on from what was read for `wanted(saved)`. Nothing here can be refused any more."""
    if training.inside is not None:
        training.inside.put(training.model, dict(read), saved.groups)
    else:
        _take_model(training, read, saved)
    with torch.no_grad():
        for name, b in buffers(training.model):
            b.copy_(read[name_of(training, saved, f"buffer/{name}")].view(b.shape))
    if training.random:
        _take_random(training, read, saved)


def _take_model(training: Training, read: Mapping[str, Tensor], saved: Manifest) -> None:
    held = holdings(training.model)
    tensors: dict[str, dict[str, Any]] = {}
    for holding in held:
        put(holding.parameter, holding, read[f"model/{holding.name}"])
        for key in keys_of(saved):
            full = f"optimizer/{key}/{holding.name}"
            if full in read:
                shape, _ = saved.tensors[full]
                x = read[full]
                alike = shaped(key, shape, holding.shape)
                tensors.setdefault(holding.name, {})[key] = (alike, x if alike else x.view(shape))
    put_state(training.optimizers, held, tensors, saved.numbers)
    groups = (g for o in training.optimizers for g in o.param_groups)
    for group, names in zip(groups, group_names(training), strict=True):
        group.update(settings_for(names, saved.groups))


def _take_random(training: Training, read: Mapping[str, Tensor], saved: Manifest) -> None:
    prefix = f"random/{training.stream}/"
    names = [name for name in saved.tensors if name.startswith(prefix)]
    state = {name.removeprefix(prefix): read[name_of(training, saved, name)] for name in names}
    if state:
        set_random_state(state, training.group.device)
        return
    digests = {n: parts[0].crc for n, parts in saved.stored.items() if n.startswith("random/") and n.endswith("/torch")}
    if digests:
        seed_everything(derived_seed(digests, training.stream), training.group.device)
