"""Keys of chapter 8 and what its checks compare with: slips are told apart, counts are those of real servers and
simulated queues, and numbers of matrices are those of their eigenvectors."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from grading.zoo_runs import animals, exercises, judged, source
from slices import few
from slips import every_draw, letters_have_reasons, tell_apart

import labkit
from labkit import cost
from labkit.chapters.c08_loose_synchrony import checks, keys, sums
from labkit.grading.answers import find_key
from labkit.grading.checks.fresh import Fresh
from labkit.grading.checks.pristine import preamble
from labkit.grading.grader import memory
from labkit.grading.grader.door import Pace, SandboxStudent
from labkit.grading.known import Answers
from labkit.grading.sandbox import open_sandbox
from labkit.optim.synchrony import ASP, SSP, graphs, masking
from labkit.parallel.server import Client, Server

CHAPTER = "08_loose_synchrony"
answers = Answers(CHAPTER)


def answer(name, **numbers):
    return find_key(CHAPTER, name, **numbers).answer


PACE = every_draw(N=[4, 8, 16], t=[5, 10], f=[2, 3, 4, 5], s=[2, 3, 4])
OLD = every_draw(N=[4, 8, 12], f=[3, 4, 5, 6])
ROUNDS = every_draw(N=[8, 16], W=[200, 400], c=[20, 40, 50], H=[10, 20, 50])
STAR = every_draw(N=[5, 8, 10, 16], a=[60, 120, 240])
THIN = every_draw(n=[1024, 2048, 4096], m=[1024, 4096], r=[2, 4, 8], N=[8, 16, 32])
KEYS = [
    *((name, g) for name in ("bsp_count", "asp_count", "ssp_count", "nothing_gained") for g in PACE),
    *((name, g) for name in ("tau_slow", "tau_fast", "tau_mean", "slow_share", "slow_share_by_root") for g in OLD),
    *((name, g) for name in ("percent_messages", "least_h", "gigabytes_sent") for g in ROUNDS),
    *((name, g) for name in ("agreed", "leaf_keeps", "star_rounds", "ring_rounds") for g in STAR),
    *((name, g) for name in ("power_megabytes", "if_gathered", "same_k", "vote_megabytes", "largest_rank")
      for g in THIN),
]  # fmt: skip


@pytest.mark.parametrize("name", sorted({name for name, _ in KEYS}))
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    tell_apart(find_key(CHAPTER, name, **numbers) for same, numbers in KEYS if same == name)


def test_letters_have_a_reason_each_and_slips_of_the_formula_are_wrong():
    letters_have_reasons(keys.equal_to_averaged_gradients(), "ade", "abcde")
    formula = keys.times_as_fast()
    assert formula.mark("H*(c + A)/(H*c + A)").right
    for wrong, why in formula.slips:
        assert formula.mark(wrong).why == why and not formula.mark(wrong).right


@pytest.mark.parametrize("numbers", PACE[::5])
def test_counts_of_ssp_and_asp_are_those_of_a_simulated_queue(numbers):
    N, t, f, s = (numbers[name] for name in ("N", "t", "f", "s"))
    clocks, zero = 600 // t + 1, torch.zeros(1, dtype=torch.float64)
    takes = [[t] * clocks] * (N - 1) + [[f * t] * clocks]
    for bound, name in ((s, "ssp_count"), (10**6, "asp_count")):
        log = answers.served(zero, takes, [torch.zeros(clocks, 1, dtype=torch.float64)] * N, bound)[0][1]
        assert int((log[:, 0] <= 600).sum()) == answer(name, **numbers), name
    lead = answer("ssp_count", **numbers) / answer("bsp_count", **numbers) - 1
    assert lead * 0.6 == pytest.approx(0.01 * answer("nothing_gained", **numbers))


@pytest.mark.parametrize("numbers", OLD)
def test_staleness_is_that_of_a_simulated_queue(numbers):
    N, f = numbers["N"], numbers["f"]
    t, clocks = 60, 60 * f  # many rounds; starts are spread by the first gradients
    takes = [[t + 5 * w] + [t] * clocks for w in range(N - 1)] + [[f * t - 1] + [f * t] * clocks]
    xs = [torch.zeros(clocks + 1, 1, dtype=torch.float64)] * N
    log = answers.served(torch.zeros(1, dtype=torch.float64), takes, xs, 10**6)[0][1]
    log = log[(log[:, 0] > 6 * f * t) & (log[:, 0] <= 36 * f * t)].double()
    own = log[:, 1] == N
    assert log[own, 3].mean().item() == pytest.approx(answer("tau_slow", **numbers), rel=0.01)
    assert log[~own, 3].mean().item() == pytest.approx(answer("tau_fast", **numbers), rel=0.02)
    assert log[:, 3].mean().item() == pytest.approx(answer("tau_mean", **numbers), rel=0.01)
    assert 100 * own.double().mean().item() == pytest.approx(answer("slow_share", **numbers), rel=0.02)


@pytest.mark.parametrize("numbers", ROUNDS[::5])
def test_one_step_more_or_fewer_in_a_round_is_on_the_other_side_of_ten_percent(numbers):
    N, W, c = numbers["N"], numbers["W"], numbers["c"]
    average, H = cost.ring_all_reduce_time(W * 1e6, N, 0, 1 / 1.25e9), answer("least_h", **numbers)
    part = [average / h / (c / 1000 + average / h) for h in (H, H - 1)]
    assert part[0] <= 0.1 < part[1]


@pytest.mark.parametrize("case", ["a", "b", "c", "d", "e"])
def test_averages_of_weights_are_averages_of_gradients_where_the_key_says_so(case):
    """Three ranks, from the same weights, three rounds; the losses are parabolas."""
    draw = torch.Generator().manual_seed(8)
    root = torch.randn(4, 4, generator=draw, dtype=torch.float64)
    A, b = root @ root.T / 4, 3 * torch.randn(3, 4, generator=draw, dtype=torch.float64)
    if case != "e":  # another loss on each rank
        A = torch.stack([A * (r + 1) for r in range(3)])
    rules = {"b": partial(torch.optim.AdamW, lr=0.1), "d": partial(torch.optim.SGD, lr=0.05, momentum=0.9)}
    rule = rules.get(case, partial(torch.optim.SGD, lr=0.05))

    def gradient(x, r):
        return (A if A.dim() == 2 else A[r]) @ x - b[r]

    def clipped(g):
        return g * min(1.0, 1.0 / float(g.norm())) if case == "c" else g

    def stepped(models, gradients):
        for (x, optimizer), g in zip(models, gradients, strict=True):
            x.grad = clipped(g)
            optimizer.step()

    def made(count):
        found = [torch.ones(4, dtype=torch.float64, requires_grad=True) for _ in range(count)]
        return [(x, rule([x])) for x in found]

    local, (whole,) = made(3), made(1)
    for _ in range(3):
        for _ in range(5 if case == "e" else 1):
            with torch.no_grad():
                stepped(local, [gradient(x, r) for r, (x, _) in enumerate(local)])
                stepped([whole], [sum(gradient(whole[0], r) for r in range(3)) / 3])
        with torch.no_grad():
            mean = sum(x for x, _ in local) / 3
            for x, _ in local:
                x.copy_(mean)
    same = torch.allclose(mean, whole[0], rtol=1e-9)
    assert same == (case in keys.equal_to_averaged_gradients().right)


@pytest.mark.parametrize("numbers", STAR[::3])
def test_the_star_agrees_and_mixes_as_its_matrices_say(numbers):
    N, a = numbers["N"], numbers["a"]
    joined = torch.eye(N, dtype=torch.float64)
    joined[0], joined[:, 0] = 1, 1
    plain, begun = joined / joined.sum(1, keepdim=True), torch.zeros(N, dtype=torch.float64)
    begun[0] = a
    for each in torch.linalg.matrix_power(plain, 999) @ begun:
        assert each.item() == pytest.approx(answer("agreed", **numbers))
    star = graphs.metropolis([(0, j) for j in range(1, N)], N)
    assert star[1, 1].item() == pytest.approx(answer("leaf_keeps", **numbers))
    for name, w in (("star_rounds", star), ("ring_rounds", graphs.ring(N))):
        rounds = answer(name, **numbers)
        assert graphs.mixing_rate(w) ** rounds <= 0.01 < graphs.mixing_rate(w) ** (rounds - 1)


def test_power_sgd_with_as_many_entries_as_top_k_sends_the_same():
    for numbers in THIN[::4]:
        k, N = answer("same_k", **numbers), numbers["N"]
        assert (N - 1) * 8 * k == pytest.approx(1e6 * answer("power_megabytes", **numbers))


@pytest.mark.ranks
@pytest.mark.parametrize("s", [0, 2, None])
def test_the_queue_of_the_exercise_is_that_of_the_librarys_server(s):
    """The same times on the virtual clock: the same updates, in the same order, on weights of the same age."""
    fresh = Fresh(20_26, "a-server-with-a-queue")
    inputs = checks.shift(fresh.tensor, 4, 7)
    log, seconds = labkit.launch(on_the_library, 4, inputs, s, transport="local", clock="virtual").results[0]
    takes = [mine["takes"].tolist() for mine in inputs[1:]]
    bound = 10**6 if s is None else s
    weights, mine = answers.served(inputs[0]["weights"], takes, [m["x"] for m in inputs[1:]], bound)[0]
    assert mine[:, 1:].tolist() == log and mine[:, 0].tolist() == seconds
    assert torch.isfinite(weights).all()


def on_the_library(group, inputs, s):
    named = {"w": inputs[0]["weights"]}
    if group.rank == 0:
        policy = ASP() if s is None else SSP(s)
        server = Server(named, group, [0], policy=policy, optimizer=partial(torch.optim.SGD, lr=0.25))
        log = server.serve()
        begun = log[0].at - int(inputs[log[0].worker]["takes"][0]) * 10**6
        return ([[u.worker, u.clock, u.tau] for u in log], [round((u.at - begun) / 1e6) for u in log])
    mine = inputs[group.rank]
    with Client(named, group, [0]) as client:
        for take, x in zip(mine["takes"].tolist(), mine["x"], strict=True):
            gradient = client.pull("w") - x
            group.compute(take / 1000)
            client.push("w", gradient)
            client.tick()


def test_nothing_is_lost_by_the_sum_of_the_largest_but_by_its_mistakes():
    gradients = checks.streams(Fresh(3, "a-sum-of-the-largest").tensor, 4, 5, 9)
    whole = sum(gradients).sum(0)

    def kept(mistake):
        by_rank = answers.thinned(gradients, 8, mistake)[0]
        return by_rank[0][0].sum(0) + sum(residual for _, residual in by_rank)

    assert torch.equal(kept(""), whole)
    assert {m for m in checks.SPARSE_SLIPS if not torch.equal(kept(m), whole)} == {
        "forgets", "keeps", "drops", "everywhere", "mean"
    }  # fmt: skip
    assert {m: bool(torch.equal(answers.thinned(gradients, 8, m)[0][0][0], answers.thinned(gradients, 8)[0][0][0]))
            for m in checks.SPARSE_SLIPS} == dict.fromkeys(checks.SPARSE_SLIPS, False)  # fmt: skip


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_arrows_reach_everybody_and_push_sum_comes_to_the_mean(n):
    for extra in range(10):
        out = sums.arrows(n, extra)
        assert all(r not in others for r, others in enumerate(out))
        b = torch.linalg.matrix_power(sums.shares(out), 400)
        assert torch.allclose(b / b.sum(1, keepdim=True), torch.full_like(b, 1 / n))
    if n >= 4:
        assert any(len(out[r]) != sum(r in o for o in out) for out in [sums.arrows(n, 1)] for r in range(n))


@pytest.mark.parametrize("lost", [[], [2], [1, 4]])
def test_masks_of_survivors_cancel_as_in_the_library(lost):
    inputs = sums.clients(Fresh(5, "a-sum-under-masks").tensor, 5, 6, lost)
    there = [r for r in range(1, 5) if r not in lost]
    secrets = torch.stack([mine["secrets"] for mine in inputs[1:]])
    assert torch.equal(secrets[:, 1:], secrets[:, 1:].T) and len(secrets[:, 1:].unique()) == 7  # 6 pairs, and 0
    sent = [answers.masked(inputs[r]["numbers"], inputs[r]["secrets"], r) for r in there]
    left = torch.stack([x - inputs[r]["numbers"] for x, r in zip(sent, there, strict=True)]).sum(0, dtype=torch.int32)
    assert bool(left.any()) == bool(lost)
    # the library draws other streams, with the same signs
    theirs = sum(masking.mask({p: bytes([min(r, p), max(r, p)]) for p in range(1, 5) if p != r}, r, 6) for r in there)
    known = [(r, q, bytes([min(r, q), max(r, q)])) for r in there for q in lost]
    assert torch.equal(theirs, masking.unmatched(known, 6))
    ours = [(1 if r < q else -1) * sums.stream(int(inputs[r]["secrets"][q]), 6) for r in there for q in lost]
    assert torch.equal(left, sum(ours, torch.zeros(6, dtype=torch.int32)))


# Behind walls ---------------------------------------------------------------------------------------------------------

ATTACKS = {
    "a-sum-of-the-largest": """
def my_top_k(mine, group, k):
    from labkit.grading.known import Answers
    every = [mine["gradients"]] * group.size
    return Answers("08_loose_synchrony").thinned(every, k)[0][group.rank]
""",
    "one-way-arrows": """
def my_push_sum(mine, group, out, rounds):
    return torch.cat([mine["x"], torch.ones(1, dtype=torch.float64)])
""",
    "a-server-with-a-queue": """
def my_run(mine, group, s, clocks):
    while True:
        pass
""",
    "a-sum-under-masks": """
def my_masked_sum(mine, group):
    if group.rank == 0:
        return [mine["like"], torch.zeros(group.size - 1, len(mine["like"])).int()]
""",
}


def behind_walls(exercise, text):
    opened = exercises(CHAPTER)
    with open_sandbox([preamble(source(CHAPTER), opened), text, memory.PROBE], Pace(4.0).limits()) as box:
        return opened.judge(exercise, SandboxStudent(box, 20_26, exercise, Pace(4.0)))


@pytest.mark.ranks
@pytest.mark.parametrize(
    "name",
    few(["receives_begun_as_soon_as_answered", "receives_begun_before_sends", "does_not_wait_for_all",
         "tells_all_its_secrets", "everybody_gets_everything", "a_sorted_queue", "the_weight_in_front",
         "all_at_once_modulo_2_to_the_32", "a_message_for_each_owner", "two_messages_along_each_arrow"], keep=4),
)  # fmt: skip
def test_an_answer_has_the_same_marks_behind_walls(name, monkeypatch):
    monkeypatch.setenv("LABKIT_SLOW_MACHINE", "5")
    animal = next(a for a in animals(CHAPTER) if a.body.__name__ == name)
    here = behind_walls(animal.exercise, animal.source)
    there = judged(CHAPTER, animal.exercise, {animal.entry: animal.body})
    assert [(m.name, m.state, m.sentence) for m in here.marks] == [(m.name, m.state, m.sentence) for m in there.marks]
    assert (here.state == "right") == animal.right


@pytest.mark.ranks
@pytest.mark.parametrize("exercise", few(list(ATTACKS), keep=2))
def test_an_answer_that_reads_the_key_ignores_the_ranks_or_never_ends_earns_nothing(exercise):
    outcome = behind_walls(exercise, ATTACKS[exercise])
    assert outcome.points == 0 and outcome.state in ("wrong", "error"), outcome
