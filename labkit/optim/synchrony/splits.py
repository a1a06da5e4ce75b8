"""Which client has which examples: as unequal, and as unlike each other, as one number says."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from labkit.wire.errors import RefusedError


def dirichlet_split(labels: Tensor, clients: int, alpha: float, seed: int = 0) -> list[Tensor]:
    """The examples of each client (1-D int64), a function of `seed`; each example goes to one of them.

    The examples of each label are cut among the clients by shares drawn from a Dirichlet distribution (Yurochkin et al.
    2019; Hsu et al. 2019). alpha large: all clients alike; small: each has few labels, and some have hardly an example,
    or none. Raises RefusedError for an alpha or a number of clients that is not above 0.
    """
    if not 0 < alpha < float("inf"):
        raise RefusedError(f"alpha={alpha!r}: how alike the clients are, a finite number above 0")
    if type(clients) is not int or clients < 1:
        raise RefusedError(f"clients={clients!r}: a whole number of at least 1")
    dice = np.random.default_rng(seed)
    parts: list[list[Tensor]] = [[] for _ in range(clients)]
    for label in labels.unique():
        examples = (labels == label).nonzero()[:, 0]
        examples = examples[torch.from_numpy(dice.permutation(len(examples)))]
        edges = (dice.dirichlet([alpha] * clients).cumsum() * len(examples)).round().astype(int)[:-1]
        for part, cut in zip(parts, examples.tensor_split(torch.from_numpy(edges)), strict=True):
            part.append(cut)
    return [torch.cat(part).sort().values for part in parts]
