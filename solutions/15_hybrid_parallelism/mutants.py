"""The zoo of the exercises of chapter 15: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import math

import torch

from labkit import collectives
from labkit.grading.checks.zoo import slip, variant
from labkit.parallel import Mesh

# Which part is mine ---------------------------------------------------------------------------------------------------


data_by_rank = slip("which-part-is-mine", "my_part", says="have the same coordinate along dp", at=4, change="""
-    mine = cut(job["order"][first : first + job["batch"]], sizes["dp"])[at["dp"]]
+    mine = cut(job["order"][first : first + job["batch"]], group.size)[group.rank]
""")  # fmt: skip


the_first_axis_innermost = slip(
    "which-part-is-mine", "my_part", says="whose first axis is the innermost", at=4, change="""
-    for axis, size in reversed(job["mesh"]):
+    for axis, size in job["mesh"]:
""")  # fmt: skip


an_order_that_is_always_the_same = slip(
    "which-part-is-mine", "my_part", says="whose first axis is the innermost", at=4, change="""
-    for axis, size in reversed(job["mesh"]):
+    for axis in ("tp", "pp", "dp"):
+        size = sizes[axis]
""")  # fmt: skip


numbers_in_place_of_the_order = slip("which-part-is-mine", "my_part", says="is not in this step", at=4, change="""
-    mine = cut(job["order"][first : first + job["batch"]], sizes["dp"])[at["dp"]]
+    mine = cut(sorted(job["order"])[first : first + job["batch"]], sizes["dp"])[at["dp"]]
""")  # fmt: skip


every_replica_its_own_epoch = slip("which-part-is-mine", "my_part", says="is not in this step", at=4, change="""
-    mine = cut(job["order"][first : first + job["batch"]], sizes["dp"])[at["dp"]]
+    mine = cut(job["order"], sizes["dp"])[at["dp"]][first // sizes["dp"] :][: job["batch"] // sizes["dp"]]
""")  # fmt: skip


every_other_sequence = slip(
    "which-part-is-mine", "my_part", says="Parts are consecutive, as torch.tensor_split cuts them", at=4, change="""
-    mine = cut(job["order"][first : first + job["batch"]], sizes["dp"])[at["dp"]]
+    mine = job["order"][first : first + job["batch"]][at["dp"] :: sizes["dp"]]
""")  # fmt: skip


the_rest_is_dropped = slip("which-part-is-mine", "my_part", says="the first parts are one larger", at=4, change="""
-    columns = cut(range(job["columns"]), sizes["tp"])[at["tp"]]
+    columns = cut(range(job["columns"] // sizes["tp"] * sizes["tp"]), sizes["tp"])[at["tp"]]
""")  # fmt: skip


microbatches_dealt_out = slip(
    "which-part-is-mine", "my_part", says="in another order, or in other lists", at=4, change="""
-    sequences = cut(mine, job["microbatches"])
+    sequences = [mine[k :: job["microbatches"]] for k in range(job["microbatches"])]
""")  # fmt: skip


chunks_that_follow_each_other = slip(
    "which-part-is-mine", "my_part", says="the model goes around the ranks", at=6, change="""
-    layers = cut(range(job["layers"]), sizes["pp"] * job["chunks"])[at["pp"] :: sizes["pp"]]
+    parts = cut(range(job["layers"]), sizes["pp"] * job["chunks"])
+    layers = parts[at["pp"] * job["chunks"] :][: job["chunks"]]
""")  # fmt: skip


asks_rank_0_for_the_order = slip("which-part-is-mine", "my_part", says="Nothing has to be sent", at=4, change="""
     first = job["step"] * job["batch"]
+    collectives.broadcast(torch.tensor(job["order"]), group)
""")  # fmt: skip


@variant("which-part-is-mine", "my_part", at=4)
def by_strides_from_the_outside(job, group):
    def cut(items, parts):
        places = torch.arange(len(items)).tensor_split(parts)
        return [[items[i] for i in part] for part in places]

    sizes, at, stride = dict(job["mesh"]), {}, math.prod(size for _, size in job["mesh"])
    for axis, size in job["mesh"]:
        stride //= size
        at[axis] = group.rank // stride % size
    order = torch.tensor(job["order"]).split(job["batch"])[job["step"]]
    replica = order.tensor_split(sizes["dp"])[at["dp"]]
    sequences = [part.tolist() for part in replica.tensor_split(job["microbatches"])]
    parts = torch.arange(job["layers"]).tensor_split(sizes["pp"] * job["chunks"])
    layers = [parts[chunk * sizes["pp"] + at["pp"]].tolist() for chunk in range(job["chunks"])]
    columns = torch.arange(job["columns"]).tensor_split(sizes["tp"])[at["tp"]].tolist()
    return [sequences, layers, columns]


@variant("which-part-is-mine", "my_part", at=4)
def on_a_tensor_of_ranks(job, group):
    axes, shape = zip(*job["mesh"], strict=True)
    ranks = torch.arange(group.size).view(*shape)
    at = dict(zip(axes, (ranks == group.rank).nonzero()[0].tolist(), strict=True))
    size = dict(job["mesh"])

    def part(n, parts, k):
        return range(min(k, n % parts) + k * (n // parts), min(k + 1, n % parts) + (k + 1) * (n // parts))

    start = job["step"] * job["batch"]
    own = [job["order"][start + i] for i in part(job["batch"], size["dp"], at["dp"])]
    m, v = job["microbatches"], job["chunks"]
    sequences = [[own[i] for i in part(len(own), m, k)] for k in range(m)]
    layers = [list(part(job["layers"], size["pp"] * v, at["pp"] + c * size["pp"])) for c in range(v)]
    return [sequences, layers, list(part(job["columns"], size["tp"], at["tp"]))]


# A search that all ranks share ----------------------------------------------------------------------------------------


everyone_keeps_its_own = slip("a-shared-search", "my_search", says="so they must tell each other", at=3, change="""
-    least, k = min(found.tolist())
+    least, k = best
""")  # fmt: skip


memory_is_not_looked_at = slip("a-shared-search", "my_search", says="and it does not fit", at=3, change="""
-        elif gigabytes(t, p, d) > job["room"]:
+        elif gigabytes(t, p, d) > math.inf:
""")  # fmt: skip


the_smallest_is_taken = slip("a-shared-search", "my_search", says="It needs the least memory", at=3, change="""
-            word, best = "slower", min(best, (seconds(t, p, d), k))
+            word, best = "slower", min(best, (gigabytes(t, p, d), k))
""")  # fmt: skip


memory_before_everything = slip(
    "a-shared-search", "my_search", says="Memory comes after what cannot be cut", at=3, change="""
-        if job["heads"] % t:
+        if gigabytes(t, p, d) > job["room"]:
+            word = "memory"
+        elif job["heads"] % t:
""")  # fmt: skip


no_more_stages_than_layers = slip("a-shared-search", "my_search", says="p does not divide the layers", at=3, change="""
-        elif job["layers"] % p:
+        elif p > job["layers"]:
""")  # fmt: skip


who_finds_nothing_leaves = slip(
    "a-shared-search", "my_search", says="has finished while others wait for it", at=4, change="""
+    if math.isinf(best[0]):
+        return [None, reasons]
     found = collectives.all_gather(torch.tensor([best], dtype=torch.float64), group, algorithm="ring")
""")  # fmt: skip


everyone_looks_at_everything = slip("a-shared-search", "my_search", says="not of its share", at=3, change="""
-    for k in range(group.rank, len(plans), group.size):
+    for k in range(len(plans)):
""")  # fmt: skip


the_best_has_a_reason_too = slip("a-shared-search", "my_search", says="which is the best one", at=3, change="""
-    reasons.pop("{} x {} x {}".format(*plans[int(k)]), None)
""")  # fmt: skip


@variant("a-shared-search", "my_search", at=3)
def two_sums_of_one_number(job, group):
    gpus, batch = job["gpus"], job["batch"]
    sizes = [size for size in range(1, gpus + 1) if gpus % size == 0]
    plans = [(t, p, gpus // (t * p)) for t in sizes for p in sizes if gpus % (t * p) == 0]

    def gigabytes(t, p, d):
        return (job["billions"] * (4 + 12 / d) + job["kept"] * min(p, batch // d)) / (t * p)

    def seconds(t, p, d):
        slow = 1 if t <= 8 else 9
        slot = job["work"] / (t * p) + job["sums"] * slow * (t - 1) / t / p
        return slot * (batch // d + p - 1) + job["gradients"] * (d - 1) / d / (t * p)

    def why(t, p, d):
        for word, out in (("heads", job["heads"] % t), ("layers", job["layers"] % p), ("batch", batch % d)):
            if out:
                return word
        return "memory" if gigabytes(t, p, d) > job["room"] else "slower"

    own = {k: why(*plans[k]) for k in range(len(plans)) if k % group.size == group.rank}
    fit = {k: seconds(*plans[k]) for k, word in own.items() if word == "slower"}
    least = torch.tensor([min(fit.values(), default=math.inf)], dtype=torch.float64)
    collectives.all_reduce(least, group, "min", algorithm="ring")
    first = min((k for k, took in fit.items() if took == least.item()), default=len(plans))
    place = collectives.all_reduce(torch.tensor([first]), group, "min", algorithm="ring").item()
    reasons = {" x ".join(map(str, plans[k])): word for k, word in own.items() if k != place}
    return [list(plans[place]) if place < len(plans) else None, reasons]


@variant("a-shared-search", "my_search", at=3)
def rows_of_cuts(job, group):
    gpus, batch = job["gpus"], job["batch"]
    sizes = [size for size in range(1, gpus + 1) if gpus % size == 0]
    plans = [(t, p, gpus // (t * p)) for t in sizes for p in sizes if gpus % (t * p) == 0]

    def gigabytes(t, p, d):
        return (job["billions"] * (4 + 12 / d) + job["kept"] * min(p, batch // d)) / (t * p)

    def seconds(t, p, d):
        slow = 1 if t <= 8 else 9
        slot = job["work"] / (t * p) + job["sums"] * slow * (t - 1) / t / p
        return slot * (batch // d + p - 1) + job["gradients"] * (d - 1) / d / (t * p)

    reasons, mine = {}, [math.inf, 0, 0, 0]
    for t, p, d in plans[group.rank :: group.size]:
        tests = {"heads": job["heads"] % t > 0, "layers": job["layers"] % p > 0, "batch": batch % d > 0}
        if not any(tests.values()):
            tests["memory"] = gigabytes(t, p, d) > job["room"]
        word = next((name for name, out in tests.items() if out), "slower")
        reasons[f"{t} x {p} x {d}"] = word
        if word == "slower":
            mine = min(mine, [seconds(t, p, d), t, p, d])
    rows = collectives.all_gather(torch.tensor([mine], dtype=torch.float64), group)
    took, *best = min(rows.tolist())
    best = [int(size) for size in best] if took < math.inf else None
    if best:
        reasons.pop("{} x {} x {}".format(*best), None)
    return [best, reasons]


# ZeRO-1 on one axis ---------------------------------------------------------------------------------------------------


counts_every_copy = slip("zero-on-one-axis", "my_update", says="divide its squares by its copies", at=4, change="""
-    copies[len(mine["weight"]) :] = tp
""")  # fmt: skip


the_norm_of_a_replica_group = slip(
    "zero-on-one-axis", "my_update", says="of one tensor-parallel rank's part", at=4, change="""
-    norm = collectives.all_reduce(squares, group, algorithm="ring")[0].sqrt()
+    norm = collectives.all_reduce(squares, replicas, algorithm="ring")[0].sqrt()
""")  # fmt: skip


a_norm_for_itself = slip("zero-on-one-axis", "my_update", says="of one rank's shard", at=4, change="""
-    norm = collectives.all_reduce(squares, group, algorithm="ring")[0].sqrt()
+    norm = squares[0].sqrt()
""")  # fmt: skip


a_gain_of_its_own_positions = slip("zero-on-one-axis", "my_update", says="sum it along tp first", at=4, change="""
-    dgain = collectives.all_reduce(mine["dgain"], replica, algorithm="ring")
+    dgain = mine["dgain"]
""")  # fmt: skip


a_gain_summed_twice = slip("zero-on-one-axis", "my_update", says="it is summed by the reduce-scatter", at=4, change="""
-    dgain = collectives.all_reduce(mine["dgain"], replica, algorithm="ring")
+    dgain = collectives.all_reduce(mine["dgain"], group, algorithm="ring")
""")  # fmt: skip


averages_the_replicas = slip("zero-on-one-axis", "my_update", says="The gradients are averaged", at=4, change="""
-    g = collectives.reduce_scatter(torch.cat([mine["dweight"], dgain]), replicas, algorithm="ring")
+    g = collectives.reduce_scatter(torch.cat([mine["dweight"], dgain]), replicas, "avg", algorithm="ring")
""")  # fmt: skip


never_clips = slip("zero-on-one-axis", "my_update", says="The gradient is not clipped", at=4, change="""
-    momentum = 0.9 * mine["momentum"] + g * torch.clamp(most / norm, max=1)
+    momentum = 0.9 * mine["momentum"] + g
""")  # fmt: skip


begins_again = slip("zero-on-one-axis", "my_update", says="The momentum of the last step is lost", at=4, change="""
-    momentum = 0.9 * mine["momentum"] + g * torch.clamp(most / norm, max=1)
+    momentum = g * torch.clamp(most / norm, max=1)
""")  # fmt: skip


all_of_it_and_then_a_part = slip(
    "zero-on-one-axis", "my_update", says="Half of an all-reduce is not needed", at=4, change="""
-    g = collectives.reduce_scatter(torch.cat([mine["dweight"], dgain]), replicas, algorithm="ring")
+    g = collectives.all_reduce(torch.cat([mine["dweight"], dgain]), replicas, algorithm="ring")
+    g = g.tensor_split(replicas.size)[replicas.rank]
""")  # fmt: skip


@variant("zero-on-one-axis", "my_update", at=4)
def with_a_mesh(mine, group, tp, lr, most):
    mesh = Mesh(group, {"dp": group.size // tp, "tp": tp})
    width, dp = len(mine["weight"]), mesh["dp"]
    collectives.all_reduce(mine["dgain"], mesh["tp"], algorithm="ring")
    whole = torch.cat([mine["dweight"], mine["dgain"]])
    parts = torch.arange(len(whole)).tensor_split(dp.size)
    own = parts[dp.rank]
    g = collectives.reduce_scatter(whole, dp, algorithm="ring")
    once = torch.where(own < width, 1.0, 1 / tp)
    norm = collectives.all_reduce((g * g * once).sum().view(1), group).sqrt().view(())
    if norm > most:
        g = g * (most / norm)
    momentum = mine["momentum"].mul(0.9).add(g)
    flat = torch.cat([mine["weight"], mine["gain"]])[own] - lr * momentum
    new = collectives.all_gather(flat, dp, [len(part) for part in parts], algorithm="ring")
    return [new[:width], new[width:], momentum, norm]


@variant("zero-on-one-axis", "my_update", at=4)
def the_gain_counts_on_one_rank(mine, group, tp, lr, most):
    across = group.subgroup([r for r in range(group.size) if r % tp == group.rank % tp])
    inside = group.subgroup([r for r in range(group.size) if r // tp == group.rank // tp])
    gain = collectives.all_gather(mine["dgain"][None], inside, algorithm="ring").sum(0) if tp == 2 else (
        collectives.all_reduce(mine["dgain"], inside, algorithm="ring"))  # fmt: skip
    flat = torch.cat([mine["weight"], mine["gain"]])
    g = collectives.ring_reduce_scatter(torch.cat([mine["dweight"], gain]), across)
    pieces = list(flat.tensor_split(across.size))
    begin = sum(map(len, pieces[: across.rank]))
    counted = g if inside.rank == 0 else g[: max(0, len(mine["weight"]) - begin)]
    squares = torch.zeros(1, dtype=flat.dtype)
    squares += counted.square().sum()
    norm = collectives.all_reduce(squares, group, algorithm="ring").sqrt()[0]
    momentum = 0.9 * mine["momentum"] + min(1.0, most / norm.item()) * g
    pieces[across.rank] = pieces[across.rank] - lr * momentum
    gathered = collectives.ring_all_gather(pieces[across.rank], across, sizes=list(map(len, pieces)))
    return [*gathered.split([len(mine["weight"]), len(mine["gain"])]), momentum, norm]


# All axes at once -----------------------------------------------------------------------------------------------------


gradients_stay_partial = slip(
    "all-axes-at-once", "my_step", says="summed along tp before it is sent", at=4, change="""
-            pp.send(collectives.all_reduce(dx, tp, algorithm="ring"), to=pp.rank - 1)
+            pp.send(dx, to=pp.rank - 1)
""")  # fmt: skip


outputs_stay_partial = slip(
    "all-axes-at-once", "my_step", says="Is the output of every stage summed along tp", at=4, change="""
-        out = collectives.all_reduce(partial.detach().clone(), tp, algorithm="ring")
+        out = partial.detach().clone()
""")  # fmt: skip


a_loss_of_every_tensor_rank = slip("all-axes-at-once", "my_step", says="it counts once", at=4, change="""
-            loss += (out - y).square().sum() / total / tp.size
+            loss += (out - y).square().sum() / total
""")  # fmt: skip


replicas_by_themselves = slip("all-axes-at-once", "my_step", says="of its own replica alone", at=8, change="""
-    gradients = [collectives.all_reduce(one, dp, algorithm="ring") for one in gradients]
""")  # fmt: skip


averages_over_replicas = slip("all-axes-at-once", "my_step", says="summed, never averaged", at=8, change="""
-    gradients = [collectives.all_reduce(one, dp, algorithm="ring") for one in gradients]
+    gradients = [collectives.all_reduce(one, dp, "avg", algorithm="ring") for one in gradients]
""")  # fmt: skip


gradients_along_the_wrong_axis = slip("all-axes-at-once", "my_step", says="is not that of one device", at=8, change="""
-    gradients = [collectives.all_reduce(one, dp, algorithm="ring") for one in gradients]
+    gradients = [collectives.all_reduce(one, pp, algorithm="ring") for one in gradients]
""")  # fmt: skip


the_last_microbatch_alone = slip("all-axes-at-once", "my_step", says="Do all microbatches add to it", at=4, change="""
-        gradients = [one + part for one, part in zip(gradients, parts, strict=True)]
+        gradients = list(parts)
""")  # fmt: skip


nobody_tells_the_others = slip("all-axes-at-once", "my_step", says="Only the last stage has a loss", at=4, change="""
-    return [collectives.all_reduce(loss, group, algorithm="ring").item(), *gradients]
+    return [collectives.all_reduce(loss, tp, algorithm="ring").item(), *gradients]
""")  # fmt: skip


sums_what_nobody_needs = slip("all-axes-at-once", "my_step", says="that nobody needs", at=4, change="""
         gradients = [one + part for one, part in zip(gradients, parts, strict=True)]
+        back = collectives.all_reduce(dx, tp, algorithm="ring")

-            pp.send(collectives.all_reduce(dx, tp, algorithm="ring"), to=pp.rank - 1)
+            pp.send(back, to=pp.rank - 1)
""")  # fmt: skip


gradients_of_every_microbatch = slip("all-axes-at-once", "my_step", says="Gradients are summed once", at=8, change="""
-        gradients = [one + part for one, part in zip(gradients, parts, strict=True)]
+        parts = [collectives.all_reduce(part, dp, algorithm="ring") for part in parts]
+        gradients = [one + part for one, part in zip(gradients, parts, strict=True)]

-    gradients = [collectives.all_reduce(one, dp, algorithm="ring") for one in gradients]
""")  # fmt: skip


@variant("all-axes-at-once", "my_step", at=4)
def the_newest_comes_back_first(mine, group, sizes):
    mesh = Mesh(group, dict(sizes))
    dp, pp, tp = mesh["dp"], mesh["pp"], mesh["tp"]
    A, B, total = mine["A"].requires_grad_(), mine["B"].requires_grad_(), mine["total"]
    last, stack, squares = pp.rank + 1 == pp.size, [], 0.0

    def add_up(x, over):
        return collectives.all_reduce(x.detach().clone().contiguous(), over, algorithm="ring")

    for x, y in zip(mine["x"], mine["y"], strict=True):
        h = x if pp.rank == 0 else group.recv(torch.empty_like(x), source=mesh.rank(pp=pp.rank - 1))
        h = h.detach().requires_grad_()
        part = (h @ A).tanh() @ B
        whole = add_up(part, tp)
        if last:
            squares += float(((whole - y) ** 2).sum())
        else:
            group.send(whole, to=mesh.rank(pp=pp.rank + 1))
        stack.append((h, part, whole - y))
    while stack:
        h, part, off = stack.pop()
        back = 2 * off / total if last else group.recv(torch.empty_like(off), source=mesh.rank(pp=pp.rank + 1))
        part.backward(back)
        if pp.rank:
            group.send(add_up(h.grad, tp), to=mesh.rank(pp=pp.rank - 1))
    both = add_up(torch.cat([A.grad.flatten(), B.grad.flatten()]), dp)
    dA, dB = both.split([A.numel(), B.numel()])
    here = torch.tensor([squares / total if last and tp.rank == 0 else 0.0], dtype=torch.float64)
    return [float(add_up(here, group)), dA.view(A.shape), dB.view(B.shape)]


@variant("all-axes-at-once", "my_step", at=4)
def one_microbatch_at_a_time(mine, group, sizes):
    mesh = Mesh(group, dict(sizes))
    dp, pp, tp = mesh["dp"], mesh["pp"], mesh["tp"]
    A, B, total = mine["A"].requires_grad_(), mine["B"].requires_grad_(), mine["total"]
    loss = torch.zeros(1, dtype=A.dtype)
    for x, y in zip(mine["x"], mine["y"], strict=True):
        if pp.rank > 0:
            pp.recv(x, source=pp.rank - 1)
        x.requires_grad_()
        partial = torch.tanh(x @ A) @ B
        out = collectives.ring_all_reduce(partial.detach().clone(), tp)
        if pp.rank == pp.size - 1:
            loss += (out - y).square().sum()
            g = (out - y) * (2 / total)
        else:
            pp.send(out, to=pp.rank + 1)
            g = pp.recv(out, source=pp.rank + 1)
        partial.backward(g)
        if pp.rank > 0:
            pp.send(collectives.ring_all_reduce(x.grad, tp), to=pp.rank - 1)
    for weight in (A, B):
        collectives.ring_all_reduce(weight.grad, dp)
    if tp.rank > 0:
        loss.zero_()
    collectives.ring_all_reduce(loss, group)
    return [loss.item() / total, A.grad, B.grad]
