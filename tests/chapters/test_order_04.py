"""Gradients that do not come on a rank, or in another order: what chapter 4 says of it is so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import labkit
import labkit.collectives
import labkit.parallel
from labkit.chapters.c04_data_parallelism import breaking, order
from labkit.chapters.c04_data_parallelism.machine import (
    one_step,
    slow_gpt,
    text_loss,
)
from labkit.chapters.c04_data_parallelism.you_write import into_buckets, overlapped
from labkit.models import flat_gradient
from labkit.pocket import data_parallel


@pytest.mark.ranks
def test_a_skipped_layer_in_overlapped_is_told_if_one_rank_skips_it_and_passes_in_silence_if_all_do() -> None:
    def step(group, who):  # type: ignore[no-untyped-def]
        way = breaking.UNUSED if group.rank in who else breaking.AGREED
        model = breaking.small_gpt(way, 64, 0)
        overlapped(text_loss(model, group), into_buckets(list(model.parameters()), 126_000), group)
        given = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        return torch.cat([g.flatten() for g in given])

    with pytest.raises(labkit.RankFailed, match="Mismatch"):
        labkit.launch(step, 3, [1])
    alone, other, _ = labkit.launch(step, 3, [0, 1, 2]).results
    assert not torch.equal(alone, other)
    alone, other, _ = labkit.launch(step, 3, []).results
    assert torch.equal(alone, other)


@pytest.mark.ranks
def test_where_a_rank_has_skipped_a_layer_buckets_of_one_size_are_mixed_before_the_error(tmp_path: Path) -> None:
    def step(group):  # type: ignore[no-untyped-def]
        model = breaking.small_gpt(breaking.UNUSED if group.rank == 1 else breaking.AGREED, 64, 0)
        parameters = list(model.parameters())
        buckets = into_buckets(parameters, sum(p.nbytes for p in parameters) // 5)
        place = {p: n for n, bucket in enumerate(buckets) for p in bucket}
        missing, log = [len(bucket) for bucket in buckets], []

        def arrived(p):  # type: ignore[no-untyped-def]
            n = place[p]
            missing[n] -= 1
            if missing[n] == 0:
                own = torch.cat([q.grad.flatten() for q in buckets[n]])
                averaged = labkit.collectives.all_reduce(own.clone(), group, op="avg", algorithm="ring")
                log.append((n, own, averaged))
                torch.save(log, tmp_path / f"{group.rank}.pt")

        for p in parameters:
            p.register_post_accumulate_grad_hook(arrived)
        text_loss(model, group).backward()

    with pytest.raises(labkit.RankFailed, match="Mismatch"):
        labkit.launch(step, 2, transport="local")
    first, skips = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert [n for n, _, _ in first[:3]] == [0, 1, 2] and [n for n, _, _ in skips[:3]] == [0, 2, 3]
    for (_, own, averaged), (_, other, same) in zip(first[:3], skips[:3], strict=True):
        assert torch.equal(averaged, same) and torch.allclose(averaged, (own + other) / 2)


@pytest.mark.ranks
def test_of_two_buckets_in_another_order_those_of_one_size_are_mixed_in_silence_and_a_wrapper_that_waits_is_right() -> (
    None
):
    def step(group, late, wrap):  # type: ignore[no-untyped-def]
        model = slow_gpt(group)
        parameters = list(model.parameters())
        nbytes = sum(p.nbytes for p in parameters) // 5
        buckets = into_buckets(parameters, nbytes)
        if late is not None and group.rank == 1:
            order.arrive_late(buckets[late], after=buckets[late + 1])
        with one_step(group):
            if wrap:
                text_loss(data_parallel.DataParallel(model, group, nbytes), group).backward()
            else:
                overlapped(text_loss(model, group), buckets, group)
        return flat_gradient(model)

    def run(*how):  # type: ignore[no-untyped-def]
        return labkit.launch(step, 2, *how, clock="virtual", transport="local", on_failure="return")

    right = run(None, False)
    runs = [run(late, False) for late in (0, 3)]
    silent, loud = map(order.outcome, runs)
    assert not isinstance(silent, str) and min(order.distances(silent, right.results[0])) > 0.05
    assert not torch.equal(silent[0], silent[1]), "the replicas will drift apart"
    assert isinstance(loud, str) and loud.startswith("Mismatch: rank 1 called all_reduce on float32[20608]")
    assert "buckets 0 and 1 (199,936 and 199,936 bytes): no error. Rank 0's" in order.told(silent, 0, right)
    assert order.told(loud, 3, right) == (
        "buckets 3 and 4 (199,936 and 82,432 bytes): an error in the fourth all-reduce of the step, because rank 1 "
        "sent 82,432 bytes, and rank 0 sent 199,936."
    )
    of_seven = SimpleNamespace(world_size=7, spans=right.trace.spans, collectives=right.trace.collectives)
    assert order._in_bytes(loud, of_seven).endswith("rank 0 sent 199,936; the other ranks were not there yet.")
    everybody = loud.replace("but rank 0 called", "but ranks 0 and 2 to 6 called")
    assert order._in_bytes(everybody, of_seven).endswith("and ranks 0 and 2 to 6 sent 199,936.")
    said = order.outcomes({0: silent, 3: loud}, right).text
    assert (
        "in the other order" in said
        and "In the second run buckets 3 and 4 have different sizes." in said
        and said.count("- buckets") == 2
    )
    said = order.outcomes({0: loud, 3: loud}, right).text
    assert "the first two buckets have different sizes." in said and "buckets 3 and 4 differ as well" in said
    assert "Both gradients are those of stage C." in order.outcomes({0: right.results, 3: right.results}, right).text

    came = {0: right.results, 3: right.results}
    assert {row["what happens"] for row in order.pairs(came, right).rows} == {"the same"}
    assert order.pairs(came, right).sentence.startswith("Bucket 0 late on rank 1: each bucket is added to the same")
    assert "- buckets 3 and 4 (199,936 and 82,432 bytes): an error" in order.show(runs, right).text
    drawn = order.pairs({0: silent, 3: loud}, right)
    happens = [row["what happens"] for row in drawn.rows]
    assert happens == ["mixed", "mixed", "the same", "the same", "the same", *["the same"] * 3, "error", "never"]
    assert "Bucket 0 late on rank 1: bucket 0 of rank 0 is added to bucket 1 of rank 1 and" in drawn.sentence
    assert drawn.sentence.endswith("bucket 3 of rank 0 cannot be added to bucket 4 of rank 1, which has another size.")
    assert order.told("rank 1 was killed", 3, right).endswith("bytes): rank 1 was killed")
    for late in (0, 3):
        gradients = order.outcome(run(late, True))
        assert not isinstance(gradients, str) and max(order.distances(gradients, right.results[0])) < 1e-6


def test_independent_parts_that_are_computed_in_another_order_have_their_gradients_in_another_order() -> None:
    def arrivals(*names: str) -> list[str]:
        parts = {name: torch.nn.Linear(2, 2, bias=False) for name in ("left", "right")}
        come: list[str] = []
        for name, part in parts.items():
            part.weight.register_post_accumulate_grad_hook(lambda p, name=name: come.append(name))
        results = {name: parts[name](torch.ones(2)).sum() for name in names}
        (results["left"] + results["right"]).backward()
        return come

    assert arrivals("left", "right") == ["right", "left"] and arrivals("right", "left") == ["left", "right"]
