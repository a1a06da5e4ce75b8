"""The zoo of the exercises of chapter 5: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import math

import torch
import torch.nn.functional as F

from labkit import collectives
from labkit.grading.checks.zoo import mutant, variant
from labkit.models import MLP, MLPConfig
from labkit.parallel.announce import announce_backward

# Cut, and gathered again ----------------------------------------------------------------------------------------


@mutant("shards", "my_shards", says="A view keeps the whole tensor alive", at=4)
def stretches_that_are_views(group, shapes, which):
    def layer(number):
        generator = torch.Generator().manual_seed(number)
        return torch.randint(-9, 10, shapes[number], generator=generator).float()

    stretches = [layer(i).flatten().tensor_split(group.size)[group.rank] for i in range(len(shapes))]
    sizes = [len(part) for part in torch.empty(math.prod(shapes[which])).tensor_split(group.size)]
    whole = collectives.all_gather(stretches[which], group, sizes, algorithm="ring")
    return [*stretches, whole.view(shapes[which])]


@mutant("shards", "my_shards", says="made it anew")
def makes_the_layer_again(group, shapes, which):
    def layer(number):
        generator = torch.Generator().manual_seed(number)
        return torch.randint(-9, 10, shapes[number], generator=generator).float()

    stretches = [layer(i).flatten().tensor_split(group.size)[group.rank].clone() for i in range(len(shapes))]
    return [*stretches, layer(which)]


@mutant("shards", "my_shards", says="Flatten first")
def cuts_rows(group, shapes, which):
    def layer(number):
        generator = torch.Generator().manual_seed(number)
        return torch.randint(-9, 10, shapes[number], generator=generator).float()

    stretches = [layer(i).tensor_split(group.size)[group.rank].flatten() for i in range(len(shapes))]
    sizes = [part.numel() for part in torch.empty(shapes[which]).tensor_split(group.size)]
    whole = collectives.all_gather(stretches[which], group, sizes, algorithm="ring")
    return [*stretches, whole.view(shapes[which])]


@mutant("shards", "my_shards", says="That is an all-reduce", at=4)
def adds_up_zeros(group, shapes, which):
    def layer(number):
        generator = torch.Generator().manual_seed(number)
        return torch.randint(-9, 10, shapes[number], generator=generator).float()

    stretches = [layer(i).flatten().tensor_split(group.size)[group.rank].clone() for i in range(len(shapes))]
    whole = torch.zeros(math.prod(shapes[which]))
    whole.tensor_split(group.size)[group.rank].copy_(stretches[which])
    collectives.all_reduce(whole, group, "sum", algorithm="ring")
    return [*stretches, whole.view(shapes[which])]


@mutant("shards", "my_shards", says="padded with zeros to equal length", at=4)
def pads_as_pytorch_does(group, shapes, which):
    def layer(number):
        generator = torch.Generator().manual_seed(number)
        return torch.randint(-9, 10, shapes[number], generator=generator).float()

    stretches = []
    for i in range(len(shapes)):
        flat = layer(i).flatten()
        each = -(-len(flat) // group.size)
        stretches.append(F.pad(flat, (0, each * group.size - len(flat))).view(group.size, each)[group.rank].clone())
    whole = collectives.all_gather(stretches[which], group, algorithm="ring")
    return [*stretches, whole[: math.prod(shapes[which])].view(shapes[which])]


@mutant("shards", "my_shards", says="The last rank gets all that is left over", at=4)
def the_rest_to_the_last(group, shapes, which):
    def layer(number):
        generator = torch.Generator().manual_seed(number)
        return torch.randint(-9, 10, shapes[number], generator=generator).float()

    def sizes_of(number):
        numbers = math.prod(shapes[number])
        each = numbers // group.size
        return [each] * (group.size - 1) + [numbers - each * (group.size - 1)]

    stretches = [layer(i).flatten().split(sizes_of(i))[group.rank].clone() for i in range(len(shapes))]
    whole = collectives.all_gather(stretches[which], group, sizes_of(which), algorithm="ring")
    return [*stretches, whole.view(shapes[which])]


@variant("shards", "my_shards", at=4)
def around_a_ring_by_hand(group, shapes, which):
    def layer(number):
        generator = torch.Generator().manual_seed(number)
        return torch.randint(-9, 10, shapes[number], generator=generator).float()

    n, me = group.size, group.rank
    stretches = []
    for i in range(len(shapes)):
        flat = layer(i).flatten()
        start = me * (len(flat) // n) + min(me, len(flat) % n)
        stretches.append(flat[start : start + len(flat) // n + (me < len(flat) % n)].clone())
        del flat
    whole = torch.empty(math.prod(shapes[which]))
    parts = whole.tensor_split(n)
    parts[me].copy_(stretches[which])
    for s in range(n - 1):
        group.exchange(parts[(me - s) % n], to=(me + 1) % n, like=parts[(me - s - 1) % n], source=(me - 1) % n)
    return [*stretches, whole.view(shapes[which])]


@variant("shards", "my_shards", at=4)
def sizes_from_a_shape(group, shapes, which):
    def layer(number):
        generator = torch.Generator().manual_seed(number)
        return torch.randint(-9, 10, shapes[number], generator=generator).float()

    stretches = [torch.tensor_split(layer(i).view(-1), group.size)[group.rank] + 0 for i in range(len(shapes))]
    sizes = [len(part) for part in torch.arange(math.prod(shapes[which])).tensor_split(group.size)]
    return [*stretches, collectives.all_gather(stretches[which], group, sizes, "ring").reshape(shapes[which])]


# An Adam that is cut --------------------------------------------------------------------------------------------


@mutant("sharded-adam", "my_adam", says="That is plain data parallelism", at=6)
def plain_data_parallelism(mine, group, steps, lr, eps):
    weights = mine["weights"]
    m, v = torch.zeros_like(weights), torch.zeros_like(weights)
    for t in range(1, steps + 1):
        g = collectives.all_reduce(weights - mine["target"], group, "sum", algorithm="ring") / group.size
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        weights -= lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + eps)
    return weights


@mutant("sharded-adam", "my_adam", says="Are momentum and variance those of the stretch only?", at=6)
def a_whole_state_of_which_a_stretch_is_used(mine, group, steps, lr, eps):
    weights = mine["weights"]
    m, v = torch.zeros_like(weights), torch.zeros_like(weights)
    own, m_own, v_own = (x.tensor_split(group.size)[group.rank] for x in (weights, m, v))
    sizes = [len(part) for part in weights.tensor_split(group.size)]
    for t in range(1, steps + 1):
        g = collectives.reduce_scatter(weights - mine["target"], group, "sum", algorithm="ring") / group.size
        m_own.mul_(0.9).add_(0.1 * g)
        v_own.mul_(0.999).add_(0.001 * g * g)
        own -= lr * (m_own / (1 - 0.9**t)) / ((v_own / (1 - 0.999**t)).sqrt() + eps)
        weights.copy_(collectives.all_gather(own, group, sizes, algorithm="ring"))
    return weights


@mutant("sharded-adam", "my_adam", says="An all-reduce and an all-gather are 3 (N-1)/N M")
def all_reduce_and_then_a_stretch(mine, group, steps, lr, eps):
    weights = mine["weights"]
    own = weights.tensor_split(group.size)[group.rank]
    m, v = torch.zeros_like(own), torch.zeros_like(own)
    sizes = [len(part) for part in weights.tensor_split(group.size)]
    for t in range(1, steps + 1):
        g = collectives.all_reduce(weights - mine["target"], group, "sum", algorithm="ring")
        g = g.tensor_split(group.size)[group.rank] / group.size
        m.mul_(0.9).add_(0.1 * g)
        v.mul_(0.999).add_(0.001 * g * g)
        own -= lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + eps)
        weights.copy_(collectives.all_gather(own, group, sizes, algorithm="ring"))
    return weights


@mutant("sharded-adam", "my_adam", says="The bias is not corrected")
def no_correction(mine, group, steps, lr, eps):
    weights = mine["weights"]
    own = weights.tensor_split(group.size)[group.rank]
    m, v = torch.zeros_like(own), torch.zeros_like(own)
    sizes = [len(part) for part in weights.tensor_split(group.size)]
    for _ in range(steps):
        g = collectives.reduce_scatter(weights - mine["target"], group, "sum", algorithm="ring") / group.size
        m.mul_(0.9).add_(0.1 * g)
        v.mul_(0.999).add_(0.001 * g * g)
        own -= lr * m / (v.sqrt() + eps)
        weights.copy_(collectives.all_gather(own, group, sizes, algorithm="ring"))
    return weights


@mutant("sharded-adam", "my_adam", says="The gradients are summed, not averaged")
def sums(mine, group, steps, lr, eps):
    weights = mine["weights"]
    own = weights.tensor_split(group.size)[group.rank]
    m, v = torch.zeros_like(own), torch.zeros_like(own)
    sizes = [len(part) for part in weights.tensor_split(group.size)]
    for t in range(1, steps + 1):
        g = collectives.reduce_scatter(weights - mine["target"], group, "sum", algorithm="ring")
        m.mul_(0.9).add_(0.1 * g)
        v.mul_(0.999).add_(0.001 * g * g)
        own -= lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + eps)
        weights.copy_(collectives.all_gather(own, group, sizes, algorithm="ring"))
    return weights


@mutant("sharded-adam", "my_adam", says="Weights are gathered at the end only")
def gathers_once(mine, group, steps, lr, eps):
    weights = mine["weights"]
    own = weights.tensor_split(group.size)[group.rank]
    m, v = torch.zeros_like(own), torch.zeros_like(own)
    sizes = [len(part) for part in weights.tensor_split(group.size)]
    for t in range(1, steps + 1):
        g = collectives.reduce_scatter(weights - mine["target"], group, "sum", algorithm="ring") / group.size
        m.mul_(0.9).add_(0.1 * g)
        v.mul_(0.999).add_(0.001 * g * g)
        own -= lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + eps)
    return collectives.all_gather(own, group, sizes, algorithm="ring")


@mutant("sharded-adam", "my_adam", says="begin at zero in every step")
def a_new_optimizer_each_step(mine, group, steps, lr, eps):
    weights = mine["weights"]
    own = weights.tensor_split(group.size)[group.rank]
    sizes = [len(part) for part in weights.tensor_split(group.size)]
    for _ in range(steps):
        p = own.clone().requires_grad_()
        p.grad = collectives.reduce_scatter(weights - mine["target"], group, "sum", algorithm="ring") / group.size
        torch.optim.Adam([p], lr=lr, eps=eps).step()
        weights.copy_(collectives.all_gather(p.detach(), group, sizes, algorithm="ring"))
    return weights


@variant("sharded-adam", "my_adam", at=6)
def the_optimizer_of_pytorch(mine, group, steps, lr, eps):
    weights = mine["weights"]
    sizes = [len(part) for part in weights.tensor_split(group.size)]
    p = torch.nn.Parameter(weights.tensor_split(group.size)[group.rank].clone())
    optimizer = torch.optim.Adam([p], lr=lr, eps=eps)
    for _ in range(steps):
        p.grad = collectives.reduce_scatter(weights - mine["target"], group, "avg", algorithm="ring")
        optimizer.step()
        weights.copy_(collectives.all_gather(p.data, group, sizes, algorithm="ring"))
    return weights


@variant("sharded-adam", "my_adam", at=4)
def straight_to_the_owner(mine, group, steps, lr, eps):
    weights = mine["weights"]
    own = weights.tensor_split(group.size)[group.rank]
    m, v = torch.zeros_like(own), torch.zeros_like(own)
    sizes = [len(part) for part in weights.tensor_split(group.size)]
    for t in range(1, steps + 1):
        g = collectives.reduce_scatter(weights - mine["target"], group, "sum", algorithm="pairwise").div_(group.size)
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        own.addcdiv_(m / (1 - 0.9**t), (v / (1 - 0.999**t)).sqrt_().add_(eps), value=-lr)
        weights.copy_(collectives.all_gather(own, group, sizes, algorithm="ring"))
    return weights


# A gradient that is freed ---------------------------------------------------------------------------------------


@mutant("freed-gradients", "my_zero2", says="Is .grad set to None", at=4)
def keeps_every_gradient(batch, group, widths):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    stretches = {}

    def there(p):
        for i, layer in enumerate(model.layers):
            if i not in stretches and layer.weight.grad is not None and layer.bias.grad is not None:
                flat = torch.cat([layer.weight.grad.flatten(), layer.bias.grad])
                stretches[i] = collectives.reduce_scatter(flat, group, "sum", algorithm="ring") / group.size

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(batch[0]), batch[1]).backward()
    return [stretches[i] for i in range(len(model.layers))]


@mutant("freed-gradients", "my_zero2", says="They begin after the backward pass")
def when_all_is_over(batch, group, widths):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    F.mse_loss(model(batch[0]), batch[1]).backward()
    stretches = []
    for layer in model.layers:
        flat = torch.cat([layer.weight.grad.flatten(), layer.bias.grad])
        layer.weight.grad = layer.bias.grad = None
        stretches.append(collectives.reduce_scatter(flat, group, "sum", algorithm="ring") / group.size)
    return stretches


@mutant("freed-gradients", "my_zero2", says="Is that an all-reduce?")
def all_reduce_and_slice(batch, group, widths):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    stretches = {}

    def there(p):
        for i, layer in enumerate(model.layers):
            if layer.weight.grad is not None and layer.bias.grad is not None:
                flat = torch.cat([layer.weight.grad.flatten(), layer.bias.grad])
                layer.weight.grad = layer.bias.grad = None
                collectives.all_reduce(flat, group, "sum", algorithm="ring")
                stretches[i] = flat.tensor_split(group.size)[group.rank] / group.size

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(batch[0]), batch[1]).backward()
    return [stretches[i] for i in range(len(model.layers))]


@mutant("freed-gradients", "my_zero2", says="they are not divided by the number of ranks")
def sums_of_gradients(batch, group, widths):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    stretches = {}

    def there(p):
        for i, layer in enumerate(model.layers):
            if layer.weight.grad is not None and layer.bias.grad is not None:
                flat = torch.cat([layer.weight.grad.flatten(), layer.bias.grad])
                layer.weight.grad = layer.bias.grad = None
                stretches[i] = collectives.reduce_scatter(flat, group, "sum", algorithm="ring")

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(batch[0]), batch[1]).backward()
    return [stretches[i] for i in range(len(model.layers))]


@mutant("freed-gradients", "my_zero2", says="Begin with the first")
def the_last_layer_first(batch, group, widths):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    stretches = []

    def there(p):
        for layer in model.layers:
            if layer.weight.grad is not None and layer.bias.grad is not None:
                flat = torch.cat([layer.weight.grad.flatten(), layer.bias.grad])
                layer.weight.grad = layer.bias.grad = None
                stretches.append(collectives.reduce_scatter(flat, group, "sum", algorithm="ring") / group.size)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(batch[0]), batch[1]).backward()
    return stretches


@mutant("freed-gradients", "my_zero2", says="no flat copy of a gradient kept", at=4)
def keeps_flat_copies(batch, group, widths):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    handles = {}

    def there(p):
        for i, layer in enumerate(model.layers):
            if layer.weight.grad is not None and layer.bias.grad is not None:
                flat = torch.cat([layer.weight.grad.flatten(), layer.bias.grad])
                layer.weight.grad = layer.bias.grad = None
                handles[i] = flat, collectives.reduce_scatter(flat, group, "sum", algorithm="ring", async_op=True)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(batch[0]), batch[1]).backward()
    return [handles[i][1].wait() / group.size for i in range(len(model.layers))]


@variant("freed-gradients", "my_zero2", at=4)
def waits_for_the_one_before(batch, group, widths):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    under_way, stretches = [], []

    def finish():
        while under_way:
            stretches.insert(0, under_way.pop()[1].wait().div_(group.size))

    def there(p):
        for layer in model.layers:
            if layer.weight.grad is not None and layer.bias.grad is not None:
                flat = torch.cat([layer.weight.grad.flatten(), layer.bias.grad])
                layer.weight.grad = layer.bias.grad = None
                finish()
                under_way.append(
                    (flat, collectives.reduce_scatter(flat, group, "sum", algorithm="ring", async_op=True))
                )

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(batch[0]), batch[1]).backward()
    finish()
    return stretches


@variant("freed-gradients", "my_zero2", at=4)
def counts_what_is_missing(batch, group, widths):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    place = {p: i // 2 for i, p in enumerate(parameters)}
    missing = [2] * len(model.layers)
    stretches = [None] * len(model.layers)

    def there(p):
        i = place[p]
        missing[i] -= 1
        if missing[i] == 0:
            pair = parameters[2 * i : 2 * i + 2]
            flat = torch.nn.utils.parameters_to_vector([q.grad for q in pair])
            for q in pair:
                q.grad = None
            flat /= group.size
            stretches[i] = collectives.reduce_scatter(flat, group, "sum", algorithm="pairwise")

    for p in parameters:
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(batch[0]), batch[1]).backward()
    return stretches


# A step of FSDP, layer by layer ---------------------------------------------------------------------------------


@mutant("fsdp-stack", "my_fsdp", says="Was a layer kept from the forward pass?")
def keeps_the_layers(mine, group, shapes):
    kept, wholes, dy = [mine["x"]], [], mine["dy"]
    for stretch, shape in zip(mine["stretches"], shapes, strict=True):
        sizes = [len(part) for part in torch.empty(math.prod(shape)).tensor_split(group.size)]
        wholes.append(collectives.all_gather(stretch, group, sizes, algorithm="ring").view(shape))
        kept.append(torch.tanh(kept[-1] @ wholes[-1]))
    gradients = []
    for i in reversed(range(len(shapes))):
        dz = dy * (1 - kept[i + 1] ** 2)
        dw, dy = kept[i].T @ dz, dz @ wholes[i].T
        gradients.insert(0, collectives.reduce_scatter(dw.flatten(), group, "sum", algorithm="ring") / group.size)
    return [kept[-1], *gradients]


@mutant("fsdp-stack", "my_fsdp", says="Which whole layers or gradients are still alive?", at=4)
def gathers_twice_and_keeps_both(mine, group, shapes):
    kept, wholes, dy = [mine["x"]], [], mine["dy"]

    def gather(i):
        sizes = [len(part) for part in torch.empty(math.prod(shapes[i])).tensor_split(group.size)]
        wholes.append(collectives.all_gather(mine["stretches"][i], group, sizes, algorithm="ring").view(shapes[i]))
        return wholes[-1]

    for i in range(len(shapes)):
        kept.append(torch.tanh(kept[-1] @ gather(i)))
    gradients = []
    for i in reversed(range(len(shapes))):
        dz = dy * (1 - kept[i + 1] ** 2)
        dw, dy = kept[i].T @ dz, dz @ gather(i).T
        gradients.insert(0, collectives.reduce_scatter(dw.flatten(), group, "sum", algorithm="ring") / group.size)
    return [kept[-1], *gradients]


@mutant("fsdp-stack", "my_fsdp", says="Gather one layer ahead at most")
def sends_gradients_at_the_end(mine, group, shapes):
    kept, dws, dy = [mine["x"]], [], mine["dy"]

    def gather(i):
        sizes = [len(part) for part in torch.empty(math.prod(shapes[i])).tensor_split(group.size)]
        return collectives.all_gather(mine["stretches"][i], group, sizes, algorithm="ring").view(shapes[i])

    for i in range(len(shapes)):
        kept.append(torch.tanh(kept[-1] @ gather(i)))
    for i in reversed(range(len(shapes))):
        dz = dy * (1 - kept[i + 1] ** 2)
        dws.append(kept[i].T @ dz)
        dy = dz @ gather(i).T
    sent = [collectives.reduce_scatter(dw.flatten(), group, "sum", algorithm="ring") / group.size for dw in dws]
    return [kept[-1], *sent[::-1]]


@mutant("fsdp-stack", "my_fsdp", says="Gather one layer ahead at most")
def gathers_all_before_backward(mine, group, shapes):
    kept, dy = [mine["x"]], mine["dy"]

    def gather(i):
        sizes = [len(part) for part in torch.empty(math.prod(shapes[i])).tensor_split(group.size)]
        return collectives.all_gather(mine["stretches"][i], group, sizes, algorithm="ring").view(shapes[i])

    for i in range(len(shapes)):
        kept.append(torch.tanh(kept[-1] @ gather(i)))
    wholes = {i: gather(i) for i in reversed(range(len(shapes)))}
    gradients = []
    for i in reversed(range(len(shapes))):
        dz = dy * (1 - kept[i + 1] ** 2)
        dw, dy = kept[i].T @ dz, dz @ wholes.pop(i).T
        gradients.insert(0, collectives.reduce_scatter(dw.flatten(), group, "sum", algorithm="ring") / group.size)
    return [kept[-1], *gradients]


@mutant("fsdp-stack", "my_fsdp", says="Is a gradient all-reduced")
def all_reduces_gradients(mine, group, shapes):
    kept, dy = [mine["x"]], mine["dy"]

    def gather(i):
        sizes = [len(part) for part in torch.empty(math.prod(shapes[i])).tensor_split(group.size)]
        return collectives.all_gather(mine["stretches"][i], group, sizes, algorithm="ring").view(shapes[i])

    for i in range(len(shapes)):
        kept.append(torch.tanh(kept[-1] @ gather(i)))
    gradients = []
    for i in reversed(range(len(shapes))):
        dz = dy * (1 - kept[i + 1] ** 2)
        dw, dy = kept[i].T @ dz, dz @ gather(i).T
        flat = collectives.all_reduce(dw.flatten(), group, "sum", algorithm="ring")
        gradients.insert(0, flat.tensor_split(group.size)[group.rank] / group.size)
    return [kept[-1], *gradients]


@mutant("fsdp-stack", "my_fsdp", says="nothing was summed")
def keeps_its_own_gradient(mine, group, shapes):
    kept, dy = [mine["x"]], mine["dy"]

    def gather(i):
        sizes = [len(part) for part in torch.empty(math.prod(shapes[i])).tensor_split(group.size)]
        return collectives.all_gather(mine["stretches"][i], group, sizes, algorithm="ring").view(shapes[i])

    for i in range(len(shapes)):
        kept.append(torch.tanh(kept[-1] @ gather(i)))
    gradients = []
    for i in reversed(range(len(shapes))):
        dz = dy * (1 - kept[i + 1] ** 2)
        dw, dy = kept[i].T @ dz, dz @ gather(i).T
        gradients.insert(0, dw.flatten().tensor_split(group.size)[group.rank].clone())
    return [kept[-1], *gradients]


@variant("fsdp-stack", "my_fsdp", at=4)
def the_last_layer_stays(mine, group, shapes):
    kept, dy, whole = [mine["x"]], mine["dy"], None

    def gather(i):
        sizes = [len(part) for part in torch.empty(math.prod(shapes[i])).tensor_split(group.size)]
        return collectives.all_gather(mine["stretches"][i], group, sizes, algorithm="ring").view(shapes[i])

    for i in range(len(shapes)):
        del whole
        whole = gather(i)
        kept.append(torch.tanh(kept[-1] @ whole))
    gradients = []
    for i in reversed(range(len(shapes))):
        whole = gather(i) if whole is None else whole
        dz = dy * (1 - kept[i + 1] ** 2)
        dw, dy = kept[i].T @ dz, dz @ whole.T
        whole = None
        gradients.insert(0, collectives.reduce_scatter(dw.flatten(), group, "avg", algorithm="ring"))
    return [kept[-1], *gradients]


@variant("fsdp-stack", "my_fsdp", at=4)
def autograd_of_one_layer(mine, group, shapes):
    kept, dy = [mine["x"]], mine["dy"]

    def gather(i):
        sizes = [len(part) for part in torch.empty(math.prod(shapes[i])).tensor_split(group.size)]
        return collectives.all_gather(mine["stretches"][i], group, sizes, algorithm="ring").view(shapes[i])

    def back(i, dy):
        w, x = gather(i).requires_grad_(), kept[i].detach().requires_grad_()
        return torch.autograd.grad(torch.tanh(x @ w), (x, w), dy)

    for i in range(len(shapes)):
        kept.append(torch.tanh(kept[-1] @ gather(i)))
    gradients = []
    for i in reversed(range(len(shapes))):
        dy, dw = back(i, dy)
        gradients.insert(0, collectives.reduce_scatter(dw.flatten(), group, "sum", algorithm="ring") / group.size)
    return [kept[-1], *gradients]


@variant("fsdp-stack", "my_fsdp", at=4)
def one_gathered_ahead(mine, group, shapes):
    kept, dy, last = [mine["x"]], mine["dy"], len(shapes) - 1

    def begin(i):
        sizes = [len(part) for part in torch.empty(math.prod(shapes[i])).tensor_split(group.size)]
        return collectives.all_gather(mine["stretches"][i], group, sizes, algorithm="ring", async_op=True)

    passes = [*range(last + 1), *range(last, -1, -1)]
    ahead, gradients = begin(0), []
    for number, i in enumerate(passes):
        whole = ahead.wait().view(shapes[i])
        ahead = begin(passes[number + 1]) if number < 2 * last + 1 else None
        if number <= last:
            kept.append(torch.tanh(kept[-1] @ whole))
            continue
        dz = dy * (1 - kept[i + 1] ** 2)
        dw, dy = kept[i].T @ dz, dz @ whole.T
        del whole
        gradients.insert(0, collectives.reduce_scatter(dw.flatten(), group, "sum", algorithm="ring") / group.size)
        del dw
    return [kept[-1], *gradients]


# Clip what nobody holds -----------------------------------------------------------------------------------------


@mutant("clip-shards", "my_clip", says="Then the stretches no longer fit together")
def by_its_own_norm(stretches, group, most):
    norm = torch.cat(stretches).norm()
    return [*(x * torch.clamp(most / norm, max=1) for x in stretches), norm]


@mutant("clip-shards", "my_clip", says="Norms are added up")
def adds_norms(stretches, group, most):
    norm = torch.cat(stretches).norm().view(1)
    collectives.all_reduce(norm, group, "sum", algorithm="ring")
    return [*(x * torch.clamp(most / norm, max=1) for x in stretches), norm[0]]


@mutant("clip-shards", "my_clip", says="Does each layer travel by itself?")
def a_number_for_each_layer(stretches, group, most):
    total = 0
    for x in stretches:
        total = total + collectives.all_reduce((x**2).sum().view(1), group, "sum", algorithm="ring")[0]
    norm = total.sqrt()
    return [*(x * torch.clamp(most / norm, max=1) for x in stretches), norm]


@mutant("clip-shards", "my_clip", says="Are stretches gathered?", at=4)
def gathers_all_gradients(stretches, group, most):
    mine = torch.cat(stretches)
    lengths = collectives.all_gather(torch.tensor([len(mine)]), group, algorithm="ring").tolist()
    norm = collectives.all_gather(mine, group, lengths, algorithm="ring").norm()
    return [*(x * torch.clamp(most / norm, max=1) for x in stretches), norm]


@mutant("clip-shards", "my_clip", says="Clipping only shortens")
def always_scales(stretches, group, most):
    squares = (torch.cat(stretches) ** 2).sum().view(1)
    norm = collectives.all_reduce(squares, group, "sum", algorithm="ring")[0].sqrt()
    return [*(x * most / norm for x in stretches), norm]


@variant("clip-shards", "my_clip", at=4)
def with_vector_norms(stretches, group, most):
    norms = torch.stack([torch.linalg.vector_norm(x) for x in stretches])
    total = torch.linalg.vector_norm(norms).square().reshape(1)
    norm = collectives.all_reduce(total, group, "sum", algorithm="ring").sqrt().squeeze(0)
    return [*(x if norm <= most else x * (most / norm) for x in stretches), norm]


@variant("clip-shards", "my_clip")
def in_place(stretches, group, most):
    squares = torch.stack([x.dot(x) for x in stretches]).sum(0, keepdim=True)
    collectives.all_reduce(squares, group, "sum", algorithm="ring")
    norm = squares[0].sqrt()
    for x in stretches:
        x *= min(1.0, most / float(norm))
    return [*stretches, norm]
