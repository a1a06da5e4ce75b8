"""The zoo of the exercises of chapter 2: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch

from labkit.grading.checks.zoo import mutant, slip, variant

# Trade ----------------------------------------------------------------------------------------------------------


@mutant("trade", "my_trade", says="wait for each other", at=4)
def both_send_first(x, group, partners):
    partner = partners[group.rank]
    if partner == group.rank:
        return x
    group.send(torch.tensor([len(x)]), to=partner)
    length = group.recv(torch.tensor([0]), source=partner)
    group.send(x, to=partner)
    return group.recv(x.new_empty(int(length)), source=partner)


@mutant("trade", "my_trade", says="wait for each other", at=4)
def even_ranks_first(x, group, partners):
    partner = partners[group.rank]  # partners may both be even
    if partner == group.rank:
        return x
    length = torch.tensor([0])
    if group.rank % 2 == 0:
        group.send(torch.tensor([len(x)]), to=partner)
        group.send(x, to=partner)
        group.recv(length, source=partner)
        return group.recv(x.new_empty(int(length)), source=partner)
    group.recv(length, source=partner)
    arrived = group.recv(x.new_empty(int(length)), source=partner)
    group.send(torch.tensor([len(x)]), to=partner)
    group.send(x, to=partner)
    return arrived


@mutant("trade", "my_trade", says="receives float32[", at=4)
def as_long_as_mine(x, group, partners):
    partner = partners[group.rank]
    if partner == group.rank:
        return x
    return group.exchange(x, to=partner, like=torch.empty_like(x), source=partner)


@mutant("trade", "my_trade", says="Do you pad the tensor", at=4)
def room_for_a_thousand(x, group, partners):
    partner = partners[group.rank]
    if partner == group.rank:
        return x
    mine, theirs = x.new_zeros(1000), x.new_zeros(1000)
    mine[: len(x)] = x
    length = group.exchange(torch.tensor([len(x)]), to=partner, like=torch.tensor([0]), source=partner)
    return group.exchange(mine, to=partner, like=theirs, source=partner)[: int(length)].clone()


@mutant("trade", "my_trade", says="itself", at=5)
def trades_with_itself(x, group, partners):
    partner = partners[group.rank]
    length = group.exchange(torch.tensor([len(x)]), to=partner, like=torch.tensor([0]), source=partner)
    return group.exchange(x, to=partner, like=x.new_empty(int(length)), source=partner)


@mutant("trade", "my_trade", says="int64[1]", at=4)
def the_text_before_its_length(x, group, partners):
    partner = partners[group.rank]
    if partner == group.rank:
        return x
    length = torch.tensor([0])
    if group.rank < partner:
        group.send(x, to=partner)
        group.send(torch.tensor([len(x)]), to=partner)
        group.recv(length, source=partner)
        return group.recv(x.new_empty(int(length)), source=partner)
    group.recv(length, source=partner)
    arrived = group.recv(x.new_empty(int(length)), source=partner)
    group.send(torch.tensor([len(x)]), to=partner)
    group.send(x, to=partner)
    return arrived


@mutant("trade", "my_trade", says="nothing was traded", at=4)
def returns_what_it_had(x, group, partners):
    partner = partners[group.rank]
    if partner != group.rank:
        length = group.exchange(torch.tensor([len(x)]), to=partner, like=torch.tensor([0]), source=partner)
        group.exchange(x, to=partner, like=x.new_empty(int(length)), source=partner)
    return x


@mutant("trade", "my_trade", says="two are enough", at=4)
def one_message_for_each_entry(x, group, partners):
    partner = partners[group.rank]
    if partner == group.rank:
        return x
    length = int(group.exchange(torch.tensor([len(x)]), to=partner, like=torch.tensor([0]), source=partner))
    arrived = x.new_empty(length)
    handles = [group.isend(entry, to=partner) for entry in x.split(1)]
    for entry in arrived.split(1):
        group.recv(entry, source=partner)
    for handle in handles:
        handle.wait()
    return arrived


@mutant("trade", "my_trade", says="int64[", at=3)
def room_in_single_precision(x, group, partners):
    partner = partners[group.rank]
    if partner == group.rank:
        return x
    length = group.exchange(torch.tensor([len(x)]), to=partner, like=torch.tensor([0]), source=partner)
    return group.exchange(x, to=partner, like=torch.empty(int(length)), source=partner)


@variant("trade", "my_trade", at=4)
def the_smaller_rank_first(x, group, partners):
    partner = partners[group.rank]
    if partner == group.rank:
        return x
    length = torch.tensor([0])
    if group.rank < partner:
        group.send(torch.tensor([len(x)]), to=partner)
        group.send(x, to=partner)
        group.recv(length, source=partner)
        return group.recv(x.new_empty(int(length)), source=partner)
    group.recv(length, source=partner)
    arrived = group.recv(x.new_empty(int(length)), source=partner)
    group.send(torch.tensor([len(x)]), to=partner)
    group.send(x, to=partner)
    return arrived


@variant("trade", "my_trade", at=5)
def by_handles(x, group, partners):
    partner = partners[group.rank]
    if partner == group.rank:
        return x.clone()
    mine, theirs = torch.tensor([len(x)], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    handles = [group.isend(mine, to=partner), group.isend(x, to=partner)]
    group.recv(theirs, source=partner)
    arrived = group.recv(x.new_empty(int(theirs)), source=partner)
    for handle in handles:
        handle.wait()
    return arrived


# Halo -----------------------------------------------------------------------------------------------------------


@mutant("halo", "my_halo", says="as in a staircase", at=8)
def from_top_to_bottom_and_back(x, group, width):
    me, last = group.rank, group.size - 1
    above, below = x.new_empty((width, *x.shape[1:])), x.new_empty((width, *x.shape[1:]))
    if me > 0:
        group.recv(above, source=me - 1)
    if me < last:
        group.send(x[len(x) - width :], to=me + 1)
        group.recv(below, source=me + 1)
    if me > 0:
        group.send(x[:width], to=me - 1)
    return torch.cat([above] * (me > 0) + [x] + [below] * (me < last))


@mutant("halo", "my_halo", says="wait for each other", at=3)
def everyone_listens_first(x, group, width):
    me, last = group.rank, group.size - 1
    above, below = x.new_empty((width, *x.shape[1:])), x.new_empty((width, *x.shape[1:]))
    if me > 0:
        group.recv(above, source=me - 1)
    if me < last:
        group.recv(below, source=me + 1)
        group.send(x[len(x) - width :], to=me + 1)
    if me > 0:
        group.send(x[:width], to=me - 1)
    return torch.cat([above] * (me > 0) + [x] + [below] * (me < last))


@mutant("halo", "my_halo", says="this is a line, not a ring", at=5)
def a_ring(x, group, width):
    n, me = group.size, group.rank
    if n == 1:
        return x
    above, below = x.new_empty((width, *x.shape[1:])), x.new_empty((width, *x.shape[1:]))
    group.exchange(x[len(x) - width :], to=(me + 1) % n, like=above, source=(me - 1) % n)
    group.exchange(x[:width], to=(me - 1) % n, like=below, source=(me + 1) % n)
    return torch.cat([above, x, below])


@mutant("halo", "my_halo", says="Ranks at an end have one neighbour only", at=5)
def a_ring_cut_at_the_end(x, group, width):
    n, me = group.size, group.rank
    if n == 1:
        return x
    above, below = x.new_empty((width, *x.shape[1:])), x.new_empty((width, *x.shape[1:]))
    group.exchange(x[len(x) - width :], to=(me + 1) % n, like=above, source=(me - 1) % n)
    group.exchange(x[:width], to=(me - 1) % n, like=below, source=(me + 1) % n)
    return torch.cat([above] * (me > 0) + [x] + [below] * (me < n - 1))


borders_of_the_wrong_end = slip("halo", "my_halo", says="The borders come from the wrong end", at=3, change="""
-    for other, border, room in (
-        (group.rank - 1, x[:width], above),
-        (group.rank + 1, x[len(x) - width :], below),
-    ):
+    for other, border, room in ((group.rank - 1, x[len(x) - width :], above), (group.rank + 1, x[:width], below)):
""")  # fmt: skip


@mutant("halo", "my_halo", says="You send the whole block", at=3)
def whole_blocks(x, group, width):
    me, length, found, handles = group.rank, torch.tensor([len(x)]), {}, []
    others = [r for r in (me - 1, me + 1) if 0 <= r < group.size]
    lengths = {r: torch.tensor([0]) for r in others}
    for r in others:
        handles += [group.isend(length, to=r), group.isend(x, to=r), group.irecv(lengths[r], source=r)]
    for handle in handles[2::3]:
        handle.wait()
    for r in others:
        found[r] = group.recv(x.new_empty((int(lengths[r]), *x.shape[1:])), source=r)
    for handle in handles:
        handle.wait()
    above = [found[r][len(found[r]) - width :] for r in others if r < me]
    return torch.cat([*above, x, *(found[r][:width] for r in others if r > me)])


@mutant("halo", "my_halo", says="it should be [", at=3)
def into_its_own_rows(x, group, width):
    handles = []
    borders = x[:width].clone(), x[len(x) - width :].clone()
    for other, border, room in ((group.rank - 1, borders[0], x[:width]), (group.rank + 1, borders[1], x[-width:])):
        if 0 <= other < group.size:
            handles += [group.isend(border, to=other), group.irecv(room, source=other)]
    for handle in handles:
        handle.wait()
    return x


minus_zero_rows = slip("halo", "my_halo", says="float64[0, 3]", at=3, change="""
-    for other, border, room in (
-        (group.rank - 1, x[:width], above),
-        (group.rank + 1, x[len(x) - width :], below),
-    ):
+    for other, border, room in ((group.rank - 1, x[:width], above), (group.rank + 1, x[-width:], below)):
""")  # fmt: skip


@mutant("halo", "my_halo", says="is not in this group", at=3)
def forgets_the_ends(x, group, width):
    above, below = x.new_empty((width, *x.shape[1:])), x.new_empty((width, *x.shape[1:]))
    group.exchange(x[len(x) - width :], to=group.rank + 1, like=above, source=group.rank - 1)
    group.exchange(x[:width], to=group.rank - 1, like=below, source=group.rank + 1)
    return torch.cat([above, x, below])


@variant("halo", "my_halo", at=8)
def pairs_by_exchange(x, group, width):
    me, n = group.rank, group.size
    parts = {0: x}
    for first in (0, 1):
        side = 1 if me % 2 == first else -1
        if 0 <= me + side < n:
            border = x[len(x) - width :] if side == 1 else x[:width]
            room = x.new_empty((width, *x.shape[1:]))
            parts[side] = group.exchange(border, to=me + side, like=room, source=me + side)
    return torch.cat([parts[side] for side in sorted(parts)])


@variant("halo", "my_halo", at=5)
def four_turns_of_send_and_recv(x, group, width):
    me, n = group.rank, group.size
    whole = x.new_empty((len(x) + width * ((me > 0) + (me < n - 1)), *x.shape[1:]))
    top = width * (me > 0)
    whole[top : top + len(x)] = x
    above, below = whole[:top], whole[top + len(x) :]
    for turn in range(4):  # down and up between even and odd ranks, then between odd and even ones
        upper = me % 2 == turn // 2
        other = me + 1 if upper else me - 1
        if not 0 <= other < n:
            continue
        if upper == (turn % 2 == 0):
            group.send(x[len(x) - width :] if upper else x[:width], to=other)
        else:
            group.recv(below if upper else above, source=other)
    return whole


# Bucket ---------------------------------------------------------------------------------------------------------


@mutant("bucket", "my_bucket", says="Each pays its own latency", at=3)
def one_message_a_tensor(tensors, group):
    n, me = group.size, group.rank
    if n == 1:
        return tensors
    return [group.exchange(t, to=(me + 1) % n, like=torch.empty_like(t), source=(me - 1) % n) for t in tensors]


@mutant("bucket", "my_bucket", says="what does it not know yet?", at=3)
def the_length_first(tensors, group):
    n, me = group.size, group.rank
    bucket = torch.cat([t.reshape(-1).view(torch.uint8) for t in tensors])
    if n > 1:
        right, left = (me + 1) % n, (me - 1) % n
        length = group.exchange(torch.tensor([len(bucket)]), to=right, like=torch.tensor([0]), source=left)
        bucket = group.exchange(bucket, to=right, like=bucket.new_empty(int(length)), source=left)
    parts = bucket.split([t.nbytes for t in tensors])
    return [part.clone().view(t.dtype).view(t.shape) for part, t in zip(parts, tensors, strict=True)]


@mutant("bucket", "my_bucket", says="What did torch.cat do", at=3)
def all_as_floats(tensors, group):
    n, me = group.size, group.rank
    bucket = torch.cat([t.flatten() for t in tensors])  # whole numbers become float32
    if n > 1:
        bucket = group.exchange(bucket, to=(me + 1) % n, like=torch.empty_like(bucket), source=(me - 1) % n)
    parts = bucket.split([t.numel() for t in tensors])
    return [part.to(t.dtype).view(t.shape) for part, t in zip(parts, tensors, strict=True)]


@mutant("bucket", "my_bucket", says="is something padded?", at=3)
def all_in_double_precision(tensors, group):
    n, me = group.size, group.rank
    bucket = torch.cat([t.flatten().double() for t in tensors])
    if n > 1:
        bucket = group.exchange(bucket, to=(me + 1) % n, like=torch.empty_like(bucket), source=(me - 1) % n)
    parts = bucket.split([t.numel() for t in tensors])
    return [part.to(t.dtype).view(t.shape) for part, t in zip(parts, tensors, strict=True)]


@mutant("bucket", "my_bucket", says="and should be float32[]", at=3)
def forgets_the_shapes(tensors, group):
    n, me = group.size, group.rank
    bucket = torch.cat([t.reshape(-1).view(torch.uint8) for t in tensors])
    if n > 1:
        bucket = group.exchange(bucket, to=(me + 1) % n, like=torch.empty_like(bucket), source=(me - 1) % n)
    parts = bucket.split([t.nbytes for t in tensors])
    return [part.clone().view(t.dtype).view(t.shape or 1) for part, t in zip(parts, tensors, strict=True)]


@mutant("bucket", "my_bucket", says="wait for each other", at=3)
def sends_first(tensors, group):
    n, me = group.size, group.rank
    bucket = torch.cat([t.reshape(-1).view(torch.uint8) for t in tensors])
    arrived = bucket.clone()
    if n > 1:
        group.send(bucket, to=(me + 1) % n)
        group.recv(arrived, source=(me - 1) % n)
    parts = arrived.split([t.nbytes for t in tensors])
    return [part.clone().view(t.dtype).view(t.shape) for part, t in zip(parts, tensors, strict=True)]


@mutant("bucket", "my_bucket", says="It is that of the right neighbour", at=3)
def to_the_left(tensors, group):
    n, me = group.size, group.rank
    bucket = torch.cat([t.reshape(-1).view(torch.uint8) for t in tensors])
    if n > 1:
        bucket = group.exchange(bucket, to=(me - 1) % n, like=torch.empty_like(bucket), source=(me + 1) % n)
    parts = bucket.split([t.nbytes for t in tensors])
    return [part.clone().view(t.dtype).view(t.shape) for part, t in zip(parts, tensors, strict=True)]


@mutant("bucket", "my_bucket", says="RuntimeError", at=3)
def views_of_odd_places(tensors, group):
    n, me = group.size, group.rank
    bucket = torch.cat([t.reshape(-1).view(torch.uint8) for t in tensors])
    if n > 1:
        bucket = group.exchange(bucket, to=(me + 1) % n, like=torch.empty_like(bucket), source=(me - 1) % n)
    parts = bucket.split([t.nbytes for t in tensors])
    return [part.view(t.dtype).view(t.shape) for part, t in zip(parts, tensors, strict=True)]


@mutant("bucket", "my_bucket", says="should be a list of", at=3)
def returns_the_bucket(tensors, group):
    n, me = group.size, group.rank
    bucket = torch.cat([t.reshape(-1).view(torch.uint8) for t in tensors])
    if n == 1:
        return tensors
    return group.exchange(bucket, to=(me + 1) % n, like=torch.empty_like(bucket), source=(me - 1) % n)


@variant("bucket", "my_bucket", at=3)
def filled_in_place(tensors, group):
    n, me = group.size, group.rank
    if n == 1:
        return tensors
    bucket = torch.empty(sum(t.nbytes for t in tensors), dtype=torch.uint8)
    arrived, at = torch.empty_like(bucket), 0
    for t in tensors:
        bucket[at : at + t.nbytes] = t.contiguous().flatten().view(torch.uint8)
        at += t.nbytes
    handle = group.isend(bucket, to=(me + 1) % n)
    group.recv(arrived, source=(me - 1) % n)
    handle.wait()
    found, at = [], 0
    for t in tensors:
        found.append(torch.empty_like(t))
        found[-1].view(-1).view(torch.uint8).copy_(arrived[at : at + t.nbytes])
        at += t.nbytes
    return found


@variant("bucket", "my_bucket", at=4)
def sorted_by_dtype_and_by_parity(tensors, group):
    n, me = group.size, group.rank
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    bucket = torch.cat([tensors[i].reshape(-1).view(torch.uint8) for i in order])
    arrived = bucket.clone()
    if n > 1 and me % 2 == 0:
        group.send(bucket, to=(me + 1) % n)
    if n > 1:
        group.recv(arrived, source=(me - 1) % n)
    if n > 1 and me % 2:
        group.send(bucket, to=(me + 1) % n)
    found, at = {}, 0
    for i in order:  # the largest entries first: every view begins at a multiple of its size
        t = tensors[i]
        found[i] = arrived[at : at + t.nbytes].view(t.dtype).view(t.shape)
        at += t.nbytes
    return [found[i] for i in range(len(tensors))]


# Relay ----------------------------------------------------------------------------------------------------------


@mutant("relay", "my_relay", says="Does a rank wait for all pieces", at=6)
def all_pieces_before_the_first_leaves(x, group, pieces):
    parts = x.tensor_split(pieces)
    if group.rank > 0:
        for part in parts:
            group.recv(part, source=group.rank - 1)
    if group.rank < group.size - 1:
        for part in parts:
            group.send(part, to=group.rank + 1)
    return x


@mutant("relay", "my_relay", says="Is the tensor cut into 6 pieces?", at=4)
def in_one_message(x, group, pieces):
    if group.rank > 0:
        group.recv(x, source=group.rank - 1)
    if group.rank < group.size - 1:
        group.send(x, to=group.rank + 1)
    return x


@mutant("relay", "my_relay", says="chunk may give fewer", at=4)
def cut_by_chunk(x, group, pieces):
    for part in x.chunk(pieces):  # 13 rows in 6 chunks: 3, 3, 3, 3 and 1
        if group.rank > 0:
            group.recv(part, source=group.rank - 1)
        if group.rank < group.size - 1:
            group.send(part, to=group.rank + 1)
    return x


@mutant("relay", "my_relay", says="entries are wrong", at=4)
def loses_the_rest(x, group, pieces):
    rows = len(x) // pieces
    for k in range(pieces):
        part = x[k * rows : (k + 1) * rows]
        if group.rank > 0:
            group.recv(part, source=group.rank - 1)
        if group.rank < group.size - 1:
            group.send(part, to=group.rank + 1)
    return x


@mutant("relay", "my_relay", says="Each rank tells the next one, and nobody else", at=4)
def rank_0_tells_everybody(x, group, pieces):
    for part in x.tensor_split(pieces):
        if group.rank > 0:
            group.recv(part, source=0)
        else:
            for to in range(1, group.size):
                group.send(part, to=to)
    return x


@mutant("relay", "my_relay", says="wait for each other", at=4)
def the_chain_is_a_ring(x, group, pieces):
    n, me = group.size, group.rank
    for part in x.tensor_split(pieces):
        if n > 1:
            group.recv(part, source=(me - 1) % n)
            group.send(part, to=(me + 1) % n)
    return x


@mutant("relay", "my_relay", says="nobody else", at=4)
def every_piece_is_confirmed(x, group, pieces):
    done = torch.zeros(1)
    for part in x.tensor_split(pieces):
        if group.rank > 0:
            group.recv(part, source=group.rank - 1)
            group.send(done, to=group.rank - 1)
        if group.rank < group.size - 1:
            group.send(part, to=group.rank + 1)
            group.recv(done, source=group.rank + 1)
    return x


@mutant("relay", "my_relay", says="Receive the pieces into x itself", at=3)
def joins_new_tensors(x, group, pieces):
    parts = []
    for part in x.tensor_split(pieces):
        part = part.clone()
        if group.rank > 0:
            group.recv(part, source=group.rank - 1)
        if group.rank < group.size - 1:
            group.send(part, to=group.rank + 1)
        parts.append(part)
    return torch.cat(parts)


@variant("relay", "my_relay", at=6)
def receives_while_it_sends(x, group, pieces):
    me, parts = group.rank, x.tensor_split(pieces)
    if group.size == 1:
        return x
    if me in (0, group.size - 1):
        for part in parts:
            group.send(part, to=1) if me == 0 else group.recv(part, source=me - 1)
        return x
    group.recv(parts[0], source=me - 1)
    for out, into in zip(parts, parts[1:], strict=False):
        group.exchange(out, to=me + 1, like=into, source=me - 1)
    group.send(parts[-1], to=me + 1)
    return x


@variant("relay", "my_relay", at=4)
def hands_on_by_handles(x, group, pieces):
    handles = []
    for part in x.tensor_split(pieces):
        if group.rank > 0:
            group.recv(part, source=group.rank - 1)
        if group.rank < group.size - 1:
            handles.append(group.isend(part, to=group.rank + 1))
    for handle in handles:
        handle.wait()
    return x


# Busy port ------------------------------------------------------------------------------------------------------


@mutant("busy-port", "my_gather", says="Let others collect on the way", at=5)
def everyone_to_the_root(x, group, sizes, root):
    if group.rank != root:
        return group.send(x, to=root)
    blocks = [x.new_empty((size, *x.shape[1:])) for size in sizes]
    for r in range(group.size):
        blocks[r] = x if r == root else group.recv(blocks[r], source=r)
    return torch.cat(blocks)


@mutant("busy-port", "my_gather", says="as in a chain", at=5)
def along_a_chain(x, group, sizes, root):
    n, v = group.size, (group.rank - root) % group.size
    in_order = [sizes[(i + root) % n] for i in range(n)]
    have = x
    if v < n - 1:
        more = x.new_empty((sum(in_order[v + 1 :]), *x.shape[1:]))
        have = torch.cat([x, group.recv(more, source=(group.rank + 1) % n)])
    if v:
        return group.send(have, to=(group.rank - 1) % n)
    blocks = have.split(in_order)
    return torch.cat([blocks[(r - root) % n] for r in range(n)])


@mutant("busy-port", "my_gather", says="begins with its own", at=5)
def in_the_order_of_the_tree(x, group, sizes, root):
    n, v = group.size, (group.rank - root) % group.size
    in_order = [sizes[(i + root) % n] for i in range(n)]
    have, distance = x, 1
    while distance < n:
        if v % (2 * distance):
            return group.send(have, to=(v - distance + root) % n)
        if v + distance < n:
            more = x.new_empty((sum(in_order[v + distance : v + 2 * distance]), *x.shape[1:]))
            have = torch.cat([have, group.recv(more, source=(v + distance + root) % n)])
        distance *= 2
    return have


@mutant("busy-port", "my_gather", says="Rank 0 has all blocks, but root is", at=5)
def always_to_rank_0(x, group, sizes, root):
    n, v = group.size, group.rank
    have, distance = x, 1
    while distance < n:
        if v % (2 * distance):
            return group.send(have, to=v - distance)
        if v + distance < n:
            more = x.new_empty((sum(sizes[v + distance : v + 2 * distance]), *x.shape[1:]))
            have = torch.cat([have, group.recv(more, source=v + distance)])
        distance *= 2
    return have


@mutant("busy-port", "my_gather", says="wait for each other", at=5)
def only_powers_of_two(x, group, sizes, root):
    n, v = group.size, (group.rank - root) % group.size
    in_order = [sizes[(i + root) % n] for i in range(n)]
    have, distance = x, 1
    while distance < n:
        if v % (2 * distance):
            return group.send(have, to=(v - distance + root) % n)
        more = x.new_empty((sum(in_order[v + distance : v + 2 * distance]), *x.shape[1:]))
        have = torch.cat([have, group.recv(more, source=(v + distance + root) % n)])  # with 5 ranks, rank 4 asks rank 0
        distance *= 2
    blocks = have.split(in_order)
    return torch.cat([blocks[(r - root) % n] for r in range(n)])


@mutant("busy-port", "my_gather", says="hand them over in one message", at=5)
def hands_blocks_over_one_by_one(x, group, sizes, root):
    n, v = group.size, (group.rank - root) % group.size
    have, distance = {v: x}, 1
    while distance < n:
        if v % (2 * distance):
            for i in sorted(have):
                group.send(have[i], to=(v - distance + root) % n)
            return None
        for i in range(v + distance, min(v + 2 * distance, n)):
            room = x.new_empty((sizes[(i + root) % n], *x.shape[1:]))
            have[i] = group.recv(room, source=(v + distance + root) % n)
        distance *= 2
    return torch.cat([have[(r - root) % n] for r in range(n)])


@mutant("busy-port", "my_gather", says="Are the blocks padded", at=5)
def pads_to_the_longest(x, group, sizes, root):
    n, v = group.size, (group.rank - root) % group.size
    longest = max(sizes)
    have, distance = x.new_zeros((1, longest, *x.shape[1:])), 1
    have[0, : len(x)] = x
    while distance < n:
        if v % (2 * distance):
            return group.send(have, to=(v - distance + root) % n)
        if v + distance < n:
            more = x.new_empty((min(distance, n - v - distance), longest, *x.shape[1:]))
            have = torch.cat([have, group.recv(more, source=(v + distance + root) % n)])
        distance *= 2
    return torch.cat([have[(r - root) % n, : sizes[r]] for r in range(n)])


@mutant("busy-port", "my_gather", says="asked for is a gather", at=5)
def everyone_gets_everything(x, group, sizes, root):
    n, me = group.size, group.rank
    blocks = [x.new_empty((size, *x.shape[1:])) for size in sizes]
    blocks[me] = x
    for shift in range(1, n):
        group.exchange(x, to=(me + shift) % n, like=blocks[(me - shift) % n], source=(me - shift) % n)
    return torch.cat(blocks)


@mutant("busy-port", "my_gather", says="receives float32[", at=5)
def counts_rows_from_rank_0(x, group, sizes, root):
    n, v = group.size, (group.rank - root) % group.size
    have, distance = x, 1
    while distance < n:
        if v % (2 * distance):
            return group.send(have, to=(v - distance + root) % n)
        if v + distance < n:
            more = x.new_empty((sum(sizes[v + distance : v + 2 * distance]), *x.shape[1:]))  # not as seen from the root
            have = torch.cat([have, group.recv(more, source=(v + distance + root) % n)])
        distance *= 2
    return have


@variant("busy-port", "my_gather", at=5)
def halves_of_the_ranks(x, group, sizes, root):
    n, v = group.size, (group.rank - root) % group.size
    in_order = [sizes[(i + root) % n] for i in range(n)]
    cuts, low, high = [], 0, n
    while high - low > 1:  # the upper half of low..high-1 hands over to `low`
        middle = (low + high + 1) // 2
        cuts.append((low, middle, high))
        low, high = (low, middle) if v < middle else (middle, high)
    have = x
    for low, middle, high in reversed(cuts):
        if v == middle:
            return group.send(have, to=(low + root) % n)
        if v == low:
            more = x.new_empty((sum(in_order[middle:high]), *x.shape[1:]))
            have = torch.cat([have, group.recv(more, source=(middle + root) % n)])
    blocks = have.split(in_order)
    return torch.cat([blocks[(r - root) % n] for r in range(n)])


@variant("busy-port", "my_gather", at=8)
def into_one_tensor(x, group, sizes, root):
    n, v = group.size, (group.rank - root) % group.size
    in_order = [sizes[(i + root) % n] for i in range(n)]
    begins = [sum(in_order[:i]) for i in range(n + 1)]
    span = v & -v if v else n  # this rank collects for so many, itself included
    whole = x.new_empty((begins[min(v + span, n)] - begins[v], *x.shape[1:]))
    whole[: len(x)] = x
    distance = 1
    while distance < span:
        if v + distance < n:
            first, last = v + distance, min(v + 2 * distance, n)
            part = whole[begins[first] - begins[v] : begins[last] - begins[v]]
            group.recv(part, source=(first + root) % n)
        distance *= 2
    if v:
        return group.send(whole, to=(v - span + root) % n)
    turned = begins[n] - begins[n - root] if root else 0  # the rows of the ranks before the root stand last
    return whole.roll(turned, 0)
