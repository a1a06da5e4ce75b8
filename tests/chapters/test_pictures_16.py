"""What chapter 16 shows: times that are those of the runs, budgets that are those of the cost functions, and the claims
that its pages make of recorded runs."""

import contextlib
import re
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import labkit
from labkit import book, cost
from labkit.align import group_advantages
from labkit.align.batching import first_fit_decreasing
from labkit.align.fleet import PPO, Asynchronous, Fleet, Placement, grpo_step, ppo_step
from labkit.align.task import CONFIG, Pair, Task, prompts
from labkit.chapters.c16_alignment import (
    asynchronous,
    budgets,
    decoding,
    drawings,
    fleets,
    learning,
    lengths,
    panels,
    resharding,
    timelines,
    you_write,
)
from labkit.chapters.c16_alignment.learning import Beginning, Seen
from labkit.data.runs import alignment
from labkit.models import GPT, ScalarGPT
from labkit.wire.errors import RefusedError

# 1 and 3: a step, and where the models are


def placed(where, size=8, longest=16):
    return labkit.launch(
        fleets.one_step, size, where, longest, clock="virtual", transport="local", network=fleets.NETWORK(size)
    )


@pytest.mark.ranks
@pytest.mark.parametrize("where", fleets.WHERE)
def test_a_step_is_drawn_as_it_went_and_the_simulator_agrees(where):
    run = placed(where)
    step = fleets.last_step(run)
    assert step.utilization == pytest.approx(step.simulated.utilization, rel=0.05)
    assert 0 < step.utilization < 1 and len(step.bars) == 8
    for row, busy in zip(step.bars, step.busy, strict=True):
        assert sum(b - a for name, a, b in row if name != "swap") == pytest.approx(busy)
        assert all(a[2] <= b[1] + 1e-12 for a, b in zip(row, row[1:], strict=False))
        assert all(0 <= begin < end <= step.seconds + 1e-12 for _, begin, end in row)
    assert any(name == "swap" for row in step.bars for name, *_ in row) == ("host" in where)
    assert (step.sent > 0) == ("pool" in where or "read" in where)
    said = timelines.placed_said(run)
    assert f"**{step.utilization:.0%}**" in said and ("sent each other" in said) == (step.sent > 0)
    figure = timelines.placed(run)
    swapped = sum(b - a for row in step.bars for name, a, b in row if name == "swap") / 8 / step.seconds
    assert len(figure.rows) == 8 and f"{1 - step.utilization - swapped:.0%}" in figure.sentence
    assert ("swaps" in figure.sentence) == (swapped > 0)
    least = min(range(8), key=lambda r: step.busy[r])
    assert f"{step.busy[least] / step.seconds:.0%} of the step" in said


@pytest.mark.ranks
def test_which_models_share_a_rank_decides_who_waits_and_what_a_device_holds():
    every, turns, equal, most, two = (fleets.last_step(run) for run in fleets.by_placement("local", 8, 16).values())
    assert every.utilization > turns.utilization > two.utilization > most.utilization > equal.utilization
    assert max(turns.device) < max(two.device) < max(every.device)
    assert every.seconds < turns.seconds < equal.seconds
    assert len({step.axis for step in (every, turns, equal, most, two)}) == 1 and every.axis > equal.seconds
    better = Placement((0, 1, 2, 3, 4, 5, 6, 7), (0, 1), (0, 1), (2, 3, 4, 5, 6, 7))  # what the page challenges to
    own = fleets.last_step(fleets.run_at(better, "local", 8))
    assert own.utilization > 0.65 and max(own.device) <= max(two.device)


@pytest.mark.ranks
def test_unequal_lengths_are_the_white_that_stays_when_all_four_are_everywhere():
    run = placed("all four on every rank", longest=fleets.LONGEST)
    step = fleets.last_step(run)
    assert 0.2 < 1 - step.utilization < 0.3 and 1 - fleets.evened(run.results) < 0.02
    equal = fleets.last_step(placed("a pool for each, same sizes", longest=fleets.LONGEST))
    assert 1 - equal.utilization == pytest.approx(2 / 3, abs=0.03)  # "two thirds of the picture are white"


def test_lengths_that_are_equal_stay_as_they_are():
    def response(i, n):
        return SimpleNamespace(sequence=i, tokens=(7,) * n, prompt=fleets.PROMPTS[i])

    alike = [fleets.Told(cost.ROLES, 0, tuple(response(i, 9) for i in fleets.PROMPTS if i % 8 == r)) for r in range(8)]
    plain = fleets.foretold(Placement.colocated(8), fleets.loads_of(alike)).utilization
    assert fleets.evened(alike) == plain
    one_long = [replace(one, samples=tuple(response(s.sequence, 24 if not s.sequence else 8) for s in one.samples))
                for one in alike]  # fmt: skip
    assert fleets.evened(one_long) == plain  # 15 of 8 tokens and one of 24: 9 on average


@pytest.mark.parametrize("size", [4, 8])
def test_every_placement_gives_every_rank_a_model(size):
    for where in fleets.WHERE:
        placement = fleets.places(where, size)
        assert placement.size == size and {r for role in cost.ROLES for r in placement.ranks(role)} == set(range(size))
        assert placement.critic
    assert fleets.WHERE["two that train, two that read"](size).policy[-1] < size - 1


def test_pieces_of_a_phase_are_one_bar_and_pauses_are_kept():
    row = [("a", 0.0, 1.0), ("a", 1.0, 2.0), ("b", 2.0, 3.0), ("b", 3.5, 4.0)]
    assert fleets._joined(row) == [("a", 0.0, 2.0), ("b", 2.0, 3.0), ("b", 3.5, 4.0)]


def test_several_placements_are_drawn_over_the_same_time(monkeypatch):
    def step(seconds):
        bars = [[("generate", 0.0, seconds / 2)], []]
        return fleets.Step(
            seconds, bars, [seconds / 2, 0], 7, [10, 20], cost.StepTimeline(seconds, [seconds / 2, 0]), seconds
        )

    monkeypatch.setattr(fleets, "last_step", step)
    player = timelines.beside({"short": 1.0, "long": 2.0})
    widths = [float(re.findall(r'<rect[^>]* width="([0-9.]+)" height="22"[^>]*stroke="#111"', svg)[0])
              for svg, _ in player.frames]  # fmt: skip
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)
    assert widths[1] == pytest.approx((book.drawing.figure.WIDTH - timelines.LEFT - 14) / 2, abs=0.2)
    assert [row[""] for row in player.still.rows] == ["short", "long"] and "25%" in player.frames[0][1]


def test_budgets_are_those_of_the_sources():
    assert budgets.total() == 1494e9 and budgets.gpus(budgets.total()) == 19
    assert budgets.total(critic=70e9) == 2406e9 and budgets.without_writing() == 1260e9
    assert budgets.cache() == pytest.approx(85.9e9, rel=1e-3) and budgets.cache(64) == pytest.approx(687.2e9, rel=1e-3)
    each = budgets.per_gpu()
    assert [*each.values()] == [35e9, 4.375e9, pytest.approx(2.684e9, rel=1e-3)]
    text = budgets.models().text(9)
    assert all(word in text for word in ("1,120 GB", "140 GB", "26 GB", "208 GB"))
    text = budgets.compared().text(9)
    assert all(word in text for word in ("1,494 GB", "1,260 GB", "39.4 GB", "2.68 GB", "40% to 55%"))
    whole = [0.6 * decoding.used(16) + 0.4 * mfu for mfu in budgets.MFU]
    assert f"{whole[0]:.0%} to {whole[1]:.0%}" in text


# 2: one token at a time


@pytest.mark.ranks
def test_a_cache_saves_passes_and_nothing_else():
    run = labkit.launch(decoding.written, 2, you_write.attend_next, 20, transport="local")
    for one in run.results:
        assert one.same == one.new == 20
        assert one.positions == (16 + 19, sum(range(16, 36)))
        c = decoding.CONFIG
        assert one.cache == cost.kv_cache_bytes(c.layers, c.groups, c.width // c.heads, 35, itemsize=4)
    said = decoding.passes(run).sentence
    assert f"{sum(range(16, 36)):,} positions" in said and "the same 20 of 20" in said


@pytest.mark.ranks
def test_a_wrong_attention_writes_another_text():
    def newest_only(q, k, v, cache):
        cache.keys, cache.values = torch.cat([cache.keys, k[None]]), torch.cat([cache.values, v[None]])
        return v.repeat_interleave(len(q) // len(k), 0)

    (one,) = labkit.launch(decoding.written, 1, newest_only, 20, transport="local").results
    assert one.same < 20


def test_the_roofline_is_that_of_the_cost_functions():
    assert decoding.used(1) == pytest.approx(1.02 / 295, rel=0.01)
    assert decoding.used(256) == pytest.approx(162 / 295, rel=0.01) and decoding.used(1024) == 1
    assert decoding.tokens_a_second(1) == pytest.approx(191, rel=0.01)
    assert f"{decoding.used(16):.1%}" in decoding.roofline().sentence
    frames = decoding.growing().frames
    assert [words.split()[0] for _, words in frames] == [f"\u201c{w}\u201d" for w in decoding.WORDS[2:]]
    assert "all 6 tokens" in frames[-1][1]


# 7 to 9: what the judge says, and what is true


@pytest.fixture
def task():
    """Models with random weights, and two pairs."""
    policy, rewards = GPT(CONFIG, 0), ScalarGPT(CONFIG, 0)
    torch.nn.init.normal_(rewards.lm_head.weight, generator=torch.Generator().manual_seed(0))
    pairs = [Pair((65,) * 16, tuple(b"a b a e"), tuple(b"x y z")), Pair((66,) * 16, tuple(b"xx"), tuple(b"a e i o u"))]
    return Task(policy, pairs, rewards)


def test_the_beginning_has_the_deviation_of_the_truth(task):
    begin = Beginning.of(task)
    truths = [learning.truth(x, learning.ROOM) for p in task.pairs for x in (p.chosen, p.rejected)]
    mean = sum(truths) / 4
    assert begin.truth == pytest.approx(mean)
    assert begin.deviation == pytest.approx((sum((t - mean) ** 2 for t in truths) / 4) ** 0.5)
    told = [[Seen(begin.reward + n, 0.5, (mean + begin.deviation * n,)) for n in range(4)]]
    run = SimpleNamespace(results=told)
    assert begin.rewards(run) == pytest.approx([0, 1, 2, 3]) and begin.truths(run) == pytest.approx([0, 1, 2, 3])
    assert "**+2.00**" in learning.learned_said(run, begin)


def test_truths_are_means_over_the_responses_of_all_ranks():
    ranks = [[Seen(0, 0, (1.0, 2.0))], [Seen(0, 0, (6.0,))]]
    assert learning.truths(ranks) == [3.0]


def test_judges_are_counted_without_ties(task, monkeypatch):
    pairs = [Pair((65,), tuple(b"a"), tuple(b"x")), Pair((65,), tuple(b"x"), tuple(b"a")), Pair((65,), (97,), (97,))]
    monkeypatch.setattr(learning, "rewards_of_pairs", lambda *_: torch.tensor([[2.0, 1.0], [2.0, 1.0]]))
    monkeypatch.setattr(learning, "accuracy", lambda *_: 1.0)
    found = learning.judges(task, pairs)
    assert (found.pairs, found.people, found.chosen, found.truth) == (2, 0.5, 1.0, 0.5)


def test_the_curve_of_the_objective_is_flat_where_the_clip_is():
    said = learning.clip_curve(you_write.clipped_loss).sentence
    assert "good advantage the objective rises from 0.25 to 1.2, then is flat from 1.2 to 1.75" in said
    assert "bad one it is flat from 0.25 to 0.8, then falls from 0.8 to 1.75" in said
    without = learning.clip_curve(lambda now, old, a, m, total, clip: -((now - old).exp() * a).sum())
    assert "flat" not in without.sentence
    other = learning.clip_curve(lambda *given: -you_write.clipped_loss(*given)).sentence  # the sign is forgotten
    assert (
        "good advantage the objective falls from 0.25 to 1.2" in other and "flat from 0.25 to 0.8, then rises" in other
    )
    assert "cannot be drawn" in learning.clip_curve(lambda *_: None)


def test_recorded_runs_are_all_there_and_bear_out_what_the_page_says():
    kept = alignment()
    assert kept.provenance.command.startswith("labkit bench align --parts rewards") and kept.steps == 30
    ways = {run.way for run in kept.runs}
    assert ways == {
        "PPO, beta 0.05",
        "PPO, beta 0.2",
        "PPO, no KL",
        "GRPO, beta 0.04",
        "GRPO, beta 0.2",
        "DPO, beta 0.1",
    }
    assert all(sorted(run.seed for run in kept.of(way)) == list(range(5)) for way in ways)
    rise = {way: learning.rises(way) for way in ways}
    assert max(rise, key=rise.__getitem__) == "PPO, beta 0.05" and 0 < rise["PPO, beta 0.2"] < rise["DPO, beta 0.1"]
    rewards = {way: sum(map(learning._rise, kept.of(way))) for way in ways if not way.startswith("DPO")}
    assert max(rewards, key=rewards.__getitem__) == "PPO, no KL"
    found = learning.hacked()
    assert found["runs"] == 5 and found["hacked"] > 5 / 2 and found["far"] > 2 * found["near"]
    ppo, others = learning.recorded("PPO"), learning.recorded("DPO", "GRPO")
    assert [row[""] for row in ppo] == ["PPO, beta 0.05", "PPO, beta 0.2", "PPO, no KL"]
    assert {row[""] for row in others} == ways - {row[""] for row in ppo}
    for row in [*ppo, *others]:
        assert float(row["its rise"].split(" ± ")[0]) == pytest.approx(rise[row[""]], abs=6e-4)
    assert "24 of DPO" in others.caption and "DPO" not in ppo.caption


@pytest.mark.ranks
def test_a_judge_that_says_nan_is_refused_by_every_rank(task):
    def broken(group, judge):
        fleet = fleet_of(group, task)
        before = [p.detach().clone() for p in fleet.models["policy"].parameters()]
        learning.break_judge(fleet, judge)
        with contextlib.suppress(RefusedError):
            ppo_step(fleet, prompts(4, 0), learning.how(0), PPO(chunk=2))
            return "taken", False
        return "refused", all(map(torch.equal, before, fleet.models["policy"].parameters()))

    sound, nan = (labkit.launch(broken, 2, judge, transport="local").results for judge in learning.JUDGES)
    assert sound == [("taken", False)] * 2 and nan == [("refused", True)] * 2


def fleet_of(group, task):
    return Fleet(Placement.colocated(group.size), group, task.make)


@pytest.mark.ranks
def test_the_readers_loss_is_what_a_step_learns_from(task):
    def step(group, loss):
        fleet = fleet_of(group, task)
        chosen = {} if loss is None else {"loss": learning.with_loss(loss)}
        ppo_step(fleet, prompts(4, 0), learning.how(0), PPO(chunk=2), **chosen)
        return torch.cat([p.detach().flatten() for p in fleet.models["policy"].parameters()])

    own, mine, nothing = (
        labkit.launch(step, 2, loss, transport="local").results[0]
        for loss in (None, you_write.clipped_loss, lambda now, *_: 0 * now.sum())
    )
    before = torch.cat([p.detach().flatten() for p in task.policy.parameters()])
    assert torch.equal(own, mine) and torch.equal(nothing, before) and not torch.equal(own, before)


def test_two_kinds_of_advantages_are_compared_by_the_truth(task):
    begin = Beginning.of(task)

    def run(rise):
        return SimpleNamespace(results=[[Seen(0, 0, (begin.truth + rise * begin.deviation * n,)) for n in range(5)]])

    figure = learning.side_by_side({"good": run(1), "bad": run(-0.5)}, task)
    assert "good +3.0, bad -1.5" in figure.sentence and learning.at_the_end([9, 1, 2, 3]) == 2


@pytest.mark.ranks
@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_rewards_that_are_not_compared_teach_little(seed):
    task, new = learning.prepare(seed).wait().results[0]
    assert len(new) == learning.NEW_PAIRS and not set(new) & set(task.pairs)
    begin = Beginning.of(task)

    def end(advantages):
        def grpo(group):
            fleet = Fleet(Placement.colocated(group.size, critic=False), group, task.make, rates=learning.RATES)
            steps = [
                grpo_step(fleet, prompts(4, 100 * seed + step), learning.how(step), learning.FOUR_EACH,
                          advantages=advantages)
                for step in range(learning.GRPO_STEPS)
            ]  # fmt: skip
            return [learning.seen(report) for report in steps]

        return learning.at_the_end(begin.truths(labkit.launch(grpo, 2, transport="local")))

    apart = end(lambda rewards_pg: rewards_pg - rewards_pg.mean(1, keepdim=True))
    assert min(end(group_advantages), apart) > 0.8 and end(lambda rewards_pg: rewards_pg) < 0.6
    with torch.no_grad():  # "nearly all rewards are positive"
        assert (learning.rewards_of_pairs(task.rewards, task.pairs) > 0).float().mean() > 0.99


# 5: rows


def rows_of(way, mix, deal, ranks=4):
    def one_batch(group):
        mine = lengths.dealt(mix, deal, group.size)[group.rank]
        sizes = [lengths.MIXES[mix][i] for i in mine]
        if way == "packed":
            return lengths.learned(group, mix, mine, first_fit_decreasing(sizes, lengths.ROOM))
        return lengths.learned(group, mix, mine, None, max(lengths.MIXES[mix] if "batch" in way else sizes))

    return labkit.launch(one_batch, ranks, clock="virtual", transport="local")


@pytest.mark.ranks
@pytest.mark.parametrize("mix", lengths.MIXES)
def test_rows_change_the_time_and_not_the_gradient(mix):
    runs = {
        (way, deal): rows_of(way, mix, deal)
        for way in lengths.WAYS
        for deal in ("same number each", "same tokens each")
    }
    losses = {round(sum(one.loss for one in run.results), 4) for run in runs.values()}
    norms = {round(run.results[0].norm, 4) for run in runs.values()}
    assert len(losses) == len(norms) == 1
    for run in runs.values():
        assert sum(one.tokens for one in run.results) == sum(lengths.MIXES[mix])
        assert all(max(sum(n for _, n in row) for row in one.rows) <= one.width <= lengths.ROOM for one in run.results)
        assert sorted(i for one in run.results for row in one.rows for i, _ in row) == list(
            range(len(lengths.MIXES[mix]))
        )
        positions = sum(one.positions for one in run.results)
        assert f"**{positions:,} positions**" in lengths.batch_said(run)
        assert sum(row["positions"] for row in lengths.batch(run).rows) == positions


@pytest.mark.ranks
def test_the_batch_of_the_textbook_wastes_what_it_says():
    run = rows_of(lengths.WAYS[0], lengths.HELL, "same number each")
    assert "88% was padding" in lengths.batch_said(run)
    long, short, count = lengths.TEXTBOOK
    assert cost.padding_waste([long] + [short] * count) == pytest.approx(
        cost.padding_waste(lengths.MIXES[lengths.HELL])
    )
    packed = rows_of("packed", lengths.HELL, "same tokens each")
    assert "so 0% was padding" in lengths.batch_said(packed)
    worked = [one.worked for one in packed.results]
    assert max(worked) > 2 * sorted(worked)[-2]  # the long sequence is not cut
    counts, apart = zip(*labkit.launch(lengths.two_means, 4, lengths.HELL, transport="local").results, strict=True)
    assert counts == (148, 28, 28, 28) and apart[0] > 0.3  # a token less than in the panel, for each sequence
    most = {deal: lengths.longest(None, lengths.HELL, deal) for deal in ("same number each", "same tokens each")}
    assert most["same number each"] == run.results[0].positions < most["same tokens each"]
    assert lengths.longest(first_fit_decreasing, lengths.HELL, "same tokens each") == max(
        one.positions for one in packed.results
    )
    assert "equally long, 51.2 ms" in lengths.batch_said(run)
    assert labkit.launch(lengths.two_means, 4, "all alike", transport="local").results[0][1] < 1e-6


@pytest.mark.ranks
@pytest.mark.parametrize(("mix", "deal"), [(lengths.HELL, "same tokens each"), ("all alike", "same number each")])
def test_padding_is_that_of_the_run(mix, deal):
    run = rows_of("packed", mix, deal)
    positions = sum(one.positions for one in run.results)
    padding = lengths.padding(first_fit_decreasing, mix, deal)
    assert padding == pytest.approx(1 - sum(lengths.MIXES[mix]) / positions)
    assert ("equally long" in lengths.batch_said(run)) == (mix == "all alike")


def test_packed_rows_are_drawn_and_counted():
    figure = lengths.packed_rows(first_fit_decreasing)
    n = lengths.MIXES["prompts and answers"]
    assert f"in {len(first_fit_decreasing(n, lengths.ROOM))} rows" in figure.sentence
    assert sum(row["free"] for row in figure.rows) == len(figure.rows) * lengths.ROOM - sum(n)


# 4 and 6: layouts, and rollouts that nobody waits for


@pytest.mark.ranks
@pytest.mark.parametrize("generation", [4, 2, 1])
def test_a_new_layout_takes_the_least_bytes_and_hardly_more_time(generation):
    run = labkit.launch(
        resharding.moved, 4, generation, clock="virtual", transport="local", network=resharding.NETWORK(4)
    )
    least = resharding.least(run, generation)
    assert [one.received for one in run.results] == [least.received[r // 2] for r in range(4)]
    assert 1 <= max(one.seconds for one in run.results) / least.seconds < 1.2


def test_the_layouts_are_those_of_the_order_of_generation():
    order = cost.generation_order(resharding.TENSOR, resharding.PIPELINE)
    for rank in range(4):  # a quarter lies within the half that the rank has
        assert order.index(rank) // 2 == rank % 2
    assert resharding.layouts().frames[-1][0].count('fill="url(#') >= 8


def never_wait(group, task, staleness):
    return asynchronous.trained(group, task, Asynchronous(asynchronous.UPDATES, staleness))


@pytest.mark.ranks
def test_a_killed_writer_changes_the_time_and_nothing_else(task):
    strict, loose, struck = (asynchronous.go(never_wait, task, s, k) for s, k in ((0, 0), (1, 0), (1, 2)))
    assert strict.results[0].ages == (0, 0, 0, 0) and loose.results[0].ages == (0, 1, 1, 1)
    assert asynchronous.seconds(loose) < asynchronous.seconds(strict)
    assert asynchronous.worked(loose) > asynchronous.worked(strict)
    assert struck.results[0].weights == loose.results[0].weights != strict.results[0].weights
    assert struck.results[0].rewards == loose.results[0].rewards and [*struck.results[0].lost] == [2]
    assert asynchronous.seconds(struck) > asynchronous.seconds(loose)
    assert "Rank 2 was lost" in asynchronous.stale_said(struck) and "0, 1, 1 and 1" in asynchronous.stale_said(loose)
    assert len(asynchronous.stale(struck).rows) == asynchronous.UPDATES
    assert any(0 in by for by in struck.results[0].made_by)  # the trainer wrote what was owed
    (dead,) = [bar for row in asynchronous.with_deaths(struck) for bar in row if bar[0] == "dead"]
    assert dead[1] == asynchronous.bars(struck)[2][-1][2] and dead[2] == asynchronous.seconds(struck)
    alone = asynchronous.go(never_wait, task, 1, 0, 1)
    assert (
        asynchronous.seconds(alone) > asynchronous.seconds(loose)
        and alone.results[0].rewards == loose.results[0].rewards
    )
    nobody_left = asynchronous.go(never_wait, task, 1, -1, 1)
    assert [*nobody_left.results[0].lost] == [1] and nobody_left.results[0].rewards == loose.results[0].rewards
    assert not any(bar[0] == "dead" for row in asynchronous.with_deaths(loose) for bar in row)
    assert f"checksum of the policy's weights is {loose.results[0].weights}" in asynchronous.stale_said(loose)


@pytest.mark.ranks
def test_whichever_writer_is_to_die_dies(task):
    with closing(panels.nobody_waits(partial(go, task))) as bench:
        for writers in bench.controls["writers"].options:
            writers = writers[1] if isinstance(writers, tuple) else writers
            bench.set(writers=writers, staleness=1, kill=-1)
            assert f"Rank {writers} was lost" in bench.text


# Drawings and panels


def test_advantages_are_those_of_the_library():
    delta = [2.5 - 2.0, 1.5 - 2.5, 3.0 - 1.5]  # the next guess, or the reward, minus this one
    third = delta[2]
    second = delta[1] + 0.95 * third
    assert drawings.smoothed() == pytest.approx([delta[0] + 0.95 * second, second, third])
    assert drawings.smoothed(1.0) == pytest.approx([1.0, 0.5, 1.5])
    player = drawings.advantages()
    assert len(player.frames) == 3 and "+1.00, +0.50 and +1.50" in player.frames[1][1]


def test_a_step_is_told_in_order():
    said = [words for _, words in drawings.ppo_step().frames]
    assert ["writes" in said[0], "reward model" in said[2], "expects" in said[3], "learns" in said[-1]] == [True] * 4


@pytest.mark.ranks
def test_the_panels_run_and_say_what_they_saw(task):
    with closing(panels.fleet(partial_step, 4)) as bench:
        before = bench.text
        bench.set(where="all four on every rank", longest=8)
        assert "ranks worked" in before and bench.text != before
    slowest = placed("a pool for each, same sizes", longest=48)
    assert fleets.last_step(slowest).axis < fleets.AXIS  # so that lengths can be compared

    def one_batch(group, mix=lengths.HELL, way=lengths.WAYS[0], deal="same number each"):
        mine = lengths.dealt(mix, deal, group.size)[group.rank]
        return lengths.learned(group, mix, mine, None, max(lengths.MIXES[mix]))

    with closing(panels.batch(one_batch)) as bench:
        assert "88% was padding" in bench.text

    def learn(group, beta=0.05, steps=16, judge="sound"):
        return [Seen(1.0 * n, 0.1 * n, (0.3, 0.25 * n), ("first", f"word {n}")) for n in range(4)]

    with closing(panels.learn(learn, task)) as bench:
        assert "standard deviations" in bench.text
        assert re.search(r"word 3 +0.75", bench.text) and "word 2" not in bench.text
    with closing(panels.nobody_waits(partial(go, task))) as bench:
        assert "updates took" in bench.text


def partial_step(group, where="a pool for each, same sizes", longest=32):
    return fleets.one_step(group, where, longest)


def go(task, staleness=0, writers=3, kill=0):
    return asynchronous.go(never_wait, task, staleness, kill, writers)


def test_parameters_are_refused_in_a_sentence():
    fleets.allowed(4, "gloo", 0)
    for placement, words in (
        (Placement((0, 1), (2,), (2,), (0,)), "have none"), (Placement((0, 1, 2, 3), (4,), (4,), (0,)), "0 to 3"),
        (Placement((0, 1, 2, 3), (0,)), "a critic"),
    ):  # fmt: skip
        with pytest.raises(book.ParameterError, match=words):
            fleets.run_at(placement, "local", 4)
    for values, words in (((7, "local", 0), "4 or 8"), ((8, "nccl", 0), "transport"), ((8, "local", -1), "seed")):
        with pytest.raises(book.ParameterError, match=words):
            fleets.allowed(*values)
