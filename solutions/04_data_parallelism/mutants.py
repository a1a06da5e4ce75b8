"""The zoo of the exercises of chapter 4: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch
import torch.nn.functional as F

from labkit import collectives
from labkit.grading.checks.zoo import mutant, slip, variant
from labkit.models import MLP, MLPConfig
from labkit.parallel.announce import announce_backward

# Sampler --------------------------------------------------------------------------------------------------------


@mutant("sampler", "my_sampler", says="Do you count the padding?")
def counts_the_padding(group, samples, batch, epoch, seed, done):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed * 1009 + epoch))[done:]
    steps = -(-len(order) // (group.size * batch))
    order = torch.cat([order, order[: steps * group.size * batch - len(order)]])  # as DistributedSampler does
    mine = order[group.rank :: group.size].view(steps, batch)
    return mine, torch.full((steps,), batch)


@mutant("sampler", "my_sampler", says="steps")
def drops_the_short_step(group, samples, batch, epoch, seed, done):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed * 1009 + epoch))[done:]
    steps = len(order) // (group.size * batch)
    mine = order[: steps * group.size * batch].view(steps, group.size, batch)[:, group.rank]
    return mine.contiguous(), torch.full((steps,), batch)


@mutant("sampler", "my_sampler", says="have the same order")
def forgets_the_epoch(group, samples, batch, epoch, seed, done):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))[done:]
    steps = order.split(group.size * batch) if len(order) else []
    indices, counts = torch.zeros(len(steps), batch, dtype=torch.int64), torch.zeros(len(steps), dtype=torch.int64)
    for s, together in enumerate(steps):
        mine = together.tensor_split(group.size)[group.rank]
        indices[s, : len(mine)], counts[s] = mine, len(mine)
    return indices, counts


@mutant("sampler", "my_sampler", says="are read again")
def another_order_on_each_rank(group, samples, batch, epoch, seed, done):
    generator = torch.Generator().manual_seed(seed * 1009 + epoch + 7 * group.rank)
    steps = torch.randperm(samples, generator=generator)[done:].split(group.size * batch) if done < samples else []
    indices, counts = torch.zeros(len(steps), batch, dtype=torch.int64), torch.zeros(len(steps), dtype=torch.int64)
    for s, together in enumerate(steps):
        mine = together.tensor_split(group.size)[group.rank]
        indices[s, : len(mine)], counts[s] = mine, len(mine)
    return indices, counts


@mutant("sampler", "my_sampler", says="does a rank take one long stretch of it?")
def a_long_stretch_for_each_rank(group, samples, batch, epoch, seed, done):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed * 1009 + epoch))[done:]
    steps = -(-len(order) // (group.size * batch))
    indices, counts = torch.zeros(steps, batch, dtype=torch.int64), torch.zeros(steps, dtype=torch.int64)
    full = (steps - 1) * group.size * batch
    stretch = order[:full].tensor_split(group.size)[group.rank]
    last = order[full:].tensor_split(group.size)[group.rank] if steps else order
    for s in range(steps):
        mine = stretch[s * batch : (s + 1) * batch] if s < steps - 1 else last
        indices[s, : len(mine)], counts[s] = mine, len(mine)
    return indices, counts


@mutant("sampler", "my_sampler", says="it should be [")
def begins_again_from_the_front(group, samples, batch, epoch, seed, done):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed * 1009 + epoch))
    steps = order.split(group.size * batch)
    indices, counts = torch.zeros(len(steps), batch, dtype=torch.int64), torch.zeros(len(steps), dtype=torch.int64)
    for s, together in enumerate(steps):
        mine = together.tensor_split(group.size)[group.rank]
        indices[s, : len(mine)], counts[s] = mine, len(mine)
    return indices, counts


@mutant("sampler", "my_sampler", says="they should differ by 1 at most")
def fills_rank_after_rank(group, samples, batch, epoch, seed, done):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed * 1009 + epoch))[done:]
    steps = -(-len(order) // (group.size * batch))
    indices, counts = torch.zeros(steps, batch, dtype=torch.int64), torch.zeros(steps, dtype=torch.int64)
    for s in range(steps):
        begin = (s * group.size + group.rank) * batch
        mine = order[begin : begin + batch]
        indices[s, : len(mine)], counts[s] = mine, len(mine)
    return indices, counts


@variant("sampler", "my_sampler")
def every_nth_of_a_step(group, samples, batch, epoch, seed, done):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epoch + 1):
        order = torch.randperm(samples, generator=generator)
    rest = order[done:].tolist()
    rows, counts = [], []
    for begin in range(0, len(rest), group.size * batch):
        mine = rest[begin : begin + group.size * batch][group.rank :: group.size]
        counts.append(len(mine))
        rows.append(mine + [rest[0]] * (batch - len(mine)))
    return torch.tensor(rows, dtype=torch.int64).view(-1, batch), torch.tensor(counts, dtype=torch.int64)


@variant("sampler", "my_sampler", at=4)
def sorted_by_random_numbers(group, samples, batch, epoch, seed, done):
    keys = torch.rand(samples, generator=torch.Generator().manual_seed(epoch + 100_000 * seed), dtype=torch.float64)
    order = keys.argsort()[done:]
    steps = -(-len(order) // (group.size * batch))
    indices, counts = torch.full((steps, batch), samples - 1), torch.zeros(steps, dtype=torch.int64)
    for s in range(steps):
        together = order[s * group.size * batch : (s + 1) * group.size * batch]
        begin, end = (len(together) * r // group.size for r in (group.rank, group.rank + 1))
        counts[s] = end - begin
        indices[s, : end - begin] = together[begin:end]
    return indices, counts


# The mean of everything -----------------------------------------------------------------------------------------


@mutant("mean-of-everything", "my_gradients", says="The mean of the ranks' means")
def mean_of_the_ranks_means(pieces, group, widths):
    model = MLP(MLPConfig(tuple(widths))).double()
    parameters = list(model.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    if pieces["x"]:
        F.mse_loss(model(torch.cat(pieces["x"])), torch.cat(pieces["y"])).backward()
        flat = torch.cat([p.grad.flatten() for p in parameters])
    collectives.all_reduce(flat, group, "sum", algorithm="ring")
    parts = (flat / group.size).split([p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


@mutant("mean-of-everything", "my_gradients", says="The mean of the pieces' means")
def mean_of_the_pieces_means(pieces, group, widths):
    model = MLP(MLPConfig(tuple(widths))).double()
    parameters = list(model.parameters())
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for x, y in zip(pieces["x"], pieces["y"], strict=True):
        F.mse_loss(model(x), y).backward()
    count = torch.tensor([len(pieces["x"])], dtype=torch.float64)
    flat = torch.cat([p.grad.flatten() for p in parameters] + [count])
    collectives.all_reduce(flat, group, "sum", algorithm="ring")
    parts = (flat[:-1] / flat[-1]).split([p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


@mutant("mean-of-everything", "my_gradients", says="pieces' means")
def as_a_framework_with_a_bug(pieces, group, widths):
    model = MLP(MLPConfig(tuple(widths))).double()
    parameters = list(model.parameters())
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for x, y in zip(pieces["x"], pieces["y"], strict=True):
        (F.mse_loss(model(x), y) / len(pieces["x"])).backward()
    flat = torch.cat([p.grad.flatten() for p in parameters])
    collectives.all_reduce(flat, group, "sum", algorithm="ring")
    parts = (flat / group.size).split([p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


@mutant("mean-of-everything", "my_gradients", says="divided by the number of ranks as well")
def averages_twice(pieces, group, widths):
    model = MLP(MLPConfig(tuple(widths))).double()
    parameters = list(model.parameters())
    entries = torch.zeros(1, dtype=torch.float64)
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for x, y in zip(pieces["x"], pieces["y"], strict=True):
        F.mse_loss(model(x), y, reduction="sum").backward()
        entries += y.numel()
    collectives.all_reduce(entries, group, "sum", algorithm="ring")
    flat = torch.cat([p.grad.flatten() for p in parameters]) / entries
    collectives.all_reduce(flat, group, "avg", algorithm="ring")
    return [part.view_as(p) for part, p in zip(flat.split([p.numel() for p in parameters]), parameters, strict=True)]


@mutant("mean-of-everything", "my_gradients", says="That is the sum over all entries")
def never_divides(pieces, group, widths):
    model = MLP(MLPConfig(tuple(widths))).double()
    parameters = list(model.parameters())
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for x, y in zip(pieces["x"], pieces["y"], strict=True):
        F.mse_loss(model(x), y, reduction="sum").backward()
    flat = torch.cat([p.grad.flatten() for p in parameters])
    collectives.all_reduce(flat, group, "sum", algorithm="ring")
    return [part.view_as(p) for part, p in zip(flat.split([p.numel() for p in parameters]), parameters, strict=True)]


@mutant("mean-of-everything", "my_gradients", says="Does every parameter travel by itself?", at=4)
def an_all_reduce_for_each_parameter(pieces, group, widths):
    model = MLP(MLPConfig(tuple(widths))).double()
    parameters = list(model.parameters())
    entries = torch.zeros(1, dtype=torch.float64)
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for x, y in zip(pieces["x"], pieces["y"], strict=True):
        F.mse_loss(model(x), y, reduction="sum").backward()
        entries += y.numel()
    collectives.all_reduce(entries, group, "sum", algorithm="ring")
    for p in parameters:
        collectives.all_reduce(p.grad, group, "sum", algorithm="ring")
        p.grad /= entries
    return [p.grad for p in parameters]


@mutant("mean-of-everything", "my_gradients", says="Does every piece travel by itself?", at=3)
def sends_every_piece(pieces, group, widths):
    model = MLP(MLPConfig(tuple(widths))).double()
    parameters = list(model.parameters())
    most = torch.tensor([len(pieces["x"])], dtype=torch.float64)
    collectives.all_reduce(most, group, "max", algorithm="ring")
    total, entries = 0, 0
    for k in range(int(most)):
        flat = torch.zeros(sum(p.numel() for p in parameters) + 1, dtype=torch.float64)
        if k < len(pieces["x"]):
            loss = F.mse_loss(model(pieces["x"][k]), pieces["y"][k], reduction="sum")
            flat[:-1] = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
            flat[-1] = pieces["y"][k].numel()
        collectives.all_reduce(flat, group, "sum", algorithm="ring")
        total, entries = total + flat[:-1], entries + flat[-1]
    parts = (total / entries).split([p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


@mutant("mean-of-everything", "my_gradients", says="rank", at=3)
def leaves_when_there_is_nothing_to_do(pieces, group, widths):
    model = MLP(MLPConfig(tuple(widths))).double()
    parameters = list(model.parameters())
    if not pieces["x"]:
        return [torch.zeros_like(p) for p in parameters]
    loss = F.mse_loss(model(torch.cat(pieces["x"])), torch.cat(pieces["y"]), reduction="sum")
    grads = torch.autograd.grad(loss, parameters)
    entries = torch.tensor([sum(y.numel() for y in pieces["y"])], dtype=torch.float64)
    flat = torch.cat([g.flatten() for g in grads] + [entries])
    collectives.all_reduce(flat, group, "sum", algorithm="ring")
    parts = (flat[:-1] / flat[-1]).split([p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


@variant("mean-of-everything", "my_gradients")
def the_number_first(pieces, group, widths):
    model = MLP(MLPConfig(tuple(widths))).double()
    parameters = list(model.parameters())
    entries = torch.tensor([sum(y.numel() for y in pieces["y"])])
    collectives.all_reduce(entries, group, "sum", algorithm="ring")
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for x, y in zip(pieces["x"], pieces["y"], strict=True):
        loss = F.mse_loss(model(x), y) * (y.numel() / entries.item())
        flat += torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
    collectives.all_reduce(flat, group, "sum", algorithm="ring")
    return [part.view_as(p) for part, p in zip(flat.split([p.numel() for p in parameters]), parameters, strict=True)]


@variant("mean-of-everything", "my_gradients", at=4)
def weighted_means(pieces, group, widths):
    model = MLP(MLPConfig(tuple(widths))).double()
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]
    flat = torch.zeros(sum(sizes) + 1, dtype=torch.float64)
    if pieces["x"]:
        x, y = torch.cat(pieces["x"]), torch.cat(pieces["y"])
        grads = torch.autograd.grad(F.mse_loss(model(x), y), parameters)
        flat[:-1], flat[-1] = len(x) * torch.cat([g.flatten() for g in grads]), len(x)
    collectives.all_reduce(flat, group, "avg", algorithm="ring")
    return [g.view_as(p) / flat[-1] for g, p in zip(flat[:-1].split(sizes), parameters, strict=True)]


# Buckets from the back ------------------------------------------------------------------------------------------


@mutant("reverse-buckets", "my_buckets", says="Every gradient travels by itself")
def one_by_one(gradients, group, shapes, bucket_bytes):
    some = next(g for g in gradients if g is not None)
    averages = [some.new_zeros(shape) if g is None else g for g, shape in zip(gradients, shapes, strict=True)]
    for g in reversed(averages):
        collectives.all_reduce(g, group, "sum", algorithm="ring")
        g /= group.size
    return averages


@mutant("reverse-buckets", "my_buckets", says="Everything travels in one bucket")
def one_flat_tensor(gradients, group, shapes, bucket_bytes):
    some = next(g for g in gradients if g is not None)
    sizes = [torch.Size(shape).numel() for shape in shapes]
    flat = some.new_zeros(sum(sizes))
    parts = [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
    for part, g in zip(parts, gradients, strict=True):
        if g is not None:
            part.copy_(g)
    collectives.all_reduce(flat, group, "sum", algorithm="ring")
    flat /= group.size
    return parts


@mutant("reverse-buckets", "my_buckets", says="Fill from the last one")
def from_the_front(gradients, group, shapes, bucket_bytes):
    some = next(g for g in gradients if g is not None)
    full = [some.new_zeros(shape) if g is None else g for g, shape in zip(gradients, shapes, strict=True)]
    plan = [[]]
    for g in full:
        if plan[-1] and sum(h.nbytes for h in plan[-1]) + g.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(g)
    for bucket in plan:
        flat = torch.cat([g.flatten() for g in bucket])
        collectives.all_reduce(flat, group, "sum", algorithm="ring")
        for g, part in zip(bucket, flat.split([h.numel() for h in bucket]), strict=True):
            g.copy_(part.view_as(g) / group.size)
    return full


@mutant("reverse-buckets", "my_buckets", says="The last bucket is not full, and still it must travel")
def forgets_the_last_bucket(gradients, group, shapes, bucket_bytes):
    some = next(g for g in gradients if g is not None)
    full = [some.new_zeros(shape) if g is None else g for g, shape in zip(gradients, shapes, strict=True)]
    bucket, filled = [], 0
    for g in reversed(full):
        if bucket and filled + g.nbytes > bucket_bytes:
            flat = torch.cat([h.flatten() for h in bucket])
            collectives.all_reduce(flat, group, "sum", algorithm="ring")
            for h, part in zip(bucket, flat.split([h.numel() for h in bucket]), strict=True):
                h.copy_(part.view_as(h) / group.size)
            bucket, filled = [], 0
        bucket.append(g)
        filled += g.nbytes
    return full


@mutant("reverse-buckets", "my_buckets", says="None counts as zeros", at=4)
def divides_by_those_that_have_it(gradients, group, shapes, bucket_bytes):
    some = next(g for g in gradients if g is not None)
    there = torch.tensor([float(g is not None) for g in gradients])
    collectives.all_reduce(there, group, "sum", algorithm="ring")
    full = [some.new_zeros(shape) if g is None else g for g, shape in zip(gradients, shapes, strict=True)]
    plan = [[]]
    for i in reversed(range(len(full))):
        if plan[-1] and sum(full[j].nbytes for j in plan[-1]) + full[i].nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(i)
    for bucket in plan:
        flat = torch.cat([full[i].flatten() for i in bucket])
        collectives.all_reduce(flat, group, "sum", algorithm="ring")
        for i, part in zip(bucket, flat.split([full[i].numel() for i in bucket]), strict=True):
            full[i] = part.view(shapes[i]) / max(1.0, float(there[i]))
    return full


@mutant("reverse-buckets", "my_buckets", says="rank", at=3)
def plans_by_what_is_there(gradients, group, shapes, bucket_bytes):
    some = next(g for g in gradients if g is not None)
    averages = [some.new_zeros(shape) for shape in shapes]
    plan = [[]]
    for i in reversed(range(len(shapes))):
        if gradients[i] is None:
            continue
        if plan[-1] and sum(gradients[j].nbytes for j in plan[-1]) + gradients[i].nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(i)
    for bucket in plan:
        flat = torch.cat([gradients[i].flatten() for i in bucket])
        collectives.all_reduce(flat, group, "sum", algorithm="ring")
        for i, part in zip(bucket, flat.split([gradients[i].numel() for i in bucket]), strict=True):
            averages[i] = part.view(shapes[i]) / group.size
    return averages


@mutant("reverse-buckets", "my_buckets", says="divided by the number of ranks twice")
def divides_before_and_after(gradients, group, shapes, bucket_bytes):
    some = next(g for g in gradients if g is not None)
    full = [some.new_zeros(s) if g is None else g / group.size for g, s in zip(gradients, shapes, strict=True)]
    plan = [[]]
    for i in reversed(range(len(full))):
        if plan[-1] and sum(full[j].nbytes for j in plan[-1]) + full[i].nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(i)
    for bucket in plan:
        flat = torch.cat([full[i].flatten() for i in bucket])
        collectives.all_reduce(flat, group, "avg", algorithm="ring")
        for i, part in zip(bucket, flat.split([full[i].numel() for i in bucket]), strict=True):
            full[i] = part.view(shapes[i])
    return full


@mutant("reverse-buckets", "my_buckets", says="fill each one before you begin another", at=4)
def closes_a_bucket_too_early(gradients, group, shapes, bucket_bytes):
    some = next(g for g in gradients if g is not None)
    full = [some.new_zeros(shape) if g is None else g for g, shape in zip(gradients, shapes, strict=True)]
    plan = [[]]
    for i in reversed(range(len(full))):
        if plan[-1] and sum(full[j].nbytes for j in plan[-1]) + full[i].nbytes > bucket_bytes // 2:
            plan.append([])
        plan[-1].append(i)
    for bucket in plan:
        flat = torch.cat([full[i].flatten() for i in bucket])
        collectives.all_reduce(flat, group, "sum", algorithm="ring")
        for i, part in zip(bucket, flat.split([full[i].numel() for i in bucket]), strict=True):
            full[i] = part.view(shapes[i]) / group.size
    return full


@mutant("reverse-buckets", "my_buckets", says="What is kept alive?")
def copies_back_and_forth(gradients, group, shapes, bucket_bytes):
    some = next(g for g in gradients if g is not None)
    full = [some.new_zeros(shape) if g is None else g.clone() for g, shape in zip(gradients, shapes, strict=True)]
    plan, flats = [[]], []
    for i in reversed(range(len(full))):
        if plan[-1] and sum(full[j].nbytes for j in plan[-1]) + full[i].nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(i)
    for bucket in plan:
        flats.append(torch.cat([full[i].flatten() for i in bucket]))
        collectives.all_reduce(flats[-1], group, "sum", algorithm="ring")
    for bucket, flat in zip(plan, flats, strict=True):
        for i, part in zip(bucket, flat.split([full[i].numel() for i in bucket]), strict=True):
            full[i] = part.view(shapes[i]) / group.size
    return full


@variant("reverse-buckets", "my_buckets", at=4)
def all_under_way_at_once(gradients, group, shapes, bucket_bytes):
    some = next(g for g in gradients if g is not None)
    sizes = [torch.Size(shape).numel() for shape in shapes]
    plan = [[]]
    for i in range(len(shapes))[::-1]:
        if plan[-1] and sum(sizes[j] for j in plan[-1]) + sizes[i] > bucket_bytes // some.itemsize:
            plan.append([])
        plan[-1].append(i)
    averages, handles = [None] * len(shapes), []
    for bucket in plan:
        flat = torch.cat([some.new_zeros(sizes[i]) if gradients[i] is None else gradients[i].flatten() for i in bucket])
        for i, part in zip(bucket, flat.split([sizes[i] for i in bucket]), strict=True):
            averages[i] = part.view(shapes[i])
        handles.append(collectives.all_reduce(flat, group, "avg", algorithm="ring", async_op=True))
    for handle in handles:
        handle.wait()
    return averages


@variant("reverse-buckets", "my_buckets")
def one_buffer_for_all(gradients, group, shapes, bucket_bytes):
    some = next(g for g in gradients if g is not None)
    sizes = [torch.Size(shape).numel() for shape in shapes][::-1]
    whole = some.new_zeros(sum(sizes))  # from the last parameter to the first
    parts = [part.view(shape) for part, shape in zip(whole.split(sizes), shapes[::-1], strict=True)]
    for part, g in zip(parts, gradients[::-1], strict=True):
        if g is not None:
            part += g
    begin = end = 0
    for size in [*sizes, None]:
        if size is None or (end > begin and (end - begin + size) * some.itemsize > bucket_bytes):
            collectives.all_reduce(whole[begin:end], group, "sum", algorithm="ring")
            begin = end
        end += size or 0
    whole /= group.size
    return parts[::-1]


# While the backward pass goes on --------------------------------------------------------------------------------


@mutant("overlap", "my_step", says="All of them begin after the backward pass")
def all_after_the_backward_pass(batch, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batch
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and sum(q.nbytes for q in plan[-1]) + p.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(p)
    flats, handles = [], []
    F.mse_loss(model(x), y).backward()
    for bucket in plan:
        flats.append(torch.cat([q.grad.flatten() for q in bucket]))
        handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))
    for bucket, flat, handle in zip(plan, flats, handles, strict=True):
        handle.wait()
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            p.grad = part.view_as(p) / group.size
    return [p.grad for p in parameters]


@mutant("overlap", "my_step", says="It waits for something else")
def only_the_first_bucket(batch, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batch
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and sum(q.nbytes for q in plan[-1]) + p.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(p)
    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
    missing, flats, handles = [len(bucket) for bucket in plan], [], []

    def there(p):
        missing[place[p]] -= 1
        if not handles and not missing[0]:
            flats.append(torch.cat([q.grad.flatten() for q in plan[len(handles)]]))
            handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))

    for p in parameters:
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(x), y).backward()
    for bucket in plan[1:]:
        flats.append(torch.cat([q.grad.flatten() for q in bucket]))
        handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))
    for bucket, flat, handle in zip(plan, flats, handles, strict=True):
        handle.wait()
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            p.grad = part.view_as(p) / group.size
    return [p.grad for p in parameters]


waits_for_each_bucket = slip("overlap", "my_step", says="waited for bucket", change="""
-    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)  # the same on every rank
+    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)

-    place = {p: number for number, bucket in enumerate(plan) for p in bucket}
-    missing = [len(bucket) for bucket in plan]
-    flats, handles = [], []
+    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
+    missing, flats, handles = [len(bucket) for bucket in plan], [], []

-    def gradient_is_there(p):
+    def there(p):

             handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))
+            handles[-1].wait()

-        p.register_post_accumulate_grad_hook(gradient_is_there)
+        p.register_post_accumulate_grad_hook(there)

-        flat /= group.size

-            p.grad = part.view_as(p)
+            p.grad = part.view_as(p) / group.size
""")  # fmt: skip


@mutant("overlap", "my_step", says="waited for bucket", at=2)
def blocks_in_the_hook(batch, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batch
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and sum(q.nbytes for q in plan[-1]) + p.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(p)
    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
    missing, flats = [len(bucket) for bucket in plan], []

    def there(p):
        missing[place[p]] -= 1
        while len(flats) < len(plan) and not missing[len(flats)]:
            flats.append(torch.cat([q.grad.flatten() for q in plan[len(flats)]]))
            collectives.all_reduce(flats[-1], group, "sum", algorithm="ring")

    for p in parameters:
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(x), y).backward()
    for bucket, flat in zip(plan, flats, strict=True):
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            p.grad = part.view_as(p) / group.size
    return [p.grad for p in parameters]


@mutant("overlap", "my_step", says="Every gradient travels by itself")
def every_gradient_by_itself(batch, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batch
    handles = []

    def there(p):
        handles.append(collectives.all_reduce(p.grad, group, "sum", algorithm="ring", async_op=True))

    for p in parameters:
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(x), y).backward()
    for handle in handles:
        handle.wait()
    return [p.grad / group.size for p in parameters]


divides_twice = slip("overlap", "my_step", says="divided by the number of ranks twice", change="""
-    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)  # the same on every rank
+    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)

-    place = {p: number for number, bucket in enumerate(plan) for p in bucket}
-    missing = [len(bucket) for bucket in plan]
-    flats, handles = [], []
+    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
+    missing, flats, handles = [len(bucket) for bucket in plan], [], []

-    def gradient_is_there(p):
+    def there(p):

-            handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))
+            handles.append(collectives.all_reduce(flats[-1], group, "avg", algorithm="ring", async_op=True))

-        p.register_post_accumulate_grad_hook(gradient_is_there)
+        p.register_post_accumulate_grad_hook(there)

-        flat /= group.size

-            p.grad = part.view_as(p)
+            p.grad = part.view_as(p) / group.size
""")  # fmt: skip


@mutant("overlap", "my_step", says="The last bucket, with the first parameters")
def leaves_the_last_bucket(batch, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batch
    open_bucket, plan, flats, handles = [], [], [], []

    def there(p):
        if open_bucket and sum(q.nbytes for q in open_bucket) + p.nbytes > bucket_bytes:
            plan.append(open_bucket.copy())
            open_bucket.clear()
            flats.append(torch.cat([q.grad.flatten() for q in plan[-1]]))
            handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))
        open_bucket.append(p)

    for p in parameters:
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(x), y).backward()
    for bucket, flat, handle in zip(plan, flats, handles, strict=True):
        handle.wait()
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            p.grad = part.view_as(p) / group.size
    return [p.grad for p in parameters]


@mutant("overlap", "my_step", says="It waits for something else")
def begins_when_the_next_does_not_fit(batch, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batch
    open_bucket, plan, flats, handles = [], [], [], []

    def begin():
        plan.append(open_bucket.copy())
        open_bucket.clear()
        flats.append(torch.cat([q.grad.flatten() for q in plan[-1]]))
        handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))

    def there(p):
        if open_bucket and sum(q.nbytes for q in open_bucket) + p.nbytes > bucket_bytes:
            begin()
        open_bucket.append(p)

    for p in parameters:
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(x), y).backward()
    begin()
    for bucket, flat, handle in zip(plan, flats, handles, strict=True):
        handle.wait()
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            p.grad = part.view_as(p) / group.size
    return [p.grad for p in parameters]


first_parameters_first = slip("overlap", "my_step", says="Fill from the last one", at=2, change="""
-    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)  # the same on every rank
+    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)

-    for p in reversed(parameters):
+    for p in parameters:

-    place = {p: number for number, bucket in enumerate(plan) for p in bucket}
-    missing = [len(bucket) for bucket in plan]
-    flats, handles = [], []
+    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
+    missing, flats, handles = [len(bucket) for bucket in plan], [], []

-    def gradient_is_there(p):
+    def there(p):

-        p.register_post_accumulate_grad_hook(gradient_is_there)
+        p.register_post_accumulate_grad_hook(there)

-        flat /= group.size

-            p.grad = part.view_as(p)
+            p.grad = part.view_as(p) / group.size
""")  # fmt: skip


@mutant("overlap", "my_step", says="Everything travels in one bucket")
def one_bucket_for_everything(batch, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batch
    plan = [parameters[::-1]]
    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
    missing, flats, handles = [len(bucket) for bucket in plan], [], []

    def there(p):
        missing[place[p]] -= 1
        while len(handles) < len(plan) and not missing[len(handles)]:
            flats.append(torch.cat([q.grad.flatten() for q in plan[len(handles)]]))
            handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))

    for p in parameters:
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(x), y).backward()
    for bucket, flat, handle in zip(plan, flats, handles, strict=True):
        handle.wait()
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            p.grad = part.view_as(p) / group.size
    return [p.grad for p in parameters]


the_averages_stay_in_the_buckets = slip("overlap", "my_step", says="the averages did not come back", change="""
-    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)  # the same on every rank
+    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)

-    place = {p: number for number, bucket in enumerate(plan) for p in bucket}
-    missing = [len(bucket) for bucket in plan]
-    flats, handles = [], []
+    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
+    missing, flats, handles = [len(bucket) for bucket in plan], [], []

-    def gradient_is_there(p):
+    def there(p):

-        p.register_post_accumulate_grad_hook(gradient_is_there)
+        p.register_post_accumulate_grad_hook(there)

-    for bucket, flat, handle in zip(plan, flats, handles, strict=True):
+    for flat, handle in zip(flats, handles, strict=True):

-        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
-            p.grad = part.view_as(p)
""")  # fmt: skip


@variant("overlap", "my_step")
def gradients_live_in_their_buckets(batch, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batch
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and sum(q.nbytes for q in plan[-1]) + p.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(p)
    flats, handles, missing, place = [], [], [], {}
    for number, bucket in enumerate(plan):
        flats.append(torch.zeros(sum(p.numel() for p in bucket), dtype=torch.float64))
        missing.append(len(bucket))
        for p, part in zip(bucket, flats[-1].split([q.numel() for q in bucket]), strict=True):
            p.grad, place[p] = part.view_as(p), number

    def there(p):
        missing[place[p]] -= 1
        while len(handles) < len(plan) and not missing[len(handles)]:
            flat = flats[len(handles)].div_(group.size)
            handles.append(collectives.all_reduce(flat, group, "sum", algorithm="ring", async_op=True))

    for p in parameters:
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(x), y).backward()
    handles[-1].wait()  # they run in order: the last one through is all through
    return [p.grad for p in parameters]


@variant("overlap", "my_step", at=2)
def copies_as_they_come(batch, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batch
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and sum(q.nbytes for q in plan[-1]) + p.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(p)
    flats = [torch.empty(sum(p.numel() for p in bucket), dtype=torch.float64) for bucket in plan]
    parts = {}
    for bucket, flat in zip(plan, flats, strict=True):
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            parts[p] = part.view_as(p)
    left, handles = [set(bucket) for bucket in plan], []

    def arrives(p, gradient):
        parts[p].copy_(gradient)
        next(bucket for bucket in left if p in bucket).discard(p)
        while len(handles) < len(plan) and not left[len(handles)]:
            flat = flats[len(handles)]
            handles.append(collectives.all_reduce(flat, group, "avg", algorithm="ring", async_op=True))

    for p in parameters:
        p.register_hook(lambda gradient, p=p: arrives(p, gradient))
    F.mse_loss(model(x), y).backward()
    for handle in reversed(handles):
        handle.wait()
    return [parts[p] for p in parameters]


# Accumulate, then send once ------------------------------------------------------------------------------------


@mutant("accumulate", "my_update", says="Does every piece travel by itself?")
def an_all_reduce_for_each_piece(batches, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batches
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and sum(q.nbytes for q in plan[-1]) + p.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(p)
    total = [torch.zeros_like(p) for p in parameters]
    for k in range(len(x)):
        (F.mse_loss(model(x[k]), y[k]) / len(x)).backward()
        for bucket in plan:
            flat = torch.cat([q.grad.flatten() for q in bucket])
            collectives.all_reduce(flat, group, "avg", algorithm="ring")
            for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
                p.grad = part.view_as(p)
        total = [t + p.grad for t, p in zip(total, parameters, strict=True)]
        for p in parameters:
            p.grad = None
    return total


sums_the_pieces = slip("accumulate", "my_update", says="The pieces are summed", change="""
-    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)  # the same on every rank
+    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)

-    place = {p: number for number, bucket in enumerate(plan) for p in bucket}
-    missing = [len(bucket) for bucket in plan]
-    flats, handles = [], []
+    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
+    missing, flats, handles = [len(bucket) for bucket in plan], [], []

-    def gradient_is_there(p):
+    def there(p):

-        p.register_post_accumulate_grad_hook(gradient_is_there)
+        p.register_post_accumulate_grad_hook(there)

-        (F.mse_loss(model(x[k]), y[k]) / len(x)).backward()
+        F.mse_loss(model(x[k]), y[k]).backward()

-        flat /= group.size

-            p.grad = part.view_as(p)
+            p.grad = part.view_as(p) / group.size
""")  # fmt: skip


keeps_only_the_last_piece = slip("accumulate", "my_update", says="Only the last piece counts", change="""
-    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)  # the same on every rank
+    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)

-    place = {p: number for number, bucket in enumerate(plan) for p in bucket}
-    missing = [len(bucket) for bucket in plan]
-    flats, handles = [], []
+    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
+    missing, flats, handles = [len(bucket) for bucket in plan], [], []

-    def gradient_is_there(p):
+    def there(p):

-        p.register_post_accumulate_grad_hook(gradient_is_there)
+        p.register_post_accumulate_grad_hook(there)

         last = k == len(x) - 1
+        model.zero_grad()

-        flat /= group.size

-            p.grad = part.view_as(p)
+            p.grad = part.view_as(p) / group.size
""")  # fmt: skip


@mutant("accumulate", "my_update", says="Only the first piece counts")
def sends_after_the_first_piece(batches, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batches
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and sum(q.nbytes for q in plan[-1]) + p.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(p)
    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
    missing, flats, handles = [len(bucket) for bucket in plan], [], []

    def there(p):
        missing[place[p]] -= 1  # below 0 in later pieces
        while len(handles) < len(plan) and not missing[len(handles)]:
            flats.append(torch.cat([q.grad.flatten() for q in plan[len(handles)]]))
            handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))

    for p in parameters:
        p.register_post_accumulate_grad_hook(there)
    for k in range(len(x)):
        F.mse_loss(model(x[k]), y[k]).backward()
    for bucket, flat, handle in zip(plan, flats, handles, strict=True):
        handle.wait()
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            p.grad = part.view_as(p) / group.size
    return [p.grad for p in parameters]


@mutant("accumulate", "my_update", says="All of them begin after the backward pass")
def sends_when_all_is_over(batches, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batches
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and sum(q.nbytes for q in plan[-1]) + p.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(p)
    flats, handles = [], []
    for k in range(len(x)):
        (F.mse_loss(model(x[k]), y[k]) / len(x)).backward()
    for bucket in plan:
        flats.append(torch.cat([q.grad.flatten() for q in bucket]))
        handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))
    for bucket, flat, handle in zip(plan, flats, handles, strict=True):
        handle.wait()
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            p.grad = part.view_as(p) / group.size
    return [p.grad for p in parameters]


waits_for_each_bucket_of_the_last_piece = slip("accumulate", "my_update", says="waited for bucket", at=2, change="""
-    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)  # the same on every rank
+    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)

-    place = {p: number for number, bucket in enumerate(plan) for p in bucket}
-    missing = [len(bucket) for bucket in plan]
-    flats, handles = [], []
+    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
+    missing, flats, handles = [len(bucket) for bucket in plan], [], []

-    def gradient_is_there(p):
+    def there(p):

             handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))
+            handles[-1].wait()

-        p.register_post_accumulate_grad_hook(gradient_is_there)
+        p.register_post_accumulate_grad_hook(there)

-        flat /= group.size

-            p.grad = part.view_as(p)
+            p.grad = part.view_as(p) / group.size
""")  # fmt: skip


@mutant("accumulate", "my_update", says="The layers were not announced")
def one_pass_over_all_pieces(batches, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batches
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and sum(q.nbytes for q in plan[-1]) + p.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(p)
    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
    missing, flats, handles = [len(bucket) for bucket in plan], [], []

    def there(p):
        missing[place[p]] -= 1
        while len(handles) < len(plan) and not missing[len(handles)]:
            flats.append(torch.cat([q.grad.flatten() for q in plan[len(handles)]]))
            handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))

    for p in parameters:
        p.register_post_accumulate_grad_hook(there)
    F.mse_loss(model(x.flatten(0, 1)), y.flatten(0, 1)).backward()
    for bucket, flat, handle in zip(plan, flats, handles, strict=True):
        handle.wait()
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            p.grad = part.view_as(p) / group.size
    return [p.grad for p in parameters]


@variant("accumulate", "my_update")
def hooks_only_before_the_last_piece(batches, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batches
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and sum(q.nbytes for q in plan[-1]) + p.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(p)
    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
    missing, flats, handles = [len(bucket) for bucket in plan], [], []

    def there(p):
        missing[place[p]] -= 1
        while len(handles) < len(plan) and not missing[len(handles)]:
            flats.append(torch.cat([q.grad.flatten() for q in plan[len(handles)]]))
            handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))

    for k in range(len(x)):
        if k == len(x) - 1:
            for p in parameters:
                p.register_post_accumulate_grad_hook(there)
        F.mse_loss(model(x[k]), y[k]).backward()
    for bucket, flat, handle in zip(plan, flats, handles, strict=True):
        handle.wait()
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            p.grad = part.view_as(p) / (group.size * len(x))
    return [p.grad for p in parameters]


@variant("accumulate", "my_update", at=2)
def counts_all_pieces(batches, group, widths, bucket_bytes):
    model = announce_backward(MLP(MLPConfig(tuple(widths))).double(), group)
    parameters = list(model.parameters())
    x, y = batches
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and sum(q.nbytes for q in plan[-1]) + p.nbytes > bucket_bytes:
            plan.append([])
        plan[-1].append(p)
    place = {p: b for b, bucket in enumerate(plan) for p in bucket}
    missing, flats, handles = [len(bucket) * len(x) for bucket in plan], [], []

    def there(p):
        missing[place[p]] -= 1
        while len(handles) < len(plan) and not missing[len(handles)]:
            flats.append(torch.cat([q.grad.flatten() for q in plan[len(handles)]]))
            handles.append(collectives.all_reduce(flats[-1], group, "sum", algorithm="ring", async_op=True))

    for p in parameters:
        p.register_post_accumulate_grad_hook(there)
    for k in range(len(x)):
        (F.mse_loss(model(x[k]), y[k]) / len(x)).backward()
    for bucket, flat, handle in zip(plan, flats, handles, strict=True):
        handle.wait()
        for p, part in zip(bucket, flat.split([q.numel() for q in bucket]), strict=True):
            p.grad = part.view_as(p) / group.size
    return [p.grad for p in parameters]
