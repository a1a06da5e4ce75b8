"""What the checks of chapter 12 compare with where ranks form a grid: gradients of a layer, and rows over nodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit import cost
from labkit.chapters.c12_experts.checks import COUNT, WIDTH, Draw, Inputs, chosen, ranks
from labkit.grading.checks.student import Evidence, Slips, Student
from labkit.models import MoEConfig, seeded
from labkit.models.moe import MoE
from labkit.parallel import ExpertParallel
from labkit.wire import Group

# More than its own tokens ---------------------------------------------------------------------------------------------

IN_LAYER = 6  # experts


def small_layer(seed: int, row: Group | None = None) -> MoE:
    """Six small experts and a router in float64; with `row`, this rank's part of them (`ExpertParallel`)."""
    with seeded(seed):
        layer = MoE(WIDTH, MoEConfig(IN_LAYER, choices=2, hidden=0.4, balance=0)).double()
    if row is not None:
        ExpertParallel(row).into(layer)
    return layer


def lessons(draw: Draw, tokens: Sequence[int]) -> Inputs:
    """By rank the inputs and the targets of so many tokens."""
    dtype = torch.float64
    return [{"x": draw(few, WIDTH, dtype=dtype) / 4, "y": draw(few, WIDTH, dtype=dtype) / 4} for few in tokens]


def gradients_by_rank(inputs: Inputs, seed: int) -> list[dict[str, Tensor]]:
    """For each rank the gradients of the sum of its own tokens' losses, by every parameter of the whole layer."""
    found = []
    for mine in inputs:
        layer = small_layer(seed)
        (layer(mine["x"]) - mine["y"]).square().mean(-1).sum().backward()
        found.append({name: p.grad for name, p in layer.named_parameters() if p.grad is not None})
    return found


def expect_gradients(student: Student, run: Evidence, inputs: Inputs, ep: int, seed: int) -> None:
    """Every rank returned the gradients of its parameters, as of one device that has all tokens."""
    n, each = len(inputs), gradients_by_rank(inputs, seed)
    tokens = [len(mine["x"]) for mine in inputs]
    whole = sum(tokens)

    def summed(name: str, share: Sequence[float], among: Sequence[int]) -> Tensor:
        return sum((share[r] * each[r][name] for r in among), torch.zeros_like(each[0][name]))

    def held(rank: int, part: int | None = None) -> list[str]:
        """The names of what a rank holds, in order; with `part`, of what another part of the experts holds."""
        few, at = IN_LAYER // ep, rank % ep if part is None else part
        mine = {str(e) for e in range(at * few, at * few + few)}
        return [name for name in each[0] if "experts" not in name or name.split(".")[1] in mine]

    def by_rank(
        share: Sequence[float], shared: str = "all", experts: str = "all", factor: float = 1
    ) -> list[list[Tensor]]:
        """shared, experts: over which ranks they are summed. factor: of the gradients of experts."""
        found = []
        for rank in range(n):
            row = range(rank // ep * ep, rank // ep * ep + ep)
            among = {"all": range(n), "row": row, "twins": range(rank % ep, n, ep), "own": [rank]}
            grads = []
            for i, name in enumerate(held(rank)):
                if "experts" not in name:
                    grads.append(summed(name, share, among[shared]))
                elif experts == "mixed":
                    grads.append(torch.stack([summed(held(rank, p)[i], share, range(n)) for p in range(ep)]).sum(0))
                else:
                    grads.append(factor * summed(name, share, among[experts]))
            found.append(grads)
        return found

    right = [1 / whole] * n
    own = [1 / (n * max(1, few)) for few in tokens]
    causes = {
        "every rank's mean counts the same. A rank with more tokens counts for more, in the experts' gradients too.": (
            by_rank(own)
        ),
        "gradients are summed, and the losses never divided by the number of all tokens.": by_rank([1.0] * n),
        "everything is divided by the number of ranks besides. Losses over the number of all tokens need only sums.": (
            by_rank([1 / whole / n] * n)
        ),
        "the experts' gradients are those of the tokens of one row. Sum them over the ranks with the same experts.": (
            by_rank(right, experts="row")
        ),
        "the experts' gradients are summed over all ranks, and most of them hold other experts.": by_rank(
            right, experts="mixed"
        ),
        "the experts' gradients are averaged over the ranks that hold them. They are summed, like all others.": by_rank(
            right, factor=ep / n
        ),
        "the router's gradient is summed over a row alone. All ranks have the router.": by_rank(right, shared="row"),
        "the router's gradient is summed over the ranks with the same experts. All ranks have the router.": by_rank(
            right, shared="twins"
        ),
        "the router's gradient is that of the rank's own tokens. All ranks have the router.": by_rank(
            right, shared="own"
        ),
    }  # fmt: skip
    grid = f"{ranks(n)}, {ep} in a row: "
    slips: Slips = {grid + why: wrong for why, wrong in causes.items()}
    slips |= {
        f"{grid}in the router's gradient every token counts the same, but in the experts' every rank does. Their "
        "tokens came from several ranks, so they must be weighted before the backward pass.": [
            [s if "experts" not in name else m for name, s, m in zip(held(rank), good, bad, strict=True)]
            for rank, (good, bad) in enumerate(zip(by_rank(right), by_rank(own), strict=True))
        ]
    }
    student.expect_results(run, by_rank(right), slips, within=1e-6)


def expect_sums(student: Student, run: Evidence, ep: int, seed: int) -> None:
    """All ranks together sent no more in sums than the two kinds of gradients and the count of tokens take, by ring."""
    n, layer = len(run.results), small_layer(seed)
    numbers = {name: p.numel() for name, p in layer.named_parameters()}
    shared = sum(size for name, size in numbers.items() if "experts" not in name)
    experts = (sum(numbers.values()) - shared) // ep  # of one rank
    due = 2 * (n - 1) * 8 * (shared + 1) + ep * 2 * (n // ep - 1) * 8 * experts
    sums = [call for order in run.order for call in order.calls if call.name != "all_to_all"]
    counts = [call for call in sums if call.name == "all_gather"]
    got = sum(call.nbytes for call in sums) - n * cost.routing_bytes(ep, IN_LAYER, 2)
    why = "Are the experts' gradients summed over ranks that hold other experts?"
    if len(counts) > n * (ep > 1):
        why = "Is something gathered? The layer's own all-gather of counts is not in this number."
    elif got <= due + 2 * (n - 1) * 8 * shared:
        why = "Is the router's gradient, or the number of tokens, summed more than once? Use algorithm='ring'."
    text = "{who}, {ep} in a row: all together sent {got:bytes} in sums, and {due:bytes} are enough. {why}"
    student.expect(got <= due, text, who=ranks(n), ep=ep, got=got, due=due, why=why)


# Once to a node -------------------------------------------------------------------------------------------------------


def gated(draw: Draw, tokens: Sequence[int], per_rank: int, k: int, never: int = 0) -> Inputs:
    """By rank x, gates (a row of weights for all experts, k of them not 0) and A, in float64."""
    size, dtype = per_rank * len(tokens), torch.float64
    found = []
    for few in tokens:
        experts = chosen(draw, few, size, k, never, dtype)
        gates = torch.zeros(few, size, dtype=dtype).scatter(1, experts, draw(few, k, dtype=dtype).abs() / 8)
        x, matrices = draw(few, WIDTH, dtype=dtype), draw(per_rank, WIDTH, WIDTH, dtype=dtype) / 8
        found.append({"x": x, "gates": gates, "A": matrices})
    return found


def expect_mixture(student: Student, run: Evidence, inputs: Inputs, per_rank: int) -> None:
    """Every rank returned the results of its tokens: y = sum of gate times x A over the experts."""
    n, every = len(inputs), torch.cat([mine["A"] for mine in inputs])

    def mixed(of: slice = slice(None), weighted: bool = True) -> list[Tensor]:
        shares = [mine["gates"][:, of] if weighted else (mine["gates"][:, of] != 0).double() for mine in inputs]
        return [torch.einsum("ne,nd,edf->nf", g, mine["x"], every[of]) for g, mine in zip(shares, inputs, strict=True)]

    slips: Slips = {
        f"{ranks(n)}: the results of experts are added up without their weights.": mixed(weighted=False),
        f"{ranks(n)}: only a rank's own experts have computed its tokens.": [
            mixed(slice(r * per_rank, (r + 1) * per_rank))[r] for r in range(n)
        ],
    }
    student.expect_results(run, mixed(), slips)


def node_bytes(inputs: Inputs, per_node: int, per_rank: int, once: bool = True) -> tuple[list[int], list[int]]:
    """Bytes that each rank sends to other nodes, and inside its own. once: a token once to a node and to a rank."""
    n, here = len(inputs), range(0, len(inputs), per_node)
    row, gate = 8 * WIDTH, 8 * per_rank

    def rows(source: int, first: int, count: int) -> int:
        """Rows of a rank's tokens for the experts of `count` ranks from `first`."""
        wants = inputs[source]["gates"][:, first * per_rank : (first + count) * per_rank] != 0
        return int(wants.any(1).sum() if once else wants.sum())

    def relayed(rank: int, to: int) -> int:
        """Rows that a rank passes on to another of its node, for itself and its namesakes."""
        return sum(rows(m + rank % per_node, to, 1) for m in here)

    across, inside = [0] * n, [0] * n
    for rank in range(n):
        node = rank // per_node * per_node
        for m in here:
            if m != node:
                back = rows(m + rank % per_node, node, per_node) * row
                across[rank] += COUNT + rows(rank, m, per_node) * (row + per_node * gate) + back
        for to in range(node, node + per_node):
            if to != rank:
                inside[rank] += COUNT + relayed(rank, to) * (row + gate) + relayed(to, rank) * row
    return across, inside


def expect_over_nodes(student: Student, run: Evidence, inputs: Inputs, per_node: int, per_rank: int) -> None:
    """No rank sent more than it must, to other nodes and inside its own."""
    n = len(inputs)
    due, alone = node_bytes(inputs, per_node, per_rank), node_bytes(inputs, per_node, per_rank, once=False)
    apart = [[r // per_node != s // per_node for s in range(n)] for r in range(n)]
    askew = [apart[r][s] and r % per_node != s % per_node for r in range(n) for s in range(n)]
    direct = sum(b for b, far in zip(sum(run.bytes_between, []), askew, strict=True) if far)
    kinds = (("to other nodes", True, due[0], alone[0]), ("inside its node", False, due[1], alone[1]))
    for what, far, most, each in kinds:
        sent = [sum(b for b, a in zip(row, aparts, strict=True) if a == far)
                for row, aparts in zip(run.bytes_between, apart, strict=True)]  # fmt: skip
        rank = max(range(n), key=lambda r: sent[r] - most[r])
        where = "node" if far else "rank"
        why = f"A row with its gates goes once to each {where} that has one of its experts, and one sum comes back."
        if far and direct:
            why = "Rows go straight to ranks with another place. Send a row to the rank of your own place first."
        elif sent == each:
            why = f"A token with two experts on a {where} goes there twice, or comes back twice. Once is enough."
        text = "{who}, {k} on a node: rank {rank} sent {got:bytes} {what}, and {most:bytes} are enough. {why}"
        student.expect(sent[rank] <= most[rank], text, who=ranks(n), k=per_node, rank=rank, got=sent[rank], what=what,
                       most=most[rank], why=why)  # fmt: skip
