"""The same model on every rank: checked by what it is, and made so by what it holds.

Shapes are compared before anything large is sent. A rank with another model would otherwise show as a wait that never
ends, or as a gradient added to the wrong parameter.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from labkit.collectives import all_gather, broadcast
from labkit.parallel.flat import Flat
from labkit.parallel.refusals.agreement import check_all, gather_texts
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


def describe(module: nn.Module) -> dict[str, str]:
    """What must be the same on all ranks, by name: shape and dtype of parameters and buffers, and what is frozen."""
    words = {}
    for name, p in module.named_parameters():
        words[f"parameter {name!r}"] = f"{_shape(p)}, {'trained' if p.requires_grad else 'frozen'}"
    for name, b in module.named_buffers():
        words[f"buffer {name!r}"] = _shape(b)
    return words


def check_same(words: Mapping[str, str], group: Group) -> None:
    """Raise RefusedError on every rank, saying who differs from rank 0 and in what, unless `words` are the same on all.

    Costs one all-gather of 16 bytes a rank; the words themselves travel only if they differ.
    """
    text = json.dumps(list(words.items())).encode()
    digest = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
    mine = torch.tensor([[digest, len(text)]], dtype=torch.int64, device=group.device)
    table = all_gather(mine, group).tolist()
    if all(row == table[0] for row in table):
        return
    lengths = [length for _, length in table]
    texts = [dict(json.loads(theirs)) for theirs in gather_texts(group, text.decode(), lengths)]
    found = [f"rank {r}: {_first_difference(t, texts[0])}" for r, t in enumerate(texts) if t != texts[0]]
    if not found:
        found = ["the same parameters, in another order"]
    raise RefusedError(
        "the ranks did not bring the same model. Against rank 0, " + "; ".join(found) + ". "
        "Build the model from the same configuration on every rank"
    )


def check_same_by_group(
    words: Mapping[str, str], module: nn.Module, groups: Sequence[Group], group_of: Callable[[str], Group]
) -> None:
    """`check_same` where some parameters have holders of their own: each is compared among those only.

    words: of all, by "parameter 'name'", "group of 'name'", and others, which all ranks of `groups` have alike.
    group_of: the holders of a parameter by its name. All ranks of `groups` refuse, or none.
    """
    apart: dict[str, Group] = {}
    for name, _ in module.named_parameters():
        if all(group_of(name) is not group for group in groups):
            apart |= dict.fromkeys((f"parameter {name!r}", f"group of {name!r}"), group_of(name))
    others = list({id(group): group for group in apart.values()}.values())

    def check(group: Group) -> None:
        among_these = any(group is one for one in groups)
        check_same(
            {k: v for k, v in words.items() if (k not in apart if among_these else apart.get(k) is group)}, group
        )

    check_all([*groups, *others], check)


def _first_difference(theirs: Mapping[str, str], first: Mapping[str, str]) -> str:
    for name in first:
        if name not in theirs:
            return f"{name} is missing ({first[name]} on rank 0)"
        if theirs[name] != first[name]:
            return f"{name} is {theirs[name]} (on rank 0 {first[name]})"
    extra = next((name for name in theirs if name not in first), None)
    return f"{extra} ({theirs[extra]}) is not there on rank 0" if extra else "the same names in another order"


def _shape(x: Tensor) -> str:
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"


@torch.no_grad()
def broadcast_all(tensors: Iterable[Tensor], group: Group, root: int = 0) -> None:
    """Give every rank the values that `tensors` have on `root`: one message for each dtype (and device)."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for x in tensors:
        kinds.setdefault((x.dtype, x.device), []).append(x)
    for (dtype, device), alike in kinds.items():
        layout = Flat((str(i), x) for i, x in enumerate(alike))
        packed = torch.empty(layout.numel, dtype=dtype, device=device)
        if group.rank == root:
            layout.pack(alike, packed)
        broadcast(packed, group, root)
        if group.rank != root:
            for x, view in zip(alike, layout.views(packed), strict=True):
                x.copy_(view)


def checksum(x: Tensor) -> str:
    """Eight digits that differ if the values do."""
    data = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return f"{zlib.crc32(data.tobytes() if not data.size else data.data):08x}"
