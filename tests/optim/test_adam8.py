"""AdamW with moments of a byte: its map from the bits, its bytes by the formula, its training beside AdamW's."""

from __future__ import annotations

import copy
import io
from itertools import islice

import pytest
import torch
from torch import nn

import labkit
from labkit import cost
from labkit.data import batches, text
from labkit.models import GPT, MLP, GPTConfig, MLPConfig, next_token_loss
from labkit.models.threads import one_thread
from labkit.optim.precision import SIGNED, UNSIGNED, AdamW8bit, dynamic_map
from labkit.optim.precision.adam8 import coded, decoded
from labkit.parallel import ZeRO1
from labkit.parallel.fsdp.fully_shard import FullyShard
from labkit.parallel.zero.elementwise import state_keys
from labkit.wire.errors import RefusedError

EQUAL_STEPS = torch.arange(-128, 128).clamp(min=-127) / 127  # the levels of `Block8`


def by_bits(signed):
    """What each byte means: a sign, k zeros, a 1, a fraction. Without a sign one more bit of the fraction."""
    found = []
    for byte in range(256):
        bits = f"{byte:08b}"
        rest = bits[1:]
        zeros, one, fraction = rest.partition("1")
        fraction += "" if signed else bits[0]
        part = (int(fraction or "0", 2) + 0.5) / 2 ** len(fraction)
        number = 10.0 ** -len(zeros) * (0.1 + 0.9 * part)
        sign = -1 if signed and bits[0] == "1" else 1
        found.append(sign * number if one else float(bits[0]))  # all zeros: two codes are left, for 0 and 1
    return torch.tensor(sorted(found))


@pytest.mark.parametrize("signed", [True, False])
def test_the_map_is_that_of_its_bits(signed):
    numbers = dynamic_map(signed)
    assert numbers.shape == (256,) and bool((numbers.diff() > 0).all())
    torch.testing.assert_close(numbers, by_bits(signed), rtol=2e-7, atol=0)


def test_the_map_is_that_of_bitsandbytes():
    """Some numbers of `bitsandbytes.functional.create_dynamic_map` (0.50.2); all 256 were equal to 1.5e-7 of each."""
    places = torch.tensor([0, 1, 127, 128, 254, 255])
    for numbers, theirs in (
        (SIGNED, [-0.99296875, -0.97890625, 0, 5.5e-7, 0.99296875, 1]),
        (UNSIGNED, [0, 3.25e-7, 0.103515625, 0.110546875, 0.996484375, 1]),
    ):
        torch.testing.assert_close(numbers[places], torch.tensor(theirs), rtol=2e-7, atol=0)


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (8,), (3, 11), (2, 4, 4)], ids=str)
def test_blocks_come_back_to_half_a_gap_of_the_map(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 1e-5
    for numbers, y in ((SIGNED, x), (UNSIGNED, x.square())):
        codes, scale = coded(y, numbers, 8)
        assert codes.shape == y.shape and codes.dtype == torch.uint8 and len(scale) == -(-y.numel() // 8)
        back = decoded(codes, scale, numbers, 8)
        each = scale.repeat_interleave(8)[: y.numel()].view(y.shape)
        assert ((back - y).abs() <= (y.abs() * 0.3 + 3e-7 * each)).all() and (
            back - y
        ).abs().sum() <= 0.02 * y.abs().sum()
        nearest = (y.flatten() / each.flatten())[:, None].sub(numbers).abs().amin(1).view(y.shape) * each
        torch.testing.assert_close((back - y).abs(), nearest, rtol=1e-3, atol=1e-12)
        assert torch.equal(decoded(*coded(back, numbers, 8), numbers, 8).sign(), back.sign())


def step_of(optimizer, parameters, gradients):
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = g.clone()
    optimizer.step()


def test_a_step_is_adamws_and_small_tensors_stay_so():
    """The first step of any tensor, whose moments come from one gradient, and all steps of a small one."""
    draw = torch.Generator().manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((64, 64), (4095,), (1,), (0,))]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    settings = dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    a, b = AdamW8bit(ours, **settings), torch.optim.AdamW(theirs, **settings)
    for n in range(4):
        gradients = [torch.randn(p.shape, generator=draw) for p in ours]
        step_of(a, ours, gradients)
        step_of(b, theirs, gradients)
        for k, (x, y) in enumerate(zip(ours, theirs, strict=True)):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-6 if k or not n else 1e-2 * 0.1 * n)
    assert not torch.equal(ours[0], theirs[0])
    assert [a.state[p]["m"].dtype for p in ours] == [torch.uint8, torch.float32, torch.float32, torch.float32]


def test_state_bytes_are_those_of_the_formula():
    for block in (256, 2048):
        model = GPT(GPTConfig(width=64, layers=1))
        optimizer = AdamW8bit(model.parameters(), block=block)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        numels = [p.numel() for p in model.parameters()]
        held = sum(x.nbytes for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x))
        assert held == cost.adam8_state_bytes(numels, block)
        large = sum(n for n in numels if n >= 4096)
        assert held == pytest.approx(2 * large * (1 + 4 / block) + 8 * (sum(numels) - large), rel=2e-3)
    assert cost.adam8_state_bytes(2**20) == 2 * 2**20 + 2 * 512 * 4
    assert cost.adam8_state_bytes([4095, 4096, 4097], 2048) == 8 * 4095 + 2 * (4096 + 8) + 2 * (4097 + 12)
    assert cost.adam8_state_bytes([]) == 0
    with pytest.raises(ValueError, match="block must be a whole number"):
        cost.adam8_state_bytes(5, 0)


CONFIG = GPTConfig(context=32, layers=1, width=64, heads=4)


def losses(make, seed, steps):
    model, found = GPT(CONFIG, seed), []
    optimizer = make(model.parameters())
    with one_thread():
        for x, y in islice(batches(text().train, 4, CONFIG.context, seed), steps):
            optimizer.zero_grad()
            loss = next_token_loss(model(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found


def test_a_gpt_trains_as_with_adamw():
    """The mean loss of the last 10 of 60 steps is within 0.5 % for each of three seeds."""
    for seed in range(3):
        ours = losses(lambda p: AdamW8bit(p, lr=3e-3), seed, 60)
        theirs = losses(lambda p: torch.optim.AdamW(p, lr=3e-3), seed, 60)
        assert sum(theirs[-10:]) / 10 < theirs[0] - 2
        assert ours != theirs and sum(ours[-10:]) == pytest.approx(sum(theirs[-10:]), rel=5e-3)


def test_equal_steps_lose_small_second_moments_and_the_update_explodes():
    """Second moments below 1/254 of the largest become 0, whatever the block is, and m / eps is what moves weights."""
    v = torch.logspace(0, -6, 1024)  # gradients that differ by a factor of 1,000
    kept = {}
    for name, numbers in (("equal", EQUAL_STEPS), ("dynamic", UNSIGNED)):
        kept[name] = decoded(*coded(v, numbers, 1024), numbers, 1024) > 0
    assert torch.equal(kept["equal"], v > 1 / 254) and kept["dynamic"].all()
    for seed, block in enumerate((256, 2048, 256)):
        found = losses(lambda p, b=block: AdamW8bit(p, lr=3e-3, block=b, maps=(SIGNED, EQUAL_STEPS)), seed, 10)
        assert found[0] < 6 and not max(found) < 1e3
    found = losses(lambda p: AdamW8bit(p, lr=3e-3, maps=(EQUAL_STEPS, UNSIGNED)), 0, 10)
    assert max(found) < 6  # the first moment, which nothing is divided by, may have equal steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_goes_on_from_its_state_to_the_bit(dtype):
    draw = torch.Generator().manual_seed(0)
    gradients = [
        [torch.randn(5000, generator=draw).to(dtype), torch.randn(3, generator=draw).to(dtype)] for _ in range(6)
    ]

    def fresh():
        parameters = [nn.Parameter(torch.ones(5000, dtype=dtype)), nn.Parameter(torch.ones(3, dtype=dtype))]
        return parameters, AdamW8bit([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 1e-2}], lr=0.1)

    straight, optimizer = fresh()
    for n, each in enumerate(gradients):
        step_of(optimizer, straight, each)
        if n == 2:
            file = io.BytesIO()
            torch.save([optimizer.state_dict(), [p.detach() for p in straight]], file)
            file.seek(0)
    state, values = torch.load(file, weights_only=True)
    resumed, optimizer = fresh()
    optimizer.load_state_dict(state)
    for p, x in zip(resumed, values, strict=True):
        p.data.copy_(x)
    kept = copy.deepcopy(state)
    for each in gradients[3:]:
        step_of(optimizer, resumed, each)
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))
    for index, tensors in kept["state"].items():  # what was loaded is a copy
        assert all(torch.equal(x, state["state"][index][k]) for k, x in tensors.items() if torch.is_tensor(x))
    assert optimizer.state[resumed[0]]["m"].dtype == torch.uint8 and optimizer.param_groups[1]["lr"] == 1e-2


def test_zero_refuses_what_it_cannot_cut():
    with pytest.raises(RefusedError, match="keeps 'm_scale' for each parameter as a whole"):
        state_keys(AdamW8bit, [{}])


@pytest.mark.ranks
def test_shards_of_fsdp_train_and_a_state_that_nobody_could_cut_is_not_saved():
    def work(group):
        with pytest.raises(RefusedError, match="m_scale"):
            ZeRO1(MLP(MLPConfig((64, 4))), group, AdamW8bit)
        model = FullyShard(MLP(MLPConfig((64, 512, 10))), group)
        optimizer = AdamW8bit(model.parameters(), lr=1e-2)
        x, found = torch.randn(16, 64, generator=torch.Generator().manual_seed(group.rank)), []
        for _ in range(8):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), torch.arange(16) % 10)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        assert {s["m"].dtype for s in optimizer.state.values()} == {torch.uint8, torch.float32}
        with pytest.raises(RefusedError, match="'m_scale' of shape .* cannot be cut for another world"):
            model.sharded_state_dict(optimizer)
        assert model.sharded_state_dict()["shards"]
        return found

    for found in labkit.launch(work, 2, transport="local").results:
        assert found[-1] < found[0] / 2


@pytest.mark.parametrize(("options", "words"), [
    ({"lr": -1}, "lr=-1"), ({"betas": (0.9, 1.0)}, "betas=.0.9, 1.0."), ({"block": 0}, "block=0"),
    ({"block": 2.5}, "block=2.5"), ({"smallest": -1}, "smallest=-1"), ({"maps": (SIGNED, SIGNED[:9])}, "256 numbers"),
    ({"maps": (SIGNED, UNSIGNED.flip(0))}, "ascending"),
])  # fmt: skip
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(RefusedError, match=words):
        AdamW8bit([nn.Parameter(torch.ones(2))], **options)


def test_a_sparse_gradient_is_refused():
    table = nn.Embedding(8, 4, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RefusedError, match="sparse=False"):
        AdamW8bit(table.parameters()).step()
