"""The zoo of the exercises of chapter 11: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch
import torch.nn.functional as F

from labkit import collectives
from labkit.chapters.c11_context_parallelism.given import block_attention, swap, token_losses
from labkit.chapters.c11_context_parallelism.you_write import merge
from labkit.grading.checks.zoo import mutant, slip, variant

# Half of every block --------------------------------------------------------------------------------------------------


own_block_alone = slip("half-of-every-block", "my_zigzag", says="read its own block and no other", at=3, change="""
-    for i in range(1, n):
+    for i in range(0):
""")  # fmt: skip


no_mask_at_all = slip("half-of-every-block", "my_zigzag", says="have read blocks of later ranks", at=3, change="""
-        if i <= me:  # of an earlier rank: its late chunk lies behind all my queries
-            out, lse = merge(out, lse, *attend(q, *kv[:, :, :c]))
-        else:  # of a later rank: all of it lies between my two chunks
-            late = attend(q[:, c:], *kv)
-            out[:, c:], lse[:, c:] = merge(out[:, c:], lse[:, c:], *late)
+        out, lse = merge(out, lse, *attend(q, *kv))
""")  # fmt: skip


the_two_cases_exchanged = slip("half-of-every-block", "my_zigzag", says="The two cases are exchanged", at=3, change="""
-        if i <= me:  # of an earlier rank: its late chunk lies behind all my queries
+        if i > me:
""")  # fmt: skip


the_late_chunk_of_an_earlier_rank = slip(
    "half-of-every-block", "my_zigzag", says="the late chunk in place of the early one", at=3, change="""
-            out, lse = merge(out, lse, *attend(q, *kv[:, :, :c]))
+            out, lse = merge(out, lse, *attend(q, *kv[:, :, c:]))
""")  # fmt: skip


all_queries_read_later_ranks = slip(
    "half-of-every-block", "my_zigzag", says="Its early queries have read blocks of later ranks", at=3, change="""
-            late = attend(q[:, c:], *kv)
-            out[:, c:], lse[:, c:] = merge(out[:, c:], lse[:, c:], *late)
+            out, lse = merge(out, lse, *attend(q, *kv))
""")  # fmt: skip


earlier_blocks_whole = slip(
    "half-of-every-block", "my_zigzag", says="has read all keys of earlier ranks", at=3, change="""
-            out, lse = merge(out, lse, *attend(q, *kv[:, :, :c]))
+            out, lse = merge(out, lse, *attend(q, *kv))
""")  # fmt: skip


one_round_too_few = slip("half-of-every-block", "my_zigzag", says="The last block is missing", at=3, change="""
-    for i in range(1, n):
+    for i in range(1, n - 1):
""")  # fmt: skip


own_block_without_a_mask = slip(
    "half-of-every-block", "my_zigzag", says="its own block without a mask", at=3, change="""
-    out, lse = attend(q, k, v, causal=True)
+    out, lse = attend(q, k, v)
""")  # fmt: skip


@mutant("half-of-every-block", "my_zigzag", says="It scores every block whole", at=3)
def a_mask_over_whole_blocks(mine, group):
    q, k, v = mine["q"], mine["k"], mine["v"]
    scored = []
    n, me, c = group.size, group.rank, q.shape[1] // 2
    share = len(q) // len(k)
    places = [torch.cat((torch.arange(c) + r * c, torch.arange(c) + (2 * n - 1 - r) * c)) for r in range(n)]
    kv = torch.stack((k, v))
    out, lse = torch.zeros_like(q), torch.full_like(q[..., 0], -torch.inf)
    for i in range(n):
        owner = (me - i) % n
        keys, values = (x.repeat_interleave(share, 0) for x in kv)
        scored.append(q.shape[1] * keys.shape[1])
        scores = (q @ keys.mT / q.shape[2] ** 0.5).masked_fill(places[owner] > places[me][:, None], -torch.inf)
        part = scores.logsumexp(-1)
        mean = (scores - part.clamp(min=-1e300)[..., None]).exp() @ values
        out, lse = merge(out, lse, mean, part)
        if i < n - 1:
            kv = group.exchange(kv, (me + 1) % n, torch.empty_like(kv), (me - 1) % n)
    return [out, scored]


@mutant("half-of-every-block", "my_zigzag", says="Compute all scores with the given `attend`", at=3)
def scores_of_its_own(mine, group):
    q, k, v = mine["q"], mine["k"], mine["v"]
    n, me, c = group.size, group.rank, q.shape[1] // 2
    kv = torch.stack((k, v))
    out, lse = block_attention(q, k, v, True)
    for i in range(1, n):
        kv = group.exchange(kv, (me + 1) % n, torch.empty_like(kv), (me - 1) % n)
        if i <= me:
            out, lse = merge(out, lse, *block_attention(q, *kv[:, :, :c]))
        else:
            out[:, c:], lse[:, c:] = merge(out[:, c:], lse[:, c:], *block_attention(q[:, c:], *kv))
    return [out, []]


@mutant("half-of-every-block", "my_zigzag", says="gives each rank the keys of the whole text at once", at=3)
def gathers_all_keys(mine, group):
    q, k, v = mine["q"], mine["k"], mine["v"]
    scored = []

    def attend(q, k, v, causal=False):
        scored.append(q.shape[1] * k.shape[1])
        return block_attention(q, k, v, causal)

    me, c = group.rank, q.shape[1] // 2
    kv = torch.stack((k, v))
    blocks = collectives.all_gather(kv[None], group, algorithm="ring")
    out, lse = attend(q, k, v, causal=True)
    for owner in range(group.size):
        if owner < me:
            out, lse = merge(out, lse, *attend(q, *blocks[owner][:, :, :c]))
        elif owner > me:
            late = attend(q[:, c:], *blocks[owner])
            out[:, c:], lse[:, c:] = merge(out[:, c:], lse[:, c:], *late)
    return [out, scored]


the_last_round_sends_too = slip(
    "half-of-every-block", "my_zigzag", says="What travels that nobody reads?", at=3, change="""
-            out[:, c:], lse[:, c:] = merge(out[:, c:], lse[:, c:], *late)
+            out[:, c:], lse[:, c:] = merge(out[:, c:], lse[:, c:], *late)
+    if n > 1:
+        group.exchange(kv, (me + 1) % n, torch.empty_like(kv), (me - 1) % n)
""")  # fmt: skip


buffers_as_wide_as_queries = slip(
    "half-of-every-block", "my_zigzag", says="What travels that nobody reads?", at=5, change="""
-    kv = torch.stack((k, v))
+    kv = torch.stack([x.repeat_interleave(len(q) // len(x), 0) for x in (k, v)])
""")  # fmt: skip


@variant("half-of-every-block", "my_zigzag")
def around_the_other_way_in_three_pieces(mine, group):
    q, k, v = mine["q"], mine["k"], mine["v"]
    scored = []

    def attend(q, k, v, causal=False):
        scored.append(q.shape[1] * k.shape[1])
        return block_attention(q, k, v, causal)

    n, me, c = group.size, group.rank, q.shape[1] // 2
    early, late = q[:, :c], q[:, c:]
    first = attend(early, k[:, :c], v[:, :c], causal=True)
    second = attend(late, k[:, c:], v[:, c:], causal=True)
    second = merge(*second, *attend(late, k[:, :c], v[:, :c]))
    kv = torch.stack((k, v))
    for i in range(1, n):
        coming = torch.empty_like(kv)
        handles = group.isend(kv, (me - 1) % n), group.irecv(coming, (me + 1) % n)
        for handle in handles:
            handle.wait()
        kv = coming
        if (me + i) % n < me:
            first = merge(*first, *attend(early, *kv[:, :, :c]))
            second = merge(*second, *attend(late, *kv[:, :, :c]))
        else:
            second = merge(*second, *attend(late, *kv))
    return [torch.cat((first[0], second[0]), 1), scored]


@variant("half-of-every-block", "my_zigzag")
def the_next_block_while_it_reads(mine, group):
    q, k, v = mine["q"], mine["k"], mine["v"]
    scored = []

    def attend(q, k, v, causal=False):
        scored.append(q.shape[1] * k.shape[1])
        return block_attention(q, k, v, causal)

    n, me = group.size, group.rank
    c = q.shape[1] // 2
    block = torch.stack((k, v))
    parts = []
    for i in range(n):
        coming = torch.empty_like(block)
        under_way = []
        if i + 1 < n:
            under_way = [group.isend(block, (me + 1) % n), group.irecv(coming, (me - 1) % n)]
        owner = (me - i) % n
        if owner == me:
            parts.append(attend(q, block[0], block[1], causal=True))
        elif owner < me:
            parts.append(attend(q, block[0, :, :c], block[1, :, :c]))
        else:
            mean, lse = attend(q[:, c:], block[0], block[1])
            nothing = torch.zeros_like(mean), torch.full_like(lse, -torch.inf)
            parts.append((torch.cat((nothing[0], mean), 1), torch.cat((nothing[1], lse), 1)))
        for message in under_way:
            message.wait()
        block = coming
    lses = torch.stack([lse for _, lse in parts])
    shares = lses.softmax(0)
    return [sum(share[..., None] * mean for share, (mean, _) in zip(shares, parts, strict=True)), scored]


# Only the heads that are read -----------------------------------------------------------------------------------------


keys_in_turn = slip("only-the-heads-that-are-read", "my_ulysses", says="read keys in turn", at=1, change="""
-    which = [(me * each + i) // share - read[me].start for i in range(each)]
+    which = [(me * each + i) % few for i in range(each)]
""")  # fmt: skip


counted_from_its_own_first_head = slip(
    "only-the-heads-that-are-read", "my_ulysses", says="the keys are counted from that head on", at=3, change="""
-    which = [(me * each + i) // share - read[me].start for i in range(each)]
+    which = [i // share for i in range(each)]
""")  # fmt: skip


the_first_key_for_all = slip(
    "only-the-heads-that-are-read", "my_ulysses", says="reads the first of its keys", at=3, change="""
-    which = [(me * each + i) // share - read[me].start for i in range(each)]
+    which = [0] * each
""")  # fmt: skip


@mutant("only-the-heads-that-are-read", "my_ulysses", says="one head of keys for each head of queries", at=3)
def copies_before_it_sends(mine, group, lengths, heads, kv_heads):
    n, me, width = group.size, group.rank, mine["q"].shape[2]
    each = heads // n
    k, v = (mine[x].repeat_interleave(heads // kv_heads, 0) for x in "kv")
    parts = [torch.cat([x[r * each : (r + 1) * each] for x in (mine["q"], k, v)]) for r in range(n)]
    came = swap(parts, [(3 * each, length, width) for length in lengths], group)
    q, k, v = torch.cat(came, 1).split(each)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.cat(swap(y.split(lengths, 1), [(each, lengths[me], width)] * n, group))


@mutant("only-the-heads-that-are-read", "my_ulysses", says="Every rank gets all heads of keys", at=3)
def all_keys_to_everybody(mine, group, lengths, heads, kv_heads):
    n, me, width = group.size, group.rank, mine["q"].shape[2]
    each, share = heads // n, heads // kv_heads
    parts = [torch.cat((mine["q"][r * each : (r + 1) * each], mine["k"], mine["v"])) for r in range(n)]
    came = swap(parts, [(each + 2 * kv_heads, length, width) for length in lengths], group)
    q, k, v = torch.cat(came, 1).split([each, kv_heads, kv_heads])
    which = [(me * each + i) // share for i in range(each)]
    y = F.scaled_dot_product_attention(q, k[which], v[which], is_causal=True)
    return torch.cat(swap(y.split(lengths, 1), [(each, lengths[me], width)] * n, group))


@mutant("only-the-heads-that-are-read", "my_ulysses", says="What travels that nobody reads?", at=3)
def gathers_the_whole_text(mine, group, lengths, heads, kv_heads):
    share = heads // kv_heads
    rows = torch.cat([mine[x] for x in "qkv"]).transpose(0, 1).contiguous()
    whole = collectives.all_gather(rows, group, lengths, algorithm="ring").transpose(0, 1)
    q, k, v = whole.split([heads, kv_heads, kv_heads])
    k, v = (x.repeat_interleave(share, 0) for x in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.split(lengths, 1)[group.rank].contiguous()


keeps_the_heads_and_all_tokens = slip(
    "only-the-heads-that-are-read", "my_ulysses", says="returned a tensor of shape", at=3, change="""
-    return torch.cat(back)
+    return y
""")  # fmt: skip


every_part_as_long_as_its_own = slip(
    "only-the-heads-that-are-read", "my_ulysses", says="receives float64", at=3, change="""
-    shapes = [(each + 2 * few, length, width) for length in lengths]
+    shapes = [(each + 2 * few, lengths[me], width)] * n
""")  # fmt: skip


@variant("only-the-heads-that-are-read", "my_ulysses")
def three_exchanges_there_and_one_back(mine, group, lengths, heads, kv_heads):
    n, me = group.size, group.rank
    each, share, width = heads // n, heads // kv_heads, mine["q"].shape[2]
    groups = [sorted({head // share for head in range(r * each, (r + 1) * each)}) for r in range(n)]
    whole = {}
    for name in "qkv":
        wanted = [list(range(r * each, (r + 1) * each)) if name == "q" else groups[r] for r in range(n)]
        shapes = [(len(wanted[me]), length, width) for length in lengths]
        whole[name] = torch.cat(swap([mine[name][w] for w in wanted], shapes, group), dim=1)
    results = []
    for i in range(each):
        key = groups[me].index((me * each + i) // share)
        one = (whole["q"][i], whole["k"][key], whole["v"][key])
        results.append(F.scaled_dot_product_attention(*one, is_causal=True))
    y = torch.stack(results)
    return torch.cat(swap(list(y.split(lengths, 1)), [(each, lengths[me], width)] * n, group))


@variant("only-the-heads-that-are-read", "my_ulysses")
def plain_messages_to_each_rank(mine, group, lengths, heads, kv_heads):
    n, me = group.size, group.rank
    each, share, width = heads // n, heads // kv_heads, mine["q"].shape[2]

    def stretches(r):
        first, last = r * each // share, (r * each + each - 1) // share + 1
        return (r * each, (r + 1) * each), (first, last), (first, last)

    def between_all(out, shapes):
        came = list(out)
        for i in range(1, n):
            to, source = (me + i) % n, (me - i) % n
            like = torch.empty(shapes[source], dtype=torch.float64)
            came[source] = group.exchange(out[to].contiguous(), to, like, source)
        return came

    out = [torch.cat([mine[x][a:b] for x, (a, b) in zip("qkv", stretches(r), strict=True)]) for r in range(n)]
    whole = torch.cat(between_all(out, [(len(out[me]), length, width) for length in lengths]), 1)
    first = stretches(me)[1][0]
    few = (len(whole) - each) // 2
    key = torch.arange(me * each, (me + 1) * each) // share - first
    y = F.scaled_dot_product_attention(
        whole[:each], whole[each : each + few][key], whole[each + few :][key], is_causal=True
    )
    return torch.cat(between_all(list(y.split(lengths, 1)), [(each, lengths[me], width)] * n))


# Where texts end ------------------------------------------------------------------------------------------------------


counts_from_0_on_every_rank = slip(
    "where-texts-end", "my_packed_loss", says="counts its own tokens from 0", at=3, change="""
-    positions = where - (ends - torch.tensor(lengths))[text]
+    positions = torch.arange(len(where))
""")  # fmt: skip


places_in_the_sequence = slip(
    "where-texts-end", "my_packed_loss", says="Each text begins at 0 again", at=3, change="""
-    positions = where - (ends - torch.tensor(lengths))[text]
+    positions = where
""")  # fmt: skip


the_next_text_as_a_target = slip(
    "where-texts-end", "my_packed_loss", says="with the first one of the next text as its target", at=3, change="""
-    has = (where + 1 < ends[text]).nonzero().flatten()
+    has = (where + 1 < total).nonzero().flatten()

-    return [positions, loss[0] / (total - len(lengths))]
+    return [positions, loss[0] / (total - 1)]
""")  # fmt: skip


divides_by_all_tokens = slip(
    "where-texts-end", "my_packed_loss", says="divide by the number of targets", at=3, change="""
-    return [positions, loss[0] / (total - len(lengths))]
+    return [positions, loss[0] / total]
""")  # fmt: skip


a_mean_of_means = slip("where-texts-end", "my_packed_loss", says="the mean of the ranks' means", at=3, change="""
-    loss = token_losses(positions[has], tokens[has], after[has]).sum().view(1)
+    loss = token_losses(positions[has], tokens[has], after[has]).mean().view(1) / n

-    return [positions, loss[0] / (total - len(lengths))]
+    return [positions, loss[0]]
""")  # fmt: skip


its_own_mean = slip("where-texts-end", "my_packed_loss", says="nothing was summed over the ranks", at=3, change="""
-    loss = token_losses(positions[has], tokens[has], after[has]).sum().view(1)
-    collectives.all_reduce(loss, group, algorithm="ring")
-    return [positions, loss[0] / (total - len(lengths))]
+    return [positions, token_losses(positions[has], tokens[has], after[has]).mean()]
""")  # fmt: skip


its_own_stripe_as_targets = slip(
    "where-texts-end", "my_packed_loss", says="the next tokens of its own stripe", at=3, change="""
-    after = tokens
-    if n > 1:
-        coming = torch.empty(len(range((me + 1) % n, total, n)), dtype=torch.int64)
-        after = group.exchange(tokens, (me - 1) % n, coming, (me + 1) % n)
-    after = after[1:] if me == n - 1 else after
+    after = tokens.roll(-1)
""")  # fmt: skip


the_last_rank_as_all_others = slip(
    "where-texts-end", "my_packed_loss", says="Behind its token stands the first rank's next one", at=3, change="""
-    after = after[1:] if me == n - 1 else after
""")  # fmt: skip


@mutant("where-texts-end", "my_packed_loss", says="its tokens to one neighbour", at=3)
def gathers_all_tokens(mine, group, lengths):
    tokens, n, me, total = mine["tokens"], group.size, group.rank, sum(lengths)
    sizes = [len(range(r, total, n)) for r in range(n)]
    whole = torch.empty(total, dtype=torch.int64)
    for r, part in enumerate(collectives.all_gather(tokens, group, sizes, algorithm="ring").split(sizes)):
        whole[r::n] = part
    positions = torch.cat([torch.arange(length) for length in lengths])
    inside = torch.cat([torch.arange(length) < length - 1 for length in lengths])
    losses = token_losses(positions[inside], whole[inside], whole.roll(-1)[inside])
    return [positions[me::n].contiguous(), losses.mean()]


@variant("where-texts-end", "my_packed_loss")
def tables_of_the_whole_sequence(mine, group, lengths):
    n, me, total = group.size, group.rank, sum(lengths)
    positions = torch.cat([torch.arange(length) for length in lengths])[me::n]
    inside = torch.cat([torch.arange(length) < length - 1 for length in lengths])[me::n]
    tokens = mine["tokens"]
    if n == 1:
        behind = tokens[1:]
    else:
        message = group.isend(tokens, (me - 1) % n)
        right = (me + 1) % n
        behind = group.recv(torch.empty(len(range(right, total, n)), dtype=tokens.dtype), right)
        message.wait()
        if right == 0:
            behind = behind[1:]
    targets = F.pad(behind, (0, len(tokens) - len(behind)))
    share = torch.where(inside, token_losses(positions, tokens, targets), 0.0).sum(0, keepdim=True)
    share /= sum(length - 1 for length in lengths)
    collectives.all_reduce(share, group, algorithm="ring")
    return [positions.contiguous(), share.squeeze()]


@variant("where-texts-end", "my_packed_loss")
def token_by_token(mine, group, lengths):
    n, me = group.size, group.rank
    places = [(text, place) for text, length in enumerate(lengths) for place in range(length)]
    mine_at = places[me::n]
    count = len(places[(me + 1) % n :: n])
    behind = mine["tokens"]
    if n > 1:
        behind = group.exchange(behind, (me - 1) % n, torch.zeros(count, dtype=torch.int64), (me + 1) % n)
    total = torch.zeros(1, dtype=torch.float64)
    for j, (text, place) in enumerate(mine_at):
        if place + 1 < lengths[text]:
            next_one = behind[j + (me == n - 1)]
            total += token_losses(torch.tensor(place), mine["tokens"][j], next_one)
    collectives.all_reduce(total, group, algorithm="ring")
    positions = torch.tensor([place for _, place in mine_at], dtype=torch.int64)
    return [positions, total[0] / (len(places) - len(lengths))]


# A window, and the way home -------------------------------------------------------------------------------------------


its_own_keys_alone = slip("a-window-and-the-way-home", "my_window", says="its own keys and no others", at=3, change="""
-        return max(0, min(lengths[owner], reach)) if owner < reader else 0
+        return 0
""")  # fmt: skip


the_left_neighbour_alone = slip(
    "a-window-and-the-way-home", "my_window", says="its window reaches further", at=3, change="""
-        return max(0, min(lengths[owner], reach)) if owner < reader else 0
+        return max(0, min(lengths[owner], reach)) if owner == reader - 1 else 0
""")  # fmt: skip


one_key_too_many = slip(
    "a-window-and-the-way-home", "my_window", says="What travels that nobody reads?", at=3, change="""
-        reach = begin[owner + 1] - (begin[reader] - window + 1)
+        reach = begin[owner + 1] - (begin[reader] - window)
""")  # fmt: skip


one_key_too_few = slip(
    "a-window-and-the-way-home", "my_window", says="The furthest key is missing", at=3, change="""
-        reach = begin[owner + 1] - (begin[reader] - window + 1)
+        reach = begin[owner + 1] - (begin[reader] - window + 2)
""")  # fmt: skip


whole_parts_travel = slip("a-window-and-the-way-home", "my_window", says="Whole parts travel", at=3, change="""
-        return max(0, min(lengths[owner], reach)) if owner < reader else 0
+        return lengths[owner] if owner < reader and reach > 0 else 0
""")  # fmt: skip


gradients_stay_where_they_are = slip(
    "a-window-and-the-way-home", "my_window", says="the part of its own queries alone", at=3, change="""
-    for r, part in enumerate(swap(borrowed, [x.shape for x in out], group)):
-        dkv[:, :, lengths[me] - read(r, me) :] += part
""")  # fmt: skip


what_comes_home_takes_the_place = slip(
    "a-window-and-the-way-home", "my_window", says="stands in the place of its own", at=3, change="""
-        dkv[:, :, lengths[me] - read(r, me) :] += part
+        dkv[:, :, lengths[me] - read(r, me) :] = part
""")  # fmt: skip


at_the_first_keys_of_the_owner = slip(
    "a-window-and-the-way-home", "my_window", says="is wrong", at=3, change="""
-        dkv[:, :, lengths[me] - read(r, me) :] += part
+        dkv[:, :, : read(r, me)] += part
""")  # fmt: skip


@mutant("a-window-and-the-way-home", "my_window", says="What travels that nobody reads?", at=3)
def gathers_all_keys_and_sums_all_gradients(mine, group, lengths, window):
    q, k, v, dy = (mine[name] for name in ("q", "k", "v", "dy"))
    me, total = group.rank, sum(lengths)
    begin = sum(lengths[:me])
    rows = torch.stack((k, v)).permute(2, 0, 1, 3).contiguous()
    whole = collectives.all_gather(rows, group, lengths, algorithm="ring").permute(1, 2, 0, 3).contiguous()
    far = (begin + torch.arange(lengths[me]))[:, None] - torch.arange(total)
    whole.requires_grad_()
    y = F.scaled_dot_product_attention(q.requires_grad_(), *whole, (far >= 0) & (far < window))
    dq, back = torch.autograd.grad(y, [q, whole], dy)
    collectives.all_reduce(back, group, algorithm="ring")
    dk, dv = back[:, :, begin : begin + lengths[me]]
    return [y.detach(), dq, dk, dv]


@variant("a-window-and-the-way-home", "my_window")
def plain_messages_to_those_who_read(mine, group, lengths, window):
    q, k, v, dy = (mine[name] for name in ("q", "k", "v", "dy"))
    n, me, (h, t, d) = group.size, group.rank, q.shape
    owner = [r for r, length in enumerate(lengths) for _ in range(length)]
    begin = owner.index(me)
    mine_from = max(0, begin - window + 1)
    near = [(o, owner[mine_from:begin].count(o)) for o in range(me) if o in owner[mine_from:begin]]
    after = []
    for r in range(me + 1, n):
        first = owner.index(r)
        if many := owner[max(0, first - window + 1) : first].count(me):
            after.append((r, many))
    sends = [group.isend(torch.stack((k[:, t - m :], v[:, t - m :])), r) for r, m in after]
    came = [group.recv(torch.empty(2, h, m, d, dtype=q.dtype), o) for o, m in near]
    for message in sends:
        message.wait()
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    borrowed = [x.requires_grad_() for x in came]
    keys = torch.cat([x[0] for x in borrowed] + [k], 1)
    values = torch.cat([x[1] for x in borrowed] + [v], 1)
    place = torch.arange(keys.shape[1])
    far = place[-t:, None] - place
    y = F.scaled_dot_product_attention(q, keys, values, (far >= 0) & (far < window))
    y.backward(dy)
    dk, dv = k.grad.clone(), v.grad.clone()
    sends = [group.isend(x.grad, o) for x, (o, _) in zip(borrowed, near, strict=True)]
    for r, m in after:
        home = group.recv(torch.empty(2, h, m, d, dtype=q.dtype), r)
        dk[:, t - m :] += home[0]
        dv[:, t - m :] += home[1]
    for message in sends:
        message.wait()
    return [y.detach(), q.grad, dk, dv]


@variant("a-window-and-the-way-home", "my_window")
def keys_and_values_one_after_the_other(mine, group, lengths, window):
    q, k, v, dy = (mine[name] for name in ("q", "k", "v", "dy"))
    n, me = group.size, group.rank
    ends = torch.tensor(lengths).cumsum(0).tolist()
    begins = [end - length for end, length in zip(ends, lengths, strict=True)]

    def table(reader, owner):
        first = max(begins[owner], begins[reader] - window + 1)
        return max(0, ends[owner] - first) if owner < reader else 0

    give, get = [table(r, me) for r in range(n)], [table(me, o) for o in range(n)]

    def fetch(x):
        parts = [x[:, x.shape[1] - m :] for m in give]
        return torch.cat([*swap(parts, [(len(x), m, x.shape[2]) for m in get], group), x], 1)

    def bring_home(g):
        *parts, own = g.split([*get, lengths[me]], 1)
        own = own.clone()
        for m, part in zip(give, swap(parts, [(len(g), m, g.shape[2]) for m in give], group), strict=True):
            own[:, own.shape[1] - m :] += part
        return own

    keys, values = fetch(k).requires_grad_(), fetch(v).requires_grad_()
    where = begins[me] + torch.arange(lengths[me])
    key_at = ends[me] - keys.shape[1] + torch.arange(keys.shape[1])
    far = where[:, None] - key_at
    scores = (q.requires_grad_() @ keys.mT / q.shape[2] ** 0.5).masked_fill((far < 0) | (far >= window), -torch.inf)
    y = scores.softmax(-1) @ values
    dq, dkeys, dvalues = torch.autograd.grad(y, [q, keys, values], dy)
    return [y.detach(), dq, bring_home(dkeys), bring_home(dvalues)]
