"""The collectives as definitions, on symbols: what each rank of each algorithm sends, step by step.

An element is (index, ranks): which element of the tensor it is, and whose contributions it holds. Adding the
same contribution twice, or elements of different index, fails at once.
"""

from __future__ import annotations

from collections.abc import Callable

from .simulator import Payload, Program, exchange, recv, send

Element = tuple[object, frozenset[int]]


def own(rank: int, numel: int) -> list[Element]:
    return [(i, frozenset([rank])) for i in range(numel)]


def add(a: Payload, b: Payload) -> list[Element]:
    assert [e[0] for e in a] == [e[0] for e in b], "different elements"
    assert not any(x[1] & y[1] for x, y in zip(a, b, strict=True)), "counted twice"
    return [(x[0], x[1] | y[1]) for x, y in zip(a, b, strict=True)]


def cut(x: Payload, parts: int) -> list[list[Element]]:
    """As torch.tensor_split, the slow way: deal the elements one by one to know how many go where."""
    sizes = [len(range(i, len(x), parts)) for i in range(parts)]
    pieces, start = [], 0
    for width in sizes:
        pieces.append(list(x[start : start + width]))
        start += width
    return pieces


def join(parts: list[list[Element]]) -> list[Element]:
    return [element for part in parts for element in part]


# Broadcast and reduce


def naive_broadcast(me: int, p: int, numel: int, root: int = 0) -> Program:
    x = own(root, numel) if me == root else None
    if me != root:
        return (yield recv(root))
    for r in range(p):
        if r != root:
            yield send(x, r)
    return x


def tree_broadcast(me: int, p: int, numel: int, root: int = 0) -> Program:
    v = (me - root) % p
    mask = 1
    while mask < p and not v & mask:
        mask <<= 1
    x = own(root, numel) if v == 0 else (yield recv((v - mask + root) % p))
    mask >>= 1
    while mask:
        if v + mask < p:
            yield send(x, (v + mask + root) % p)
        mask >>= 1
    return x


def chain_broadcast(me: int, p: int, numel: int, root: int = 0, chunks: int = 1) -> Program:
    v, right, left = (me - root) % p, (me + 1) % p, (me - 1) % p
    if p == 1:
        return own(root, numel)
    if v == 0:
        for chunk in cut(own(root, numel), chunks):
            yield send(chunk, right)
        return own(root, numel)
    got = [(yield recv(left))]
    for c in range(1, chunks):
        if v < p - 1:
            got.append((yield exchange(got[c - 1], right, left)))
        else:
            got.append((yield recv(left)))
    if v < p - 1:
        yield send(got[-1], right)
    return join(got)


def naive_reduce(me: int, p: int, numel: int, root: int = 0) -> Program:
    x = own(me, numel)
    if me != root:
        yield send(x, root)
        return None
    for r in range(p):
        if r != root:
            x = add(x, (yield recv(r)))
    return x


def tree_reduce(me: int, p: int, numel: int, root: int = 0) -> Program:
    v, x, mask = (me - root) % p, own(me, numel), 1
    while mask < p:
        if v & mask:
            yield send(x, (v - mask + root) % p)
            return None
        if v + mask < p:
            x = add(x, (yield recv((v + mask + root) % p)))
        mask <<= 1
    return x


# All-reduce


def naive_all_reduce(me: int, p: int, numel: int) -> Program:
    x = yield from naive_reduce(me, p, numel)
    if me:
        return (yield recv(0))
    for r in range(1, p):
        yield send(x, r)
    return x


def everyone_all_reduce(me: int, p: int, numel: int) -> Program:
    x = total = own(me, numel)
    for i in range(1, p):
        total = add(total, (yield exchange(x, (me + i) % p, (me - i) % p)))
    return total


def tree_all_reduce(me: int, p: int, numel: int) -> Program:
    x = yield from tree_reduce(me, p, numel)
    # The same walk down as tree_broadcast, with the sum in place of a fresh tensor.
    mask = 1
    while mask < p and not me & mask:
        mask <<= 1
    if me:
        x = yield recv(me - mask)
    mask >>= 1
    while mask:
        if me + mask < p:
            yield send(x, me + mask)
        mask >>= 1
    return x


def ring(chunks: list[list[Element]], me: int, members: list[int], shift: int, phases: str) -> Program:
    """Reduce-scatter ("r") and all-gather ("g") of `chunks` around `members`, where I am number `me`.

    With shift 0 member i ends the reduce-scatter with chunk i + 1, with shift 1 with chunk i.
    """
    p = len(members)
    right, left = members[(me + 1) % p], members[(me - 1) % p]
    if "r" in phases:
        for s in range(p - 1):
            into = (me - s - 1 - shift) % p
            incoming = yield exchange(chunks[(me - s - shift) % p], right, left)
            chunks[into] = add(chunks[into], incoming)
    if "g" in phases:
        for s in range(p - 1):
            chunks[(me - s - shift) % p] = yield exchange(chunks[(me - s + 1 - shift) % p], right, left)
    return chunks


def ring_all_reduce(me: int, p: int, numel: int) -> Program:
    return join((yield from ring(cut(own(me, numel), p), me, list(range(p)), 0, "rg")))


def hierarchical_all_reduce(me: int, p: int, numel: int, ranks_per_node: int) -> Program:
    k = ranks_per_node
    node, local = divmod(me, k)
    inside = [node * k + i for i in range(k)]
    parts = yield from ring(cut(own(me, numel), k), local, inside, 1, "r")
    across = list(range(local, p, k))
    parts[local] = join((yield from ring(cut(parts[local], p // k), node, across, 0, "rg")))
    return join((yield from ring(parts, local, inside, 1, "g")))


class Folded:
    """The ranks that stay active when p is not a power of two, and the two extra messages."""

    def __init__(self, me: int, p: int):
        self.p2 = max(q for q in (1, 2, 4, 8, 16, 32) if q <= p)
        self.rem = p - self.p2
        self.me, self.low = me, me < 2 * self.rem
        self.out = self.low and me % 2 == 1
        self.index = me // 2 if self.low else me - self.rem

    def rank(self, index: int) -> int:
        return 2 * index if index < self.rem else index + self.rem


def recursive_doubling_all_reduce(me: int, p: int, numel: int) -> Program:
    team, x = Folded(me, p), own(me, numel)
    if team.out:
        yield send(x, me - 1)
        return (yield recv(me - 1))
    if team.low:
        x = add(x, (yield recv(me + 1)))
    d = 1
    while d < team.p2:
        partner = team.rank(team.index ^ d)
        x = add(x, (yield exchange(x, partner, partner)))
        d *= 2
    if team.low:
        yield send(x, me + 1)
    return x


def halve(parts: list[list[Element]], team: Folded) -> Program:
    """Recursive halving over one list of elements for each active rank; leaves my list complete."""
    low, d = 0, team.p2 // 2
    while d:
        keep, give = (low, low + d) if not team.index & d else (low + d, low)
        partner = team.rank(team.index ^ d)
        incoming = list((yield exchange(join(parts[give : give + d]), partner, partner)))
        for i in range(keep, keep + d):
            width = len(parts[i])
            parts[i] = add(parts[i], incoming[:width])
            incoming = incoming[width:]
        low, d = keep, d // 2
    return parts


def halving_doubling_all_reduce(me: int, p: int, numel: int) -> Program:
    team, x = Folded(me, p), own(me, numel)
    if team.out:
        yield send(x, me - 1)
        return (yield recv(me - 1))
    if team.low:
        x = add(x, (yield recv(me + 1)))
    chunks = yield from halve(cut(x, team.p2), team)
    low, d = team.index, 1
    while d < team.p2:
        partner, theirs = team.rank(team.index ^ d), low ^ d
        incoming = list((yield exchange(join(chunks[low : low + d]), partner, partner)))
        for i in range(theirs, theirs + d):
            width = len(chunks[i])
            chunks[i], incoming = incoming[:width], incoming[width:]
        low, d = min(low, theirs), d * 2
    x = join(chunks)
    if team.low:
        yield send(x, me + 1)
    return x


# Reduce-scatter, all-gather, scatter, gather


def ring_reduce_scatter(me: int, p: int, numel: int) -> Program:
    return (yield from ring(cut(own(me, numel), p), me, list(range(p)), 1, "r"))[me]


def halving_reduce_scatter(me: int, p: int, numel: int) -> Program:
    team, x = Folded(me, p), own(me, numel)
    if team.out:
        yield send(x, me - 1)
        return (yield recv(me - 1))
    if team.low:
        x = add(x, (yield recv(me + 1)))
    parts = cut(x, p)
    active = [parts[team.rank(i)] + (parts[team.rank(i) + 1] if i < team.rem else []) for i in range(team.p2)]
    mine = (yield from halve(active, team))[team.index]
    if team.low:
        width = len(parts[me])
        yield send(mine[width:], me + 1)
        return mine[:width]
    return mine


def pairwise_reduce_scatter(me: int, p: int, numel: int) -> Program:
    parts = cut(own(me, numel), p)
    mine = parts[me]
    for i in range(1, p):
        mine = add(mine, (yield exchange(parts[(me + i) % p], (me + i) % p, (me - i) % p)))
    return mine


def block(rank: int, count: int) -> list[Element]:
    return [((rank, i), frozenset([rank])) for i in range(count)]


def ring_all_gather(me: int, p: int, counts: list[int]) -> Program:
    blocks = [block(me, counts[me]) if r == me else [] for r in range(p)]
    for s in range(p - 1):
        out = blocks[(me - s) % p]
        blocks[(me - s - 1) % p] = list((yield exchange(out, (me + 1) % p, (me - 1) % p)))
    return join(blocks)


def bruck_all_gather(me: int, p: int, counts: list[int]) -> Program:
    held, d = [block(me, counts[me])], 1  # blocks me, me + 1, ...
    while d < p:
        m = min(d, p - d)
        incoming = list((yield exchange(join(held[:m]), (me - d) % p, (me + d) % p)))
        for j in range(d, d + m):
            width = counts[(me + j) % p]
            held.append(incoming[:width])
            incoming = incoming[width:]
        d *= 2
    return join([held[(r - me) % p] for r in range(p)])


def naive_scatter(me: int, p: int, counts: list[int], root: int = 0) -> Program:
    if me != root:
        return (yield recv(root))
    for r in range(p):
        if r != root:
            yield send(block(r, counts[r]), r)
    return block(root, counts[root])


def naive_gather(me: int, p: int, counts: list[int], root: int = 0) -> Program:
    if me != root:
        yield send(block(me, counts[me]), root)
        return None
    blocks = [block(root, counts[root])] * p
    for r in range(p):
        if r != root:
            blocks[r] = list((yield recv(r)))
    return join(blocks)


# All-to-all and barrier


def parcel(source: int, target: int, count: int) -> list[Element]:
    return [((source, target, i), frozenset([source])) for i in range(count)]


def pairwise_all_to_all(me: int, p: int, counts: list[list[int]]) -> Program:
    got = {me: parcel(me, me, counts[me][me])}
    for i in range(1, p):
        to, source = (me + i) % p, (me - i) % p
        got[source] = list((yield exchange(parcel(me, to, counts[me][to]), to, source)))
    return join([got[r] for r in range(p)])


def bruck_all_to_all(me: int, p: int, counts: list[list[int]]) -> Program:
    held = [parcel(me, (me + j) % p, counts[me][(me + j) % p]) for j in range(p)]
    step = 1
    while step < p:
        moving = [j for j in range(p) if j & step]
        # One message holding whole parcels: a parcel says itself where it is from and for.
        sizes = [(j, len(held[j])) for j in moving]
        incoming = yield exchange(join([held[j] for j in moving]), (me + step) % p, (me - step) % p)
        incoming = list(incoming)
        for j, _ in sizes:
            start = (me - step - j % step) % p  # who packed the block that arrives in place j
            width = counts[start][(start + j) % p]
            held[j], incoming = incoming[:width], incoming[width:]
        step *= 2
    return join([held[(me - source) % p] for source in range(p)])


class News(list[Element]):
    """An empty message; that it came at all says who has arrived so far."""

    def __init__(self, arrived: set[int]):
        super().__init__()
        self.arrived = frozenset(arrived)


def dissemination_barrier(me: int, p: int) -> Program:
    arrived, step = {me}, 1
    while step < p:
        news = yield exchange(News(arrived), (me + step) % p, (me - step) % p)
        assert isinstance(news, News)
        arrived |= news.arrived
        step *= 2
    return arrived


PROGRAMS: dict[tuple[str, str], Callable[..., Program]] = {
    ("broadcast", "naive"): naive_broadcast,
    ("broadcast", "tree"): tree_broadcast,
    ("broadcast", "chain"): chain_broadcast,
    ("reduce", "naive"): naive_reduce,
    ("reduce", "tree"): tree_reduce,
    ("all_reduce", "naive"): naive_all_reduce,
    ("all_reduce", "everyone"): everyone_all_reduce,
    ("all_reduce", "ring"): ring_all_reduce,
    ("all_reduce", "recursive_doubling"): recursive_doubling_all_reduce,
    ("all_reduce", "halving_doubling"): halving_doubling_all_reduce,
    ("all_reduce", "tree"): tree_all_reduce,
    ("all_reduce", "hierarchical"): hierarchical_all_reduce,
    ("reduce_scatter", "ring"): ring_reduce_scatter,
    ("reduce_scatter", "halving"): halving_reduce_scatter,
    ("reduce_scatter", "pairwise"): pairwise_reduce_scatter,
    ("all_gather", "ring"): ring_all_gather,
    ("all_gather", "bruck"): bruck_all_gather,
    ("scatter", "naive"): naive_scatter,
    ("gather", "naive"): naive_gather,
    ("all_to_all", "pairwise"): pairwise_all_to_all,
    ("all_to_all", "bruck"): bruck_all_to_all,
    ("barrier", "dissemination"): dissemination_barrier,
}
