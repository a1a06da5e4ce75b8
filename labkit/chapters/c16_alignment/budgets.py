"""Bytes of the models of an alignment run on real clusters: tables of chapter 16, all from `labkit.cost`."""

from __future__ import annotations

from math import ceil

from labkit import book, cost
from labkit.chapters.c16_alignment import decoding
from labkit.cost.units import GB

POLICY, SMALL = 70e9, 13e9  # parameters of policy and reference, of reward model and critic
GPU = 80 * GB
LAYERS, GROUPS, HEADS, HEAD = 80, 8, 64, 128  # of Llama 2 70B
PROMPTS, TOKENS = 256, 1024  # written together, and tokens of each response
TENSOR, PIPELINE = 8, 4  # that the policy trains with


def in_gb(nbytes: float) -> str:
    return f"{nbytes / GB:,.3g} GB" if nbytes < 100 * GB else f"{nbytes / GB:,.0f} GB"


def total(policy: float = POLICY, reward: float = SMALL, critic: float = SMALL) -> float:
    """Bytes of all four models, without activations and caches."""
    return cost.aligned_models_bytes([policy, critic], [policy, reward])


def without_writing(policy: float = POLICY) -> float:
    """Bytes of the two models of DPO."""
    return cost.aligned_models_bytes([policy], [policy])


def gpus(nbytes: float) -> int:
    """That hold so many bytes, if nothing else is on them."""
    return ceil(nbytes / GPU)


def models() -> book.Table:
    """The four models of a 70B run with a reward model and a critic of 13B."""
    rows = []
    for name, params, trains, does in (
        ("policy", POLICY, True, "writes, reads and learns"), ("reference", POLICY, False, "reads"),
        ("reward model", SMALL, False, "reads"), ("critic", SMALL, True, "reads and learns"),
    ):  # fmt: skip
        nbytes = cost.state_bytes(params) if trains else cost.frozen_bytes(params)
        rows.append({
            "model": name, "parameters": f"{params / 1e9:.0f}B", "in a step it": does,
            "bytes a parameter": f"{nbytes / params:.0f}", "together": in_gb(nbytes),
        })  # fmt: skip
    return book.Table(rows, caption="Four models of an alignment run, without activations and caches")


def cache(groups: int = GROUPS) -> float:
    """Bytes of the KV cache while all responses are written at once."""
    return cost.kv_cache_bytes(LAYERS, groups, HEAD, TOKENS, PROMPTS)


def per_gpu() -> dict[str, float]:
    """Bytes on each GPU of the policy: what it trains with, the reference, and the cache while it writes."""
    return {
        "policy, in training": cost.trained_bytes_per_gpu(POLICY, TENSOR, PIPELINE),
        "reference": cost.frozen_bytes_per_gpu(POLICY, TENSOR, PIPELINE),
        "KV cache": cost.kv_cache_bytes_per_gpu(LAYERS, GROUPS, HEAD, TOKENS, PROMPTS, TENSOR, PIPELINE),
    }


def compared(share: float = 0.6) -> book.Table:
    """PPO and DPO side by side. share: of a step's time that PPO writes in."""
    bytes_each = per_gpu()
    kept = bytes_each["policy, in training"] + bytes_each["reference"]
    few = decoding.used(AT_ONCE)
    low, high = (cost.time_weighted_mfu([(share, few), (1 - share, mfu)]) for mfu in MFU)
    rows = [
        {"": "models, of which are trained", "PPO": "4, 2", "DPO": "2, 1"},
        {"": "bytes of the models", "PPO": in_gb(total()), "DPO": in_gb(without_writing())},
        {"": "the same with a critic of 70B", "PPO": in_gb(total(critic=POLICY)),
         "DPO": in_gb(without_writing())},
        {"": "on each of 32 GPUs: policy and reference", "PPO": in_gb(kept), "DPO": in_gb(kept)},
        {"": f"and the KV cache of {PROMPTS} responses", "PPO": in_gb(bytes_each["KV cache"]), "DPO": "-"},
        {"": f"part of the peak, {AT_ONCE} written at once", "PPO": f"{low:.0%} to {high:.0%}",
         "DPO": f"{MFU[0]:.0%} to {MFU[1]:.0%}"},
    ]  # fmt: skip
    return book.Table(rows, caption="PPO and DPO with a policy of 70B; reward model and critic of 13B")


MFU = (0.40, 0.55)  # of training, as large runs report it
AT_ONCE = 16  # responses that are written together
