"""The zoo of the exercises of chapter 1: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch
import torch.nn.functional as F

from labkit import collectives
from labkit.grading.checks.zoo import mutant, slip, variant

# Every sample once ----------------------------------------------------------------------------------------------


@mutant("share-of-an-epoch", "my_share", says="Do all ranks draw the same order", at=3)
def a_seed_for_each_rank(group, samples, batch, epoch, seed):
    generator = torch.Generator().manual_seed(1000 * seed + 10 * epoch + group.rank)
    order = torch.randperm(samples, generator=generator)
    return [step.tensor_split(group.size)[group.rank] for step in order.split(batch)]


@mutant("share-of-an-epoch", "my_share", says="let `epoch` change what is drawn", at=3)
def same_order_in_each_epoch(group, samples, batch, epoch, seed):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    return [step.tensor_split(group.size)[group.rank] for step in order.split(batch)]


@mutant("share-of-an-epoch", "my_share", says="What happens to those that do not fill a step", at=3)
def drops_the_last_step(group, samples, batch, epoch, seed):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(100 * seed + epoch))
    whole = order[: samples // batch * batch]
    return [step.tensor_split(group.size)[group.rank] for step in whole.split(batch)]


@mutant("share-of-an-epoch", "my_share", says="Are shares filled up with samples that were read already?", at=5)
def pads_until_it_divides(group, samples, batch, epoch, seed):
    n = group.size
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(100 * seed + epoch))
    shares = []
    for step in order.split(batch):
        missing = -len(step) % n
        shares.append(torch.cat([step, order[:missing]])[group.rank :: n])
    return shares


@mutant("share-of-an-epoch", "my_share", says="A rank that leaves out a step", at=5)
def leaves_out_empty_shares(group, samples, batch, epoch, seed):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(100 * seed + epoch))
    shares = [step.tensor_split(group.size)[group.rank] for step in order.split(batch)]
    return [share for share in shares if len(share)]


@mutant("share-of-an-epoch", "my_share", says="samples of each rank?", at=3)
def a_batch_for_each_rank(group, samples, batch, epoch, seed):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(100 * seed + epoch))
    return list(order.tensor_split(group.size)[group.rank].split(batch))


@mutant("share-of-an-epoch", "my_share", says="draw an order", at=3)
def in_the_order_of_the_file(group, samples, batch, epoch, seed):
    return [step[group.rank :: group.size] for step in torch.arange(samples).split(batch)]


@mutant("share-of-an-epoch", "my_share", says="Every rank reads all of them", at=3)
def everyone_reads_everything(group, samples, batch, epoch, seed):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(100 * seed + epoch))
    return list(order.split(batch))


@mutant("share-of-an-epoch", "my_share", says="may not depend on the number of ranks", at=3)
def another_order_for_another_world(group, samples, batch, epoch, seed):
    generator = torch.Generator().manual_seed(1000 * seed + 10 * epoch + group.size)
    order = torch.randperm(samples, generator=generator)
    return [step.tensor_split(group.size)[group.rank] for step in order.split(batch)]


@mutant("share-of-an-epoch", "my_share", says="nothing need be sent", at=3)
def rank_0_draws_for_all(group, samples, batch, epoch, seed):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(100 * seed + epoch))
    collectives.broadcast(order, group)
    return [step.tensor_split(group.size)[group.rank] for step in order.split(batch)]


@mutant("share-of-an-epoch", "my_share", says="a share differs by one at most", at=5)
def the_rest_to_the_last_rank(group, samples, batch, epoch, seed):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(100 * seed + epoch))
    shares = []
    for step in order.split(batch):
        each = len(step) // group.size
        last = group.rank == group.size - 1
        shares.append(step[group.rank * each :] if last else step[group.rank * each : (group.rank + 1) * each])
    return shares


@variant("share-of-an-epoch", "my_share", at=5)
def every_nth_of_a_step(group, samples, batch, epoch, seed):
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(100 * seed + epoch))
    return [step[group.rank :: group.size] for step in order.split(batch)]


@variant("share-of-an-epoch", "my_share", at=3)
def shuffled_by_python(group, samples, batch, epoch, seed):
    from random import Random

    order = list(range(samples))
    Random(f"{seed} {epoch}").shuffle(order)
    shares = []
    for first in range(0, samples, batch):
        step = order[first : first + batch]
        begin, end = (len(step) * r // group.size for r in (group.rank, group.rank + 1))
        shares.append(torch.tensor(step[begin:end], dtype=torch.int64))
    return shares


# Uneven batches -------------------------------------------------------------------------------------------------


@mutant("uneven-batch", "my_gradient", says="the mean of the ranks' means", at=3)
def mean_of_means(samples, group, weights):
    x, y = samples
    w = weights.clone().requires_grad_()
    F.mse_loss(x @ w, y).backward()
    return collectives.all_reduce(w.grad, group, algorithm="ring") / group.size


@mutant("uneven-batch", "my_gradient", says="the sum of the ranks' means", at=3)
def sum_of_means(samples, group, weights):
    x, y = samples
    w = weights.clone().requires_grad_()
    F.mse_loss(x @ w, y).backward()
    return collectives.all_reduce(w.grad, group, algorithm="ring")


@mutant("uneven-batch", "my_gradient", says="nothing was averaged", at=3)
def only_its_own(samples, group, weights):
    x, y = samples
    w = weights.clone().requires_grad_()
    F.mse_loss(x @ w, y).backward()
    return w.grad


@mutant("uneven-batch", "my_gradient", says="this rank's own samples", at=3)
def by_its_own_count(samples, group, weights):
    x, y = samples
    w = weights.clone().requires_grad_()
    F.mse_loss(x @ w, y, reduction="sum").backward()
    return collectives.all_reduce(w.grad, group, algorithm="ring") / len(x)


@mutant("uneven-batch", "my_gradient", says="gradient of the sum of all errors", at=3)
def never_divides(samples, group, weights):
    x, y = samples
    w = weights.clone().requires_grad_()
    F.mse_loss(x @ w, y, reduction="sum").backward()
    return collectives.all_reduce(w.grad, group, algorithm="ring")


@mutant("uneven-batch", "my_gradient", says="Divide by the number of all samples", at=3)
def by_the_ranks(samples, group, weights):
    x, y = samples
    w = weights.clone().requires_grad_()
    F.mse_loss(x @ w, y, reduction="sum").backward()
    return collectives.all_reduce(w.grad, group, algorithm="ring") / group.size


@mutant("uneven-batch", "my_gradient", says="the mean of nothing is 0 / 0", at=3)
def weights_its_own_mean(samples, group, weights):
    x, y = samples
    mean = 2 * x.T @ (x @ weights - y) / len(x)
    message = torch.cat([mean * len(x), mean.new_tensor([len(x)])])
    collectives.all_reduce(message, group, algorithm="ring")
    return message[:-1] / message[-1]


@variant("uneven-batch", "my_gradient", at=3)  # autograd knows that the mean of nothing has no gradient
def weights_the_mean_of_autograd(samples, group, weights):
    x, y = samples
    w = weights.clone().requires_grad_()
    F.mse_loss(x @ w, y).backward()
    message = torch.cat([w.grad * len(x), w.grad.new_tensor([len(x)])])
    collectives.all_reduce(message, group, algorithm="ring")
    return message[:-1] / message[-1]


@mutant("uneven-batch", "my_gradient", says="Do you send samples?", at=3)
def gathers_the_samples(samples, group, weights):
    x, y = samples
    counts = collectives.all_gather(torch.tensor([len(x)]), group).tolist()
    x = collectives.all_gather(x, group, counts)
    y = collectives.all_gather(y, group, counts)
    w = weights.clone().requires_grad_()
    F.mse_loss(x @ w, y).backward()
    return w.grad


@mutant("uneven-batch", "my_gradient", says="Is there one all-reduce of the gradient", at=5)
def gathers_the_gradients(samples, group, weights):
    x, y = samples
    w = weights.clone().requires_grad_()
    F.mse_loss(x @ w, y, reduction="sum").backward()
    mine = torch.cat([w.grad, w.grad.new_tensor([len(x)])])
    total = collectives.all_gather(mine[None], group).sum(0)
    return total[:-1] / total[-1]


always_in_single_precision = slip("uneven-batch", "my_gradient", says="and so is the result", at=3, change="""
-    message = torch.cat([w.grad, w.grad.new_tensor([len(x)])])  # the sum over my samples, and how many they are
+    message = torch.cat([w.grad.float(), torch.tensor([float(len(x))])])
""")  # fmt: skip


@variant("uneven-batch", "my_gradient", at=5)
def two_messages(samples, group, weights):
    x, y = samples
    w = weights.clone().requires_grad_()
    F.mse_loss(x @ w, y, reduction="sum").backward()
    count = torch.tensor([len(x)])
    collectives.all_reduce(count, group, algorithm="ring")
    return collectives.all_reduce(w.grad, group, algorithm="ring") / count.item()


@variant("uneven-batch", "my_gradient", at=3)
def by_hand_through_rank_0(samples, group, weights):
    x, y = samples
    sums = torch.cat([2 * x.T @ (x @ weights - y), weights.new_tensor([len(x)])])
    if group.rank:
        group.send(sums, to=0)
        group.recv(sums, source=0)
    else:
        for source in range(1, group.size):
            sums += group.recv(torch.empty_like(sums), source=source)
        for to in range(1, group.size):
            group.send(sums, to=to)
    return sums[:-1] / sums[-1]


# Four pieces, one message ---------------------------------------------------------------------------------------


@mutant("train-as-one", "my_training", says="An average after every piece?", at=3)
def averages_after_every_piece(mine, group, lr):
    weights, x, y = mine
    collectives.broadcast(weights, group)
    for xs, ys in zip(x, y, strict=True):
        total = torch.zeros_like(weights)
        for piece, targets in zip(xs, ys, strict=True):
            w = weights.clone().requires_grad_()
            F.mse_loss(piece @ w, targets).backward()
            total += collectives.all_reduce(w.grad, group, algorithm="ring")
        weights -= lr * total / (len(xs) * group.size)
    return weights


@mutant("train-as-one", "my_training", says="never divided by the number of pieces", at=3)
def forgets_the_pieces(mine, group, lr):
    weights, x, y = mine
    weights = collectives.broadcast(weights, group).requires_grad_()
    for xs, ys in zip(x, y, strict=True):
        for piece, targets in zip(xs, ys, strict=True):
            F.mse_loss(piece @ weights, targets).backward()
        collectives.all_reduce(weights.grad, group, algorithm="ring")
        with torch.no_grad():
            weights -= lr * weights.grad / group.size
        weights.grad = None
    return weights


@mutant("train-as-one", "my_training", says="never divided by the number of ranks", at=3)
def forgets_the_ranks(mine, group, lr):
    weights, x, y = mine
    weights = collectives.broadcast(weights, group).requires_grad_()
    for xs, ys in zip(x, y, strict=True):
        for piece, targets in zip(xs, ys, strict=True):
            (F.mse_loss(piece @ weights, targets) / len(xs)).backward()
        collectives.all_reduce(weights.grad, group, algorithm="ring")
        with torch.no_grad():
            weights -= lr * weights.grad
        weights.grad = None
    return weights


@mutant("train-as-one", "my_training", says="Broadcast those of rank 0", at=3)
def every_rank_its_own_start(mine, group, lr):
    weights, x, y = mine
    weights = weights.requires_grad_()
    for xs, ys in zip(x, y, strict=True):
        for piece, targets in zip(xs, ys, strict=True):
            (F.mse_loss(piece @ weights, targets) / len(xs)).backward()
        collectives.all_reduce(weights.grad, group, algorithm="ring")
        with torch.no_grad():
            weights -= lr * weights.grad / group.size
        weights.grad = None
    return weights


@mutant("train-as-one", "my_training", says="begins with the average of all first weights", at=3)
def begins_with_the_average(mine, group, lr):
    weights, x, y = mine
    collectives.all_reduce(weights, group, algorithm="ring")
    weights = (weights / group.size).requires_grad_()
    for xs, ys in zip(x, y, strict=True):
        for piece, targets in zip(xs, ys, strict=True):
            (F.mse_loss(piece @ weights, targets) / len(xs)).backward()
        collectives.all_reduce(weights.grad, group, algorithm="ring")
        with torch.no_grad():
            weights -= lr * weights.grad / group.size
        weights.grad = None
    return weights


@mutant("train-as-one", "my_training", says="clear it after each update", at=3)
def never_clears_the_gradient(mine, group, lr):
    weights, x, y = mine
    weights = collectives.broadcast(weights, group).requires_grad_()
    for xs, ys in zip(x, y, strict=True):
        for piece, targets in zip(xs, ys, strict=True):
            (F.mse_loss(piece @ weights, targets) / len(xs)).backward()
        collectives.all_reduce(weights.grad, group, algorithm="ring")
        with torch.no_grad():
            weights -= lr * weights.grad / group.size
    return weights


@mutant("train-as-one", "my_training", says="Each piece moves the weights at once", at=3)
def averages_weights_and_not_gradients(mine, group, lr):
    weights, x, y = mine
    collectives.broadcast(weights, group)
    for xs, ys in zip(x, y, strict=True):
        for piece, targets in zip(xs, ys, strict=True):
            w = weights.clone().requires_grad_()
            F.mse_loss(piece @ w, targets).backward()
            weights -= lr * w.grad
        collectives.all_reduce(weights, group, algorithm="ring")
        weights /= group.size
    return weights


@mutant("train-as-one", "my_training", says="Every rank trains alone", at=3)
def never_talks_after_the_start(mine, group, lr):
    weights, x, y = mine
    weights = collectives.broadcast(weights, group).requires_grad_()
    for xs, ys in zip(x, y, strict=True):
        for piece, targets in zip(xs, ys, strict=True):
            (F.mse_loss(piece @ weights, targets) / len(xs)).backward()
        with torch.no_grad():
            weights -= lr * weights.grad
        weights.grad = None
    return weights


@mutant("train-as-one", "my_training", says="Are weights sent after each update?", at=3)
def broadcasts_weights_in_each_update(mine, group, lr):
    weights, x, y = mine
    for xs, ys in zip(x, y, strict=True):
        w = collectives.broadcast(weights, group).clone().requires_grad_()
        for piece, targets in zip(xs, ys, strict=True):
            (F.mse_loss(piece @ w, targets) / len(xs)).backward()
        collectives.all_reduce(w.grad, group, algorithm="ring")
        weights -= lr * w.grad / group.size
    return collectives.broadcast(weights, group)


@mutant("train-as-one", "my_training", says="begins with the weights of rank 2", at=3)
def begins_with_the_last_rank(mine, group, lr):
    weights, x, y = mine
    weights = collectives.broadcast(weights, group, root=group.size - 1).requires_grad_()
    for xs, ys in zip(x, y, strict=True):
        for piece, targets in zip(xs, ys, strict=True):
            (F.mse_loss(piece @ weights, targets) / len(xs)).backward()
        collectives.all_reduce(weights.grad, group, algorithm="ring")
        with torch.no_grad():
            weights -= lr * weights.grad / group.size
        weights.grad = None
    return weights


@mutant("train-as-one", "my_training", says="have finished while others wait", at=3)
def only_rank_0_averages(mine, group, lr):
    weights, x, y = mine
    weights = collectives.broadcast(weights, group).requires_grad_()
    for xs, ys in zip(x, y, strict=True):
        for piece, targets in zip(xs, ys, strict=True):
            (F.mse_loss(piece @ weights, targets) / len(xs)).backward()
        if group.rank == 0:
            collectives.all_reduce(weights.grad, group, algorithm="ring")
        with torch.no_grad():
            weights -= lr * weights.grad / group.size
        weights.grad = None
    return weights


@variant("train-as-one", "my_training", at=3)
def by_formula(mine, group, lr):
    weights, x, y = mine
    collectives.broadcast(weights, group)
    for xs, ys in zip(x.flatten(1, 2), y.flatten(1, 2), strict=True):
        gradient = 2 * xs.T @ (xs @ weights - ys) / (len(xs) * group.size)
        weights -= lr * collectives.all_reduce(gradient, group, algorithm="ring")
    return weights


@variant("train-as-one", "my_training", at=5)
def rank_0_keeps_the_weights(mine, group, lr):
    weights, x, y = mine
    collectives.broadcast(weights, group)
    for xs, ys in zip(x, y, strict=True):
        w = weights.clone().requires_grad_()
        for piece, targets in zip(xs, ys, strict=True):
            (F.mse_loss(piece @ w, targets) / (len(xs) * group.size)).backward()
        if group.rank:
            group.send(w.grad, to=0)
            group.recv(weights, source=0)
            continue
        for source in range(1, group.size):
            w.grad += group.recv(torch.empty_like(w.grad), source=source)
        weights -= lr * w.grad
        for to in range(1, group.size):
            group.send(weights, to=to)
    return weights


@variant("train-as-one", "my_training", at=3)
def with_an_optimizer(mine, group, lr):
    weights, x, y = mine
    weights = torch.nn.Parameter(collectives.broadcast(weights, group))
    sgd = torch.optim.SGD([weights], lr=lr)
    for xs, ys in zip(x, y, strict=True):
        sgd.zero_grad()
        for piece, targets in zip(xs, ys, strict=True):
            (F.mse_loss(piece @ weights, targets) / len(xs)).backward()
        weights.grad = collectives.all_reduce(weights.grad, group, algorithm="ring") / group.size
        sgd.step()
    return weights


# Buckets --------------------------------------------------------------------------------------------------------


@mutant("buckets", "my_average", says="an all-reduce for each tensor", at=3)
def a_message_for_each_tensor(gradients, group, bucket_bytes):
    for g in gradients:
        flat = collectives.all_reduce(g.flatten().clone(), group, algorithm="ring") / group.size
        g.copy_(flat.view_as(g))
    return gradients


@mutant("buckets", "my_average", says="Everything went in one bucket", at=3)
def everything_in_one_bucket(gradients, group, bucket_bytes):
    flat = torch.cat([g.flatten() for g in gradients])
    collectives.all_reduce(flat, group, algorithm="ring")
    flat /= group.size
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        g.copy_(part.view_as(g))
    return gradients


@mutant("buckets", "my_average", says="who closes it?", at=3)
def the_last_bucket_stays_open(gradients, group, bucket_bytes):
    bucket, filled = [], 0
    for g in gradients:
        if bucket and (filled + g.nbytes > bucket_bytes or g.dtype != bucket[0].dtype):
            flat = torch.cat([b.flatten() for b in bucket])
            flat = collectives.all_reduce(flat, group, algorithm="ring") / group.size
            for b, part in zip(bucket, flat.split([b.numel() for b in bucket]), strict=True):
                b.copy_(part.view_as(b))
            bucket, filled = [], 0
        bucket.append(g)
        filled += g.nbytes
    return gradients


@mutant("buckets", "my_average", says="and not divided", at=3)
def sums_and_no_averages(gradients, group, bucket_bytes):
    def add_up(bucket):
        flat = torch.cat([b.flatten() for b in bucket])
        collectives.all_reduce(flat, group, algorithm="ring")
        for b, part in zip(bucket, flat.split([b.numel() for b in bucket]), strict=True):
            b.copy_(part.view_as(b))

    bucket, filled = [], 0
    for g in gradients:
        if bucket and (filled + g.nbytes > bucket_bytes or g.dtype != bucket[0].dtype):
            add_up(bucket)
            bucket, filled = [], 0
        bucket.append(g)
        filled += g.nbytes
    add_up(bucket)
    return gradients


into_a_copy = slip("buckets", "my_average", says="Are the averages put back into them?", at=3, change="""
-        if bucket:
-            flat = torch.cat([g.flatten() for g in bucket])
-            collectives.all_reduce(flat, group, algorithm="ring")
-            flat /= group.size
-            for g, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
-                g.copy_(part.view_as(g))
+        flat = torch.cat([b.flatten() for b in bucket])
+        collectives.all_reduce(flat, group, algorithm="ring")
+        for b, part in zip(bucket, flat.split([b.numel() for b in bucket]), strict=True):
+            b = part.view_as(b) / group.size  # a new tensor: the list still has the old one

-    average(bucket)  # the one that is still open
+    average(bucket)
""")  # fmt: skip


@mutant("buckets", "my_average", says="When is a bucket closed?", at=3)
def closes_a_bucket_too_late(gradients, group, bucket_bytes):
    def average(bucket):
        flat = torch.cat([b.flatten() for b in bucket])
        flat = collectives.all_reduce(flat, group, algorithm="ring") / group.size
        for b, part in zip(bucket, flat.split([b.numel() for b in bucket]), strict=True):
            b.copy_(part.view_as(b))

    bucket = []
    for g in gradients:
        bucket.append(g)
        if sum(b.nbytes for b in bucket) > bucket_bytes:
            average(bucket)
            bucket = []
    if bucket:
        average(bucket)
    return gradients


@mutant("buckets", "my_average", says="must stay", at=3)
def flat_lists_of_buckets(gradients, group, bucket_bytes):
    averages, bucket, filled = [], [], 0
    for g in [*gradients, None]:
        if g is None or (bucket and (filled + g.nbytes > bucket_bytes or g.dtype != bucket[0].dtype)):
            flat = torch.cat([b.flatten() for b in bucket])
            flat = collectives.all_reduce(flat, group, algorithm="ring") / group.size
            averages += flat.split([b.numel() for b in bucket])
            bucket, filled = [], 0
        if g is not None:
            bucket.append(g)
            filled += g.nbytes
    return averages


@mutant("buckets", "my_average", says="does another dtype open a new bucket?", at=4)
def dtypes_in_one_bucket(gradients, group, bucket_bytes):
    def average(bucket):
        flat = torch.empty(sum(b.numel() for b in bucket), dtype=bucket[0].dtype)
        torch.cat([b.flatten() for b in bucket], out=flat)
        flat = collectives.all_reduce(flat, group, algorithm="ring") / group.size
        for b, part in zip(bucket, flat.split([b.numel() for b in bucket]), strict=True):
            b.copy_(part.view_as(b))

    bucket, filled = [], 0
    for g in gradients:
        if bucket and filled + g.nbytes > bucket_bytes:
            average(bucket)
            bucket, filled = [], 0
        bucket.append(g)
        filled += g.nbytes
    average(bucket)
    return gradients


@mutant("buckets", "my_average", says="Are buckets padded, or sent in another dtype?", at=3)
def padded_to_full_buckets(gradients, group, bucket_bytes):
    def average(bucket):
        flat = torch.cat([b.flatten() for b in bucket])
        rest = max(0, bucket_bytes - flat.nbytes) // flat.element_size()
        flat = torch.cat([flat, flat.new_zeros(rest)])
        flat = collectives.all_reduce(flat, group, algorithm="ring") / group.size
        at = 0
        for b in bucket:
            b.copy_(flat[at : at + b.numel()].view_as(b))
            at += b.numel()

    bucket, filled = [], 0
    for g in gradients:
        if bucket and (filled + g.nbytes > bucket_bytes or g.dtype != bucket[0].dtype):
            average(bucket)
            bucket, filled = [], 0
        bucket.append(g)
        filled += g.nbytes
    average(bucket)
    return gradients


@mutant("buckets", "my_average", says="Are copies of all buckets kept", at=3)
def fills_all_buckets_first(gradients, group, bucket_bytes):
    buckets, filled = [[]], 0
    for g in gradients:
        if buckets[-1] and (filled + g.nbytes > bucket_bytes or g.dtype != buckets[-1][0].dtype):
            buckets.append([])
            filled = 0
        buckets[-1].append(g)
        filled += g.nbytes
    flats = [torch.cat([g.flatten() for g in bucket]) for bucket in buckets]
    for flat, bucket in zip(flats, buckets, strict=True):
        collectives.all_reduce(flat, group, algorithm="ring")
        for g, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            g.copy_(part.view_as(g) / group.size)
    return gradients


@variant("buckets", "my_average", at=3)
def closed_beforehand(gradients, group, bucket_bytes):
    plan = []
    for g in gradients:
        room = plan and plan[-1][0].dtype == g.dtype and sum(b.nbytes for b in plan[-1]) + g.nbytes <= bucket_bytes
        if room:
            plan[-1].append(g)
        else:
            plan.append([g])
    for bucket in plan:
        flat = bucket[0].new_empty(sum(g.numel() for g in bucket))
        at = 0
        for g in bucket:
            flat[at : at + g.numel()] = g.flatten() / group.size
            at += g.numel()
        collectives.all_reduce(flat, group, algorithm="ring")
        for g in reversed(bucket):
            at -= g.numel()
            g.copy_(flat[at : at + g.numel()].view(g.shape))
    return gradients


@variant("buckets", "my_average", at=4)
def one_bucket_under_way(gradients, group, bucket_bytes):
    def finish(bucket, handle):
        flat = handle.wait().div_(group.size)
        for g, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            g.copy_(part.view_as(g))

    def start(bucket):
        flat = torch.cat([g.flatten() for g in bucket])
        return bucket, collectives.all_reduce(flat, group, algorithm="ring", async_op=True)

    under_way, bucket, filled = None, [], 0
    for g in gradients:
        if bucket and (filled + g.nbytes > bucket_bytes or g.dtype != bucket[0].dtype):
            if under_way:
                finish(*under_way)
            under_way = start(bucket)
            bucket, filled = [], 0
        bucket.append(g)
        filled += g.nbytes
    if under_way:
        finish(*under_way)
    finish(*start(bucket))
    return gradients
