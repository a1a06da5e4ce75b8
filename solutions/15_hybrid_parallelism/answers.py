"""What the programs of the exercises return, computed on one rank: what their checks compare with."""

from __future__ import annotations

from typing import Any


def parts(job: dict[str, Any]) -> list[list[Any]]:
    """[sequences, layers, columns] of each rank of a mesh."""
    sizes = dict(job["mesh"])
    ranks = 1
    for size in sizes.values():
        ranks *= size
    return [_part(rank, sizes, job) for rank in range(ranks)]


def _part(rank: int, sizes: dict[str, int], job: dict[str, Any]) -> list[Any]:
    at, stride = {}, 1
    for axis in reversed(sizes):
        at[axis] = rank // stride % sizes[axis]
        stride *= sizes[axis]
    begin = job["step"] * job["batch"]
    replica = _split(job["order"][begin : begin + job["batch"]], sizes["dp"])[at["dp"]]
    stages = _split(range(job["layers"]), sizes["pp"] * job["chunks"])
    columns = _split(range(job["columns"]), sizes["tp"])[at["tp"]]
    return [_split(replica, job["microbatches"]), stages[at["pp"] :: sizes["pp"]], columns]


def _split(items: Any, parts: int) -> list[list[int]]:
    base, more = divmod(len(items), parts)
    ends = [0]
    for part in range(parts):
        ends.append(ends[-1] + base + (part < more))
    return [list(items[ends[i] : ends[i + 1]]) for i in range(parts)]


def search(job: dict[str, Any]) -> dict[str, Any]:
    """The best cut, and why each other one was not taken; for the checks also the fastest and the smallest of all."""
    gpus, batch = job["gpus"], job["batch"]
    reasons: dict[str, str] = {}
    fits, could = [], []
    for t in range(1, gpus + 1):
        for p in range(1, gpus + 1):
            if gpus % (t * p):
                continue
            d = gpus // (t * p)
            name = f"{t} x {p} x {d}"
            word = "heads" if job["heads"] % t else "layers" if job["layers"] % p else "batch" if batch % d else ""
            if not word:
                m = batch // d
                gigabytes = job["billions"] / (t * p) * (4 + 12 / d) + job["kept"] / (t * p) * min(p, m)
                slow = 1 if t <= 8 else 9
                slot = job["work"] / (t * p) + job["sums"] * slow * (t - 1) / t / p
                seconds = slot * (m + p - 1) + job["gradients"] * (d - 1) / d / (t * p)
                could.append((seconds, gigabytes, [t, p, d]))
                word = "memory" if gigabytes > job["room"] else "slower"
                if word == "slower":
                    fits.append((seconds, [t, p, d]))
            reasons[name] = word
    best = min(fits)[1] if fits else None
    if best:
        del reasons["{} x {} x {}".format(*best)]
    return {
        "best": best, "reasons": reasons, "fastest": min(could)[2] if could else None,
        "smallest": min(could, key=lambda one: one[1])[2] if could else None,
    }  # fmt: skip
