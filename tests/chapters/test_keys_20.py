"""Keys of chapter 20: slips are told apart, the sources' numbers come out, counts agree with labkit.cost and with what
can be counted one by one; and what the explanation asks for is what real runs do."""

from __future__ import annotations

import itertools
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from slices import few
from slips import every_draw, letters_have_reasons, tell_apart

from labkit import Kill, cost
from labkit.chapters.c20_nonuniform_tensor_parallelism import checks as own
from labkit.cost.simulators.placed_failures import place_failures
from labkit.grading.answers import find_key
from labkit.models import GPT
from labkit.resilience.ntp import NtpConfig, NtpFailed, Replicas, naive_messages, run_ntp, shard_map

CHAPTER = "20_nonuniform_tensor_parallelism"
IDLE = every_draw(width=[16, 32, 64], failed=[96, 160, 256], spare=[4, 6, 8])
CUTS = every_draw(wide=[16, 28, 32], lost=[3, 5, 6], billions=[70, 175, 480])
HEADS = every_draw(width=[28, 29, 30], heads=[128, 192, 256], kv=[32, 64], attention=[30, 35, 40])
PACKED = every_draw(one=[9, 10, 11], two=[2, 3, 4], gpus=[16, 32])
RUNS = every_draw(lost=[0, 1, 2, 3, 4, 5], step=[2, 3, 4], heads=[6, 9, 12], batch=[12, 14, 16])
KEYS = {
    **dict.fromkeys(("idle_by_chance", "idle_by_nodes", "idle_at_least", "pays_from"), IDLE),
    **dict.fromkeys(("pairs_of_a_plain_cut", "smallest_part", "over_the_slow_link", "from_an_extra_rank",
                     "fast_over_slow"), CUTS),
    **dict.fromkeys(("most_heads", "most_heads_with_groups", "samples_in_step", "speed_for_all",
                     "more_than_before"), HEADS),
    **dict.fromkeys(("lost_in_place", "lost_if_packed", "idle_and_healthy", "spares_to_drop", "spares_to_narrow"),
                    PACKED),
    **dict.fromkeys(("weight_while_narrow", "bytes_that_crossed"), RUNS),
}  # fmt: skip


def key(name, **given):
    return find_key(CHAPTER, name, **given)


def wrong(name, numbers, answers):
    """Typical wrong answers are outside of the tolerance for every combination of numbers."""
    for answer in answers:
        assert not key(name, **numbers).mark(answer).right, (name, numbers, answer)


@pytest.mark.parametrize("name", KEYS)
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    tell_apart(key(name, **numbers) for numbers in KEYS[name])


@pytest.mark.parametrize(
    "name, right, letters",
    [
        ("where_the_rule_breaks", "b", "abcd"),
        ("narrowest_link", "c", "abcd"),
        ("why_not_the_same_power", "b", "abcd"),
        ("when_no_more_is_lost", "c", "abcd"),
        ("what_changes_the_loss", "cd", "abcde"),
    ],
)
def test_letters_have_a_reason_each(name, right, letters):
    letters_have_reasons(key(name), right, letters)


# What a failure idles -------------------------------------------------------------------------------------------------


def test_idle_gpus_are_those_of_the_exact_law_and_of_placements_by_chance():
    for given in IDLE:
        width, failed, spare = given.values()
        lost = 32_768 * (1 - cost.group_availability_of(32_768, failed, width))
        assert key("idle_by_chance", **given).mark(lost - failed).right
        assert (
            key("idle_by_chance", **given)
            .mark(32_768 * (1 - cost.group_availability(failed / 32_768, width)) - failed)
            .right
        )
        nodes = 32_768 * (1 - cost.group_availability_of(32_768 // 4, failed // 4, width // 4))
        assert key("idle_by_nodes", **given).mark(nodes - failed).right
        wrong("idle_by_chance", given, [lost, failed * width, failed * (width - 1), nodes - failed])
        wrong("idle_by_nodes", given, [nodes, lost - failed, failed // 4 * width, failed // 4 * (width - 4)])
        share = key("pays_from", **given).answer / 100
        assert 1 - cost.group_availability(share, width + spare) == pytest.approx(spare / (width + spare))
        wrong("pays_from", given, [100 * spare / (width + spare) ** 2, 100 * spare / (width + spare) / width, share])
    placed = place_failures(96, 32_768, 64, samples=400, seed=1)
    idle = ((placed > 0) * (64 - placed)).sum(-1).mean()
    assert idle == pytest.approx(key("idle_by_chance", width=64, failed=96, spare=4).answer, rel=0.01)


def test_failures_that_lie_closely_idle_what_is_left_of_one_group():
    for given in IDLE:
        hit = {gpu // given["width"] for gpu in range(given["failed"])}
        assert key("idle_at_least", **given).answer == len(hit) * given["width"] - given["failed"]


# A plain cut and the map ----------------------------------------------------------------------------------------------


def test_two_cuts_are_those_of_real_tables():
    for given in CUTS:
        wide, lost, billions = given.values()
        narrow = wide - lost
        columns = 2 * math.lcm(wide, narrow)
        table = naive_messages(columns, wide, narrow)
        parts = [n for row in table for n in row if n]
        mapped = shard_map(columns, wide, narrow)
        assert len(parts) == key("pairs_of_a_plain_cut", **given).answer
        (message,) = {len(stretch) for stretch in mapped.sync}
        assert message / min(parts) == key("smallest_part", **given).answer
        bytes_of_a_column = 2e9 * billions / columns
        assert key("over_the_slow_link", **given).answer == pytest.approx(message * bytes_of_a_column / 1e9)
        plain_wide, plain_narrow = columns // wide, max(map(sum, zip(*table, strict=True)))
        assert plain_narrow == message > plain_wide  # the links of the narrow replica carry as much with both cuts
        sent = [sum(row) for row in mapped.counts]
        got = [sum(column) for column in zip(*mapped.counts, strict=True)]
        assert max(sent) == sent[-1] > max(got)  # an extra rank carries most
        assert key("from_an_extra_rank", **given).answer == pytest.approx(sent[-1] * bytes_of_a_column / 1e9)
        fast = key("fast_over_slow", **given).answer
        assert sent[-1] / fast == pytest.approx(message / 10)
        wrong("pairs_of_a_plain_cut", given, [2 * narrow, wide + narrow, narrow, wide * narrow])
        wrong("smallest_part", given, [narrow, wide * narrow, wide / lost])
        wrong("over_the_slow_link", given, [2 * billions / wide, billions / narrow, 2 * billions])
        wrong("from_an_extra_rank", given, [2 * billions / narrow, max(got) * bytes_of_a_column / 1e9])
        wrong("fast_over_slow", given, [10, 10 * wide / narrow, 10 * lost / wide])
    assert key("pairs_of_a_plain_cut", wide=32, lost=2, billions=1).answer == 60  # the article's
    assert key("smallest_part", wide=32, lost=2, billions=1).answer == 400 / 25


# Whole heads, whole samples -------------------------------------------------------------------------------------------


def test_heads_samples_and_power_agree_with_the_cost_of_labkit():
    for given in HEADS:
        width, heads, kv, attention = given.values()
        most = max(len(mine) for mine in shard_map(heads, 32, width).sync)
        groups = max(len(mine) for mine in shard_map(kv, 32, width).sync)
        assert most == key("most_heads", **given).answer
        assert groups * heads // kv == key("most_heads_with_groups", **given).answer > most
        work = [(heads, attention / 100), (32 * 27 * 28 * 29 * 30, 1 - attention / 100)]
        speed = cost.narrow_speed(width, 32, work)
        assert key("speed_for_all", **given).answer == pytest.approx(1 / speed, rel=1e-4)
        assert key("samples_in_step", **given).answer == math.floor(64 * speed)
        assert abs(64 * speed - round(64 * speed)) > 1e-3  # far from an edge
        only = [cost.narrow_speed(width, 32), cost.narrow_speed(width, 32, [(heads, 1.0)])]
        wrong("samples_in_step", given, [math.floor(64 * one) for one in only] + [64 * speed])
        wrong("speed_for_all", given, [1 / one for one in only] + [speed])
        boost = cost.PowerBoost()
        more = 100 * (boost.domain_power(width, 32) - 1)
        assert key("more_than_before", **given).answer == pytest.approx(more, abs=1e-6)
        wrong(
            "more_than_before", given, [0, more + 100, 100 * (boost.power_for(32 / width) - 1), 100 * (32 / width - 1)]
        )
    of_the_paper = {"width": 30, "heads": 128, "kv": 32, "attention": 30}
    assert key("more_than_before", **of_the_paper).mark("2.7 %").right  # the domain's 1.027
    assert key("most_heads", **of_the_paper).answer == 5


# Packed or not --------------------------------------------------------------------------------------------------------


def test_packing_and_spares_are_those_of_a_simulated_cluster():
    for given in PACKED:
        one, two, gpus = given.values()
        cluster = cost.Cluster(128, gpus, 8, (gpus, gpus - 1, gpus - 2), samples=gpus)
        fell = [0] * 128
        for replica, failed in enumerate([2] * two + [1] * one):
            fell[8 * replica + 3] = failed
        assert one + two <= 16 and key("lost_in_place", **given).mark(100 * cluster.loss(fell, packed=False)).right
        use = cluster.use(fell)
        assert key("lost_if_packed", **given).mark(100 * use.loss).right
        assert key("idle_and_healthy", **given).answer == use.idle
        assert use.loss * cluster.gpus == use.idle + sum(fell)  # as the third hint says
        for name, method in (("spares_to_drop", "dp-drop"), ("spares_to_narrow", "ntp")):
            least = next(
                n for n in itertools.count() if cluster.use(fell + [0] * n, method, grow=True).trained >= cluster.batch
            )
            assert key(name, **given).answer == least, (name, given)
        share = 100 * sum(fell) / cluster.gpus
        wrong("lost_in_place", given, [share, 100 * (one + two) / 16, 100 * (one + two) / 16 / gpus])
        wrong("lost_if_packed", given, [share, 100 * 2 / 16, 100 * 2 / 16 / gpus, 100 * 4 / 16 / gpus])
        wrong("idle_and_healthy", given, [0, 16 - one - two, use.idle + sum(fell)])
        wrong("spares_to_drop", given, [2, 8, 16])
        wrong("spares_to_narrow", given, [0, 1, 16, one + two])


# The explanation ------------------------------------------------------------------------------------------------------


def test_shards_on_paper_are_those_of_the_shard_map():
    for lost in range(6):
        home = Replicas.of(3, 3)
        left = home.only(rank for rank in range(6) if rank != lost)
        whole, narrow = own.ranks_of(lost)
        assert sorted([tuple(whole), tuple(narrow)]) == sorted(left.members)
        for heads in (6, 9, 12):
            for count, _ in own.sizes_of(heads):
                for replicas, shards in ((home, own.shards_before), (left, partial(own.shards_after, lost))):
                    for rank in replicas.ranks:
                        replica, position = replicas.place(rank)
                        mine = replicas.map_of(replica, count).compute[position]
                        assert set(mine) == shards(rank, count), (lost, rank, count)
        for batch in (12, 14, 16):
            shares = dict(zip(left.members, left.shares(batch), strict=True))
            assert own.examples_of(lost, batch) == (shares[tuple(whole)], shares[tuple(narrow)])


def test_the_answers_of_the_explanation_and_wrong_ones():
    for given in (one for one in RUNS if one["step"] == 3):
        lost, _, heads, batch = given.values()
        whole, narrow = own.ranks_of(lost)
        extra = key("heads_of_the_extra", **given)
        right = shard_map(heads, 3, 2).compute[2]
        assert extra.mark(right).right and extra.mark(tuple(right)).right
        plain = list(range(heads - heads // 3, heads))
        assert not extra.mark(plain).right and "two stretches" in extra.mark(plain).why
        assert not extra.mark(right[:-1]).right
        assert key("never_with_the_extra", **given).mark(narrow).right
        assert not key("never_with_the_extra", **given).mark([narrow[0], whole[0]]).right
        assert not key("never_with_the_extra", **given).mark([3 * (lost < 3), 3 * (lost < 3) + 1, *narrow]).right
        assert key("never_with_the_first", **given).mark(narrow[:1]).right
        assert not key("never_with_the_first", **given).mark(narrow[1:]).right
        shares = Replicas((tuple(whole), tuple(narrow))).shares(batch)
        assert key("weight_while_narrow", **given).mark(shares[1] / batch).right
        wrong("weight_while_narrow", given, [1 / 2, 2 / 5, shares[0] / batch, shares[1] / shares[0]])
        moved = own.state_moved(lost, heads)
        crossed = {a: b for a, b in moved if a // 3 != b // 3}
        assert set(crossed) == {(lost + 3) % 6}  # the rank with the same position, and no other
        wrong("bytes_that_crossed", given, [sum(moved.values()), key("bytes_that_crossed", **given).answer / 3])


@pytest.mark.parametrize("heads", [6, 9, 12])
def test_the_shards_of_the_model_are_all_that_is_cut(heads):
    whole = ("positions", "norm", "attention.out.bias", "feed_forward.down.bias")
    model = GPT(own.own_model(heads), 0)
    cut = sum(p.numel() for name, p in model.named_parameters() if not any(part in name for part in whole))
    assert sum(count * numel for count, numel in own.sizes_of(heads)) == cut
    crossed = key("bytes_that_crossed", lost=0, step=2, heads=heads, batch=12).answer
    assert crossed == pytest.approx(cut / 3 * 24, rel=0.01)  # a third, with weights and two moments in float64


def examples(numbers):
    return (numbers[:, None] * 13 + torch.arange(own.CONTEXT + 1)) * 7 % own.IDS


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3, eps=1e-5)


def job(heads=6, batch=12, **options):
    return NtpConfig(own.own_model(heads), examples, adamw, (3, 3), batch, dtype=torch.float64, **options)


@pytest.mark.ranks
@pytest.mark.parametrize("lost, heads", few([(0, 9), (5, 12)]))
def test_a_real_run_moves_what_the_paper_says(lost, heads):
    run = run_ntp(job(heads), 4, faults=[Kill(lost, at="backward", nth=3)]).require()
    assert own.moved_while_arranging(run) == own.state_moved(lost, heads)
    assert [a.step for a in run.attempts if a.loss is None] == [2]


@pytest.mark.ranks
@pytest.mark.parametrize("first, second, ends", few([(3, 0, True), (3, 2, False), (5, 2, True)], 2))
def test_the_pairs_that_a_real_run_cannot_lose_are_those_of_the_key(first, second, ends):
    """Rank 1 is lost, and two steps later two others: 3 is the first of the whole replica, and 5 the last."""
    assert ends == (second in own.ends_with(1, first, 6)) == (first in own.ends_with(1, second, 6))
    run = run_ntp(job(), 4, faults=[Kill(1, step=1), Kill(first, step=2), Kill(second, step=2)])
    if ends:
        with pytest.raises(NtpFailed, match="on no rank any more"):
            run.require()
    else:
        assert len(run.require().losses) == 4


def test_an_arrangement_is_told_by_its_span_and_step():
    def message(src, start, collective=-1):
        return SimpleNamespace(src=src, dst=1, nbytes=8, start=start, collective=collective)

    spans = [SimpleNamespace(rank=0, step=0, start=0.0, end=1.0), SimpleNamespace(rank=0, step=2, start=5.0, end=6.0)]
    sends = [
        message(0, 0.5),
        message(0, 0.6),
        message(0, 5.5),
        message(0, 5.6, collective=3),
        message(0, 7.0),
        message(2, 5.5),
    ]
    trace = SimpleNamespace(spans=lambda name: spans if name == "arrange" else [], sends=sends)
    attempts = [SimpleNamespace(step=s, loss=loss) for s, loss in ((0, 1.0), (1, 1.0), (2, None), (2, 1.0))]
    run = SimpleNamespace(attempts=attempts, run=SimpleNamespace(trace=trace))
    assert own.moved_while_arranging(run) == {(0, 1): 8}
