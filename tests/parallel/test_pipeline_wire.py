"""A pipeline that sends activations and gradients in 8 bits: what arrives, its bytes, and the loss beside the plain."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from labkit import RankFailed, cost, launch
from labkit.models import GPT, GPTConfig, next_token_loss, seeded
from labkit.optim.precision import Codec, Wire
from labkit.parallel.pipeline import Pipeline, gpipe, gpt_stages, one_f_one_b, with_messages, zb_h1, zb_v
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=8, layers=6, width=12, heads=2, vocab=31, tied=False)
TOKENS = torch.arange(26 * 9).reshape(26, 9) * 7 % 31
WIRE = Wire()
BLOCKS = Wire(Codec("E4M3", 5, "e8m0-up"), Codec("BF16"))


def round_trip(codec, x):
    return codec.decode(codec.encode(x.reshape(-1, x.shape[-1])), x.shape[-1]).view(x.shape)


class Sent(torch.autograd.Function):
    """What a stage takes of what the stage before has given, and back."""

    @staticmethod
    def forward(ctx, x, wire):
        ctx.wire = wire
        return round_trip(wire.activations, x)

    @staticmethod
    def backward(ctx, gradient):
        return round_trip(ctx.wire.gradients, gradient), None


class Two(nn.Module):
    """Passes on a tensor of two dimensions, whole numbers, and one number that has a gradient."""

    def __init__(self):
        super().__init__()
        self.linear, self.gain = nn.Linear(7, 7), nn.Parameter(torch.tensor(0.3))

    def forward(self, x, places=None, gain=None):
        y = self.linear(x).tanh() * (1 if gain is None else gain)
        return y, torch.arange(len(x)) if places is None else places + 1, self.gain * y.mean()


def add_up(y, target):
    x, places, gain = y
    return (x - target).square().mean() + gain + 0 * places.sum()


@pytest.mark.parametrize("wire", [WIRE, BLOCKS], ids=["fp8 by row", "blocks, and gradients in BF16"])
def test_a_stage_takes_what_the_codecs_make_of_what_is_sent(wire):
    x, target = torch.randn(2, 10, 7, generator=torch.Generator().manual_seed(0)).unbind()

    def stages():
        with seeded(1):
            return [Two() for _ in range(3)]

    def on_rank(group):
        mine = stages()[group.rank]
        step = Pipeline(mine, group, add_up, wire=wire).execute(gpipe(3, 2), x, target)
        return step.loss, [p.grad for p in mine.parameters()]

    def on_one():
        modules, losses = stages(), []
        for part, answer in zip(x.split(5), target.split(5), strict=True):
            y, places, gain = modules[0](part)
            for module in modules[1:]:
                y, places, gain = module(Sent.apply(y, wire), places, Sent.apply(gain[None], wire)[0])
            losses.append(add_up((y, places, gain), answer) / 2)
            losses[-1].backward()
        return sum(losses), [[p.grad for p in m.parameters()] for m in modules]

    results = launch(on_rank, 3, transport="local").results
    loss, gradients = on_one()
    assert results[2][0].item() == pytest.approx(loss.item(), rel=1e-6)
    for (_, mine), wanted in zip(results, gradients, strict=True):
        for a, b in zip(mine, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


SCHEDULES = {
    "1F1B": one_f_one_b(3, 4),
    "explicit": with_messages(one_f_one_b(3, 4)),
    "zero bubble": zb_h1(3, 4),
    "two stages on a rank": zb_v(3, 4),  # in the middle of its V, where nothing is sent
}


@pytest.mark.parametrize("transport", ["local", "gloo"])
def test_bytes_and_loss_of_schedules(transport):
    """Of a row of 12 numbers 16 bytes are sent in place of 48, and the loss is within 0.5 %."""

    def on_rank(group):
        found = {}
        for n, (name, schedule) in enumerate(SCHEDULES.items()):
            for m, wire in enumerate((None, WIRE, BLOCKS)):
                modules = gpt_stages(CONFIG, schedule, group, seed=3)
                pipeline = Pipeline(modules, group, next_token_loss, wire=wire)
                sizes = [7, 7, 7, 5]
                group.step(10 * n + m + 1)
                step = pipeline.execute(schedule, TOKENS[:, :-1], TOKENS[:, 1:], sizes=sizes)
                group.step(0)
                found[name, m] = step.loss, {k: p.grad for module in modules for k, p in module.named_parameters()}
        return found

    run = launch(on_rank, 3, transport=transport)
    plain = GPT(CONFIG, 3)
    loss = next_token_loss(plain(TOKENS[:, :-1]), TOKENS[:, 1:])
    loss.backward()
    whole = {k: p.grad for k, p in plain.named_parameters()}
    for n, name in enumerate(SCHEDULES):
        kinds = [({"chunks": 2, "placement": "v"} if n == 3 else {}) | {"passes": p} for p in ("forward", "backward")]
        there, back = ([x // 4 for x in cost.pipeline_messages_by_rank(3, 4, **kind)] for kind in kinds)
        forms = [(48, 48), (cost.coded_bytes(12, per="row"),) * 2, (cost.coded_bytes(12, 8, 5, 1), 24)]
        for m, (row, row_back) in enumerate(forms):
            sent = [0, 0, 0]
            for message in run.trace.sends:  # collectives agree on the step
                sent[message.src] += message.nbytes if (message.step, message.collective) == (10 * n + m + 1, -1) else 0
            expected = [26 * 8 * (row * a + row_back * b) for a, b in zip(there, back, strict=True)]
            assert sent == expected, (name, m)
            got = [r[name, m][0].item() for r in run.results if r[name, m][0] is not None]
            assert got == [pytest.approx(loss.item(), rel=5e-3 if m else 1e-6)] and (m == 0 or got != [loss.item()])
            joined = {k: g for r in run.results for k, g in r[name, m][1].items()}
            flat, wanted = (torch.cat([x[k].flatten() for k in sorted(whole)]) for x in (joined, whole))
            off = ((flat - wanted).norm() / wanted.norm()).item()
            assert off < (0.15 if m else 1e-5) and (off > 1e-3) == (m > 0), (name, m, off)


def test_what_cannot_be_is_refused_on_every_rank():
    def on_rank(group):
        stage = nn.Linear(2, 2)
        with pytest.raises(RefusedError, match="wire='fp8'.: a Wire of labkit.optim.precision, or None"):
            Pipeline(stage, group, add_up, wire="fp8" if group.rank else None)
        with pytest.raises(RefusedError, match="rank 1 has wire=None, rank 0 has wire=Wire"):
            Pipeline(stage, group, add_up, wire=None if group.rank else WIRE)
        return True

    assert launch(on_rank, 2, transport="local").results == [True, True]


def test_an_activation_that_is_no_number_names_its_microbatch():
    def on_rank(group):
        pipeline = Pipeline(nn.Linear(2, 2), group, nn.functional.mse_loss, wire=WIRE)
        x = torch.ones(4, 2)
        x[3] = torch.inf
        pipeline.execute(gpipe(2, 4), x, torch.ones(4, 2))

    with pytest.raises(RankFailed, match="rank 0.*inf|rank 0.*nan"):
        launch(on_rank, 2, transport="local", timeout=30)
