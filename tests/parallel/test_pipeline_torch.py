"""The same gradients as PyTorch's own pipelines, in the same ranks."""

from __future__ import annotations

import pytest
import torch
from slices import few
from torch import nn

from labkit import launch
from labkit.models import GPTConfig, next_token_loss
from labkit.parallel.pipeline import Pipeline, gpipe, gpt_stages, interleaved, one_f_one_b, zb_h1, zb_v

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=8, layers=8, width=12, heads=2, vocab=31, tied=False)
TOKENS = torch.arange(16 * 9).reshape(16, 9) * 7 % 31
COUNT = 8


def theirs(group, schedule, kind):
    """Gradients that torch.distributed.pipelining finds for the stages of `schedule` on this rank, and losses."""
    from torch.distributed import pipelining

    modules = gpt_stages(CONFIG, schedule, group)
    device, stages = torch.device("cpu"), schedule.stages
    own = [pipelining.PipelineStage(m, schedule.stage(group.rank, c), stages, device) for c, m in enumerate(modules)]
    single = kind in ("Schedule1F1B", "ScheduleGPipe")
    runner = getattr(pipelining, kind)(own[0] if single else own, COUNT, loss_fn=next_token_loss)
    last = any(stage.is_last for stage in own)
    first = any(stage.is_first for stage in own)
    losses = []
    inputs = (TOKENS[:, :-1],) if first else ()
    runner.step(*inputs, **({"target": TOKENS[:, 1:], "losses": losses} if last else {}))
    return [p.grad for m in modules for p in m.parameters()], [float(loss) for loss in losses]


def ours(group, schedule):
    modules = gpt_stages(CONFIG, schedule, group)
    step = Pipeline(modules, group, next_token_loss).execute(schedule, TOKENS[:, :-1], TOKENS[:, 1:])
    return [p.grad for m in modules for p in m.parameters()], [float(loss) for loss in step.losses]


PAIRS = {
    "ScheduleGPipe": gpipe, "Schedule1F1B": one_f_one_b, "ScheduleInterleaved1F1B": interleaved,
    "ScheduleZBVZeroBubble": zb_v, "ScheduleInterleavedZeroBubble": interleaved,
}  # fmt: skip


@pytest.mark.parametrize("size", few([2, 4]))
def test_gradients_and_losses_are_those_of_torch_distributed_pipelining(size):
    def on_rank(group):
        found = {}
        for kind, make in PAIRS.items():
            schedule = make(size, COUNT)
            found[kind] = theirs(group, schedule, kind), ours(group, schedule)
        return found

    for found in launch(on_rank, size, transport="gloo").results:
        for kind, ((their_gradients, their_losses), (our_gradients, our_losses)) in found.items():
            assert our_losses == pytest.approx(their_losses, abs=1e-6), kind
            for a, b in zip(their_gradients, our_gradients, strict=True):
                assert float((a - b).abs().max()) < 1e-6, kind


def test_a_split_backward_on_our_ranks_gives_the_bits_of_a_whole_one():
    """Over real ranks, where gradients arrive as messages: 1F1B and ZB-H1 add up in the same order."""

    def on_rank(group):
        return [ours(group, make(3, COUNT))[0] for make in (one_f_one_b, zb_h1)]

    for whole, split in launch(on_rank, 3, transport="local").results:
        assert all(torch.equal(a, b) for a, b in zip(whole, split, strict=True))


def test_a_stage_may_hold_any_module():
    """Convolutions, norms with buffers (changed once a microbatch), other shapes and dtypes at each boundary."""

    def parts():
        torch.manual_seed(0)
        return [
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 7), To(torch.bfloat16)),
            nn.Sequential(To(torch.float32), nn.Linear(7, 3)),
        ]  # fmt: skip

    x, y = torch.randn(10, 1, 8, 8), torch.randint(0, 3, (10,))

    def on_rank(group):
        found = []
        for schedule in (one_f_one_b(3, 4), zb_h1(3, 4)):
            module = parts()[group.rank]
            Pipeline(module, group, nn.functional.cross_entropy).execute(schedule, x, y)
            found.append(([p.grad for p in module.parameters()], list(module.buffers())))
        return found

    plain = nn.Sequential(*parts())
    for xs, ys in zip(x.tensor_split(4), y.tensor_split(4), strict=True):
        (nn.functional.cross_entropy(plain(xs), ys) * len(xs) / 10).backward()
    for rank, found in enumerate(launch(on_rank, 3, transport="local").results):
        for gradients, buffers in found:
            for g, p in zip(gradients, plain[rank].parameters(), strict=True):
                assert torch.allclose(g, p.grad, atol=1e-6)
            assert all(torch.equal(a, b) for a, b in zip(buffers, plain[rank].buffers(), strict=True))


class To(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)
