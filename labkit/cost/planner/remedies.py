"""What would make a plan fit that does not: single changes, tried one after the other; then pairs of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from labkit.cost.planner.costs import Costs
from labkit.cost.planner.plan import Plan
from labkit.cost.planner.predicted import memory_of
from labkit.cost.units import GB

__all__ = ["Remedy", "remedies", "why_too_large"]

_STRICTER = {"all": ("selective", "full"), "selective": ("full",), "full": ()}
_NEXT = {"plain": ("zero1", "zero2", "zero3"), "zero1": ("zero2", "zero3"), "zero2": ("zero3",), "hsdp": ("zero3",)}


_WORDS = {"optimizer": "the optimizer's state"}


@dataclass(frozen=True)
class Remedy:
    """A change in words ("TP 16"), the plan with it, and the bytes of its fullest GPU."""

    words: str
    plan: Plan
    nbytes: float


def remedies(costs: Costs, plan: Plan, most: int = 3) -> list[Remedy]:
    """Changes of `plan` on the same GPUs with the same batch that make it fit, single ones before pairs.

    Another axis is twice as wide and data parallelism half; where the batch then has twice as many microbatches for
    each replica, it does. At most `most`.
    """
    singles = [change for change in _changes(plan)]
    found = _fitting(costs, plan, [(words, keys) for words, keys in singles])
    if not found:
        pairs = [
            (f"{a} with {b}", {**x, **y}) for (a, x), (b, y) in combinations(singles, 2) if not x.keys() & y.keys()
        ]
        found = _fitting(costs, plan, pairs)
    return found[:most]


def why_too_large(costs: Costs, plan: Plan) -> str:
    """ "needs 96.3 GB, 50.1 GB of it for logits; a GPU has 80. TP 16 would fit"; "" for a plan that fits."""
    held, has = memory_of(costs, plan), costs.cluster.gpu.memory
    if held.total <= has:
        return ""
    part, size = max(held.parts().items(), key=lambda item: item[1])
    needs = f"needs {_gigabytes(held.total)}, {_gigabytes(size)} of it for {_WORDS.get(part, part)}"
    needs += f"; a GPU has {has / GB:.0f}"
    ways = [one.words for one in remedies(costs, plan)]
    if not ways:
        return f"{needs}. No change of one or two choices makes it fit"
    either = f"{', '.join(ways[:-1])}{' or ' if ways[1:] else ''}{ways[-1]}"
    return f"{needs}. {either[0].upper()}{either[1:]} would fit"


def _gigabytes(nbytes: float) -> str:
    return f"{nbytes / GB:,.0f} GB" if nbytes >= 1e11 else f"{nbytes / GB:.1f} GB"


def _changes(plan: Plan) -> Iterator[tuple[str, dict[str, object]]]:
    """Words, and the fields that change. The order is that of what they usually cost."""
    for kind in _NEXT.get(plan.sharding, ()):
        yield f"ZeRO-{kind[-1]}", {"sharding": kind, "shard": 0}
    for level in _STRICTER[plan.recompute]:
        yield f"{level} recomputation", {"recompute": level}
    if plan.microbatch % 2 == 0:
        yield f"microbatches of {plan.microbatch // 2}", {
            "microbatch": plan.microbatch // 2, "microbatches": plan.microbatches * 2,
        }  # fmt: skip
    if plan.data % 2 == 0:
        half: dict[str, object] = {"data": plan.data // 2, "microbatches": plan.microbatches * 2}
        yield f"TP {plan.tensor * 2}", {**half, "tensor": plan.tensor * 2}
        yield f"PP {plan.pipeline * 2}", {**half, "pipeline": plan.pipeline * 2}
        yield f"CP {plan.context * 2}", {**half, "context": plan.context * 2}
        yield f"EP {plan.expert * 2}", {"data": plan.data // 2, "expert": plan.expert * 2}


def _fitting(costs: Costs, plan: Plan, changes: list[tuple[str, dict[str, object]]]) -> list[Remedy]:
    found = []
    for words, fields in changes:
        try:
            changed = replace(plan, **fields)  # type: ignore[arg-type]
        except ValueError:
            continue  # the parts of an HSDP plan no longer divide, say
        if not changed.why_impossible(costs.model):
            total = memory_of(costs, changed).total
            if total <= costs.cluster.gpu.memory:
                found.append(Remedy(words, changed, total))
    return found
