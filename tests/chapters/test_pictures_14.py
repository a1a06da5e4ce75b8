"""What chapter 14 shows: counts that are those of the cast, sentences that are those of the run, and two drawings."""

from contextlib import closing
from types import SimpleNamespace

import pytest
import torch

import labkit
from labkit import book, cost
from labkit.chapters.c14_low_precision import blocks, drawings, lm, panels, pictures, sums, wires, you_write
from labkit.course.chapter_file import load_chapter
from labkit.models import next_token_loss
from labkit.optim.precision import BF16, E4M3, E5M2, FP16, FP32, Recipe, multiply, quantize, round_to


def fate_of(x, format, scale=1.0):
    return lm.fate(x, round_to(x * scale, format) / scale, format, scale)


def shown(fate):
    return SimpleNamespace(results=[fate])


def test_every_number_has_one_fate_and_it_is_that_of_the_cast():
    x = torch.tensor([0.0, 2.0**-12, -(2.0**-8), 0.02, 3.0, -448.0, 500.0, 1e9])
    fate = fate_of(x, E4M3)
    assert [fate.count(n) for n in range(4)] == [1, 1, 3, 2] and fate.zeros == 1 and fate.numbers == 8
    assert fate.powers[-12] == (1, 0, 0, 0) and fate.powers[-8] == (0, 1, 0, 0) and fate.powers[8] == (0, 0, 1, 1)
    assert fate.window == (2.0**-9, 2.0**-6, 448)
    moved = fate_of(x * 2.0**-9, E4M3, 2.0**9)
    assert [moved.count(n) for n in range(4)] == [1, 1, 3, 2] and moved.window[2] == 448 / 2**9
    assert fate_of(torch.tensor([448.0 / 3]), E4M3, 3.0).count(3) == 0, "rounding of the product makes it no larger"


def test_the_words_of_the_first_panel_are_its_counts():
    said = pictures.caught_said(shown(fate_of(torch.tensor([1e-5, 1.0, 2.0**-8, 1e4]), E4M3)))
    assert "**25.0% become 0**, and 25.0% are too large. 25.0% lose digits" in said and "4 B in place of 16 B" in said
    fine = pictures.caught_said(shown(fate_of(torch.tensor([1.0, 2.0]), E4M3)))
    assert "**none becomes 0**, and none is too large. None is rounded" in fine and "0.0%" not in fine
    few = pictures.caught_said(shown(fate_of(torch.tensor([1e-5, 2.0**-8, 1e9] + [1.0] * 3997), E4M3)))
    assert "**fewer than 0.1% become 0**, and fewer than 0.1% are too large. Fewer than 0.1% lose digits" in few
    shares = [pictures.share_text(share) for share in (0, 1e-4, 0.5, 0.9999, 1)]
    assert shares == ["none", "fewer than 0.1%", "50.0%", "more than 99.9%", "all"]
    figure = pictures.caught(shown(fate_of(torch.tensor([1e-5, 1.0, 1e4]), E4M3)))
    assert "from 0.016 to 448" in figure.sentence and len(figure.rows) == 3
    outside = pictures.caught(shown(fate_of(torch.tensor([1e-30, 1.0]), E4M3, 2.0**-10)))
    assert "nan" not in outside.svg


@pytest.mark.parametrize(("exponent", "mantissa"), [(2, 1), (4, 3), (5, 2), (8, 1), (8, 7), (5, 10), (2, 10), (8, 10)])
def test_every_setting_of_the_first_panel_is_a_format(exponent, mantissa):
    format = lm.shape(exponent, mantissa)
    assert (format.exponent, format.mantissa) == (exponent, mantissa)
    for power in (-10, 0, 24):
        assert pictures.caught(shown(fate_of(torch.randn(50), format, 2.0**power))).svg


def test_the_ruler_is_drawn_by_the_readers_own_numbers():
    player = pictures.rulers(you_write.number)
    assert [words.split()[0] for _, words in player.frames] == ["E4M3", "E5M2", "E3M4", "E2M1"]
    assert "8 of them lie from 1 to below 2, and 8 from 2 to below 4" in player.frames[0][1]
    assert "114,688" in player.frames[1][1] and "8 numbers from 0 up" in player.frames[3][1]
    doubled = pictures.rulers(lambda *bits: 2 * you_write.number(*bits))
    assert "from 0.0039 to 960, as" in doubled.frames[0][1]


def test_a_sum_that_stands_still_is_that_of_a_product():
    for accumulator, promote in ((FP16, None), (BF16, None), (FP16, 128), (FP32, None)):
        ones = torch.ones(1, 640)
        line = sums.running(640, accumulator, promote)
        assert line[-1] == (640, multiply(ones, ones.T, accumulator, promote).item())
    assert [sums.running(4096, f)[-1][1] for f in (FP32, FP16, BF16)] == [4096, 2048, 256]


def remembers(steps, room=1):
    return lambda amaxes, largest: largest / (room * max(amaxes[-steps:]))


def test_a_tensor_that_jumps_is_spoilt_where_nobody_remembers_it():
    rules = lm.jumping(None, remembers(4))
    large = [step for step, size in enumerate(lm.JUMP, 1) if size == lm.LARGE]
    high = {rule: lm.spoilt(line) for rule, line in rules.items()}
    assert high == {"current": [], "delayed": [5, 39], "fixed": large, lm.YOURS: [5, 16, 39]}
    assert rules["delayed"] == pytest.approx(lm.jumping(None, remembers(Recipe().history))[lm.YOURS])
    said = pictures.jump(rules, lm.JUMP).sentence
    assert "ten times as large in steps 5 to 7, 16 to 18 and 39 to 41. With current scaling it is spoilt in no" in said
    assert "With delayed scaling it is spoilt in steps 5 and 39." in said
    assert [pictures.steps_text(steps) for steps in ([], [3], [3, 4])] == ["no step", "step 3", "steps 3 to 4"]


def test_what_the_chapter_says_of_the_readers_rule_is_so():
    for steps, spoilt in ((8, [5, 16, 39]), (9, [5, 39]), (20, [5, 39]), (21, [5])):
        assert lm.spoilt(lm.jumping(None, remembers(steps))[lm.YOURS]) == spoilt
    roomy, current = (lm.jumping(None, remembers(4, 10))[name] for name in (lm.YOURS, "current"))
    assert not lm.spoilt(roomy) and max(roomy) < 1.05 * max(current)
    with pytest.raises(labkit.RefusedError, match="a finite number above 0"):
        lm.jumping(None, lambda amaxes, largest: 0.0)


def each_way(rows, format, ways=blocks.WAYS):
    return {way: blocks.others(rows, quantize(rows, format, *how)) for way, how in ways.items()}


def test_an_outlier_spoils_those_it_shares_a_scale_with():
    rows = torch.randn(4, 128, generator=torch.Generator().manual_seed(0))
    rows[0, 0] = rows.abs().max()
    clean = each_way(rows, "E2M1")
    rows[0, 0] *= 1000
    spoilt = each_way(rows, "E2M1")
    assert spoilt["tensor"].zero == 1 > clean["tensor"].zero
    for way, sharing in (("row", 127), ("block of 32", 31)):
        alone = quantize(rows.flatten()[sharing + 1 :].view(-1, sharing + 1), "E2M1", *blocks.WAYS[way]).wide()
        assert spoilt[way].zero == pytest.approx((sharing + int((alone == 0).sum())) / 511)
    said = blocks.by_block(shown(spoilt)).sentence
    assert "with a scale for the tensor all become 0 and none loses digits" in said
    assert all(100 == pytest.approx(sum(row[fate] for fate in ("become 0", "lose digits", "fit")), abs=0.02)
               for row in blocks.by_block(shown(spoilt)).rows)  # fmt: skip
    block = spoilt["block of 32"]
    assert f"each block of 32 {block.zero:.1%} become 0 and {block.dull:.1%} lose digits" in said


def test_the_map_shows_what_became_of_each_number_of_the_first_rows():
    rows = torch.ones(20, 128)
    rows[0, 0], rows[1, 5], rows[2, 7] = 1e6, 0.0, 2.0**-9
    tensor, row, block = each_way(rows, "E4M3").values()
    assert [len(one.map) for one in (tensor, row, block)] == [blocks.DRAWN] * 3
    assert tensor.map[0] == "2" + "0" * 127 and tensor.map[1] == "0" * 5 + "2" + "0" * 122, "0 is what it was"
    assert row.map[0] == tensor.map[0] and row.map[1] == "2" * 128
    assert block.map[0] == "2" + "0" * 31 + "2" * 96 and block.map[2] == "2" * 128
    dull = each_way(torch.tensor([[448.0, 2.0**-8, 1.0] + [0.0] * 29]), "E4M3")["tensor"]
    assert dull.map == ("212" + "2" * 29,)
    figure = blocks.by_block(shown(each_way(rows, "E4M3")))
    assert f"the first {blocks.DRAWN} rows" in figure.sentence and figure.svg.count("the outlier<") == 3
    assert len(figure.svg) < 40_000, "larger ones are only words on a page with many"


def test_a_loss_has_a_place_between_two_others():
    assert [lm.place(loss, 2.8, 2.95) for loss in (2.75, 2.82, 2.88, 2.93, 2.97, 2.99)] == [0, 0, 1, 2, 2, 3]


def test_numbers_that_were_0_before_are_not_lost_to_an_outlier():
    rows = torch.tensor([[448.0, 0.0, 0.0, 2.0**-8, 2.0**-12, 1.0]])
    assert blocks.others(rows, quantize(rows, "E4M3")) == blocks.Others(pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_the_table_of_what_it_is_worth_has_the_books_numbers():
    rows = {row["training in"]: row for row in blocks.worth(7e9)}
    assert rows["BF16"]["together"] == 16 and rows["BF16"]["memory"] == "112 GB"
    assert rows["FP8, and Adam in 8 bits"]["together"] == 8
    assert rows["FP8, gradients too"]["sent"] == "14 GB"
    assert [row["format"] for row in blocks.formats()] == ["FP32", "BF16", "FP16", "E5M2", "E4M3", "E2M1"]
    spans = {row["format"]: row["normal numbers, powers of ten"] for row in blocks.formats()}
    for name in ("BF16", "FP16"):
        assert spans[name] - spans["E4M3"] == pytest.approx(cost.textbook.decades_apart(name, "E4M3"), abs=0.1)


def test_the_drawings_say_what_they_show():
    layer, parts = drawings.layer(), drawings.sum_by_parts()
    assert len(layer.frames) == 8 and "E5M2" in layer.frames[3][1] and "dy, E5M2" in layer.frames[3][0]
    assert "W, E4M3" not in layer.frames[0][0] and "dW" in layer.frames[5][0]
    assert all(f">{called}<" in layer.frames[7][0] for _, _, called, _ in drawings.PLACES.values())
    assert layer.frames[7][0].count('class="lk-head"') == 3 + 2 * 3, "three casts, and three products of two factors"
    assert parts.frames[2][0].count(">part 1<") == 3 and parts.frames[3][0].count("sum of part") == 3
    assert parts.frames[4][0].count("sum of part 0") == 3, "every rank has every part of the sum"


def test_a_message_is_four_bytes_and_one_for_each_number():
    x = torch.randn(12, generator=torch.Generator().manual_seed(0)) * 1e-5
    message = wires.pack(x)
    assert message.dtype == torch.uint8 and len(message) == 16
    assert torch.equal(wires.unpack(message), quantize(x, E4M3).wide())


def summed(group, way):
    numbers = 1 << 12
    x = wires.gradient(group, numbers)
    return wires.off((wires.WAYS[way] or you_write.sum_in_eight_bits)(x, group), group)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, 4])
def test_ways_of_a_sum_differ_in_bytes_and_error(ranks):
    found = {way: wires.sum_of(labkit.launch(summed, ranks, way, transport="local")) for way in wires.WAYS}
    eight, hops = found["8 bits, summed in 32"], found["8 bits, added at every hop"]
    assert all(one.alike for one in found.values())
    assert found["32 bits"].sent == cost.ring_all_reduce_bytes_by_rank(1 << 12, 4, ranks)[0]
    assert 2 * found["16 bits"].sent == found["32 bits"].sent
    assert eight.sent == hops.sent == 2 * (ranks - 1) * ((1 << 12) // ranks + 4)
    assert found["32 bits"].off < 1e-6 < found["16 bits"].off < 0.01 < eight.off < 0.06


def scaled(group, agree):
    run, scale, good = sums.Sharded(group, 0), 2.0**22, 0
    for texts in lm.lessons(group, 0, 12):
        shard = run.gradient(texts, scale)
        taken = agree([shard], group)
        run.note(scale, taken)
        if taken:
            run.step(shard / scale)
            good += 1
            scale = scale * 2 if good % 4 == 0 else scale
        else:
            scale, good = scale / 2, 0
    return run.told


@pytest.mark.ranks
def test_ranks_that_decide_alone_come_apart_and_together_they_do_not():
    alone, together = (
        labkit.launch(scaled, 3, agree, transport="local") for agree in (sums.alone, you_write.everyone_finite)
    )
    assert sums.apart(alone) and sums.torn(alone)
    assert not sums.apart(together) and not sums.torn(together)
    assert "Every rank skipped the same" in pictures.scales_by_rank(together, "").sentence
    assert "They skipped" in pictures.scales_by_rank(alone, "").sentence
    assert sums.loss(together, 1) == pytest.approx(sum(told[-1].loss for told in together.results) / 3)


def shards_of_one_model(group):
    run = sums.Sharded(group, 0)
    for texts in lm.lessons(group, 0, 3):
        shard = run.gradient(texts, 1024.0)
        run.note(1024.0, True)
        run.step(shard / 1024.0)
    return [step.loss for step in run.told]


@pytest.mark.ranks
def test_the_model_in_shards_is_the_model_of_one_device():
    told = labkit.launch(shards_of_one_model, 3, transport="local").results
    model = lm.gpt(0)
    optimizer = torch.optim.AdamW(model.parameters(), lm.RATE)
    alone = labkit.launch(lambda group: [list(lm.lessons(group, 0, 3))], 3, transport="local").results
    for step in range(3):
        optimizer.zero_grad()
        losses = [next_token_loss(model(x), y) for (lessons,) in alone for x, y in [lessons[step]]]
        (sum(losses) / 3).backward()
        optimizer.step()
        assert [one[step] for one in told] == pytest.approx([loss.item() for loss in losses], abs=3e-3)


def trains(group, recipe):
    return lm.trained(group, recipe, 20, 0)


def train(group, forward="E4M3", backward="E5M2", scaling="delayed", power=0):
    return lm.trained(group, Recipe(forward, backward, scaling, 2.0**power), 20, 0)


@pytest.mark.ranks
def test_training_is_told_with_its_losses_and_what_was_lost():
    run = labkit.launch(trains, 2, Recipe("E4M3", "E4M3", "fixed"), transport="local")
    others = lm.beside("local", 20, 0)
    said = pictures.trained_said(run, lambda: others)
    mine, wide, without = (lm.last(told) for told in (run.results[0], others["BF16"], others[lm.WITHOUT]))
    assert f"is {mine:.3f}, against {wide:.3f} in BF16 and {without:.3f} with no linear layers. So these layers" in said
    assert mine > without + lm.NEAR > without > wide, "layers that are never told how to change only disturb"
    assert "more harm" not in pictures.trained_said(shown(others["BF16"]), lambda: others)
    assert "of the gradients all became 0" in said, "in the second half nothing that was not 0 came through"
    zero = [lm.share(run.results[0], "zero", kind) for kind in range(3)]
    assert zero[2] > 0.95 > 0.1 > zero[0] and not any(lm.share(others["BF16"], "over", kind) for kind in range(3))
    assert [lm.share(others[lm.WITHOUT], "zero", kind) for kind in (0, 1)] == [1, 1]
    saturated = labkit.launch(trains, 2, Recipe(scaling="fixed", scale=2.0**14), transport="local").results[0]
    assert lm.share(saturated, "over", 0) > 0.4 and lm.share(saturated, "over", 1) > 0.5
    figure = pictures.trained(run, lambda: others)
    assert figure.rows[-1]["step"] == 20 and lm.WITHOUT in figure.rows[-1] and f"{mine:.3f}" not in figure.sentence
    asked = load_chapter("14_low_precision").forecast("gradients-that-are-lost", {})
    assert asked.declared == (lm.place(mine, wide, without),), "what the prediction takes for right"
    rows = {row["training"]: row for row in pictures.settings(others | {"E4M3 both ways, fixed at 1": run.results[0]})}
    lost = rows["E4M3 both ways, fixed at 1"]
    assert (lost["loss"], lost["above BF16"]) == (f"{mine:.3f}", f"{mine - wide:+.3f}")
    assert lost["dy become 0"] == pictures.share_text(zero[2]) and rows["BF16"]["above BF16"] == ""
    assert (rows[lm.WITHOUT]["x become 0"], rows[lm.WITHOUT]["x too large"]) == ("all", "none")


@pytest.mark.ranks
def test_what_the_panel_has_trained_is_not_trained_again():
    trainings = lm.Trainings("local", 20, 0)
    with closing(panels.training(train, trainings)) as bench:
        assert [*trainings.made] == [("E4M3", "E5M2", "delayed", 0)]
        bench.set(power=5)  # of a scale that is not fixed: the same training
        assert len(trainings.made) == 1
    calls = []

    def counted(group, **settings):
        calls.append(settings)
        raise AssertionError("it was there")

    assert trainings.of(counted, {"usual": {}})["usual"] == bench.result.results[0]
    with pytest.raises(labkit.RankFailed):
        trainings.of(counted, {"other": {"backward": "E4M3"}})


@pytest.mark.ranks
def test_the_first_panels_questions_are_answered_by_its_numbers():
    fates, five = lm.first_panel(labkit.launch)
    gradients = fates["gradients"]
    fits = lm.largest_that_fits(gradients)
    assert not gradients[fits].count(3) and gradients[fits + 1].count(3) and gradients[fits].count(0)
    middle = lm.compromise(fates)
    worst = {power: max(fates[kind][power].lost for kind in lm.KINDS) for power in lm.POWERS}
    assert worst[middle] == min(worst.values()) > 0.05 and 0 < middle < fits
    assert five.format == "E5M2" and 0.05 < five.share(0) < gradients[0].share(0)


@pytest.mark.ranks
def test_the_noise_of_a_gradient_is_that_of_the_ranks_texts():
    far, same = (labkit.launch(lm.noise, n, 0, transport="local").results for n in (2, 1))
    assert all(off > 0.1 for off in far) and same == [0.0]


def test_parameters_that_make_no_sense_are_refused_in_a_sentence():
    lm.allowed(4, "local", 40, 0)
    for wrong, words in (
        ((1, "local", 40, 0), "from 2 to 8"), ((4, "nccl", 40, 0), '"local" or "gloo"'),
        ((4, "local", 10, 0), "20 to 1000"), ((4, "local", 40, -1), "0 or more"),
    ):  # fmt: skip
        with pytest.raises(book.ParameterError, match=words):
            lm.allowed(*wrong)


@pytest.mark.ranks
def test_the_panels_run_and_say_what_they_saw():
    def in_few_bits(group, kind="gradients", exponent=4, mantissa=3, power=0):
        return fate_of(lm.look_at(kind, group), lm.shape(exponent, mantissa), 2.0**power)

    def way(group, way="32 bits", numbers=1024):
        return wires.off(wires.in_thirty_two_bits(wires.gradient(group, numbers), group), group)

    with closing(panels.few_bits(in_few_bits)) as bench:
        assert "become 0" in bench.text
        before = bench.text
        bench.set(power=14)
        assert bench.text != before and bench.settings["power"] == 14
    with closing(panels.on_the_wire(way)) as bench:
        assert "Each rank sent" in bench.text

    def outlier(group, kind="activations", narrow_to="E2M1", times=10, ways=blocks.WAYS):
        rows = lm.rows_of(kind, group, 0)
        rows[0, 0] = times * rows.abs().max()
        return each_way(rows, narrow_to, ways)

    with closing(panels.outlier(outlier)) as bench:
        opens = bench.result.results[0]
        assert opens["tensor"].zero > 0.8 and max(opens[way].zero for way in ("row", "block of 32")) < 0.15
    cases = [{"times": 1}, {"times": 10}, {"times": 1, "ways": {"exact": (32, "float32")}}]
    clean, same, exact = blocks.in_one(labkit.launch, outlier, cases)
    assert same == opens
    assert exact["exact"].zero < clean["row"].zero < clean["block of 32"].zero, "it is the power of two that costs"


def test_two_formats_are_shown_one_by_one():
    player = pictures.one_by_one([fate_of(torch.tensor([1.0, 1e-9]), f) for f in (E4M3, E5M2)])
    assert [words.split()[0] for _, words in player.frames] == ["E4M3", "E5M2"] and "50.0% become 0" in player.frames[
        0
    ][1]


@pytest.mark.ranks
def test_the_error_of_a_ring_grows_and_that_of_a_sum_in_32_bits_stays():
    def way(group, way):
        return wires.off((wires.WAYS[way] or you_write.sum_in_eight_bits)(wires.gradient(group, 1 << 12), group), group)

    found = wires.race(way)
    hops, own = ([found[name][n].off for n in (2, 4, 8)] for name in [*found][2:])
    assert hops[0] * 1.1 < hops[1] and hops[1] * 1.1 < hops[2] and max(own) < 1.1 * min(own)
    figure = pictures.errors(found)
    assert [row["ranks"] for row in figure.rows] == [2, 4, 8] and "less than 0.01% (32 bits)" in figure.sentence
    told = "{:.2%}, {:.2%} and {:.2%} (8 bits, added at every hop)".format(*hops)
    assert figure.sentence.startswith("With 2, 4 and 8 ranks the sum is off by") and told in figure.sentence
