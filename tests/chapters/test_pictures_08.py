"""What chapter 8 trains with its reader's functions is what the library trains, and its pictures can be read."""

from __future__ import annotations

import itertools
import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import labkit
from labkit.chapters.c08_loose_synchrony import drawings, lm, methods, panels, pictures, said, task, votes, you_write
from labkit.collectives import all_gather, all_reduce, all_to_all
from labkit.course.build import NOTEBOOKS
from labkit.course.chapter_file import load_chapter
from labkit.models import MLP, MLPConfig
from labkit.optim.compression import Compressed, MajorityVote, ScaledSign, TopK
from labkit.optim.synchrony import GossipSGD, LocalSGD, graphs
from labkit.parallel.server import Client


@pytest.mark.ranks
@pytest.mark.parametrize("compressor", [TopK(0.01), ScaledSign()], ids=["top-k", "signs"])
def test_the_reader_s_error_feedback_trains_as_the_library_does(compressor):
    ways = methods.Feedback(you_write.with_feedback, compressor), Compressed(compressor)
    with labkit.world(3, clock="virtual") as ranks:
        mine, theirs = (ranks.run(methods.train, way, 1, 12) for way in ways)
    assert methods.sent(mine, 12) == methods.sent(theirs, 12)
    for (_, a), (_, b) in zip(mine.results[2], theirs.results[2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.ranks
def test_what_is_forgotten_is_lost():
    kept, lost = you_write.with_feedback, methods.forgetful
    with labkit.world(2, clock="virtual") as ranks:
        ends = [methods.curve(ranks.run(methods.train, methods.Feedback(rule, TopK(0.01)), 0, 40))[-1][1]
                for rule in (kept, lost)]  # fmt: skip
    assert ends[0] < ends[1] - 0.2


@pytest.mark.ranks
def test_rates_at_which_methods_end_where_the_page_says():
    rule = you_write.with_feedback
    lost, kept = (methods.Feedback(rest, ScaledSign()) for rest in (methods.forgetful, rule))
    top = methods.Feedback(rule, TopK(0.01))
    said_of = "".join(next(cell for cell in _cells() if cell["id"] == "tune-found")["source"])
    told = (
        (lost, 0.4, "signs end at {} with a rate of 0.4"), (lost, 2.0, "but at {} with 2"),
        (kept, 1.0, "they end at {} with a rate of 1"), (top, 1.0, "and top-k at {}"),
        (methods.Rated(MajorityVote(), methods.VOTED), 0.4, "and 0.4 far too much, so it learns nothing"),
        (None, 1.0, "Whole gradients reach {} at a rate of 1"), (None, 2.0, "with 2 they learn nothing"),
    )  # fmt: skip
    for way, rate, words in told:
        found = methods.tuned(methods.Rated(way, rate), "it", 4, 0, "free")
        end = found["lines"][f"it (rate {rate:g})"][-1][1]
        assert words.format(f"{end:.1f}") in said_of, (words, end)
        assert ("learned nothing" in pictures.tuned_said(found)) == ("nothing" in words)
        assert found["seconds"] == pytest.approx(60 * methods.STEP), "nothing is waited for on a free link"


def _vote(mine, group):
    ballots = all_to_all(mine, group).view(group.size, -1)
    for_plus = ballots.sum(0)
    return all_gather(torch.where(for_plus == 0, ballots[group.rank], for_plus.sign()), group)


def _both_votes(group):
    mine, result = votes.election(group, _vote, 0)
    flat = mine.repeat_interleave(8)  # a rank of the library counts whole bytes of signs
    MajorityVote().bucket(flat, {}, group).wait()
    return mine, result, flat[::8].sign()


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [4, 3])
def test_the_vote_that_is_drawn_is_the_librarys(ranks):
    run = labkit.launch(_both_votes, ranks, clock="virtual")
    assert all(torch.equal(result, theirs) for _, result, theirs in run.results)
    player = votes.counted(SimpleNamespace(trace=run.trace, results=[row[:2] for row in run.results]))
    rows, signs = player.still.rows, [row[0].tolist() for row in run.results]
    for k, row in enumerate(rows):
        ups = sum(one[k] > 0 for one in signs)
        own = signs[k // votes.EACH][k] > 0
        assert row["for +"] == ups and row["result"] == ("+" if 2 * ups > ranks or (2 * ups == ranks and own) else "−")
    lost = sum(votes._sign(one[k]) != row["result"] for one in signs for k, row in enumerate(rows))
    assert f"{lost} of the {votes.EACH * ranks**2} signs lost" in player.frames[3][1]
    assert player.frames[3][0].count("<line") == lost
    assert ("there is a tie" in player.frames[2][1]) == any(2 * row["for +"] == ranks for row in rows)


def _gossip(group, whose):
    torch.manual_seed(group.rank)
    net = MLP(MLPConfig(methods.WIDTHS), 0)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    model = GossipSGD(net, group, sgd, graphs.ring(group.size))
    with torch.no_grad():
        vector_to_parameters(torch.randn(len(parameters_to_vector(net.parameters()))), net.parameters())
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    if whose == "library":
        model.step()
    else:
        methods._gossip(net, group, sgd, methods.Gossip("ring", you_write.mix_once))
    return parameters_to_vector(net.parameters()).detach()


@pytest.mark.ranks
def test_the_reader_s_round_of_gossip_is_the_library_s():
    theirs, mine = (labkit.launch(_gossip, 5, whose).results for whose in ("library", "reader"))
    for a, b in zip(theirs, mine, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.ranks
def test_a_majority_vote_goes_by_a_rate_of_its_own():
    with labkit.world(2, clock="virtual") as ranks:
        rested, moved = (methods.curve(ranks.run(methods.train, methods.Rated(MajorityVote(), rate), 0, 12))
                         for rate in (0.0, methods.VOTED))  # fmt: skip
    assert rested[0][1] == rested[-1][1] > moved[-1][1]


def _train(group, rule, late="always the same", end=0.2, **how):
    """The `train` of the page's first cell."""
    job = task.Job(group, late=late, end=end, **how)
    if group.rank == 0:
        return job.serve(rule)
    with Client({"weights": job.weights}, group, [0]) as client:
        for batch, takes in job.steps():
            gradient = task.gradient(client.pull("weights"), batch)
            group.compute(takes)
            client.push("weights", gradient)
            client.tick()
    return None


@pytest.mark.ranks
def test_gradients_are_counted_to_the_end_of_the_run_and_no_further():
    with labkit.world(5, clock="virtual") as ranks:
        runs = task.paces(ranks, _train, you_write.answered, 3, end=0.4)
    bsp = runs["always the same"]["BSP"]
    assert bsp.updates() / bsp.seconds == pytest.approx(100), "four gradients in each 40 ms"
    for served in [served for of in runs.values() for served in of.values()]:
        assert (
            served.seconds == pytest.approx(0.4)
            and max(served.at) <= 0.4 + 1e-9
            and len(served.losses) == len(served.at)
        )


def test_the_loss_in_the_end_is_a_mean_over_the_same_time_however_many_updates_it_has():
    def served(at, losses):
        return task.Served("it", [], at, losses, 2, None, 0.4)

    assert task.LAST == 0.05
    assert served([0.1, 0.3], [2.0, 1.0]).last() == pytest.approx(1.0), "the last update was long before"
    assert served([0.1, 0.36, 0.39, 0.4], [2.0, 1.5, 0.5, 9.0]).last() == pytest.approx(
        (0.01 * 2.0 + 0.03 * 1.5 + 0.01 * 0.5) / 0.05
    )
    assert served([0.38], [1.5]).last() == pytest.approx(1.5), "since there has been a loss"


@pytest.mark.ranks
def test_the_reader_s_bound_is_told_as_the_server_saw_it():
    run = labkit.launch(_train, 4, task.ByRule(you_write.answered, 1), clock="virtual")
    words = pictures.held_up_said(run, "1")
    assert "largest lead at the start of a gradient was **1**" in words and f"at most {2 * 3} is possible" in words
    rows = drawings.held_up(run, "1").rows
    waits = [row["waiting (ms)"] for row in rows]
    assert waits[-1] < 1e-6 < min(waits[:-1]), "only the slow worker never waits"
    assert drawings.waiting(run.trace) == pytest.approx(
        sum(waits) / sum(row["waiting (ms)"] + row["computing (ms)"] for row in rows)
    )
    assert said.pace({late: {p: run.results[0] for p in ("BSP", "SSP", "ASP")} for late in task.LATE[1:]},
                     you_write.answered, 1)  # fmt: skip


def _cells():
    found = json.loads((NOTEBOOKS / "08_loose_synchrony.ipynb").read_text())["cells"]
    assert isinstance(found, list)
    return found


def _tried(losses, nbytes=1.0, each=0.1):
    return methods.Tried([(each * k, loss) for k, loss in enumerate(losses, 1)], nbytes)


def test_the_names_of_the_contest_do_not_cover_each_other():
    points = {  # bytes a step and losses, as four ranks have them
        "whole gradients": (28860, (0.5120, 0.2846, 0.4615)), "signs with feedback": (1854, (0.2171, 0.1565, 0.2105)),
        "majority vote": (903, (0.4843, 0.4637, 0.4341)), "top-k 1%": (1200, (0.2708, 0.2306, 0.2871)),
        "DGC 1%": (3447, (0.4036, 0.2842, 0.2329)), "QSGD": (7263, (0.5399, 0.2837, 0.3788)),
        "PowerSGD rank 2": (3824, (0.5257, 0.2733, 0.6190)), "local SGD with H = 4": (7215, (0.4527, 0.4772, 0.6845)),
        "gossip on a ring": (38480, (0.5724, 0.5266, 0.6991)),
    }  # fmt: skip
    figure = pictures.trade_off({n: [_tried([loss], nbytes) for loss in some] for n, (nbytes, some) in points.items()})
    boxes = []
    for name in points:
        ((x, y),) = re.findall(rf'<text x="([\d.]+)" y="([\d.]+)"[^>]*>{re.escape(name)}</text>', figure.svg)
        wide = pictures.text_width(name, 12)
        boxes.append((float(x), float(y) - 12, float(x) + wide, float(y) + 3))
    for (a, b, c, d), (p, q, r, s) in itertools.combinations(boxes, 2):  # nor do two read as one, side by side
        assert min(c, r) + 9 <= max(a, p) or min(d, s) <= max(b, q)
    assert all(0 < a and c < 760 for a, _, c, _ in boxes)
    (cell,) = (c for c in _cells() if c["id"] == "contest")
    assert list(points) == re.findall(r'^    "(.+)": ', "".join(cell["source"]), re.M), "those of the page"


def test_a_race_has_a_target_that_whole_gradients_reach():
    long = _tried([2.0 - 0.1 * k for k in range(15)])
    race = methods.race({"whole": [long, long], "late": [long, _tried([2.0])]}, {"whole": 0.5, "late": 0.5})
    assert race.target == pytest.approx(1.0) and list(race.times["free link"]) == ["whole"]
    assert race.times["far link"]["whole"] == [0.5 * 4 * 12] * 2, "four steps a point, and the twelfth is below 1"
    assert race.seconds("whole") == pytest.approx(1.2) and race.seconds("late") == -1
    short = [_tried([2.2, 2.1, low]) for low in (2.0, 1.5)]  # the mean of the last is 1.75
    assert methods.race({"whole": short}, {"whole": 0.5}).seconds("whole") == pytest.approx(0.3)


def _race(rows, far=None, never=()):
    """rows: seconds over the narrow link, over the far link, and over none, by method."""
    links = ("narrow link", "far link", "free link")
    times = {link: {name: [row[k]] * 3 for name, row in rows.items()} for k, link in enumerate(links)}
    reached = times["narrow link"] | {name: [1.0, math.inf, 1.0] for name in never}
    return methods.Race("whole", 0.7, reached, times, far or {})


def test_links_are_told_by_the_fastest_method():
    rows = {"whole": (4.0, 4.0, 1.0), "top-k 1%": (1.0, 4.0, 1.1), "local SGD with H = 4": (2.0, 1.0, 1.2)}
    race = _race(rows, never=["gossip on a ring"])
    figure, words = pictures.links(race), said.links(race).text
    assert "narrow link: top-k 1%, 4.0 times" in figure.sentence
    assert [row["method"] for row in figure.rows] == list(rows), "who did not come there has no row"
    assert "fastest method is top-k 1%" in words and "fastest method is local SGD with H = 4, 4.0 times" in words
    assert (
        "Gossip on a ring did not reach the target with all three seeds" in words
        and "chain of messages decides" in words
    )
    assert "top-k 1%, is as fast as whole gradients here" in words and "send much less are faster" in words
    assert "take more *steps*" not in words
    assert "is slower than whole" in said.links(_race(rows | {"top-k 1%": (1.0, 9.0, 1.1)})).text
    voted = {"whole": 0.04, "majority vote": 0.12}
    voting = rows | {"majority vote": (0.5, 9.0, 0.8)}
    vote = said.links(_race(voting, voted)).text
    assert "a step takes 120 ms in place of 40 ms" in vote and "That is majority vote, which needs fewer steps" in vote
    assert "needs a chain of two messages" in vote
    assert "two messages" not in said.links(_race(rows | {"majority vote": (0.5, 4.0, 0.8)}, voted)).text
    thin = rows | {"gossip on a ring": (6.0, 2.0, 1.2), "PowerSGD rank 2": (2.0, 8.0, 1.1)}
    second = said.links(_race(thin)).text
    assert (
        "The next one is gossip on a ring, with 2.0" in second
        and "PowerSGD is only 0.50 times as fast as whole gradients" in second
    )
    assert "PowerSGD" not in words and "The next one" not in words
    nearer = said.links(_race(thin | {"top-k 1%": (1.0, 1.5, 1.1)})).text
    assert "The next one" not in nearer and "top-k 1%, is 2.7 times as fast here" in nearer, "the narrow link's winner"
    nobody = said.links(_race({"whole": (4.0, 4.0, 1.0), "top-k 1%": (4.0, 4.0, 1.1)})).text
    assert nobody.count("No method is clearly faster") == 2 and "no method would be faster" in nobody
    assert "There is little to gain" in said.links(_race({"whole": (4.0, 4.0, 1.0), "top-k 1%": (4.0, 4.0, 0.9)})).text
    assert "send much less are faster" not in nobody and "decide" not in nobody
    assert "take more *steps*" in said.links(_race(rows, never=["a", "b", "c", "d"])).text


@pytest.mark.ranks
def test_only_rank_0_looks_at_the_loss_of_the_language_model():
    def looked(group):
        watch = lm.Watch(group, lm.GPT(lm.CONFIG), often=1)
        watch.look()
        return watch

    assert [len(seen.curve) for seen in labkit.launch(looked, 2, clock="virtual").results] == [1, 0]


def _served(name, losses):
    log = [task.Update(1 + k % 2, k // 2, k, k, k) for k in range(len(losses))]
    return task.Served(name, log, [float(k) for k in range(len(losses))], losses, 2, None, float(len(losses)))


def test_no_winner_is_named_where_one_run_cannot_tell():
    near, far = ({"BSP": _served("BSP", [1.0] * 6), "ASP": _served("ASP", [x] * 6)} for x in (1.04, 1.3))
    assert "**BSP** and **ASP** are within 5% of each other" in pictures.who_won(near)
    assert "time: **BSP**. (One run" in pictures.who_won(far)
    assert "Mean loss over the last 50 ms" in (told := pictures.by_time(near).sentence)
    assert told.endswith("BSP 1.00 (6 gradients), ASP 1.04 (6 gradients).")


def _turn(tau, momentum, rate):
    """The largest size of a root of x_(t+1) = x_t + momentum (x_t - x_(t-1)) - rate x_(t-tau)."""
    terms = np.zeros(max(tau, 1) + 2)
    terms[:3] += [1.0, -1 - momentum, momentum][: len(terms)]
    terms[tau + 1] += rate
    return np.abs(np.roots(terms)).max()


def _largest(tau, momentum=0.0):
    return max(r for r in np.arange(0.001, 4, 0.001) if _turn(tau, momentum, r) <= 1 + 1e-9)


def test_from_an_age_of_one_on_momentum_allows_no_larger_rate_and_the_limit_falls_with_age():
    assert _largest(3) == pytest.approx(2 * math.sin(math.pi / 14), abs=1e-3), "Agarwal's 2 sin(pi/(4t+2))"
    assert _largest(0, 0.9) / 0.1 > 18 * _largest(0), "far larger with fresh gradients"
    assert all(_largest(t, 0.9) / 0.1 <= 1.02 * _largest(t) for t in (1, 2, 4, 8))
    assert [8 * _largest(8), 4 * _largest(4)] == pytest.approx([1.43, 1.43], rel=0.05), "about like 1 / tau"


def test_one_wrong_tick_is_not_told_all_that_is_right():
    question = load_chapter("08_loose_synchrony").question("who-may-begin", {})
    told = question.mark(["A"]).why
    hints = ("exactly 2 ahead", "slowest itself", "B leads C")
    assert "3 more are to be found. A hint for one of them" in told and sum(hint in told for hint in hints) == 1


def test_with_momentum_a_swing_lasts_far_longer_at_every_age():
    rows = pictures.swings().still.rows
    ends = {name: [row[name] for row in rows] for name in ("no momentum", "momentum 0.9")}
    assert ends["no momentum"][:4] == [f"after {k} updates" for k in (11, 8, 6, 13)]
    assert ends["momentum 0.9"][:4] == [f"after {k} updates" for k in (33, 52, 73, 116)]
    for tau, (plain, pushed) in enumerate(zip(*ends.values(), strict=True)):
        size = _turn(tau, 0.0, pictures.PUSH), _turn(tau, 0.9, 0.1 * pictures.PUSH)
        assert (plain == "never", pushed == "never") == (size[0] > 1, size[1] > 1) and size[0] < size[1]
    assert "with 0.9 after 116 updates" in pictures.swings(old=3).still.sentence


def test_a_bar_of_ages_holds_as_many_as_the_oldest_needs():
    for oldest, label in ((12, ">12<"), (13, ">12-13<"), (26, ">24-26<")):
        log = [task.Update(1, 0, 0, tau, k) for k, tau in enumerate(range(oldest + 1))]
        runs = {"nobody": task.Served("ASP", log, [0.0] * len(log), [1.0] * len(log), 2, None, 1.0)}
        drawn = pictures.ages(runs)
        assert label in drawn.svg and len(drawn.rows) == oldest + 1


def test_the_price_of_a_vote_is_told_by_its_marks_and_its_rate():
    for vote, words in (
        ([0.6, 0.7], "a higher loss"),
        ([0.2, 0.3], "a lower loss"),
        ([0.45, 0.7], "ranges of the three seeds overlap"),
    ):
        told = said.vote({"whole gradients": [_tried([x]) for x in (0.4, 0.5)],
                          "majority vote": [_tried([x]) for x in vote]}).text  # fmt: skip
        assert words in told and "section 7" not in told and "Do not expect that" not in told
    low, lower = ([_tried([x, 0.0]) for x in some] for some in ([0.4, 0.5], [0.2, 0.3]))
    both = {"whole gradients": [_tried([1.0, x]) for x in (0.4, 0.5)], "majority vote": low}
    told = said.vote(both | {"top-k 1%": lower, "signs with feedback": lower, "gossip on a ring": [_tried([0.3, 0.6])]})
    assert (
        "Top-k 1% and signs with feedback ended below whole gradients with every seed" in told.text
        and "8 steps" in told.text
    )
    told = [said.vote({"whole gradients": [_tried([0.4], 28866.0)], "majority vote": [_tried([0.5], 903.0)],
                       "PowerSGD rank 2": [_tried([0.5], sent)]}).text for sent in (2869.0, 3830.0)]  # fmt: skip
    assert "section 7" not in told[0] and "sends 1.34 times as much here as with the rings of section 7" in told[1]


def test_a_mark_and_its_line_stand_beside_a_near_one_and_not_apart():
    contest = {"whole": [_tried([1.0, 0.5], 30000.0)], "top-k": [_tried([1.0, 0.9], 802.0)],
               "vote": [_tried([1.0, 0.7], 804.0)]}  # fmt: skip
    at: list[float] = []
    draw, pictures.Svg.marker = pictures.Svg.marker, lambda svg, x, y, *rest: at.append(x)
    try:
        figure = pictures.trade_off(contest)
    finally:
        pictures.Svg.marker = draw
    one, two = at[1:3]
    assert 5 < abs(two - one) < 8
    assert f'x1="{two:.1f}"' in figure.svg or f'x1="{two:g}"' in figure.svg


@pytest.mark.ranks
def test_a_bound_is_ahead_where_delays_are_short_and_momentum_high():
    """What the page says of its first panel."""
    ends = {}
    with labkit.world(5, clock="virtual") as ranks:
        for late, times, bound, momentum in (("now and then", 4, 3, 0.0), ("nobody", 4, 3, 0.9),
                                             *(("now and then", times, 1, 0.9) for times in (2, 4, 8))):  # fmt: skip
            how = {"late": late, "times": times, "bound": bound, "momentum": momentum, "end": 0.4}
            how["rate"] = task.RATE * (1 - momentum)
            runs = task.each(lambda rule, how=how: task.served(ranks, _train, rule=rule, **how))
            ends[late, times, momentum] = {name: served.last() for name, served in runs.items()}
            assert runs["SSP"].bound == bound, "the bound of the page reaches the server"
    two = ends["now and then", 2, 0.9]
    assert two["SSP"] < 0.95 * two["ASP"] < 0.95 * two["BSP"], ends
    fresh = ends["nobody", 4, 0.9]
    assert fresh["BSP"] < 0.95 * fresh["ASP"], ends
    for late in (("now and then", 4, 0.0), ("now and then", 4, 0.9), ("now and then", 8, 0.9)):
        assert ends[late]["ASP"] < 0.95 * ends[late]["SSP"] < 0.95 * ends[late]["BSP"], ends


@pytest.mark.ranks
def test_after_the_first_step_a_slow_rank_sets_the_pace_of_all_in_step_and_of_itself_in_pairs():
    took = methods.in_step_and_in_pairs(4, {"clock": "virtual"})
    together, alone = (run.results for run in took.values())
    assert together == pytest.approx([0.04] * 4) and alone == pytest.approx([0.01] * 3 + [0.04])
    told = said.pairs(took).text
    assert "from the second step on the slow rank sets the pace of all" in told and "holds up only itself" in told
    assert "synchronous with neighbours: 40.0 ms; in pairs" in pictures.steps_of_ranks(took).sentence


def _averaging(every, steps=8, far=0.09):
    """A run of `steps` of 10 ms on rank 0, with an average of 90 ms after each `every` of them; rank 1 is no matter."""
    spans, at = [SimpleNamespace(rank=1, start=0.0, end=9.0)], 0.0
    for k in range(1, steps + 1):
        spans.append(SimpleNamespace(rank=0, start=at, end=at + 0.01))
        at += 0.01 + far * (k % every == 0)
    trace = SimpleNamespace(spans=lambda name: spans if name == "compute" else [])
    return SimpleNamespace(trace=trace, results=[lm.Seen([(1e3 * at, 3.0 + 0.02 * every)], steps, at)])


def test_fewer_averages_are_drawn_to_the_end_of_the_run_that_has_fewest():
    runs = {f"H = {every}": _averaging(every) for every in (1, 4, 8)}
    figure, told = pictures.rounds(runs), said.rounds(runs).text
    assert "After 170 ms: H = 1 has computed 2 steps, H = 4 has computed 8 steps" in figure.sentence
    assert [row["all-reduces (ms)"] for row in figure.rows] == pytest.approx([720, 180, 90])
    assert "2 of 8 steps" in figure.svg and "4.7 times as fast as with H = 1" in told
    assert "higher by 0.14" in told and "shorter chain" not in told
    assert "the factor would be only 4.1." in said.rounds(runs, 4.1).text
    assert "shorter chain" not in said.rounds(runs, 4.7).text
    assert "nearly the same" in said.rounds({"H = 1": _averaging(1), "H = 4": _averaging(4)}).text


def test_a_shorter_chain_gains_less_by_the_formula():
    runs = {f"H = {every}": SimpleNamespace(results=[lm.Seen([], 64, 1.0)]) for every in (1, 4, 16)}
    doubling = 2 * (0.02 + 4 * lm.numel() / 1e8)  # of 4 ranks, two messages with all weights
    assert lm.gain_by_choice(4, panels.LINKS["far: 20 ms"], runs) == pytest.approx(
        (0.64 + 64 * doubling) / (0.64 + 4 * doubling)
    )


@torch.no_grad()
def _gossiped(noise, every, ranks=4):
    """A run of two looks, whose ranks' weights are so much noise around the same ones apart in the end."""
    begun = parameters_to_vector(MLP(MLPConfig(methods.WIDTHS), 0).parameters())
    draw = [torch.randn(len(begun), generator=torch.Generator().manual_seed(r)) for r in range(ranks)]
    results = [[(every * k, begun + noise * k * own) for k in (1, 2)] for own in draw]
    return SimpleNamespace(results=results, trace=SimpleNamespace(world_size=ranks))


def test_what_gossip_costs_and_saves_is_told_by_its_runs():
    far = methods.FAR + methods.STEP
    quiet, loud, whole = _gossiped(1e-3, 4 * far), _gossiped(0.1, 4 * far), _gossiped(0.0, 4 * (far + methods.FAR))
    told = said.drift({0.4: loud, 0.1: quiet}, whole).text
    assert "With a rate of 0.4 the weights end 100.0 times as far apart as with 0.1" in told
    assert (
        "steps with gossip are 2.0 times as fast" in told
        and "a chain of 2 messages." in told
        and "few ranks" not in told
    )
    ours, theirs = (methods.curve(run)[-1][1] for run in (loud, whole))
    assert ours > theirs and f"a loss of {ours:.2f}, and with all-reduces it is {theirs:.2f}. One reason is" in told
    calm = said.drift({0.1: loud, 0.4: quiet}, _gossiped(0.1, 4 * far)).text
    assert "do not end further apart than with 0.1" in calm and "about as fast as those with all-reduces" in calm
    assert "One reason" not in said.drift({0.1: loud, 0.4: _gossiped(0.0, far)}, loud).text
    assert "On a ring of so few ranks" in said.drift({0.1: quiet, 0.4: loud}, _gossiped(0.0, 4 * far, 3)).text


def test_a_graph_says_to_how_many_a_rank_sends_and_how_far_apart_the_ranks_are():
    start, mean = torch.arange(6.0).unsqueeze(1), torch.full((6, 1), 2.5)
    run = SimpleNamespace(results=[[start[r], (start[r] + mean[r]) / 2] for r in range(6)])
    for name, sent in (("ring", 2), ("complete", 5), ("exponential", 3)):
        figure = pictures.mixed(run, name)
        assert "after 1 rounds 50% of the distance is left, which is more than a tenth" in figure.sentence
        near = pictures.agreement([1.0, 0.3, 0.08, 0.02], 0.3, name, sent).sentence
        assert "left after 2 rounds" in near and f"In each a rank sends {sent} messages." in near
        assert [row["measured"] for row in figure.rows] == pytest.approx([1.0, 0.5])
    assert "less than 0.1% may be left" in pictures.agreement([1.0] * 9, 1 / 3, "ring").sentence
    exact = pictures.agreement([1.0, 1e-8, 1e-8], 0.0, "complete")
    assert "after one round all ranks agree" in exact.sentence and "left after 1 round." in exact.sentence
    assert [row["measured"] for row in exact.rows] == [1.0, 1e-8, 1e-8], "the data are as measured"


def _power_step(m, q, group):
    p = torch.linalg.qr(all_reduce(m @ q, group, "avg")).Q
    return p, all_reduce(m.T @ p, group, "avg")


@pytest.mark.ranks
def test_a_power_step_of_the_ranks_is_one_of_their_averaged_gradient():
    run = labkit.launch(methods.factored, 3, _power_step, 1, clock="virtual")
    ms, (first, *others) = [one["m"] for one in run.results], run.results
    assert not torch.equal(ms[0], ms[1]) and all(torch.equal(first["q"], one["q"]) for one in others)
    mean = torch.stack(ms).mean(0)
    p = torch.linalg.qr(mean @ first["before"]).Q
    torch.testing.assert_close(first["p"] @ first["q"].T, p @ p.T @ mean, rtol=1e-3, atol=1e-5)
    missed = float((mean - p @ p.T @ mean).norm() / mean.norm())
    words = drawings.power_step(run).still.sentence
    assert f"misses {missed:.0%} of the norm" in words
    told = said.power(run).text
    least = int(re.search(r"the best miss (\d+)%", told)[1])
    assert round(100 * missed) >= least > 0 and f"With 6.2% of the numbers one power step misses {missed:.0%}" in told


def test_parameters_that_the_pages_pictures_have_no_room_for_are_refused():
    assert task.options(4, "gloo", 60) == {"transport": "gloo", "clock": "virtual"}
    with pytest.raises(ValueError, match="2 to 7 ranks"):
        task.options(8, "local", 60)
    with pytest.raises(ValueError, match="take 12 or more"):
        task.options(4, "local", 11)


def test_cases_are_run_in_turn_by_name_with_their_arguments():
    assert task.for_each(lambda x: 2 * x, (1, 4)) == {1: 2, 4: 8}
    assert task.three_seeds(lambda a, b, seed: (a, b, seed), {"one": ("x", None)}, 5) == {
        "one": [("x", None, 5), ("x", None, 6), ("x", None, 7)]
    }


@pytest.mark.ranks
def test_the_reader_s_outer_step_trains_as_an_outer_optimizer_of_the_library_does():
    ends = labkit.launch(_outer, 3).results
    for mine, theirs in ends:
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def _outer(group):
    ours, net = lm.model(1), lm.model(1)
    sgd, other = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (ours, net))
    outer, begun = lm.Outer(you_write.outer_step), lm.read(ours)
    rounds = LocalSGD(net, group, other, 2, lambda ps: torch.optim.SGD(ps, lr=1.0, momentum=0.5, nesterov=True))
    for step, batch in lm.data(group, 1, 6):
        for model, optimizer in ((ours, sgd), (net, other)):
            optimizer.zero_grad()
            lm.loss(model, batch).backward()
        sgd.step()
        if step % 2 == 0:
            begun = outer(begun, all_reduce(lm.read(ours), group, "avg"))
            lm.write(ours, begun)
        rounds.step()
    return lm.read(ours), lm.read(net)


@pytest.mark.ranks
def test_what_a_workbench_sends_has_the_bytes_of_its_name():
    with labkit.world(2, clock="virtual") as ranks:
        sent = {what: methods.less(ranks.run(methods.train, methods.sending(what, you_write.with_feedback), 0, 4),
                                   what, "kept", 4) for what in methods.SENDS}  # fmt: skip
    assert (
        sent["all"]["sent"] == pytest.approx(sent["all"]["whole"], rel=1e-3)
        and sent["signs"]["name"] == "signs, the rest kept"
    )
    assert sent["1 in 1000"]["sent"] < sent["signs"]["sent"] < sent["1 in 10"]["sent"]


@pytest.mark.ranks
def test_a_step_over_a_far_link_is_timed_without_its_start():
    far = labkit.Network(intra=labkit.Link(1e8, 2e-2))  # 20 ms a message
    ways = {"whole": None, "local": methods.Local(4), "gossip": methods.Gossip("ring", you_write.mix_once),
            "vote": methods.Rated(MajorityVote(), methods.VOTED)}  # fmt: skip
    with labkit.world(4, network=far, clock="virtual", transport="local") as world:
        took = methods.seconds_of_steps(world, ways, 0)
    assert took["whole"] == pytest.approx(0.0414, rel=0.02), "two latencies by doubling, and 1 ms"
    assert took["local"] == pytest.approx(0.0111, rel=0.02), "the same every fourth step"
    assert took["gossip"] == pytest.approx(0.0214, rel=0.02), "one latency"
    assert took["vote"] == pytest.approx(0.0411, rel=0.02), "two latencies, and 1 ms"


def test_the_page_counts_the_messages_to_a_tenth_of_the_distance_as_its_graphs_need_them():
    """Eight ranks with the numbers of the page's `gossip`: rounds until a tenth is left, times neighbours."""
    needs = {}
    for name in drawings.GRAPHS:
        w = drawings.graph(name, 8)
        x = torch.stack([torch.randn(1000, generator=torch.Generator().manual_seed(r)) for r in range(8)])
        apart = [float((x - x.mean(0)).norm())]
        while apart[-1] > 0.1 * apart[0]:
            x = w.to(x.dtype) @ x
            apart.append(float((x - x.mean(0)).norm()))
        needs[name] = (len(apart) - 1, max(int((w[:, r] > 0).sum()) - 1 for r in range(8)))
    assert needs == {"complete": (1, 7), "exponential": (3, 3), "ring": (8, 2)}
    assert [row["neighbours"] for row in drawings.three_graphs(8).rows] == [2, 3, 7]
    for name, (_, n) in needs.items():
        weights = drawings.graph(name, 8).flatten()
        some = weights[weights > 0]
        torch.testing.assert_close(some, torch.full_like(some, 1 / (n + 1)), msg="equal weights, as the page says")
    text = next("".join(c["source"]) for c in _cells() if c["id"] == "agree-meaning")
    assert "one round of seven" in text and "three rounds of three" in text and "eight rounds of two" in text


@pytest.mark.ranks
@pytest.mark.parametrize(("size", "way"), [(3, "everyone"), (4, "recursive_doubling")])
def test_over_the_far_link_whole_gradients_are_summed_as_the_page_says(size: int, way: str) -> None:
    far = panels.link("far: 20 ms")
    run = labkit.launch(methods.train, size, None, 0, 4, clock="virtual", network=far)
    assert {call.algorithm for call in run.trace.collectives() if call.name == "all_reduce" and not call.nested} == {
        way
    }


def test_how_often_a_gradient_is_late_is_what_the_first_cell_says() -> None:
    words = {5: "five"}
    page = (NOTEBOOKS / "08_loose_synchrony.ipynb").read_text()
    assert f"about one in {words[round(1 / task.OFTEN)]} takes four times as long" in page


@pytest.mark.ranks
def test_under_bsp_all_workers_have_as_many_gradients_until_the_end():
    with labkit.world(4, **task.options(3, "local", 60)) as world:
        runs = task.three_runs(world, _train, late="always the same", seed=0, end=0.12)
    whole, cut = (drawings.three(runs, end=end).rows for end in (math.inf, 0.12))
    counts = [[row["gradients"] for row in rows if row["policy"] == "BSP"] for rows in (whole, cut)]
    assert counts == [[4, 4, 3], [3, 3, 3]]
    for row in cut:
        assert row["computing (ms)"] + row["waiting (ms)"] == pytest.approx(120, abs=1)
