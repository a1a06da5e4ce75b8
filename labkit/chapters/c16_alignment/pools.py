"""What the checks of chapter 16 give to its last two programs: policies that write, models that read, and messages
between ranks; and how the order of these messages is judged.

What is written here follows from the prompt alone, so that it is the same whoever writes it. How long it takes is
counted in steps of decoding: seconds would be others in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit import collectives, cost
from labkit.chapters.c16_alignment.checks import Draw, answers, ranks
from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Evidence, Slips, Student
from labkit.wire import Group
from labkit.wire.handle import MessageHandle

SYMBOLS = 8

# Messages -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Posted:
    """A message that is on its way."""

    parts: tuple[MessageHandle, ...]

    def wait(self) -> None:
        """Return when the other rank has taken it."""
        for part in self.parts:
            part.wait()


def post(tensors: Sequence[Tensor], group: Group, to: int) -> Posted:
    """Begin to send 1-d tensors of whole numbers: 16 bytes, and 8 for each tensor and each number."""
    body = torch.tensor([len(x) for x in tensors] + [int(i) for x in tensors for i in x], dtype=torch.int64)
    parts = [torch.tensor([len(tensors), len(body)])] + [body] * bool(tensors)
    return Posted(tuple(group.isend(part, to) for part in parts))


def take(group: Group, source: int) -> list[Tensor]:
    """Wait for the next message of another rank; an empty list if nothing was in it."""
    count, length = group.recv(torch.empty(2, dtype=torch.int64), source).tolist()
    if not count:
        return []
    body = group.recv(torch.empty(length, dtype=torch.int64), source)
    return list(body[count:].split(body[:count].tolist()))


def posted_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of a message."""
    return 16 + 8 * sum(1 + len(x) for x in tensors)


# A pool that is dealt to ----------------------------------------------------------------------------------------------

LONG = 40
DEALING_SLIPS = {
    "turns": "the chunks were dealt out in turn. A rank with a short chunk then waits for one with a long one.",
    "prompts": "the next chunk went to the rank that had read the fewest tokens of prompts, and not to the one that is "
    "free first.",
    "tokens": "a chunk is written all at once, so it takes as many steps as its longest response, and not as many as "
    "it has tokens.",
    "last": "only the steps of a rank's last chunk were looked at. Its clock has those of all its chunks.",
    "latest": "the next chunk went to the rank that is free last.",
    "high": "two ranks were free at the same time, and the one with the higher number got the chunk.",
}


def write(prompts: Sequence[Tensor]) -> list[Tensor]:
    """A tensor with the number of decoding steps, and then a response to each prompt, (r,) int64. All are written at
    once, so that a chunk takes as many steps as its longest response."""
    found = []
    for prompt in prompts:
        draw = torch.Generator().manual_seed(number_from(*prompt.tolist()) % 2**31)
        long = int(torch.randint(0, 4, (), generator=draw)) == 0
        length = int(torch.randint(1, LONG if long else 6, (), generator=draw))
        found.append(torch.randint(SYMBOLS, (length,), generator=draw))
    return [torch.tensor([max(map(len, found))]), *found]


def asked(draw: Draw, count: int) -> list[Tensor]:
    """Prompts of 2 to 5 tokens, all different."""
    return [torch.cat([torch.tensor([i]), draw(1 + i % 4).long()]) for i in range(count)]


def on_rank_0(prompts: list[Tensor], n: int) -> list[list[Tensor]]:
    """Only rank 0 has the prompts."""
    return [prompts, *([] for _ in range(n - 1))]


def expect_responses(student: Student, run: Evidence, prompts: Sequence[Tensor], chunk: int) -> None:
    """Rank 0 has all responses in the order of the prompts, and the rank that is right wrote each."""
    n, result = len(run.results), run.results[0]
    fine = isinstance(result, list) and [type(x) for x in result] == [list, Tensor]
    text = "{who}: rank 0 returned no list of two: the list of all responses, and a tensor with the rank that wrote "\
           "each."  # fmt: skip
    student.expect(fine, text, who=ranks(n))
    got, by = result
    right = [write([prompt])[1] for prompt in prompts]
    student.expect(len(got) == len(right), "{who} rank 0 has {got} responses, and there are {want} prompts.",
                   who=ranks(n), got=len(got), want=len(right))  # fmt: skip
    alike = [isinstance(a, Tensor) and torch.equal(a, b) for a, b in zip(got, right, strict=True)]
    off = [i for i, fine in enumerate(alike) if not fine]
    shuffled = sorted(map(str, got)) == sorted(map(str, right))
    why = "All responses are there, but not in the order of the prompts." if shuffled else ""
    text = "{who} what rank 0 has as response {i} is not what was written to prompt {i}. {why}"
    student.expect(not off, text, who=ranks(n), i=off[0] if off else 0, why=why)
    told = list(prompts)
    who = answers.dealt(told, n, chunk)
    slips: Slips = {f"{ranks(n)}: {why}": [answers.dealt(told, n, chunk, mistake)] for mistake, why in
                    DEALING_SLIPS.items()}  # fmt: skip
    student.expect_results(Evidence(results=[by]), [who], slips)


def chunks_of(prompts: Sequence[Tensor], chunk: int) -> list[list[Tensor]]:
    return [list(prompts[i : i + chunk]) for i in range(0, len(prompts), chunk)]


def expect_deal(student: Student, run: Evidence, prompts: Sequence[Tensor], chunk: int) -> None:
    """Chunks really went where they are said to have been written, each when its rank was free, and a last word."""
    n = len(run.results)
    who = answers.dealt(list(prompts), n, chunk)[::chunk].tolist()
    chunks = chunks_of(prompts, chunk)
    for rank in range(1, n):
        own = [c for c, to in zip(chunks, who, strict=True) if to == rank]
        due = sum(map(posted_bytes, own)) + posted_bytes([])
        text = "{who} rank 0 sent {got:bytes} to rank {rank}; its {count} chunks, one message each, and an empty "\
               "message at the end are {due:bytes}."  # fmt: skip
        got = run.bytes_between[0][rank]
        student.expect(got == due, text, who=ranks(n), got=got, rank=rank, count=len(own), due=due)
        back = sum(posted_bytes(write(c)) for c in own)
        text = "{who} rank {rank} sent {got:bytes} to rank 0; the answers to its {count} chunks are {due:bytes}."
        got = run.bytes_between[rank][0]
        student.expect(got == back, text, who=ranks(n), got=got, rank=rank, count=len(own), due=back)


def expect_one_at_a_time(student: Student, run: Evidence, prompts: Sequence[Tensor], chunk: int) -> None:
    """A rank got its next chunk only after its answer; and the first chunks went to all ranks at once."""
    n, order = len(run.results), run.order[0]
    for rank in range(1, n):
        sent = order.to(rank)[::2]  # a head and a body each; the last one is the empty message
        for number, message in enumerate(sent[1:-1]):
            text = "{who} rank 0 sent rank {rank} its chunk {next} before it had the answer to its chunk {number}. "\
                   "How could it know that this rank is free?"  # fmt: skip
            student.expect(order.had(message, rank, 2 * number), text, who=ranks(n), rank=rank, next=number + 1,
                           number=number)  # fmt: skip
    first = [order.to(rank)[0] for rank in range(1, n) if len(order.to(rank)) > 1]
    for rank, message in enumerate(first[1:], 2):  # what those further ahead wrote may be there already
        text = "{who} rank 0 waited for the answer of rank {before} before rank {rank} got its first chunk, so that "\
               "they wrote one after the other. At the beginning all are free."  # fmt: skip
        fine = not order.had(message, rank - 1, 0)
        student.expect(fine, text, who=ranks(n), before=rank - 1, rank=rank)


# Pools that read while others write -----------------------------------------------------------------------------------

REWARD_SLIPS = {
    "turned": "the penalty has the wrong sign: where the policy finds a token more probable than the reference, the "
    "reward is less.",
    "no beta": "the penalty is not multiplied by `beta`.",
    "no penalty": "there is no KL penalty in the rewards.",
    "everywhere": "every token has the reward of the response. Only the last one should.",
    "first": "the first token has the reward of the response, and not the last one.",
    "no score": "the reward of the reward model is missing.",
    "at the end": "the whole penalty is at the last token. Each token has its own.",
    "last alone": "the last token has the reward alone. It has its own penalty, too.",
}  # fmt: skip


def _logits(prompt: Tensor, tokens: Sequence[int], salt: int) -> Tensor:
    """Eight logits after these tokens."""
    draw = torch.Generator().manual_seed(number_from(salt, *prompt.tolist(), *tokens) % 2**31)
    return torch.randint(-8, 8, (SYMBOLS,), generator=draw) / 4


def length_of(prompt: Tensor) -> int:
    """Tokens of the response."""
    return 3 + number_from("length", *prompt.tolist()) % 5


def write_together(prompt: Tensor, policy: Group) -> tuple[Tensor, Tensor]:
    """The response of a policy that lies on all ranks of `policy`, (r,) int64, and its log-probabilities, (r,).

    Tensor parallelism: each rank has a part of the sum that makes the logits, so that every token needs an all-reduce.
    """
    tokens, logprobs = list[int](), list[Tensor]()
    for _ in range(length_of(prompt)):
        logits = _logits(prompt, tokens, 0) if policy.rank == 0 else torch.zeros(SYMBOLS)
        collectives.all_reduce(logits, policy, algorithm="ring")
        tokens.append(int(logits.argmax()))
        logprobs.append(torch.log_softmax(logits, 0)[tokens[-1]])
    return torch.tensor(tokens), torch.stack(logprobs)


def reference(prompt: Tensor, tokens: Tensor) -> Tensor:
    """The log-probabilities of a response by the reference model, (r,)."""
    told = tokens.tolist()
    rows = [torch.log_softmax(_logits(prompt, told[:i], 1), 0) for i in range(len(told))]
    return torch.stack([row[token] for row, token in zip(rows, told, strict=True)])


def reward(prompt: Tensor, tokens: Tensor) -> Tensor:
    """What the reward model gives to a response, (1,)."""
    return torch.tensor([number_from("reward", *prompt.tolist(), *tokens.tolist()) % 17 / 4 - 2])


def written(prompt: Tensor) -> tuple[Tensor, Tensor]:
    """What `write_together` gives, on one device."""
    tokens, logprobs = list[int](), list[Tensor]()
    for _ in range(length_of(prompt)):
        row = _logits(prompt, tokens, 0)
        tokens.append(int(row.argmax()))
        logprobs.append(torch.log_softmax(row, 0)[tokens[-1]])
    return torch.tensor(tokens), torch.stack(logprobs)


Pools = dict[str, list[int]]


def with_the_policy(prompts: list[Tensor], pools: Pools, n: int) -> list[list[Tensor]]:
    """Every rank of the policy has all prompts, and the others none."""
    return [prompts if rank in pools["policy"] else [] for rank in range(n)]


def expect_rewards(student: Student, run: Evidence, prompts: Sequence[Tensor], pools: Pools, beta: float) -> None:
    """Every rank of the policy has the token rewards of its responses."""
    n, told, policy = len(run.results), list(prompts), pools["policy"]
    for rank in policy:
        text = "{who}: rank {rank} returned no list of tensors: the token rewards of each response that it sent."
        result = run.results[rank]
        fine = isinstance(result, list) and all(isinstance(x, Tensor) for x in result)
        student.expect(fine, text, who=ranks(n), rank=rank)
        due = len(range(policy.index(rank), len(told), len(policy)))
        text = "{who}: rank {rank} returned the rewards of {got} responses; it sends {mine} of the {all}."
        student.expect(len(result) == due, text, who=ranks(n), rank=rank, got=len(result), mine=due, all=len(told))
    mine = Evidence(results=[run.results[rank] for rank in policy])
    slips: Slips = {f"{ranks(n)}: {why}": answers.rewarded(told, len(policy), beta, mistake) for mistake, why in
                    REWARD_SLIPS.items()}  # fmt: skip
    student.expect_results(mine, answers.rewarded(told, len(policy), beta), slips, within=1e-5)


def expect_mail(student: Student, run: Evidence, prompts: Sequence[Tensor], pools: Pools) -> None:
    """Between pools went what `labkit.cost.placement_bytes` has, to the byte."""
    n = len(run.results)
    placement = cost.Placement(tuple(pools["policy"]), tuple(pools["reference"]), tuple(pools["reward"]))
    sizes = [(len(prompt), length_of(prompt)) for prompt in prompts]
    due = cost.placement_bytes(placement, [cost.ChunkLoad(1, p + r, r, r) for p, r in sizes])
    for source in range(n):
        for to in range(n):
            if source in pools["policy"] and to in pools["policy"]:
                continue  # what the policy sends to itself, it sends for each token
            got, want = run.bytes_between[source][to], due[source][to]
            text = "{who} rank {source} sent {got:bytes} to rank {to}, in place of {want:bytes}. {why}"
            why = "A response goes once to each rank that reads it, even if that rank has both models." if got > want \
                else "Something did not travel there."  # fmt: skip
            student.expect(got == want, text, who=ranks(n), source=source, to=to, got=got, want=want, why=why)


def expect_stream(student: Student, run: Evidence, prompts: Sequence[Tensor], pools: Pools) -> None:
    """Each response left before the next one was there, and no answer was waited for meanwhile."""
    n, policy = len(run.results), pools["policy"]
    lengths = [length_of(prompt) for prompt in prompts]
    for place, rank in enumerate(policy):
        order = run.order[rank]
        text = "{who} rank {rank} took part in {got} all-reduces, and all responses together have {want} tokens. "\
               "Every rank of the policy writes every response, once."  # fmt: skip
        student.expect(len(order.calls) == sum(lengths), text, who=ranks(n), rank=rank, got=len(order.calls),
                       want=sum(lengths))  # fmt: skip
        seen = {peer: 0 for peer in (*pools["reference"], *pools["reward"])}  # messages to each
        heard = dict(seen)  # and from each
        for i in range(place, len(prompts), len(policy)):
            readers = {role: pools[role][i % len(pools[role])] for role in ("reference", "reward")}
            leaves = [order.to(to)[seen[to]] for to in sorted({*readers.values()}) if seen[to] < len(order.to(to))]
            answers_to_i = []
            for to in readers.values():
                taken = [m for m in order.taken if m.peer == to]
                answers_to_i += taken[heard[to] : heard[to] + 1]
                heard[to] += 1
            for to in {*readers.values()}:
                seen[to] += 2
            if i + 1 == len(prompts):
                continue
            following = order.calls[sum(lengths[: i + 1]) : sum(lengths[: i + 2])]
            late = [m.peer for m in leaves if m.at > following[-1].ended]
            text = "{who} rank {rank} sent response {i} to rank {peer} after response {next} was written. The other "\
                   "models could read it while the policy writes the next one."  # fmt: skip
            student.expect(not late, text, who=ranks(n), rank=rank, i=i, next=i + 1, peer=late[0] if late else 0)
            waited = [m.peer for m in answers_to_i if m.at < following[0].begun]
            text = "{who} rank {rank} had the answer of rank {peer} to response {i} before the policy went on with "\
                   "response {next}. So it waited for it, and wrote nothing meanwhile."  # fmt: skip
            student.expect(not waited, text, who=ranks(n), rank=rank, i=i, next=i + 1, peer=waited[0] if waited else 0)
