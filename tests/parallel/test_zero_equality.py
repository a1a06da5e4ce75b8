"""ZeRO 1 to 3 against one device on the same global batch, and against PyTorch's ZeroRedundancyOptimizer."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from slices import few
from torch import nn

import labkit
from labkit.models import GPT, GPTConfig, next_token_loss, state
from labkit.parallel import AdamW, ZeRO1, ZeRO2, ZeRO3, checkpoint_blocks

pytestmark = pytest.mark.ranks

STAGES = {1: ZeRO1, 2: ZeRO2, 3: ZeRO3}
SIZES = few([3, 1, 2, 4])
STEPS = 4


def gpt(seed=0, tied=True):
    return GPT(GPTConfig(context=16, width=32, layers=2, tied=tied), seed=seed)


def wrap(stage, module, group, *args, **options):
    small = {} if stage == 3 else {"bucket_bytes": 20_000}  # several buckets
    return STAGES[stage](module, group, *args, **small, **options)


def tokens(step, rows=12):
    x = torch.randint(0, 256, (rows, 17), generator=torch.Generator().manual_seed(step))
    return x[:, :-1], x[:, 1:]


def part(group, *tensors):
    return [x.tensor_split(group.size)[group.rank] for x in tensors]


def alone(model, settings, steps=STEPS):
    """Gradients of the last step, and the weights after it, on one device."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **settings)
    for step in range(steps):
        optimizer.zero_grad()
        x, y = tokens(step)
        next_token_loss(model(x), y).backward()
        optimizer.step()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}, state(model)


def trained(group, stage, model, settings, precision="single", steps=STEPS, microbatches=1):
    """The same under ZeRO; the first step's gradients too."""
    zero = wrap(stage, model, group, AdamW(**settings), precision)
    for step in range(steps):
        zero.zero_grad()
        x, y = part(group, *tokens(step))
        for xs, ys in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
            (next_token_loss(zero(xs), ys) / microbatches).backward()
        gradients = zero.gradients()
        zero.step()
        if step == 0:
            first = {name: g.clone() for name, g in gradients.items()}
    return first, gradients, zero.training_state()["parameters"]


def largest(a, b):
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("size", SIZES)
def test_gradients_and_weights_are_those_of_one_device_on_the_global_batch(size):
    settings = {"lr": 1e-2, "weight_decay": 0.1}

    def work(group):
        found = []
        for stage in STAGES:
            model = gpt(seed=group.rank, tied=False)  # other weights on each rank: rank 0's count
            first, _, _ = trained(group, stage, model, settings, steps=1)
            _, gradients, weights = trained(group, stage, gpt(seed=group.rank).double(), settings)
            found.append((first, gradients, weights))
        return found

    once, _ = alone(gpt(tied=False), settings, steps=1)
    gradients, weights = alone(gpt().double(), settings)
    for result in labkit.launch(work, size).results:
        for ours in result:
            assert largest(ours[0], once) <= 1e-6  # float32
            assert largest(ours[1], gradients) <= 1e-12
            assert largest(ours[2], {n: weights[n] for n in ours[2]}) <= 1e-9


def test_weights_in_float32_with_a_large_eps_over_gloo_and_in_microbatches():
    settings = {"lr": 1e-3, "eps": 1e-5}

    def work(group):
        return [trained(group, stage, gpt(), settings, microbatches=2)[2] for stage in STAGES]

    _, weights = alone(gpt(), settings)
    for transport in ("local", "gloo"):
        for ours in labkit.launch(work, 3, transport=transport).results[0]:
            assert largest(ours, weights) <= 1e-6


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_keeps_its_own_precision_unless_another_is_asked_for(stage):
    def work(group):
        zero = STAGES[stage](Critic(False), group)
        zero(torch.ones(2, 5)).sum().backward()
        return [t.dtype for t in zero.gradients().values()] + [u.shard.dtype for u in zero.units]

    assert set(labkit.launch(work, 1).results[0]) == {torch.float32}


def test_mixed_precision_is_bf16_gradients_averaged_in_32_bits_and_a_float32_master():
    settings = {"lr": 1e-3, "weight_decay": 0.1}

    def work(group):
        return [trained(group, stage, gpt(), settings, "mixed")[1:] for stage in STAGES]

    def by_hand(group):
        """A bf16 model on one device, for each of the two halves."""
        model = gpt()
        master = {name: nn.Parameter(p.detach().clone()) for name, p in model.named_parameters()}
        optimizer = torch.optim.AdamW(master.values(), **settings)
        model = model.bfloat16()
        for step in range(STEPS):
            halves = []
            x, y = tokens(step)
            for xs, ys in zip(x.chunk(2), y.chunk(2), strict=True):
                model.zero_grad()
                next_token_loss(model(xs).float(), ys).backward()
                halves.append({name: p.grad.float() for name, p in model.named_parameters()})
            for name, p in master.items():
                p.grad = ((halves[0][name] + halves[1][name]) / 2).bfloat16().float()
            optimizer.step()
            for name, p in model.named_parameters():
                p.data.copy_(master[name])
        return {n: p.grad for n, p in master.items()}, {n: p.detach() for n, p in master.items()}

    ((expected, master),) = labkit.launch(by_hand, 1).results  # on a rank too: threads change sums in bf16
    for result in labkit.launch(work, 2).results:
        for gradients, weights in result:
            assert all(g.dtype == torch.bfloat16 for g in gradients.values())
            assert all(w.dtype == torch.float32 for w in weights.values())
            assert largest({n: g.float() for n, g in gradients.items()}, expected) == 0
            assert largest(weights, master) <= 1e-7


def test_the_same_as_zero_redundancy_optimizer():
    settings = {"lr": 1e-2, "eps": 1e-5}

    def theirs(group):
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.nn.parallel import DistributedDataParallel

        model = DistributedDataParallel(gpt())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **settings)
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y = part(group, *tokens(step))
            next_token_loss(model(x), y).backward()
            optimizer.step()
        return state(model.module)

    def ours(group):
        return [trained(group, stage, gpt(), settings)[2] for stage in STAGES]

    expected = labkit.launch(theirs, 2, transport="gloo").results[0]
    for weights in labkit.launch(ours, 2).results[0]:
        assert largest(weights, expected) <= 1e-6


def test_frozen_weights_stay_and_the_rest_learns_as_on_one_device():
    settings = {"lr": 1e-2}

    def frozen():
        model = gpt().double()
        for name, p in model.named_parameters():
            if name == "positions.weight" or name.startswith("blocks.0") or name.endswith("qkv.weight"):
                p.requires_grad_(False)
        return model

    def work(group):
        return [trained(group, stage, frozen(), settings)[1:] for stage in STAGES]

    gradients, weights = alone(frozen(), settings)
    for result in labkit.launch(work, 3).results:
        for ours in result:
            assert largest(ours[0], gradients) <= 1e-12 and largest(ours[1], weights) <= 1e-9


class Sometimes(nn.Module):
    """Which layers are used depends on the input's sign; `never` is not used at all."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.always = nn.Linear(4, 4).double()
        self.sometimes = nn.ModuleList(nn.Linear(4, 4).double() for _ in range(2))
        self.never = nn.Linear(4, 4).double()

    def forward(self, x, which):
        x = self.always(x)
        return self.sometimes[which](x) if which is not None else x


@pytest.mark.parametrize("stage", STAGES)
def test_what_no_rank_used_stays_and_what_one_rank_used_learns(stage):
    which = [0, None, 1]  # by step, on rank 1; rank 0 uses none of the two

    def batch(step):
        return torch.randn(4, 4, generator=torch.Generator().manual_seed(step)).double()

    def work(group):
        # stage 3 gathers what is used, so ranks must go the same way there: all weights lie in the root block
        options = {"blocks": []} if stage == 3 else {}
        zero = STAGES[stage](Sometimes(), group, AdamW(lr=1e-2), "single", find_unused_parameters=True, **options)
        for step in range(3):
            zero.zero_grad()
            (x,) = part(group, batch(step))
            zero(x, which[step] if group.rank else None).square().mean().backward()
            zero.step()
        return zero.training_state()

    model = Sometimes()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        optimizer.zero_grad()
        halves = batch(step).chunk(2)
        losses = [model(halves[0], None).square().mean(), model(halves[1], which[step]).square().mean()]
        (sum(losses) / 2).backward()
        optimizer.step()
    for ours in labkit.launch(work, 2).results:
        assert largest(ours["parameters"], state(model)) <= 1e-12
        assert [ours["steps"][f"{name}.weight"] for name in ("always", "sometimes.0", "never")] == [3, 1, 0]


class Critic(nn.Module):
    def __init__(self, alone):
        super().__init__()
        torch.manual_seed(2)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.LayerNorm(5)) for _ in range(2))
        self.first, self.scale = nn.Identity() if alone else nn.Linear(5, 5), nn.Parameter(torch.ones(5))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x) * self.scale
        return x


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("alone", [True, False], ids=["blocks first", "a layer before them"])
def test_a_gradient_penalty_trains_as_on_one_device(stage, alone):
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).double()

    def loss(model, x):
        z = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(z).sin().sum(), z, create_graph=True)
        return (gradient.norm(dim=1) - 1).square().mean() + model(x).mean()

    def work(group):
        zero = STAGES[stage](Critic(alone).double(), group, AdamW(lr=1e-2), "single")
        for _ in range(2):
            zero.zero_grad()
            loss(zero, *part(group, x)).backward()
            gradients = zero.gradients()
            zero.step()
        return gradients, zero.training_state()["parameters"], zero.state_bytes().parameters

    model = Critic(alone).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        loss(model, x).backward()
        optimizer.step()
    whole = sum(p.nbytes for p in model.parameters())
    run = labkit.launch(work, 2)
    for gradients, weights, held in run.results:
        assert largest(gradients, {n: p.grad for n, p in model.named_parameters()}) <= 1e-12
        assert largest(weights, state(model)) <= 1e-9
        assert held <= (whole / 2 + 40 if stage == 3 else whole)  # after step() nothing is kept for the penalty's graph


def encoder():
    """Not written for this repository: PyTorch's own layers, with norms and biases that are not to decay."""
    torch.manual_seed(4)
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()


def by_dimension(model):
    many, one = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() == 1]
    return [{"params": many, "weight_decay": 0.3}, {"params": one, "weight_decay": 0.0, "lr": 0.05}]


OPTIMIZERS = {
    "our AdamW": (AdamW(lr=1e-2), partial(torch.optim.AdamW, lr=1e-2)),
    "SGD": (partial(torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True),) * 2,
    "RMSprop": (partial(torch.optim.RMSprop, lr=1e-3, momentum=0.5),) * 2,
}


@pytest.mark.parametrize("name", few(OPTIMIZERS))
def test_optimizers_of_torch_and_parameter_groups_and_state_under_the_modules_names(name):
    ours, theirs = OPTIMIZERS[name]
    batches = torch.randn(4, 6, 3, 8, generator=torch.Generator().manual_seed(1)).double()

    def steps(model, optimizer, schedule, batches, group=None):
        for x in batches:
            optimizer.zero_grad()
            model(x if group is None else part(group, x)[0]).sin().mean().backward()
            optimizer.step()
            schedule()

    def begin(group):
        found = []
        for stage in STAGES:
            model = encoder()
            zero = wrap(stage, model, group, ours, param_groups=by_dimension(model))
            adamw = isinstance(zero.optimizer, AdamW)
            halve = torch.optim.lr_scheduler.StepLR(zero.optimizer, 1, 0.5).step if not adamw else lambda: None
            steps(zero, zero, halve, batches[:2], group)
            found.append((zero.state_dict(), zero.training_state(), zero.training_state("shard")))
        return found

    def go_on(group, states):
        found = []
        for stage, state_ in zip(STAGES, states, strict=True):
            model = encoder()
            zero = wrap(stage, model, group, ours, param_groups=by_dimension(model))
            zero.load_training_state(state_)
            steps(zero, zero, lambda: None, batches[2:], group)
            found.append(zero.state_dict())
        return found

    def alone(steps_):
        model = encoder()
        optimizer = theirs(by_dimension(model))
        halve = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5).step if name != "our AdamW" else lambda: None
        steps(model, optimizer, halve, batches[:2])
        if steps_ == 4:
            fresh = theirs(by_dimension(model))
            for new, old in zip(fresh.param_groups, optimizer.param_groups, strict=True):
                old["lr"] = new["lr"]  # settings are no part of what ZeRO keeps
            steps(model, optimizer, lambda: None, batches[2:])
        return model.state_dict()

    two = labkit.launch(begin, 2).results
    for weights, _, _ in two[1]:
        assert largest(weights, alone(2)) <= 1e-10
        encoder().load_state_dict(weights)
    whole = labkit.launch(go_on, 3, [full for _, full, _ in two[0]]).results[0]
    shards = labkit.launch(go_on, 1, [list(pair) for pair in zip(*([s for *_, s in r] for r in two), strict=True)])
    for weights in (*whole, *shards.results[0]):
        assert largest(weights, alone(4)) <= 1e-10


class TwoPasses(nn.Module):
    """A block that is used twice, an input that needs no gradient, and outputs in a dict."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.Tanh()).double() for _ in range(3))
        self.scale = nn.Parameter(torch.ones(5).double())

    def forward(self, x, shift=None):
        x = self.blocks[0](x)
        x = self.blocks[1](self.blocks[0](x * self.scale))
        return {"y": self.blocks[2](x), "also": x}


@pytest.mark.parametrize("stage", STAGES)
def test_a_module_used_twice_and_clipping_by_the_norm_of_the_whole_gradient(stage):
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).double()

    def loss(out):
        return out["y"].square().sum(1).mean() * 100 + out["also"].mean()

    def work(group):
        model = TwoPasses()
        if stage == 3:
            checkpoint_blocks(model)
        zero = STAGES[stage](model, group, AdamW(lr=1e-2), "single")
        loss(zero(*part(group, x))).backward()
        norm = zero.clip_grad_norm_(0.5)
        gradients = zero.gradients()
        zero.step()
        with torch.no_grad():  # evaluation gathers too, and leaves nothing behind
            y = zero(x)["y"]
        return norm, gradients, zero.training_state()["parameters"], y, zero.state_bytes().parameters

    model = TwoPasses()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss(model(x)).backward()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
    optimizer.step()
    results = labkit.launch(work, 3).results
    for ours in results:
        assert abs(ours[0] - norm) < 1e-9 and norm > 1
        assert largest(ours[1], {n: p.grad for n, p in model.named_parameters()}) <= 1e-12
        assert largest(ours[2], state(model)) <= 1e-9
        assert torch.allclose(ours[3], model(x)["y"])
    whole = sum(p.nbytes for p in model.parameters())
    assert sum(ours[4] for ours in results) == (whole if stage == 3 else 3 * whole)
