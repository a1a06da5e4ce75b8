"""The zoo of the exercises of chapter 12: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch
import torch.nn.functional as F

from labkit import collectives
from labkit.chapters.c12_experts.runs import small_layer
from labkit.grading.checks.zoo import mutant, slip, variant

# A queue that turns ---------------------------------------------------------------------------------------------------


ties_to_the_higher_number = slip(
    "a-queue-that-turns", "my_router", says="expert with the higher number first", at=3, change="""
-    order = logits.sort(dim=-1, descending=True, stable=True).indices
+    order = logits.sort(dim=-1, stable=True).indices.flip(-1)
""")  # fmt: skip


always_begins_with_rank_0 = slip("a-queue-that-turns", "my_router", says="It begins with rank `first`", change="""
-    ahead = every.roll(-first, 0)[: (group.rank - first) % group.size].sum(0)
+    ahead = every[: group.rank].sum(0)
""")  # fmt: skip


turns_the_other_way = slip("a-queue-that-turns", "my_router", says="goes on with the rank before it", change="""
-    ahead = every.roll(-first, 0)[: (group.rank - first) % group.size].sum(0)
+    number = (first - group.rank) % group.size
+    ahead = every[[(first - i) % group.size for i in range(number)]].sum(0)
""")  # fmt: skip


a_queue_for_each_rank = slip("a-queue-that-turns", "my_router", says="one queue for the tokens of all ranks", change="""
-    ahead = every.roll(-first, 0)[: (group.rank - first) % group.size].sum(0)
-    better = every.sum(0).cumsum(0) - every.sum(0)
+    ahead, better = 0, wants.sum(0).cumsum(0) - wants.sum(0)
""")  # fmt: skip


a_rank_at_a_time = slip("a-queue-that-turns", "my_router", says="all choices of a rank together", change="""
-    ahead = every.roll(-first, 0)[: (group.rank - first) % group.size].sum(0)
-    better = every.sum(0).cumsum(0) - every.sum(0)
+    ahead = every.roll(-first, 0)[: (group.rank - first) % group.size].sum((0, 1))
+    better = wants.sum(0).cumsum(0) - wants.sum(0)
""")  # fmt: skip


one_place_too_many = slip("a-queue-that-turns", "my_router", says="one choice too many", change="""
-    kept = places.gather(2, experts[..., None])[..., 0] < slots
+    kept = places.gather(2, experts[..., None])[..., 0] <= slots
""")  # fmt: skip


divides_before_it_drops = slip("a-queue-that-turns", "my_router", says="divided before the drops", change="""
-    weights = logits.softmax(-1).gather(1, experts) * kept
-    weights = (weights / weights.sum(-1, keepdim=True)).nan_to_num(0.0)
+    weights = logits.softmax(-1).gather(1, experts)
+    weights = weights / weights.sum(-1, keepdim=True) * kept
""")  # fmt: skip


nothing_over_nothing = slip("a-queue-that-turns", "my_router", says="weights of 0 / 0", change="""
-    weights = (weights / weights.sum(-1, keepdim=True)).nan_to_num(0.0)
+    weights = weights / weights.sum(-1, keepdim=True)
""")  # fmt: skip


counts_who_wanted_it = slip("a-queue-that-turns", "my_router", says="those that are not dropped", change="""
-    return [experts, weights, every.sum((0, 1)).clamp(max=slots)]
+    return [experts, weights, every.sum((0, 1))]
""")  # fmt: skip


asks_for_the_counts_twice = slip("a-queue-that-turns", "my_router", says="need to travel", change="""
-    return [experts, weights, every.sum((0, 1)).clamp(max=slots)]
+    taken = collectives.all_reduce(wants.sum((0, 1)), group, algorithm="ring")
+    return [experts, weights, taken.clamp(max=slots)]
""")  # fmt: skip


tells_everybody_every_choice = slip("a-queue-that-turns", "my_router", says="need to travel", change="""
+    sizes = collectives.all_gather(torch.tensor([len(logits)]), group, algorithm="ring").tolist()
+    theirs = collectives.all_gather(wants, group, sizes, algorithm="ring")
-    every = collectives.all_gather(wants.sum(0)[None], group, algorithm="ring")
+    every = torch.stack([part.sum(0) for part in theirs.split(sizes)])
""")  # fmt: skip


@variant("a-queue-that-turns", "my_router", at=4)
def one_choice_after_the_other(logits, group, k, slots, first):
    size = logits.shape[1]
    experts = logits.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    wanted = torch.stack([experts[:, c].bincount(minlength=size) for c in range(k)])
    every = collectives.all_gather(wanted.view(1, -1), group, algorithm="ring").view(-1, k, size)
    order = [(first + i) % group.size for i in range(group.size)]
    mine = order.index(group.rank)
    weights = logits.softmax(-1).gather(1, experts)
    line = torch.zeros(size, dtype=torch.int64)
    for c in range(k):
        place = line + every[order[:mine], c].sum(0)
        for token, e in enumerate(experts[:, c].tolist()):
            if place[e] >= slots:
                weights[token, c] = 0
            place[e] += 1
        line = line + every[:, c].sum(0)
    total = weights.sum(-1, keepdim=True)
    return [experts, torch.where(total > 0, weights / total, 0.0), line.clamp(max=slots)]


@variant("a-queue-that-turns", "my_router", at=4)
def sorts_by_a_key_and_sums_before(logits, group, k, slots, first):
    size = logits.shape[1]
    keyed = logits.argsort(dim=-1, descending=True, stable=True)[:, :k]
    flat = F.one_hot(keyed.T, size).flatten(0, 1)  # all first choices, then all second ones
    counts = flat.view(k, len(logits), size).sum(1)
    every = collectives.all_gather(counts[None].contiguous(), group, algorithm="ring")
    turned = torch.cat([every[first:], every[:first]])
    before = turned[: (group.rank - first) % group.size].sum(0)
    behind = turned[(group.rank - first) % group.size + 1 :].sum(0)  # other ranks behind this one, better choices
    others = before + (before + behind).cumsum(0) - (before + behind)
    place = (flat.cumsum(0) - flat + others.repeat_interleave(len(logits), 0)) * flat
    kept = (place.sum(1) < slots).view(k, len(logits)).T
    chosen = logits.gather(1, keyed).masked_fill(~kept, -torch.inf)
    weights = chosen.softmax(-1).nan_to_num(0.0)
    return [keyed, weights, every.sum((0, 1)).clamp(max=slots)]


# Sixteen bits on the way there ----------------------------------------------------------------------------------------


whole_rows_there = slip("sixteen-bits-there", "my_layer", says="The rows travel in 32 bits", at=4, change="""
-    rows = collectives.all_to_all(x[token].bfloat16(), group, out, into).float()
+    rows = collectives.all_to_all(x[token].bfloat16().float(), group, out, into)
""")  # fmt: skip


never_rounded = slip("sixteen-bits-there", "my_layer", says="not rounded to bfloat16", at=3, change="""
-    rows = collectives.all_to_all(x[token].bfloat16(), group, out, into).float()
+    rows = collectives.all_to_all(x[token], group, out, into)
""")  # fmt: skip


results_in_sixteen_bits = slip("sixteen-bits-there", "my_layer", says="The results travel in 16 bits", at=4, change="""
-    back = collectives.all_to_all(results, group, into, out)
+    back = collectives.all_to_all(results.bfloat16(), group, into, out).float()
""")  # fmt: skip


dropped_ones_travel = slip("sixteen-bits-there", "my_layer", says="A dropped choice stays at home", at=4, change="""
-    token, choice = weights.nonzero(as_tuple=True)
+    token, choice = torch.ones_like(weights).nonzero(as_tuple=True)
""")  # fmt: skip


added_up_without_weights = slip("sixteen-bits-there", "my_layer", says="without their weights", at=4, change="""
-    y = torch.zeros_like(x).index_add_(0, token, weights[token, choice, None] * back)
+    y = torch.zeros_like(x).index_add_(0, token, back)
""")  # fmt: skip


one_expert_does_it_all = slip(
    "sixteen-bits-there", "my_layer", says="first expert of a rank has computed all", at=4, change="""
-    results = (rows[:, None] @ A[which])[:, 0]
+    results = (rows[:, None] @ A[which * 0])[:, 0]
""")  # fmt: skip


each_row_with_its_number = slip("sixteen-bits-there", "my_layer", says="number of its expert travels", at=4, change="""
-    which = torch.arange(per_rank).repeat(group.size).repeat_interleave(came)
+    which = collectives.all_to_all(experts[token, choice], group, out, into) % per_rank
""")  # fmt: skip


left_in_the_order_of_the_tokens = slip("sixteen-bits-there", "my_layer", says="entries are wrong", at=4, change="""
-    order = experts[token, choice].sort(stable=True).indices
-    token, choice = token[order], choice[order]
""")  # fmt: skip


same_lists_on_the_way_back = slip("sixteen-bits-there", "my_layer", says="send_counts add up to", at=4, change="""
-    back = collectives.all_to_all(results, group, into, out)
+    back = collectives.all_to_all(results, group, out, into)
""")  # fmt: skip


@variant("sixteen-bits-there", "my_layer", at=4)
def expert_by_expert(mine, group, per_rank):
    x, experts, weights, A = mine["x"], mine["experts"], mine["weights"], mine["A"]
    size = per_rank * group.size
    picks = [((experts == e) & (weights != 0)).nonzero() for e in range(size)]
    counts = torch.tensor([len(pick) for pick in picks])
    came = collectives.all_to_all(counts.view(group.size, per_rank), group, algorithm="pairwise")
    pick = torch.cat(picks)
    out, into = counts.view(-1, per_rank).sum(1).tolist(), came.sum(1).tolist()
    rows = collectives.all_to_all(x[pick[:, 0]].to(torch.bfloat16), group, out, into).to(x.dtype)
    parts = list(rows.split(came.flatten().tolist()))
    done = torch.cat([part @ A[i % per_rank] for i, part in enumerate(parts)])
    back = collectives.all_to_all(done, group, into, out)
    y = torch.zeros_like(x)
    for (token, choice), row in zip(pick.tolist(), back, strict=True):
        y[token] += weights[token, choice] * row
    return [y, came.sum(0)]


@variant("sixteen-bits-there", "my_layer", at=4)
def a_message_for_each_rank(mine, group, per_rank):
    x, experts, weights, A = mine["x"], mine["experts"], mine["weights"], mine["A"]
    y, seen = torch.zeros_like(x), torch.zeros(per_rank, dtype=torch.int64)
    for round in range(group.size):
        to, source = (group.rank + round) % group.size, (group.rank - round) % group.size
        picks = [((experts == to * per_rank + i) & (weights != 0)).nonzero() for i in range(per_rank)]
        counts, pick = torch.tensor([len(p) for p in picks]), torch.cat(picks)
        rows, came = x[pick[:, 0]].bfloat16(), counts
        theirs = rows
        if round:
            came = group.exchange(counts, to=to, like=torch.empty_like(counts), source=source)
            like = torch.empty(int(came.sum()), x.shape[1], dtype=torch.bfloat16)
            theirs = group.exchange(rows, to=to, like=like, source=source)
        which = torch.arange(per_rank).repeat_interleave(came)
        back = torch.einsum("nd,ndf->nf", theirs.float(), A[which])
        if round:
            back = group.exchange(back, to=source, like=torch.empty(len(rows), x.shape[1]), source=to)
        y.index_add_(0, pick[:, 0], weights[pick[:, 0], pick[:, 1], None] * back)
        seen += came
    return [y, seen]


# More than its own tokens ---------------------------------------------------------------------------------------------


every_rank_counts_alike = slip(
    "more-than-its-own-tokens", "my_gradients", says="rank's mean counts the same", at=4, change="""
-    tokens = torch.tensor([len(mine["x"])])
-    collectives.all_reduce(tokens, group, algorithm="ring")
-    (losses_of(layer).sum() / tokens).backward()
+    (losses_of(layer).sum() / max(1, len(mine["x"])) / group.size).backward()
""")  # fmt: skip


weighed_when_it_is_too_late = slip(
    "more-than-its-own-tokens", "my_gradients", says="weighted before the backward pass", at=4, change="""
-    (losses_of(layer).sum() / tokens).backward()
+    own = max(1, len(mine["x"]))
+    (losses_of(layer).sum() / own / group.size).backward()

         among = column if "experts" in name else group
+        if "experts" not in name:
+            p.grad *= own * group.size / tokens
""")  # fmt: skip


averaged_over_the_column = slip(
    "more-than-its-own-tokens", "my_gradients", says="They are summed, like all others", at=4, change="""
         collectives.all_reduce(p.grad, among, algorithm="ring")
+        p.grad /= column.size if "experts" in name else 1
""")  # fmt: skip


all_over_all_ranks = slip(
    "more-than-its-own-tokens", "my_gradients", says="most of them hold other experts", at=4, change="""
-        among = column if "experts" in name else group
+        among = group
""")  # fmt: skip


experts_are_left_alone = slip(
    "more-than-its-own-tokens", "my_gradients", says="those of the tokens of one row", at=4, change="""
-        collectives.all_reduce(p.grad, among, algorithm="ring")
+        if "experts" not in name:
+            collectives.all_reduce(p.grad, among, algorithm="ring")
""")  # fmt: skip


the_router_in_its_row = slip(
    "more-than-its-own-tokens", "my_gradients", says="summed over a row alone", at=4, change="""
-        among = column if "experts" in name else group
+        among = column if "experts" in name else row
""")  # fmt: skip


divided_once_more = slip(
    "more-than-its-own-tokens", "my_gradients", says="divided by the number of ranks besides", at=4, change="""
         collectives.all_reduce(p.grad, among, algorithm="ring")
+        p.grad /= group.size
""")  # fmt: skip


never_divided = slip("more-than-its-own-tokens", "my_gradients", says="never divided", at=4, change="""
-    (losses_of(layer).sum() / tokens).backward()
+    losses_of(layer).sum().backward()
""")  # fmt: skip


@mutant("more-than-its-own-tokens", "my_gradients", says="summed over ranks that hold other experts", at=4)
def zeros_for_the_experts_of_others(mine, group, ep, seed):
    begin = group.rank // ep * ep
    layer = small_layer(seed, group.subgroup(range(begin, begin + ep)))
    tokens = collectives.all_reduce(torch.tensor([len(mine["x"])]), group, algorithm="ring")
    ((layer(mine["x"]) - mine["y"]).square().mean(-1).sum() / tokens).backward()
    own = {name: p.grad for name, p in layer.named_parameters()}
    whole = {name: own.get(name, torch.zeros_like(p)) for name, p in small_layer(seed).named_parameters()}
    for gradient in whole.values():  # of all experts, over all ranks
        collectives.all_reduce(gradient, group, algorithm="ring")
    return [whole[name] for name in own]


@variant("more-than-its-own-tokens", "my_gradients", at=4)
def divides_at_the_end(mine, group, ep, seed):
    row = group.subgroup([r for r in range(group.size) if r // ep == group.rank // ep])
    column = group.subgroup([r for r in range(group.size) if r % ep == group.rank % ep])
    layer = small_layer(seed, row)
    (layer(mine["x"]) - mine["y"]).square().mean(-1).sum().backward()
    tokens = collectives.all_reduce(torch.tensor(float(len(mine["x"]))).double()[None], group, algorithm="ring")
    found = []
    for name, p in layer.named_parameters():
        found.append(collectives.all_reduce(p.grad, column if "experts" in name else group, algorithm="ring") / tokens)
    return found


@variant("more-than-its-own-tokens", "my_gradients", at=4)
def two_sums_of_everything(mine, group, ep, seed):
    begin = group.rank // ep * ep
    layer = small_layer(seed, group.subgroup(range(begin, begin + ep)))
    tokens = collectives.all_reduce(torch.tensor([len(mine["x"])]), group, algorithm="ring")
    ((layer(mine["x"]) - mine["y"]).square().mean(-1) / tokens).sum().backward()
    named = dict(layer.named_parameters())
    column = group.subgroup(range(group.rank % ep, group.size, ep))
    for among, experts in ((group, False), (column, True)):
        parts = [p.grad for name, p in named.items() if ("experts" in name) == experts]
        flat = collectives.all_reduce(torch.cat([part.flatten() for part in parts]), among, algorithm="ring")
        for part, summed in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
            part.copy_(summed.view_as(part))
    return [p.grad for p in named.values()]


# One row for a node ---------------------------------------------------------------------------------------------------


a_row_for_each_expert = slip("one-row-for-a-node", "my_layer_of_nodes", says="goes there twice", at=4, change="""
-        to, row = (gates != 0).any(-1).T.nonzero(as_tuple=True)
+        to, row, one = (gates != 0).permute(1, 0, 2).nonzero(as_tuple=True)

-        told = collectives.all_to_all(gates[row, to], ranks, out, into)
+        told = F.one_hot(one, gates.shape[2]) * gates[row, to, one, None]
+        told = collectives.all_to_all(told, ranks, out, into)
""")  # fmt: skip


straight_to_the_rank = slip(
    "one-row-for-a-node", "my_layer_of_nodes", says="straight to ranks with another place", at=4, change="""
-    return hop(x, gates.view(len(x), across.size, per_node * len(A)), across, node_of)
+    return hop(x, gates.view(len(x), group.size, len(A)), group, compute)
""")  # fmt: skip


all_gates_go_along = slip("one-row-for-a-node", "my_layer_of_nodes", says="and one sum comes back", at=4, change="""
-        told = collectives.all_to_all(gates[row, to], ranks, out, into)
+        every = collectives.all_to_all(gates.flatten(1)[row], ranks, out, into)
+        told = every.view(len(rows), ranks.size, gates.shape[2])[:, ranks.rank]
""")  # fmt: skip


everything_to_all = slip("one-row-for-a-node", "my_layer_of_nodes", says="and one sum comes back", at=4, change="""
-        to, row = (gates != 0).any(-1).T.nonzero(as_tuple=True)
+        to, row = torch.ones(ranks.size, len(x)).nonzero(as_tuple=True)
""")  # fmt: skip


the_last_result_wins = slip("one-row-for-a-node", "my_layer_of_nodes", says="entries are wrong", at=4, change="""
-        return torch.zeros_like(x).index_add_(0, row, back)
+        return torch.zeros_like(x).index_copy_(0, row, back)
""")  # fmt: skip


gates_of_ones = slip("one-row-for-a-node", "my_layer_of_nodes", says="without their weights", at=4, change="""
-        told = collectives.all_to_all(gates[row, to], ranks, out, into)
+        told = collectives.all_to_all((gates[row, to] != 0).double(), ranks, out, into)
""")  # fmt: skip


@variant("one-row-for-a-node", "my_layer_of_nodes", at=4)
def rows_and_gates_in_one_message(mine, group, per_node):
    x, gates, A = mine["x"], mine["gates"], mine["A"]
    d, few = x.shape[1], len(A)
    node, place = divmod(group.rank, per_node)
    groups = [
        group.subgroup(range(place, group.size, per_node)),
        group.subgroup(range(node * per_node, (node + 1) * per_node)),
    ]

    def go(both, level):
        if level == 2:
            return torch.einsum("ne,nd,edf->nf", both[:, d:], both[:, :d], A)
        ranks = groups[level]
        parts = both[:, d:].tensor_split(ranks.size, 1)
        picks = [(part != 0).any(1).nonzero()[:, 0] for part in parts]
        out = [len(pick) for pick in picks]
        into = collectives.all_to_all(torch.tensor(out), ranks, algorithm="pairwise").tolist()
        joined = [torch.cat([both[pick, :d], part[pick]], 1) for pick, part in zip(picks, parts, strict=True)]
        came = collectives.all_to_all(torch.cat(joined), ranks, out, into)
        back = collectives.all_to_all(go(came, level + 1), ranks, into, out)
        y = torch.zeros(len(both), d, dtype=x.dtype)
        for pick, part in zip(picks, back.split(out), strict=True):
            y[pick] += part
        return y

    assert gates.shape[1] == few * group.size
    return go(torch.cat([x, gates], 1), 0)


@variant("one-row-for-a-node", "my_layer_of_nodes", at=4)
def its_own_node_without_a_hop(mine, group, per_node):
    x, gates, A = mine["x"], mine["gates"], mine["A"]
    node, place = divmod(group.rank, per_node)
    nodes = group.size // per_node
    across = group.subgroup(range(place, group.size, per_node))
    inside = group.subgroup(range(node * per_node, (node + 1) * per_node))

    def swap(rows, ranks, out, into):
        return collectives.all_to_all(rows.contiguous(), ranks, out, into)

    table = gates.reshape(len(x), nodes, per_node * len(A))
    first = [(table[:, m] != 0).any(1).nonzero()[:, 0] for m in range(nodes)]
    out = [len(pick) for pick in first]
    into = swap(torch.tensor(out), across, [1] * nodes, [1] * nodes).tolist()
    rows = swap(torch.cat([x[pick] for pick in first]), across, out, into)
    told = swap(torch.cat([table[pick, m] for m, pick in enumerate(first)]), across, out, into)
    told = told.reshape(len(rows), per_node, len(A))
    second = [(told[:, i] != 0).any(1).nonzero()[:, 0] for i in range(per_node)]
    there = [len(pick) for pick in second]
    here = swap(torch.tensor(there), inside, [1] * per_node, [1] * per_node).tolist()
    mine_now = swap(torch.cat([rows[pick] for pick in second]), inside, there, here)
    weights = swap(torch.cat([told[pick, i] for i, pick in enumerate(second)]), inside, there, here)
    results = sum(weights[:, e, None] * (mine_now @ A[e]) for e in range(len(A)))
    back = swap(results, inside, here, there)
    sums = torch.zeros_like(rows).index_add_(0, torch.cat(second), back)
    home = swap(sums, across, into, out)
    return torch.zeros_like(x).index_add_(0, torch.cat(first), home)
