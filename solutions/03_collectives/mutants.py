"""The zoo of the exercises of chapter 3: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch

from labkit import collectives
from labkit.grading.checks.zoo import mutant, slip, variant

# Broadcast ------------------------------------------------------------------------------------------------------


@mutant("broadcast", "my_broadcast", says="One rank tells everybody", at=5)
def root_tells_everybody(x, group, root):
    if group.rank == root:
        for to in range(group.size):
            if to != root:
                group.send(x, to=to)
    else:
        group.recv(x, source=root)
    return x


@mutant("broadcast", "my_broadcast", says="as in a chain", at=5)
def chain(x, group, root):
    n, v = group.size, (group.rank - root) % group.size
    if v > 0:
        group.recv(x, source=(group.rank - 1) % n)
    if v < n - 1:
        group.send(x, to=(group.rank + 1) % n)
    return x


@mutant("broadcast", "my_broadcast", says="Everyone returns the tensor of rank 0")
def root_is_always_zero(x, group, root):
    n, v = group.size, group.rank
    distance = 1
    while distance < n:
        if v < distance and v + distance < n:
            group.send(x, to=v + distance)
        elif distance <= v < 2 * distance:
            group.recv(x, source=v - distance)
        distance *= 2
    return x


@mutant("broadcast", "my_broadcast", says="With 8 ranks 6 messages follow one another; 3 are enough", at=8)
def smallest_subtree_first(x, group, root):
    n, v = group.size, (group.rank - root) % group.size
    if v:
        group.recv(x, source=((v & (v - 1)) + root) % n)
    distance = 1
    while distance < (v & -v if v else n):
        if v + distance < n:
            group.send(x, to=(v + distance + root) % n)
        distance *= 2
    return x


@mutant("broadcast", "my_broadcast", says="entries are wrong", at=5)
def powers_of_two_only(x, group, root):
    n, v = group.size, (group.rank - root) % group.size
    for k in range(n.bit_length() - 1):  # rounds down where it should round up
        distance = 2**k
        if v < distance and v + distance < n:
            group.send(x, to=(v + distance + root) % n)
        elif distance <= v < 2 * distance:
            group.recv(x, source=(v - distance + root) % n)
    return x


@mutant("broadcast", "my_broadcast", says="Does somebody get what it has already?", at=3)
def everyone_talks_in_every_round(x, group, root):
    n, v = group.size, (group.rank - root) % group.size
    distance = 1
    while distance < n:
        heard = torch.empty_like(x)
        group.exchange(x, to=(group.rank + distance) % n, like=heard, source=(group.rank - distance) % n)
        if distance <= v < 2 * distance:
            x = heard
        distance *= 2
    return x


@mutant("broadcast", "my_broadcast", says="wait for", at=5)
def everyone_receives_first(x, group, root):
    n, v = group.size, (group.rank - root) % group.size
    group.recv(x, source=((v & (v - 1)) + root) % n if v else (root + 1) % n)
    distance = 1
    while distance < n:
        if v < distance and v + distance < n:
            group.send(x, to=(v + distance + root) % n)
        distance *= 2
    return x


@variant("broadcast", "my_broadcast", at=8)
def largest_subtree_first(x, group, root):
    n, v = group.size, (group.rank - root) % group.size
    if v:
        group.recv(x, source=((v & (v - 1)) + root) % n)
    distance = 2 ** n.bit_length()
    while distance:
        if distance < (v & -v if v else n) and v + distance < n:
            group.send(x, to=(v + distance + root) % n)
        distance //= 2
    return x


@variant("broadcast", "my_broadcast", at=5)
def halve_the_ranks(x, group, root):
    n, v = group.size, (group.rank - root) % group.size
    low, high = 0, n  # the ranks that the one at `low` must still reach
    while high - low > 1:
        middle = (low + high + 1) // 2
        if v == low:
            group.send(x, to=(middle + root) % n)
        elif v == middle:
            group.recv(x, source=(low + root) % n)
        if v < middle:
            high = middle
        else:
            low = middle
    return x


# Reduce-scatter -------------------------------------------------------------------------------------------------


@mutant("reduce-scatter", "my_reduce_scatter", says="Do you gather a result that you throw away?", at=3)
def all_reduce_then_slice(x, group):
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    parts = list(x.clone().tensor_split(n))
    for step in range(n - 1):
        arrived = torch.empty_like(parts[(me - step - 1) % n])
        group.exchange(parts[(me - step) % n], to=right, like=arrived, source=left)
        parts[(me - step - 1) % n] += arrived
    for step in range(n - 1):
        group.exchange(parts[(me - step + 1) % n], to=right, like=parts[(me - step) % n], source=left)
    return parts[me]


@mutant("reduce-scatter", "my_reduce_scatter", says="look at which part is complete", at=3)
def right_sum_on_the_wrong_rank(x, group):
    n, me = group.size, group.rank
    parts = list(x.clone().tensor_split(n))
    for step in range(n - 1):
        arrived = torch.empty_like(parts[(me - step - 1) % n])
        group.exchange(parts[(me - step) % n], to=(me + 1) % n, like=arrived, source=(me - 1) % n)
        parts[(me - step - 1) % n] += arrived
    return parts[(me + 1) % n]


@mutant("reduce-scatter", "my_reduce_scatter", says="adds its own part twice", at=1)
def adds_its_own_part_twice(x, group):
    n, me = group.size, group.rank
    parts = x.tensor_split(n)
    total = parts[me].clone()
    for shift in range(n):
        arrived = torch.empty_like(parts[me])
        if shift:
            group.exchange(
                parts[(me + shift) % n].contiguous(), to=(me + shift) % n, like=arrived, source=(me - shift) % n
            )
        else:
            arrived.copy_(parts[me])
        total += arrived
    return total


@mutant("reduce-scatter", "my_reduce_scatter", says="it should be [", at=3)
def only_when_rows_divide(x, group):
    n, me = group.size, group.rank
    rows = len(x) // n
    parts = [x[r * rows : (r + 1) * rows] for r in range(n)]
    partial = parts[(me - 1) % n].clone()
    for step in range(n - 1):
        arrived = torch.empty_like(partial)
        group.exchange(partial, to=(me + 1) % n, like=arrived, source=(me - 1) % n)
        partial = arrived + parts[(me - step - 2) % n]
    return partial


@mutant("reduce-scatter", "my_reduce_scatter", says="rank 1 receives", at=3)
def one_length_for_all_parts(x, group):
    n, me = group.size, group.rank
    parts = x.tensor_split(n)
    partial = parts[(me - 1) % n].clone()
    for step in range(n - 1):
        arrived = torch.empty_like(parts[0])
        group.exchange(partial, to=(me + 1) % n, like=arrived, source=(me - 1) % n)
        partial = arrived + parts[(me - step - 2) % n]
    return partial


@mutant("reduce-scatter", "my_reduce_scatter", says="You send the whole tensor where a part would do", at=3)
def through_rank_0(x, group):
    n, me = group.size, group.rank
    parts = x.tensor_split(n)
    if me:
        group.send(x, to=0)
        return group.recv(torch.empty_like(parts[me]), source=0)
    total, arrived = x.clone(), torch.empty_like(x)
    for source in range(1, n):
        total += group.recv(arrived, source=source)
    for to in range(1, n):
        group.send(total.tensor_split(n)[to].contiguous(), to=to)
    return total.tensor_split(n)[0]


@mutant("reduce-scatter", "my_reduce_scatter", says="You send the whole tensor to everyone", at=5)
def whole_tensors_to_everyone(x, group):
    n, me = group.size, group.rank
    total, arrived = x.clone(), torch.empty_like(x)
    for shift in range(1, n):
        total += group.exchange(x, to=(me + shift) % n, like=arrived, source=(me - shift) % n)
    return total.tensor_split(n)[me]


@mutant("reduce-scatter", "my_reduce_scatter", says="and so is the result", at=3)
def always_in_single_precision(x, group):
    n, me = group.size, group.rank
    parts = x.tensor_split(n)
    total = parts[me].float()
    for shift in range(1, n):
        arrived = torch.empty_like(parts[me])
        group.exchange(parts[(me + shift) % n].contiguous(), to=(me + shift) % n, like=arrived, source=(me - shift) % n)
        total = total + arrived.float()
    return total


@mutant("reduce-scatter", "my_reduce_scatter", says="What is kept alive?", at=5)
def keeps_a_copy_of_everything(x, group):
    n, me = group.size, group.rank
    parts = [part.clone() for part in x.tensor_split(n)]
    partial = parts[(me - 1) % n]
    for step in range(n - 1):
        arrived = torch.empty_like(parts[(me - step - 2) % n])
        group.exchange(partial, to=(me + 1) % n, like=arrived, source=(me - 1) % n)
        partial = arrived + parts[(me - step - 2) % n]
    return partial


@mutant("reduce-scatter", "my_reduce_scatter", says="labkit's own collectives", at=3)
def calls_the_library(x, group):
    return collectives.ring_reduce_scatter(x, group)


@variant("reduce-scatter", "my_reduce_scatter", at=5)
def pairwise(x, group):
    n, me = group.size, group.rank
    parts = x.tensor_split(n)
    total, arrived = parts[me].clone(), torch.empty_like(parts[me])
    for shift in range(1, n):
        out = parts[(me + shift) % n].contiguous()
        total += group.exchange(out, to=(me + shift) % n, like=arrived, source=(me - shift) % n)
    return total


@variant("reduce-scatter", "my_reduce_scatter", at=3)
def ring_to_the_left(x, group):
    n, me = group.size, group.rank
    parts = x.tensor_split(n)
    partial = parts[(me + 1) % n].clone()
    for step in range(n - 1):
        mine = parts[(me + step + 2) % n]
        partial = group.exchange(partial, to=(me - 1) % n, like=torch.empty_like(mine), source=(me + 1) % n) + mine
    return partial


# Uneven all-gather ----------------------------------------------------------------------------------------------


@mutant("uneven-all-gather", "my_all_gather", says="receives float32[", at=3)
def all_blocks_as_long_as_mine(x, group, sizes):
    n, me = group.size, group.rank
    blocks = [torch.empty_like(x) for _ in range(n)]
    blocks[me].copy_(x)
    for step in range(n - 1):
        out, into = blocks[(me - step) % n], blocks[(me - step - 1) % n]
        group.exchange(out, to=(me + 1) % n, like=into, source=(me - 1) % n)
    return torch.cat(blocks)


@mutant("uneven-all-gather", "my_all_gather", says="Do you pad every block", at=3)
def pads_to_the_longest(x, group, sizes):
    n, me = group.size, group.rank
    blocks = [x.new_zeros((max(sizes), *x.shape[1:])) for _ in range(n)]
    blocks[me][: len(x)] = x
    for step in range(n - 1):
        out, into = blocks[(me - step) % n], blocks[(me - step - 1) % n]
        group.exchange(out, to=(me + 1) % n, like=into, source=(me - 1) % n)
    return torch.cat([block[:size] for block, size in zip(blocks, sizes, strict=True)])


@mutant("uneven-all-gather", "my_all_gather", says="put them in the order of the ranks", at=3)
def in_the_order_of_arrival(x, group, sizes):
    n, me = group.size, group.rank
    blocks = [x]
    for step in range(n - 1):
        into = x.new_empty((sizes[(me - step - 1) % n], *x.shape[1:]))
        blocks.append(group.exchange(blocks[-1], to=(me + 1) % n, like=into, source=(me - 1) % n))
    return torch.cat(blocks)


@mutant("uneven-all-gather", "my_all_gather", says="sends everyone their own block back", at=3)
def collected_by_rank_0(x, group, sizes):
    whole = x.new_empty((sum(sizes), *x.shape[1:]))
    blocks = whole.split(sizes)
    if group.rank == 0:
        blocks[0].copy_(x)
        for source in range(1, group.size):
            group.recv(blocks[source], source=source)
        for to in range(1, group.size):
            group.send(whole, to=to)
        return whole
    group.send(x, to=0)
    return group.recv(whole, source=0)


@mutant("uneven-all-gather", "my_all_gather", says="Does a rank get what it has already?", at=3)
def the_whole_buffer_in_every_round(x, group, sizes):
    n, me = group.size, group.rank
    whole = x.new_zeros((sum(sizes), *x.shape[1:]))
    whole.split(sizes)[me].copy_(x)
    for _ in range(n - 1):
        arrived = torch.empty_like(whole)
        group.exchange(whole, to=(me + 1) % n, like=arrived, source=(me - 1) % n)
        whole.split(sizes)[me].zero_()
        whole = torch.where(arrived != 0, arrived, whole)
        whole.split(sizes)[me].copy_(x)
    return whole


@mutant("uneven-all-gather", "my_all_gather", says="Who waits for whom?", at=5)
def one_sender_after_the_other(x, group, sizes):
    whole = x.new_empty((sum(sizes), *x.shape[1:]))
    blocks = whole.split(sizes)
    blocks[group.rank].copy_(x)
    for sender in range(group.size):
        for to in range(group.size):
            if group.rank == sender != to:
                group.send(blocks[sender], to=to)
            elif group.rank == to != sender:
                group.recv(blocks[sender], source=sender)
    return whole


@mutant("uneven-all-gather", "my_all_gather", says="it should be a tensor of shape", at=3)
def a_list_of_blocks(x, group, sizes):
    n, me = group.size, group.rank
    blocks = [x.new_empty((size, *x.shape[1:])) for size in sizes]
    blocks[me] = x
    for shift in range(1, n):
        group.exchange(x, to=(me + shift) % n, like=blocks[(me - shift) % n], source=(me - shift) % n)
    return blocks


@variant("uneven-all-gather", "my_all_gather", at=5)
def everyone_to_everyone(x, group, sizes):
    n, me = group.size, group.rank
    blocks = [x.new_empty((size, *x.shape[1:])) for size in sizes]
    blocks[me].copy_(x)
    for shift in range(1, n):
        group.exchange(x, to=(me + shift) % n, like=blocks[(me - shift) % n], source=(me - shift) % n)
    return torch.cat(blocks)


@variant("uneven-all-gather", "my_all_gather", at=3)
def all_at_once(x, group, sizes):
    whole = x.new_empty((sum(sizes), *x.shape[1:]))
    blocks = whole.split(sizes)
    blocks[group.rank].copy_(x)
    others = [r for r in range(group.size) if r != group.rank]
    handles = [group.irecv(blocks[r], source=r) for r in others]
    handles += [group.isend(blocks[group.rank], to=r) for r in others]
    for handle in handles:
        handle.wait()
    return whole


# Two nodes ------------------------------------------------------------------------------------------------------


@mutant("two-nodes", "my_two_level", says="Some ranks carry the traffic of their whole node", at=6)
def one_flat_ring(x, group, ranks_per_node):
    return collectives.ring_all_reduce(x, group)


@mutant("two-nodes", "my_two_level", says="Some ranks carry the traffic of their whole node", at=4)
def by_leaders(x, group, ranks_per_node):
    k = ranks_per_node
    node, local = divmod(group.rank, k)
    inside = group.subgroup([node * k + i for i in range(k)])
    collectives.tree_reduce(x, inside)
    if local == 0:
        collectives.ring_all_reduce(x, group.subgroup(list(range(0, group.size, k))))
    return collectives.tree_broadcast(x, inside)


@mutant("two-nodes", "my_two_level", says="A whole tensor crosses", at=4)
def all_reduce_inside_first(x, group, ranks_per_node):
    k = ranks_per_node
    node, local = divmod(group.rank, k)
    collectives.ring_all_reduce(x, group.subgroup([node * k + i for i in range(k)]))
    return collectives.ring_all_reduce(x, group.subgroup(list(range(local, group.size, k))))


inside_and_across_swapped = slip("two-nodes", "my_two_level", says="is it inside the node?", at=6, change="""
-    inside = group.subgroup([node * k + i for i in range(k)])
-    across = group.subgroup([local + k * m for m in range(group.size // k)])
+    inside = group.subgroup([local + k * m for m in range(group.size // k)])
+    across = group.subgroup([node * k + i for i in range(k)])

-    sizes = [len(part) for part in flat.tensor_split(k)]
+    sizes = [len(part) for part in flat.tensor_split(inside.size)]
""")  # fmt: skip


@mutant("two-nodes", "my_two_level", says="the step between the nodes is missing", at=4)
def nothing_between_the_nodes(x, group, ranks_per_node):
    k = ranks_per_node
    first = group.rank // k * k
    return collectives.ring_all_reduce(x, group.subgroup([first + i for i in range(k)]))


@mutant("two-nodes", "my_two_level", says="it should be [", at=4)
def forgets_to_gather(x, group, ranks_per_node):
    k = ranks_per_node
    node, local = divmod(group.rank, k)
    part = collectives.ring_reduce_scatter(x, group.subgroup([node * k + i for i in range(k)]))
    return collectives.ring_all_reduce(part, group.subgroup([local + k * m for m in range(group.size // k)]))


@mutant("two-nodes", "my_two_level", says="raised", at=4)
def parts_of_equal_length(x, group, ranks_per_node):
    k = ranks_per_node
    node, local = divmod(group.rank, k)
    inside = group.subgroup([node * k + i for i in range(k)])
    part = x.flatten().view(k, -1)
    part = collectives.ring_reduce_scatter(part, inside)
    collectives.ring_all_reduce(part, group.subgroup([local + k * m for m in range(group.size // k)]))
    return collectives.ring_all_gather(part, inside).view(x.shape)


whole_tensors_inside = slip("two-nodes", "my_two_level", says="moves whole tensors", at=4, change="""
-    across = group.subgroup([local + k * m for m in range(group.size // k)])

-    part = collectives.ring_reduce_scatter(flat, inside)
-    collectives.ring_all_reduce(part, across)
+    part = collectives.ring_all_reduce(flat, inside).tensor_split(k)[local].clone()
+    collectives.ring_all_reduce(part, group.subgroup([local + k * m for m in range(group.size // k)]))
""")  # fmt: skip


@variant("two-nodes", "my_two_level", at=4)
def with_pairs_inside(x, group, ranks_per_node):
    k = ranks_per_node
    node, local = divmod(group.rank, k)
    inside = group.subgroup([node * k + i for i in range(k)])
    flat = x.flatten()
    part = collectives.pairwise_reduce_scatter(flat, inside)
    collectives.ring_all_reduce(part, group.subgroup([local + k * m for m in range(group.size // k)]))
    sizes = [len(piece) for piece in flat.tensor_split(k)]
    return collectives.ring_all_gather(part, inside, sizes=sizes).view(x.shape)


@variant("two-nodes", "my_two_level", at=6)
def by_hand(x, group, ranks_per_node):
    k, n, me = ranks_per_node, group.size, group.rank
    node, local = divmod(me, k)
    nodes = n // k
    parts = list(x.flatten().clone().tensor_split(k))
    for shift in range(1, k):  # everyone in the node sends me my part
        arrived = torch.empty_like(parts[local])
        to, source = (local + shift) % k, (local - shift) % k
        group.exchange(parts[to], to=node * k + to, like=arrived, source=node * k + source)
        parts[local] += arrived
    chunks = list(parts[local].tensor_split(nodes))
    right, left = (node + 1) % nodes * k + local, (node - 1) % nodes * k + local
    for step in range(nodes - 1):
        arrived = torch.empty_like(chunks[(node - step - 1) % nodes])
        group.exchange(chunks[(node - step) % nodes], to=right, like=arrived, source=left)
        chunks[(node - step - 1) % nodes] += arrived
    for step in range(nodes - 1):
        out, into = chunks[(node - step + 1) % nodes], chunks[(node - step) % nodes]
        group.exchange(out, to=right, like=into, source=left)
    for shift in range(1, k):
        to, source = (local + shift) % k, (local - shift) % k
        group.exchange(parts[local], to=node * k + to, like=parts[source], source=node * k + source)
    return torch.cat(parts).view(x.shape)
