"""A rollout: the ranks of a group share the prompts of a training step, and a rank that fails holds nobody up.

Rank 0 has the prompts, deals them out, and generates a share itself. Whatever did not come back within the deadline it
deals out again among the ranks that are left, at last to itself alone. A sequence's tokens follow from the seed, its id
and positions, so the result is the same whoever generated it, and whether or not a rank failed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from labkit.align.rollout.batching import generate
from labkit.align.rollout.parcels import (
    REFUSED,
    RESULT,
    SAMPLES,
    SHARE,
    Parcel,
    pack_prompts,
    pack_samples,
    reason,
    receive,
    refused,
    unpack_prompts,
    unpack_samples,
)
from labkit.align.rollout.sampling import Sampling
from labkit.align.rollout.sequences import Prompts, Sample
from labkit.models.gpt import GPT
from labkit.optim.synchrony.errands import Errands
from labkit.parallel.refusals.same_model import checksum
from labkit.wire.errors import PeerLost, RefusedError
from labkit.wire.group import Group

LEADER = 0
LOST = ("", "died", "never answered", "came too late")  # what becomes of a rank


@dataclass(frozen=True)
class Rollout:
    """samples: by id, in the order of the prompts. made_by: the rank that generated each. lost: why a rank is gone.

    All ranks that are not lost get the same.
    """

    samples: dict[int, Sample]
    made_by: dict[int, int]
    lost: dict[int, str]


def rollout(
    prompts: Prompts, model: GPT, group: Group, how: Sampling, slots: int = 8, deadline: float = math.inf,
    lost: Mapping[int, str] | None = None,
) -> Rollout:  # fmt: skip
    """Go on from each prompt (see `generate`). Every rank calls it, with the same weights; the prompts are rank 0's.

    deadline: seconds that the others may take after rank 0 is through with its own share. A rank that takes longer is
    lost, and so is one that dies (with on_failure="continue", and not over NCCL). lost: what an earlier rollout in
    this group has lost; these ranks are not asked again (rank 0's argument counts). A rank that came too late gets
    nothing more, and raises PeerLost when rank 0 leaves the group or ends. If rank 0 dies, all ranks raise PeerLost.

    Raises RefusedError, on all ranks with the same words, if a rank has other weights or another policy than rank 0,
    and for what `generate` refuses. Rank 0 sends each other rank its prompts, gets its samples, and sends it all
    samples, with one number for each rank and each sample (see `parcels.py` for the bytes).
    """
    if not deadline > 0:
        raise RefusedError(f"deadline={deadline}: seconds above 0; a rank needs some time to answer")
    if group.rank != LEADER:
        return _serve(model, group, how, slots)
    return _lead(prompts, model, group, how, slots, deadline, dict(lost or {}))


def _lead(
    prompts: Prompts, model: GPT, group: Group, how: Sampling, slots: int, deadline: float, lost: dict[int, str]
) -> Rollout:
    """Deal out until everything is there, then tell everybody."""
    errands, samples, made_by = Errands(group), dict[int, Sample](), dict[int, int]()
    same, result = fingerprint(model, how), None
    while result is None:
        missing = {i: prompt for i, prompt in prompts.items() if i not in samples}
        ranks = [rank for rank in range(group.size) if rank not in lost]
        shares = {rank: dict([*missing.items()][n :: len(ranks)]) for n, rank in enumerate(ranks)}
        asked = [rank for rank in ranks[1:] if shares[rank]]
        for rank in asked:
            errands.ask(rank, _ask, Parcel(SHARE, same + pack_prompts(shares[rank])))
        answers = {LEADER: _answer(shares[LEADER], model, group, how, slots)}
        answers |= errands.gather(asked, deadline)
        lost |= {rank: errands.lost.get(rank, LOST[3]) for rank in asked if rank not in answers}
        for rank, answer in answers.items():
            if answer.word == REFUSED:
                result = result or answer
            else:
                came = unpack_samples(answer.integers, answer.floats)
                samples |= came
                made_by |= dict.fromkeys(came, rank)
        if result is None and len(samples) == len(prompts):
            result = _result(Rollout({i: samples[i] for i in prompts}, {i: made_by[i] for i in prompts}, lost), group)
    there = [rank for rank in range(1, group.size) if rank not in lost]
    for rank in there:
        errands.ask(rank, _tell, result)
    errands.gather(there, deadline)
    return _read(result, group)


def _serve(model: GPT, group: Group, how: Sampling, slots: int) -> Rollout:
    """Generate what rank 0 asks for, until it has everything."""
    same = fingerprint(model, how)
    try:
        while (parcel := receive(group, LEADER)).word == SHARE:
            theirs, prompts = parcel.integers[:2], unpack_prompts(parcel.integers[2:])
            if theirs == same:
                answer = _answer(prompts, model, group, how, slots)
            else:
                what = "other weights" if theirs[0] != same[0] else "another policy"
                answer = refused(f"rank {group.rank} has {what} than rank 0: its tokens would not be those of rank 0")
            answer.send(group, LEADER)
    except PeerLost as why:
        raise PeerLost(
            f"rank {group.rank}: rank 0, which has the prompts, is gone, or goes on without this rank", LEADER
        ) from why
    return _read(parcel, group)


def _answer(share: Prompts, model: GPT, group: Group, how: Sampling, slots: int) -> Parcel:
    """The samples of a share, or why there are none."""
    with group.span("generate", sequences=len(share)):
        try:
            return Parcel(SAMPLES, *pack_samples(generate(model, share, how, slots).samples))
        except RefusedError as why:
            return refused(str(why))


def _ask(group: Group, rank: int, share: Parcel) -> Parcel:
    share.send(group, rank)
    return receive(group, rank)


def _tell(group: Group, rank: int, result: Parcel) -> None:
    result.send(group, rank)


def _result(made: Rollout, group: Group) -> Parcel:
    integers, floats = pack_samples(made.samples)
    lost = [LOST.index(made.lost.get(rank, "")) for rank in range(group.size)]
    return Parcel(RESULT, [*lost, len(made.samples), *made.made_by.values(), *integers], floats)


def _read(result: Parcel, group: Group) -> Rollout:
    """The rollout that a parcel has, or the refusal."""
    if result.word == REFUSED:
        raise RefusedError(reason(result))
    lost, (count, *rest) = result.integers[: group.size], result.integers[group.size :]
    samples = unpack_samples(rest[count:], result.floats)
    return Rollout(
        samples,
        dict(zip(samples, rest[:count], strict=True)),
        {rank: LOST[why] for rank, why in enumerate(lost) if why},
    )


def fingerprint(model: GPT, how: Sampling) -> list[int]:
    """Two numbers: one of the model and its weights, to the bit, one of the policy."""
    words = repr((model.config, [checksum(p) for p in model.parameters()])), repr(how)
    return [int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") for text in words]
