"""What the checks of chapter 13 give to its servers, of weights and of sums, and how they judge what these did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.chapters.c13_embeddings.checks import ITEM, Draw, Inputs, answers, ranks
from labkit.grading.checks.student import Evidence, Slips, Student
from labkit.optim.synchrony.masking import stream
from labkit.wire import Group

WORD = 8  # bytes of a whole number on its way

# Half a gradient ------------------------------------------------------------------------------------------------------


def worker(gradient: Tensor, reaches: int, group: Group, servers: int) -> Tensor | None:
    """A worker's part: to each server in turn a word, 1 or 0, and after a 1 the server's part of the gradient.

    It breaks down after `reaches` servers: from then on the word is 0, and it returns None. Else it waits for the new
    part of every server, and returns the whole weights.
    """
    parts = gradient.tensor_split(servers)
    for server, part in enumerate(parts):
        group.send(torch.tensor([int(server < reaches)]), server)
        if server < reaches:
            group.send(part, server)
    if reaches < servers:
        return None
    return torch.cat([group.recv(torch.empty_like(part), server) for server, part in enumerate(parts)])


def breakdowns(draw: Draw, reaches: Sequence[int], servers: int, numel: int) -> Inputs:
    """By rank: servers have their `part` of the weights; workers a `gradient`, and how many servers it `reaches`."""
    parts = draw(numel, dtype=torch.float64).tensor_split(servers)
    found: Inputs = [{"part": part.clone()} for part in parts]
    return found + [{"gradient": draw(numel, dtype=torch.float64), "reaches": k} for k in reaches]


def expect_whole_gradients(student: Student, run: Evidence, inputs: Inputs, servers: int, lr: float) -> None:
    """Each server took lr times the mean of the whole gradients off its part, and whole workers have all parts."""
    n, workers = len(inputs), inputs[servers:]
    whole = [mine for mine in workers if mine["reaches"] == servers]
    about = f"With {servers} server{'s' * (servers > 1)} and {len(workers)} worker{'s' * (len(workers) > 1)}"

    def trial(counts: Callable[[int, Any], bool], divisor: Callable[[int], float], sign: int = 1) -> list[Any]:
        """By rank, if server s uses the gradients that counts(s, worker) says, and divides by divisor(how many)."""
        parts = []
        for s in range(servers):
            used = [mine["gradient"].tensor_split(servers)[s] for mine in workers if counts(s, mine)]
            total = sum(used, torch.zeros_like(inputs[s]["part"]))
            parts.append(inputs[s]["part"] - sign * lr * total / max(1.0, divisor(len(used))))
        new = torch.cat(parts)
        return [*parts, *(new if mine["reaches"] == servers else None for mine in workers)]

    def all_there(s: int, mine: Any) -> bool:
        return bool(mine["reaches"] == servers)

    right = trial(all_there, float)
    lost = any(isinstance(x, Tensor) and bool(x.isnan().any()) for x in run.results)
    student.expect(not lost, "{about} a part is 0 / 0: if no gradient is whole, the weights stay as they are.",
                   about=about)  # fmt: skip
    causes = {
        "a server used every gradient of which its own part came. Another server has no part of some of them, so half "
        "of a gradient was applied.": trial(lambda s, mine: mine["reaches"] > s, float),
        "only gradients that reached every server were used, but they were divided by the number of all workers.": (
            trial(all_there, lambda used: len(workers))
        ),
        "the sum was divided by the number of all ranks. Servers have no gradients.": trial(all_there, lambda used: n),
        "the gradients were summed, and not averaged.": trial(all_there, lambda used: 1.0),
        "the weights moved uphill. Subtract the step.": trial(all_there, float, -1),
        "the gradients of workers that broke down were used as far as they came, but divided by the number of whole "
        "ones.": trial(lambda s, mine: mine["reaches"] > s, lambda used: len(whole)),
        "nothing was applied.": trial(lambda s, mine: False, float),
    }
    student.expect_results(run, right, {f"{about}: {why}": wrong for why, wrong in causes.items()}, within=1e-9)


def expect_server_bytes(student: Student, run: Evidence, inputs: Inputs, servers: int) -> None:
    """A server sends its part to each whole worker, once, and few words to other servers."""
    workers = inputs[servers:]
    about = f"With {servers} server{'s' * (servers > 1)} and {len(workers)} worker{'s' * (len(workers) > 1)}"
    for s in range(servers):
        for w, mine in enumerate(workers, servers):
            got, part = run.bytes_between[s][w], ITEM * len(inputs[s]["part"])
            due = part if mine["reaches"] == servers else 0
            why = "A worker that broke down takes nothing any more." if due == 0 else "It needs the new part, once."
            text = "{about}: server {s} sent {got:bytes} to rank {w}, in place of {due:bytes}. {why}"
            student.expect(got == due, text, about=about, s=s, got=got, w=w, due=due, why=why)
        for t in range(servers):
            got, most = run.bytes_between[s][t], 2 * WORD * len(workers)
            text = (
                "{about}: server {s} sent {got:bytes} to server {t}, and {most:bytes} are enough to agree: a word or "
                "two for each worker. Gradients and weights do not travel between servers."
            )
            student.expect(got <= most, text, about=about, s=s, got=got, t=t, most=most)


# When one does not come -----------------------------------------------------------------------------------------------


def noise(secret: int, n: int) -> Tensor:
    """n random int32 numbers, which everybody can draw who knows the secret."""
    return stream(int(secret).to_bytes(8, "little"), n)


def under_masks(numbers: Tensor, secrets: Tensor, me: int) -> Tensor:
    """`numbers` (int32), and for every other client its mask: added towards higher ones, taken away towards lower."""
    total = numbers.clone()
    for partner in range(1, len(secrets)):
        if partner != me:
            mask = noise(int(secrets[partner]), len(numbers))
            total += mask if me < partner else -mask
    return total


def crowd(draw: Draw, comes: Sequence[bool], n: int, seed: int) -> Inputs:
    """By rank: the server has `came` and `n`, and a client its `numbers`, its `secrets` by rank, and `comes`."""
    size = len(comes) + 1
    dice = torch.Generator().manual_seed(seed)
    secrets = torch.randint(1, 2**62, (size, size), generator=dice).triu(1)
    secrets += secrets.T.clone()
    secrets[0], secrets[:, 0] = 0, 0  # the server knows none
    found: Inputs = [{"came": [c for c, there in enumerate(comes, 1) if there], "n": n}]
    for c, there in enumerate(comes, 1):
        numbers = 1000 * draw(n, dtype=torch.int32) + draw(n, dtype=torch.int32)
        found.append({"numbers": numbers, "secrets": secrets[c].clone(), "comes": there})
    return found


def expect_exact_sum(student: Student, run: Evidence, inputs: Inputs) -> None:
    """The server has the sum of those that came, and had noise before; each of those sent what it should."""
    n, came, numel = len(inputs), inputs[0]["came"], inputs[0]["n"]
    lost = [c for c in range(1, n) if c not in came]
    about = f"{ranks(n)}, of whom client{'s' * (len(lost) > 1)} {', '.join(map(str, lost)) or 'none'} did not come"
    first = run.results[0]
    fine = isinstance(first, (list, tuple)) and len(first) == 2 and all(isinstance(x, Tensor) for x in first)
    student.expect(fine, f"{about}: the server returned no list of two tensors: the sum, and what it was before any "
                   "mask was taken away.")  # fmt: skip
    sent = [under_masks(mine["numbers"], mine["secrets"], c) for c, mine in enumerate(inputs) if c]

    def total(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack([torch.zeros(numel, dtype=torch.int32), *parts]).sum(0, dtype=torch.int32)

    right, before = total([inputs[c]["numbers"] for c in came]), total([sent[c - 1] for c in came])
    clear = bool(lost) and bool(came) and torch.equal(first[1], right)
    student.expect(not clear, f"{about}: what came in was no noise, so the clients sent their numbers in the clear.")

    secrets = [mine["secrets"] for mine in inputs[1:]]
    causes = {
        "the masks with the lost clients are still in the sum.": before,
        "the masks with the lost clients were added once more. Take away what a lower client added.": (
            before - answers.left_over(came, secrets, numel, "wrong")
        ),
        "every mask was subtracted. One that a higher client took away must be added again.": (
            before - answers.left_over(came, secrets, numel, "minus")
        ),
        "every mask was added. One that a lower client added must be subtracted.": (
            before - answers.left_over(came, secrets, numel, "plus")
        ),
        "only the masks with the first lost client were taken out.": (
            before - answers.left_over(came, secrets, numel, "first")
        ),
    }
    told = [sent[c - 1] if c in came else None for c in range(1, n)]
    slips: Slips = {f"{about}: {why}": [[wrong, before], *told] for why, wrong in causes.items()}
    student.expect_results(run, [[right, before], *told], slips)


def expect_few_secrets(student: Student, run: Evidence, inputs: Inputs) -> None:
    """Clients sent their masked numbers and a secret for each lost client; the server a word for each rank."""
    n, came, numel = len(inputs), inputs[0]["came"], inputs[0]["n"]
    lost = n - 1 - len(came)
    about = f"{ranks(n)}, of whom {lost} did not come"
    for c in range(1, n):
        got, most = run.bytes_sent[c], 4 * numel + WORD * lost if c in came else 0
        why = "Are the numbers sent once, as int32?"
        if got >= 4 * numel + WORD * (n - 2) and lost < n - 2:
            why = "If it tells the secrets that it has with those that came, the server can read its numbers."
        text = "{about}: client {c} sent {got:bytes}, and {most:bytes} are enough. {why}"
        student.expect(got <= most, text, about=about, c=c, got=got, most=most, why=why)
        got, most = run.bytes_between[0][c], WORD * n if c in came else 0
        why = "It is to learn who is lost, and nothing else." if c in came else "Nobody is there to take it."
        text = "{about}: the server sent {got:bytes} to client {c}, and {most:bytes} are enough. {why}"
        student.expect(got <= most, text, about=about, c=c, got=got, most=most, why=why)
        among = sum(run.bytes_between[c][1:])
        student.expect(among == 0, "{about}: client {c} sent {got:bytes} to other clients. It talks to the server "
                       "only.", about=about, c=c, got=among)  # fmt: skip
