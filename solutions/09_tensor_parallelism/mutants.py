"""The zoo of the exercises of chapter 9: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch
import torch.nn.functional as F

from labkit import collectives
from labkit.grading.checks.zoo import mutant, slip, variant
from labkit.parallel.announce import announce

# Columns, then rows -------------------------------------------------------------------------------------------


a_bias_from_every_rank = slip(
    "columns-then-rows", "my_feed_forward", says="Every rank has added the bias b before the sum", at=3, change="""
-    y = collectives.all_reduce(h @ B, group, "sum", algorithm="ring") + b
+    y = collectives.all_reduce(h @ B + b, group, "sum", algorithm="ring")
""")  # fmt: skip


forgets_the_way_back = slip("columns-then-rows", "my_feed_forward", says="the copy of x becomes a sum", at=3, change="""
-    dx = collectives.all_reduce(dz @ A.T, group, "sum", algorithm="ring")
+    dx = dz @ A.T
""")  # fmt: skip


forgets_the_sum = slip("columns-then-rows", "my_feed_forward", says="nothing was summed", at=3, change="""
-    y = collectives.all_reduce(h @ B, group, "sum", algorithm="ring") + b
+    y = h @ B + b
""")  # fmt: skip


sums_what_is_whole = slip("columns-then-rows", "my_feed_forward", says="It is summed too often", at=3, change="""
     y = collectives.all_reduce(h @ B, group, "sum", algorithm="ring") + b
+    dy = collectives.all_reduce(dy.clone(), group, "sum", algorithm="ring")
""")  # fmt: skip


averages = slip("columns-then-rows", "my_feed_forward", says="The partial sums are averaged", at=3, change="""
-    y = collectives.all_reduce(h @ B, group, "sum", algorithm="ring") + b
+    y = collectives.all_reduce(h @ B, group, "avg", algorithm="ring") + b
""")  # fmt: skip


forgets_the_mask = slip("columns-then-rows", "my_feed_forward", says="The ReLU's mask is missing", at=3, change="""
-    dz = (dy @ B.T) * (z > 0)
+    dz = dy @ B.T
""")  # fmt: skip


gradient_of_the_bias_as_in_data_parallelism = slip(
    "columns-then-rows", "my_feed_forward", says="Every rank has the whole gradient of b already", at=3, change="""
-    return [y, dx, x.T @ dz, dz.sum(0), h.T @ dy, dy.sum(0)]
+    return [y, dx, x.T @ dz, dz.sum(0), h.T @ dy, collectives.all_reduce(dy.sum(0), group, "sum", algorithm="ring")]
""")  # fmt: skip


averages_what_is_equal = slip(
    "columns-then-rows", "my_feed_forward", says="Which of these sums something that is whole already", at=3, change="""
-    return [y, dx, x.T @ dz, dz.sum(0), h.T @ dy, dy.sum(0)]
+    return [y, dx, x.T @ dz, dz.sum(0), h.T @ dy, collectives.all_reduce(dy.sum(0), group, "avg", algorithm="ring")]
""")  # fmt: skip


makes_the_hidden_columns_whole = slip(
    "columns-then-rows", "my_feed_forward", says="What is made whole there", at=3, change="""
-    h = torch.relu(z)
+    widths = [int(w) for w in collectives.all_gather(torch.tensor([A.shape[1]]), group, algorithm="ring")]
+    h = collectives.all_gather(torch.relu(z).T.contiguous(), group, widths, algorithm="ring").T
+    h = h.split(widths, 1)[group.rank]
""")  # fmt: skip


@mutant("columns-then-rows", "my_feed_forward", says="What is made whole there", at=3)
def gathers_the_weights(mine, group):
    x, A, a, B, b, dy = (mine[name] for name in ("x", "A", "a", "B", "b", "dy"))
    widths = [int(w) for w in collectives.all_gather(torch.tensor([A.shape[1]]), group, algorithm="ring")]
    columns = torch.cat([A, a[None], B.T]).T.contiguous()
    whole = collectives.all_gather(columns, group, widths, algorithm="ring").T
    A, a, B = whole[: len(A)], whole[len(A)], whole[len(A) + 1 :].T
    z = x @ A + a
    h = torch.relu(z)
    dz = (dy @ B.T) * (z > 0)
    dA, da, dB = (x.T @ dz).split(widths, 1), dz.sum(0).split(widths), (h.T @ dy).split(widths)
    return [h @ B + b, dz @ A.T, dA[group.rank], da[group.rank], dB[group.rank], dy.sum(0)]


@variant("columns-then-rows", "my_feed_forward", at=3)
def by_autograd(mine, group):
    x, A, a, B, b, dy = (mine[name] for name in ("x", "A", "a", "B", "b", "dy"))
    x, A, a, B = (tensor.requires_grad_() for tensor in (x, A, a, B))
    partial = torch.relu(x @ A + a) @ B
    y = collectives.all_reduce(partial.detach().clone(), group, "sum", algorithm="ring")
    dx, dA, da, dB = torch.autograd.grad(partial, [x, A, a, B], dy)
    collectives.all_reduce(dx, group, "sum", algorithm="ring")
    return [y + b, dx, dA, da, dB, dy.sum(0)]


@variant("columns-then-rows", "my_feed_forward", at=4)
def an_all_reduce_in_two_halves(mine, group):
    x, A, a, B, b, dy = (mine[name] for name in ("x", "A", "a", "B", "b", "dy"))
    h = (x @ A + a).clamp(min=0)

    def add_up(partial):
        sizes = [len(part) for part in partial.flatten().tensor_split(group.size)]
        mine = collectives.reduce_scatter(partial.flatten(), group, "sum", algorithm="ring")
        return collectives.all_gather(mine, group, sizes, algorithm="ring").view_as(partial)

    y = add_up(h @ B + b * (group.rank == 0))
    dz = torch.where(h > 0, dy @ B.T, 0.0)
    dx = add_up(dz @ A.T)
    return [y, dx, x.T @ dz, dz.sum(0), h.T @ dy, dy.sum(0)]


@variant("columns-then-rows", "my_feed_forward", at=3)
def the_bias_in_equal_shares(mine, group):
    x, A, a, B, b, dy = (mine[name] for name in ("x", "A", "a", "B", "b", "dy"))
    h = F.relu(F.linear(x, A.T, a))
    y = collectives.all_reduce(h @ B + b / group.size, group, "sum", algorithm="ring")
    dz = (dy @ B.T).masked_fill(h == 0, 0)
    dx = collectives.all_reduce(dz @ A.T, group, "sum", algorithm="ring")
    ones = torch.ones(1, len(x), dtype=x.dtype)
    return [y, dx, x.T @ dz, (ones @ dz)[0], h.T @ dy, (ones @ dy)[0]]


# The two ends of a region -------------------------------------------------------------------------------------


no_sum_at_the_beginning = slip("two-ends", "my_regions", says="The copy's backward pass does not sum", at=4, change="""
-    copy = total = None  # define both here
+    def add_up(x, op="sum"):
+        return collectives.all_reduce(x.clone(memory_format=torch.contiguous_format), group, op, algorithm="ring")

-            own = gradient.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return gradient

-            own = x.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(x)
""")  # fmt: skip


a_sum_at_both_ends = slip(
    "two-ends", "my_regions", says="Something is summed once too often in the backward pass", at=4, change="""
-    copy = total = None  # define both here
+    def add_up(x, op="sum"):
+        return collectives.all_reduce(x.clone(memory_format=torch.contiguous_format), group, op, algorithm="ring")

-            own = gradient.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(gradient)

-            own = x.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(x)

-            return gradient
+            return add_up(gradient)
""")  # fmt: skip


ends_exchanged = slip("two-ends", "my_regions", says="The two ends are exchanged in the backward pass", at=4, change="""
-    copy = total = None  # define both here
+    def add_up(x, op="sum"):
+        return collectives.all_reduce(x.clone(memory_format=torch.contiguous_format), group, op, algorithm="ring")

-            own = gradient.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return gradient

-            own = x.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(x)

-            return gradient
+            return add_up(gradient)
""")  # fmt: skip


averages_gradients = slip("two-ends", "my_regions", says="`copy` averages the gradients", at=4, change="""
-    copy = total = None  # define both here
+    def add_up(x, op="sum"):
+        return collectives.all_reduce(x.clone(memory_format=torch.contiguous_format), group, op, algorithm="ring")

-            own = gradient.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(gradient, "avg")

-            own = x.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(x)
""")  # fmt: skip


averages_partial_sums = slip("two-ends", "my_regions", says="`total` averages. It sums.", at=4, change="""
-    copy = total = None  # define both here
+    def add_up(x, op="sum"):
+        return collectives.all_reduce(x.clone(memory_format=torch.contiguous_format), group, op, algorithm="ring")

-            own = gradient.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(gradient)

-            own = x.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(x, "avg")
""")  # fmt: skip


a_share_for_every_rank = slip(
    "two-ends", "my_regions", says="the gradient of a sum goes to every partial sum whole", at=4, change="""
-    copy = total = None  # define both here
+    def add_up(x, op="sum"):
+        return collectives.all_reduce(x.clone(memory_format=torch.contiguous_format), group, op, algorithm="ring")

-            own = gradient.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(gradient)

-            own = x.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(x)

-            return gradient
+            return gradient / group.size
""")  # fmt: skip


nothing_is_summed_forward = slip(
    "two-ends", "my_regions", says="`total` does not sum in the forward pass", at=4, change="""
-    copy = total = None  # define both here
+    def add_up(x, op="sum"):
+        return collectives.all_reduce(x.clone(memory_format=torch.contiguous_format), group, op, algorithm="ring")

-            own = gradient.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(gradient)

-            own = x.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return x.view_as(x)
""")  # fmt: skip


@mutant("two-ends", "my_regions", says="The copy's backward pass does not sum", at=4)
def a_sum_and_no_copy(mine, group, both=False):
    class Total(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return collectives.all_reduce(x.clone(), group, "sum", algorithm="ring")

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def copy(x):
        return x

    total = Total.apply

    x, gains = mine["x"].requires_grad_(), [gain.requires_grad_() for gain in mine["gains"]]
    pairs = [[matrix.requires_grad_() for matrix in pair] for pair in mine["pairs"]]
    stream = x
    for gain, (A, B) in zip(gains, pairs, strict=True):
        inside = copy(stream * gain)
        partial = torch.relu(inside @ A) @ B
        if both:
            partial = partial + (inside @ A) @ B
        stream = stream + total(partial)
    loss = (stream**2).mean()
    loss.backward()
    return [loss, x.grad, *(gain.grad for gain in gains), *(matrix.grad for pair in pairs for matrix in pair)]


averages_what_is_equal_going_in = slip(
    "two-ends", "my_regions", says="Which of these sums something that is whole already", at=4, change="""
-    copy = total = None  # define both here
+    def add_up(x, op="sum"):
+        return collectives.all_reduce(x.clone(memory_format=torch.contiguous_format), group, op, algorithm="ring")

-            return x.view_as(x)
+            return add_up(x, "avg")

-            own = gradient.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(gradient)

-            own = x.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(x)
""")  # fmt: skip


averages_what_is_equal_going_back = slip(
    "two-ends", "my_regions", says="Which of these sums something that is whole already", at=4, change="""
-    copy = total = None  # define both here
+    def add_up(x, op="sum"):
+        return collectives.all_reduce(x.clone(memory_format=torch.contiguous_format), group, op, algorithm="ring")

-            own = gradient.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(gradient)

-            own = x.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(x)

-            return gradient
+            return add_up(gradient, "avg")
""")  # fmt: skip


gathers_the_partial_sums = slip("two-ends", "my_regions", says="What is made whole there", at=4, change="""
-    copy = total = None  # define both here
+    def add_up(x, op="sum"):
+        return collectives.all_reduce(x.clone(memory_format=torch.contiguous_format), group, op, algorithm="ring")

-            own = gradient.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return add_up(gradient)

-            own = x.clone(memory_format=torch.contiguous_format)
-            return collectives.all_reduce(own, group, "sum", algorithm="ring")
+            return collectives.all_gather(x.contiguous()[None], group, algorithm="ring").sum(0)
""")  # fmt: skip


@variant("two-ends", "my_regions", at=4)
def hooks_and_a_trick(mine, group, both=False):
    def add_up(x):
        return collectives.all_reduce(x.detach().clone(), group, "sum", algorithm="ring")

    def copy(x):
        inside = x.view_as(x)
        inside.register_hook(lambda gradient: add_up(gradient.contiguous()))
        return inside

    def total(x):
        return x + (add_up(x) - x.detach())

    x, gains = mine["x"].requires_grad_(), [gain.requires_grad_() for gain in mine["gains"]]
    pairs = [[matrix.requires_grad_() for matrix in pair] for pair in mine["pairs"]]
    stream = x
    for gain, (A, B) in zip(gains, pairs, strict=True):
        inside = copy(stream * gain)
        partial = torch.relu(inside @ A) @ B
        if both:
            partial = partial + (inside @ A) @ B
        stream = stream + total(partial)
    loss = (stream**2).mean()
    loss.backward()
    return [loss, x.grad, *(gain.grad for gain in gains), *(matrix.grad for pair in pairs for matrix in pair)]


@variant("two-ends", "my_regions", at=4)
def one_class_for_both(mine, group, both=False):
    class End(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, forward):
            ctx.backward_sums = not forward
            return End.sum(x) if forward else x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return (End.sum(gradient) if ctx.backward_sums else gradient), None

        @staticmethod
        def sum(x):
            flat = x.flatten().clone()
            return collectives.all_reduce(flat, group, algorithm="ring").view_as(x)

    def copy(x):
        return End.apply(x, False)

    def total(x):
        return End.apply(x, True)

    x, gains = mine["x"].requires_grad_(), [gain.requires_grad_() for gain in mine["gains"]]
    pairs = [[matrix.requires_grad_() for matrix in pair] for pair in mine["pairs"]]
    stream = x
    for gain, (A, B) in zip(gains, pairs, strict=True):
        inside = copy(stream * gain)
        partial = torch.relu(inside @ A) @ B
        if both:
            partial = partial + (inside @ A) @ B
        stream = stream + total(partial)
    loss = (stream**2).mean()
    loss.backward()
    return [loss, x.grad, *(gain.grad for gain in gains), *(matrix.grad for pair in pairs for matrix in pair)]


# Three numbers a position -------------------------------------------------------------------------------------


@mutant("three-numbers", "my_loss", says="Are logits gathered?", at=4)
def gathers_the_scores(mine, group, vocab, ignore):
    logits, targets = mine["logits"], mine["targets"]
    sizes = [len(part) for part in torch.empty(vocab).tensor_split(group.size)]
    whole = collectives.all_gather(logits.T.contiguous(), group, sizes, algorithm="ring").T.requires_grad_()
    loss = F.cross_entropy(whole, targets, ignore_index=ignore)
    (gradient,) = torch.autograd.grad(loss, whole)
    return [loss, gradient.split(sizes, 1)[group.rank]]


@mutant("three-numbers", "my_loss", says="Are logits gathered?", at=4)
def gathers_before_the_loss_and_sums_after(mine, group, vocab, ignore):
    logits, targets = mine["logits"], mine["targets"]
    sizes = [len(part) for part in torch.empty(vocab).tensor_split(group.size)]
    whole = torch.zeros(len(targets), vocab, dtype=logits.dtype)
    whole[:, sum(sizes[: group.rank]) :][:, : logits.shape[1]] = logits
    collectives.all_reduce(whole, group, "sum", algorithm="ring")
    loss = F.cross_entropy(whole.requires_grad_(), targets, ignore_index=ignore)
    loss.backward()
    return [loss, whole.grad.split(sizes, 1)[group.rank]]


no_largest_score = slip("three-numbers", "my_loss", says="exponentials are too large", at=4, change="""
-    top = collectives.all_reduce(logits.amax(1), group, "max", algorithm="ring")
+    top = torch.zeros_like(logits[:, 0])
""")  # fmt: skip


its_own_largest_score = slip(
    "three-numbers", "my_loss", says="Each rank subtracts its own largest score", at=4, change="""
-    top = collectives.all_reduce(logits.amax(1), group, "max", algorithm="ring")
+    top = logits.amax(1)
""")  # fmt: skip


a_score_from_every_rank = slip(
    "three-numbers", "my_loss", says="A rank that has not the target adds a score all the same", at=4, change="""
-    column = torch.where(here, column, 0)[:, None]
+    column = torch.where(kept, column, 0 - sum(sizes[: group.rank])).clamp(0, sizes[group.rank] - 1)[:, None]

-    of_target = torch.where(here, below.gather(1, column)[:, 0], 0.0)
+    of_target = below.gather(1, column)[:, 0]
""")  # fmt: skip


ignored_positions_in_the_denominator = slip(
    "three-numbers", "my_loss", says="count in the denominator", at=4, change="""
-    loss = torch.where(kept, sums.log() - of_target, 0.0).sum() / kept.sum()
+    loss = torch.where(kept, sums.log() - of_target, 0.0).mean()
""")  # fmt: skip


a_sum_of_losses = slip("three-numbers", "my_loss", says="That is the sum. Take the mean", at=4, change="""
-    loss = torch.where(kept, sums.log() - of_target, 0.0).sum() / kept.sum()
+    loss = torch.where(kept, sums.log() - of_target, 0.0).sum()
""")  # fmt: skip


its_own_softmax = slip(
    "three-numbers", "my_loss", says="The softmax has its own sum of exponentials only", at=4, change="""
-    gradient = below.exp() / sums[:, None]
+    gradient = logits.softmax(1)
""")  # fmt: skip


a_one_on_every_rank = slip("three-numbers", "my_loss", says="The target is subtracted on every rank", at=4, change="""
-    gradient -= torch.zeros_like(gradient).scatter_(1, column, here[:, None].to(gradient.dtype))
+    start = sum(sizes[: group.rank])
+    place = (torch.where(kept, targets, 0) - start).clamp(0, sizes[group.rank] - 1)
+    gradient -= F.one_hot(place, sizes[group.rank])
""")  # fmt: skip


no_one_at_all = slip("three-numbers", "my_loss", says="The target is not subtracted", at=4, change="""
-    gradient -= torch.zeros_like(gradient).scatter_(1, column, here[:, None].to(gradient.dtype))
""")  # fmt: skip


a_gradient_for_ignored_positions = slip(
    "three-numbers", "my_loss", says="Positions to be ignored have a gradient", at=4, change="""
-    return [loss, gradient * kept[:, None] / kept.sum()]
+    return [loss, gradient / kept.sum()]
""")  # fmt: skip


gradient_of_the_sum = slip("three-numbers", "my_loss", says="That is the gradient of the sum", at=4, change="""
-    return [loss, gradient * kept[:, None] / kept.sum()]
+    return [loss, gradient * kept[:, None]]
""")  # fmt: skip


@mutant("three-numbers", "my_loss", says="Is more than the largest score, the sum and the target's score sent?", at=4)
def counts_together(mine, group, vocab, ignore):
    logits, targets = mine["logits"], mine["targets"]
    sizes = [len(part) for part in torch.empty(vocab).tensor_split(group.size)]
    column = targets - sum(sizes[: group.rank])
    kept = targets != ignore
    here = kept & (column >= 0) & (column < sizes[group.rank])
    column = torch.where(here, column, 0)[:, None]
    top = collectives.all_reduce(logits.amax(1), group, "max", algorithm="ring")
    below = logits - top[:, None]
    of_target = torch.where(here, below.gather(1, column)[:, 0], 0.0)
    both = torch.stack([below.exp().sum(1), of_target])
    sums, of_target = collectives.all_reduce(both, group, "sum", algorithm="ring")
    kept_by_all = collectives.all_reduce(kept.double(), group, "max", algorithm="ring")
    kept = kept_by_all > 0
    loss = torch.where(kept, sums.log() - of_target, 0.0).sum() / kept.sum()
    gradient = below.exp() / sums[:, None]
    gradient -= torch.zeros_like(gradient).scatter_(1, column, here[:, None].to(gradient.dtype))
    return [loss, gradient * kept[:, None] / kept.sum()]


each_for_itself = slip("three-numbers", "my_loss", says="Its own sum of exponentials only", at=4, change="""
-    both = torch.stack([below.exp().sum(1), of_target])
-    sums, of_target = collectives.all_reduce(both, group, "sum", algorithm="ring")
+    of_target = collectives.all_reduce(of_target, group, "sum", algorithm="ring")
+    sums = below.exp().sum(1)
""")  # fmt: skip


loss_in_32_bits = slip(
    "three-numbers", "my_loss", says="Was something computed in 32 bits on the way?", at=4, change="""
-    return [loss, gradient * kept[:, None] / kept.sum()]
+    return [loss.float().double(), gradient * kept[:, None] / kept.sum()]
""")  # fmt: skip


@variant("three-numbers", "my_loss", at=4)
def three_calls(mine, group, vocab, ignore):
    logits, targets = mine["logits"], mine["targets"]
    start = sum(len(part) for part in torch.empty(vocab).tensor_split(group.size)[: group.rank])
    counts = targets.ne(ignore)
    count = int(counts.sum())
    largest = logits.max(dim=1).values
    collectives.all_reduce(largest, group, "max", algorithm="ring")
    powers = (logits - largest.unsqueeze(1)).exp()
    total = collectives.all_reduce(powers.sum(1), group, algorithm="ring")
    one_hot = (targets - start).unsqueeze(1) == torch.arange(logits.shape[1])
    picked = collectives.all_reduce((logits * one_hot).sum(1), group, algorithm="ring")
    losses = total.log() + largest - picked
    gradient = (powers / total.unsqueeze(1) - one_hot.double()) / count
    gradient[~counts] = 0
    return [losses[counts].sum() / count, gradient]


@variant("three-numbers", "my_loss", at=4)
def by_logarithms_of_sums(mine, group, vocab, ignore):
    logits, targets = mine["logits"], mine["targets"]
    first = [0]
    for part in torch.arange(vocab).tensor_split(group.size):
        first.append(first[-1] + len(part))
    own = torch.logsumexp(logits, 1)
    largest = collectives.all_reduce(own.clone(), group, "max", algorithm="ring")
    mine = (targets >= first[group.rank]) & (targets < first[group.rank + 1])
    picked = torch.zeros_like(own)
    rows = mine.nonzero()[:, 0]
    picked[rows] = logits[rows, targets[rows] - first[group.rank]]
    sums = torch.cat([(own - largest).exp(), picked])
    share, picked = collectives.all_reduce(sums, group, algorithm="ring").chunk(2)
    logs = share.log() + largest
    kept = targets != ignore
    gradient = (logits - logs[:, None]).exp()
    gradient[rows, targets[rows] - first[group.rank]] -= 1
    gradient[~kept] = 0
    return [(logs - picked)[kept].mean(), gradient / kept.sum()]


# Heads that share keys ----------------------------------------------------------------------------------------


@mutant("grouped-heads", "my_attention", says="That is one stretch of the joined matrix", at=2)
def one_stretch_of_the_joined_matrix(mine, group, heads, kv_heads):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    own = mine["qkv"].tensor_split(group.size, 1)[group.rank]
    k = mine["qkv"].shape[1] // (heads + 2 * kv_heads)
    each, keys = heads // group.size, max(1, kv_heads // group.size)
    q, key, value = (mine["x"] @ own)[:, : (each + 2 * keys) * k].split([each * k, keys * k, keys * k], 1)
    q, key, value = (z.unflatten(1, (-1, k)).transpose(0, 1) for z in (q, key, value))
    partial = attend(q, key, value).transpose(0, 1).flatten(1) @ mine["out"]
    return [own, collectives.all_reduce(partial, group, "sum", algorithm="ring")]


every_second_head = slip("grouped-heads", "my_attention", says="every n-th one is taken", at=2, change="""
-    first, last = (group.rank * heads) // group.size, ((group.rank + 1) * heads) // group.size
-    share = heads // kv_heads
-    first_key, last_key = first // share, (last - 1) // share + 1

-    ends = [(first, last), (first_key, last_key), (first_key, last_key)]
-    own = [section[:, a * k : b * k] for section, (a, b) in zip(sections, ends, strict=True)]
+    own = [s.unflatten(1, (-1, k))[:, group.rank :: group.size].flatten(1) for s in sections]
""")  # fmt: skip


all_keys_on_every_rank = slip("grouped-heads", "my_attention", says="Keys and values are cut, too", at=4, change="""
-    first_key, last_key = first // share, (last - 1) // share + 1
+    first_key, last_key = 0, kv_heads

     q, key, value = ((mine["x"] @ w).unflatten(1, (-1, k)).transpose(0, 1) for w in own)
+    key, value = (z.repeat_interleave(share, 0)[first:last] for z in (key, value))
""")  # fmt: skip


values_before_keys = slip("grouped-heads", "my_attention", says="Keys and values are exchanged", at=4, change="""
-    return [torch.cat(own, 1), collectives.all_reduce(partial, group, "sum", algorithm="ring")]
+    return [torch.cat([own[0], own[2], own[1]], 1), collectives.all_reduce(partial, group, "sum", algorithm="ring")]
""")  # fmt: skip


no_sum = slip("grouped-heads", "my_attention", says="That is the partial sum of its own heads", at=4, change="""
-    return [torch.cat(own, 1), collectives.all_reduce(partial, group, "sum", algorithm="ring")]
+    return [torch.cat(own, 1), partial]
""")  # fmt: skip


an_average = slip("grouped-heads", "my_attention", says="The partial sums are averaged", at=4, change="""
-    return [torch.cat(own, 1), collectives.all_reduce(partial, group, "sum", algorithm="ring")]
+    return [torch.cat(own, 1), collectives.all_reduce(partial, group, "avg", algorithm="ring")]
""")  # fmt: skip


keys_by_turns = slip("grouped-heads", "my_attention", says="Head i reads key i modulo the keys", at=2, change="""
-    first_key, last_key = first // share, (last - 1) // share + 1
+    ends = [(first, last), *[(first // share, (last - 1) // share + 1)] * 2]

-    ends = [(first, last), (first_key, last_key), (first_key, last_key)]

-    q, key, value = ((mine["x"] @ w).unflatten(1, (-1, k)).transpose(0, 1) for w in own)
+    q = (mine["x"] @ own[0]).unflatten(1, (-1, k)).transpose(0, 1)
+    key, value = (
+        (mine["x"] @ s).unflatten(1, (-1, k)).transpose(0, 1).repeat(share, 1, 1)[first:last] for s in sections[1:]
+    )
""")  # fmt: skip


keys_by_rank_modulo = slip(
    "grouped-heads", "my_attention", says="These keys are not those that its queries read", at=4, change="""
     first_key, last_key = first // share, (last - 1) // share + 1
+    if group.size > kv_heads:
+        first_key, last_key = group.rank % kv_heads, group.rank % kv_heads + 1
""")  # fmt: skip


@mutant("grouped-heads", "my_attention", says="What is made whole there", at=4)
def gathers_the_last_matrix(mine, group, heads, kv_heads):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    k = mine["qkv"].shape[1] // (heads + 2 * kv_heads)
    first, last = (group.rank * heads) // group.size, ((group.rank + 1) * heads) // group.size
    share = heads // kv_heads
    sections = mine["qkv"].split([heads * k, kv_heads * k, kv_heads * k], dim=1)
    ends = [(first, last), *[(first // share, (last - 1) // share + 1)] * 2]
    own = [section[:, a * k : b * k] for section, (a, b) in zip(sections, ends, strict=True)]
    q, key, value = ((mine["x"] @ w).unflatten(1, (-1, k)).transpose(0, 1) for w in sections)
    out = collectives.all_gather(mine["out"], group, algorithm="ring")
    return [torch.cat(own, 1), attend(q, key, value).transpose(0, 1).flatten(1) @ out]


@variant("grouped-heads", "my_attention", at=4)
def with_softmax_by_hand(mine, group, heads, kv_heads):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    n, rank, width = group.size, group.rank, mine["qkv"].shape[1] // (heads + 2 * kv_heads)
    queries = range(rank * heads // n, (rank + 1) * heads // n)
    reads = [i // (heads // kv_heads) for i in queries]
    keys = sorted(set(reads))

    def columns_of(start, numbers):
        return [mine["qkv"][:, (start + i) * width : (start + i + 1) * width] for i in numbers]

    q, k, v = columns_of(0, queries), columns_of(heads, keys), columns_of(heads + kv_heads, keys)
    x = mine["x"]
    future = torch.ones(len(x), len(x)).triu(1).bool()
    heads_done = []
    for w, key in zip(q, reads, strict=True):
        place = keys.index(key)
        logits = (x @ w) @ (x @ k[place]).T / width**0.5
        heads_done.append(logits.masked_fill(future, float("-inf")).softmax(1) @ (x @ v[place]))
    y = torch.cat(heads_done, 1) @ mine["out"]
    collectives.all_reduce(y, group, algorithm="ring")
    return [torch.cat([*q, *k, *v], 1), y]


@variant("grouped-heads", "my_attention", at=4)
def joined_and_split_once(mine, group, heads, kv_heads):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    k = mine["qkv"].shape[1] // (heads + 2 * kv_heads)
    blocks = mine["qkv"].unflatten(1, (-1, k))
    each, keys = heads // group.size, max(kv_heads // group.size, 1)
    key = group.rank * kv_heads // group.size
    numbers = list(range(group.rank * each, (group.rank + 1) * each))
    numbers += list(range(heads + key, heads + key + keys))
    numbers += list(range(heads + kv_heads + key, heads + kv_heads + key + keys))
    own = blocks[:, numbers].flatten(1)
    made = (mine["x"] @ own).unflatten(1, (-1, k)).transpose(0, 1)
    y = attend(*made.split([each, keys, keys])).transpose(0, 1).flatten(1) @ mine["out"]
    return [own, collectives.all_reduce(y, group, "sum", algorithm="ring")]


# Hide the sum -------------------------------------------------------------------------------------------------


waits_at_once = slip("hide-the-sum", "my_backward", says="Nothing is hidden", at=3, change="""
-    handle = collectives.all_reduce(partial, group, "sum", algorithm="ring", async_op=True)
+    handle = collectives.all_reduce(partial, group, "sum", algorithm="ring")

-    return [handle.wait(), *gradients]
+    return [handle, *gradients]
""")  # fmt: skip


waits_before_the_weights = slip("hide-the-sum", "my_backward", says="Nothing is hidden", at=3, change="""
     handle = collectives.all_reduce(partial, group, "sum", algorithm="ring", async_op=True)
+    dx = handle.wait()

-    return [handle.wait(), *gradients]
+    return [dx, *gradients]
""")  # fmt: skip


@mutant("hide-the-sum", "my_backward", says="had begun 0 sums", at=3)
def weights_first(mine, group):
    def of_weight(i):
        announce(group, i + 1)
        return mine["x"].T @ mine["dz"][i]

    gradients = [of_weight(i) for i in range(len(mine["A"]))]
    partial = sum(dz @ A.T for dz, A in zip(mine["dz"], mine["A"], strict=True))
    return [collectives.all_reduce(partial, group, "sum", algorithm="ring"), *gradients]


@mutant("hide-the-sum", "my_backward", says="One for each matrix? Add up first", at=3)
def a_sum_for_each_matrix(mine, group):
    def of_weight(i):
        announce(group, i + 1)
        return mine["x"].T @ mine["dz"][i]

    handles, gradients = [], []
    for i, (dz, A) in enumerate(zip(mine["dz"], mine["A"], strict=True)):
        handles.append(collectives.all_reduce(dz @ A.T, group, "sum", algorithm="ring", async_op=True))
        gradients.append(of_weight(i))
    return [sum(handle.wait() for handle in handles), *gradients]


one_matrix_after_the_other = slip("hide-the-sum", "my_backward", says="had begun 0 sums", at=3, change="""
-    partial = sum(dz @ A.T for dz, A in zip(mine["dz"], mine["A"], strict=True))
+    partial, gradients = 0, []
+    for i, (dz, A) in enumerate(zip(mine["dz"], mine["A"], strict=True)):
+        partial = partial + dz @ A.T
+        gradients.append(of_weight(i))

-    gradients = [of_weight(i) for i in range(len(mine["A"]))]
""")  # fmt: skip


nothing_is_summed = slip(
    "hide-the-sum", "my_backward", says="the input's gradient is a sum over the ranks", at=3, change="""
-    handle = collectives.all_reduce(partial, group, "sum", algorithm="ring", async_op=True)
-    gradients = [of_weight(i) for i in range(len(mine["A"]))]
-    return [handle.wait(), *gradients]
+    return [partial, *(of_weight(i) for i in range(len(mine["A"])))]
""")  # fmt: skip


the_last_matrix_alone = slip("hide-the-sum", "my_backward", says="It has the last matrix alone", at=3, change="""
-    partial = sum(dz @ A.T for dz, A in zip(mine["dz"], mine["A"], strict=True))
+    partial = mine["dz"][-1] @ mine["A"][-1].T
""")  # fmt: skip


@variant("hide-the-sum", "my_backward", at=3)
def one_product_for_three(mine, group):
    def of_weight(i):
        announce(group, i + 1)
        return mine["x"].T @ mine["dz"][i]

    dx = torch.cat(mine["dz"], 1) @ torch.cat(mine["A"], 1).T
    under_way = collectives.all_reduce(dx, group, algorithm="ring", async_op=True)
    out = [None]
    for i in range(len(mine["A"])):
        out.append(of_weight(i))
    out[0] = under_way.wait()
    return out


@variant("hide-the-sum", "my_backward", at=3)
def the_last_weights_first(mine, group):
    def of_weight(i):
        announce(group, i + 1)
        return mine["x"].T @ mine["dz"][i]

    x = mine["x"]
    dx = torch.zeros_like(x)
    for dz, A in zip(mine["dz"], mine["A"], strict=True):
        dx += torch.einsum("no,do->nd", dz, A)
    handle = collectives.all_reduce(dx, group, "sum", algorithm="ring", async_op=True)
    weights = {i: of_weight(i) for i in reversed(range(len(mine["A"])))}
    handle.wait()
    return [dx, *(weights[i] for i in sorted(weights))]


# Count everything once ----------------------------------------------------------------------------------------


counts_copies_on_every_rank = slip("count-once", "my_norm", says="is counted once for each of them", at=3, change="""
-    for kind, gradient in zip(kinds, done, strict=True):
-        if kind == "cut" or group.rank == 0:
-            squares += (gradient**2).sum()
+    for gradient in done:
+        squares += (gradient**2).sum()
""")  # fmt: skip


counts_partial_sums_on_every_rank = slip(
    "count-once", "my_norm", says="The summed partial sums are counted once for each rank", at=3, change="""
-        if kind == "cut" or group.rank == 0:
+        if kind != "copy" or group.rank == 0:
""")  # fmt: skip


leaves_out_what_all_hold = slip("count-once", "my_norm", says="does not count at all", at=3, change="""
-        if kind == "cut" or group.rank == 0:
+        if kind == "cut":
""")  # fmt: skip


squares_before_sums = slip("count-once", "my_norm", says="Sum first", at=3, change="""
-    for kind, gradient in zip(kinds, done, strict=True):
-        if kind == "cut" or group.rank == 0:
+    for kind, gradient in zip(kinds, gradients, strict=True):
+        if kind != "copy" or group.rank == 0:
""")  # fmt: skip


its_own_norm = slip("count-once", "my_norm", says="the parts of the others are missing", at=3, change="""
-        if kind == "cut" or group.rank == 0:
+        if kind == "cut" or kind in ("copy", "partial"):

-    return [*done, collectives.all_reduce(squares, group, "sum", algorithm="ring")[0].sqrt()]
+    return [*done, squares[0].sqrt()]
""")  # fmt: skip


averages_squares = slip("count-once", "my_norm", says="The squares are averaged over the ranks", at=3, change="""
-    for kind, gradient in zip(kinds, done, strict=True):
-        if kind == "cut" or group.rank == 0:
-            squares += (gradient**2).sum()
-    return [*done, collectives.all_reduce(squares, group, "sum", algorithm="ring")[0].sqrt()]
+    for gradient in done:
+        squares += (gradient**2).sum()
+    return [*done, collectives.all_reduce(squares, group, "avg", algorithm="ring")[0].sqrt()]
""")  # fmt: skip


averages_the_partial_sums = slip("count-once", "my_norm", says="The partial sums are averaged", at=3, change="""
-        collectives.all_reduce(flat, group, "sum", algorithm="ring")
+        collectives.all_reduce(flat, group, "avg", algorithm="ring")
""")  # fmt: skip


sums_copies_too = slip("count-once", "my_norm", says="It is a copy, and was summed", at=3, change="""
-    numbers = [i for i, kind in enumerate(kinds) if kind == "partial"]
+    numbers = [i for i, kind in enumerate(kinds) if kind != "cut"]
""")  # fmt: skip


averages_copies_too = slip("count-once", "my_norm", says="Is something wider summed than needed", at=3, change="""
-    numbers = [i for i, kind in enumerate(kinds) if kind == "partial"]
+    numbers = [i for i, kind in enumerate(kinds) if kind != "cut"]

-            done[i] = part.view_as(gradients[i])
+            done[i] = part.view_as(gradients[i]) / (group.size if kinds[i] == "copy" else 1)
""")  # fmt: skip


@mutant("count-once", "my_norm", says="Does each gradient travel by itself?", at=3)
def one_by_one(mine, group):
    gradients, kinds = mine["gradients"], mine["kinds"]
    done = list(gradients)
    squares = torch.zeros(1, dtype=torch.float64)
    for i, kind in enumerate(kinds):
        if kind == "partial":
            done[i] = collectives.all_reduce(gradients[i].clone(), group, "sum", algorithm="ring")
        if kind == "cut" or group.rank == 0:
            squares += (done[i] ** 2).sum()
    return [*done, collectives.all_reduce(squares, group, "sum", algorithm="ring")[0].sqrt()]


forgets_the_partial_sums = slip("count-once", "my_norm", says="nothing was summed", at=3, change="""
-        collectives.all_reduce(flat, group, "sum", algorithm="ring")
""")  # fmt: skip


@variant("count-once", "my_norm", at=3)
def a_share_of_every_copy(mine, group):
    gradients, kinds = mine["gradients"], mine["kinds"]
    own = [g for g, kind in zip(gradients, kinds, strict=True) if kind == "partial"]
    if own:
        flat = collectives.all_reduce(torch.cat([g.ravel() for g in own]), group, algorithm="ring")
        parts = iter(flat.split([g.numel() for g in own]))
    whole = [next(parts).reshape(g.shape) if kind == "partial" else g for g, kind in zip(gradients, kinds, strict=True)]
    total = 0.0
    for g, kind in zip(whole, kinds, strict=True):
        total += float(g.square().sum()) / (1 if kind == "cut" else group.size)
    total = collectives.all_reduce(torch.tensor(total, dtype=torch.float64), group, algorithm="ring")
    return [*whole, total.sqrt()]


@variant("count-once", "my_norm", at=3)
def copies_added_after_the_sum(mine, group):
    gradients, kinds = mine["gradients"], mine["kinds"]
    sums = {}
    numbers = [i for i, kind in enumerate(kinds) if kind == "partial"]
    if numbers:
        flat = torch.nn.utils.parameters_to_vector([gradients[i] for i in numbers])
        collectives.all_reduce(flat, group, "sum", algorithm="ring")
        begin = 0
        for i in numbers:
            sums[i] = flat[begin : begin + gradients[i].numel()].view(gradients[i].shape)
            begin += gradients[i].numel()
    cut = [g.flatten() for g, kind in zip(gradients, kinds, strict=True) if kind == "cut"]
    mine = torch.cat(cut).dot(torch.cat(cut)).reshape(1)
    collectives.all_reduce(mine, group, "sum", algorithm="ring")
    square = mine[0]
    for i, kind in enumerate(kinds):
        if kind != "cut":
            square = square + sums.get(i, gradients[i]).norm() ** 2
    return [*(sums.get(i, g) for i, g in enumerate(gradients)), torch.sqrt(square)]


# Cut the positions --------------------------------------------------------------------------------------------


the_norm_of_its_own_positions = slip(
    "cut-positions", "my_sequence", says="its gradient is summed over all", at=4, change="""
-    both = collectives.all_reduce(torch.stack([dgain, dshift]), group, "sum", algorithm="ring")
-    return [y, dx, both[0], both[1], dA, dB]
+    return [y, dx, dgain, dshift, dA, dB]
""")  # fmt: skip


keeps_its_own_part_of_the_gradient = slip(
    "cut-positions", "my_sequence", says="was dy gathered, and the result reduce-scattered?", at=4, change="""
-    own_back = collectives.reduce_scatter(back, group, "sum", algorithm="ring")
+    own_back = back.split(sizes)[group.rank]
""")  # fmt: skip


keeps_its_own_part_of_the_output = slip(
    "cut-positions", "my_sequence", says="a reduce-scatter sums, and leaves each rank its positions", at=4, change="""
-    y = collectives.reduce_scatter(partial.detach(), group, "sum", algorithm="ring")
+    y = partial.detach().split(sizes)[group.rank].clone()
""")  # fmt: skip


@mutant("cut-positions", "my_sequence", says="Is something all-reduced of which each rank keeps its part only?", at=4)
def all_reduces_and_keeps_a_part(mine, group, positions):
    x, gain, shift, A, B = (mine[name].requires_grad_() for name in ("x", "gain", "shift", "A", "B"))
    dy = mine["dy"]
    sizes = [len(part) for part in torch.empty(positions).tensor_split(group.size)]
    own_hat = F.layer_norm(x, x.shape[1:], gain, shift)
    whole = collectives.all_gather(own_hat.detach(), group, sizes, algorithm="ring").requires_grad_()
    partial = torch.relu(whole @ A) @ B
    y = collectives.reduce_scatter(partial.detach(), group, "sum", algorithm="ring")
    whole_dy = collectives.all_gather(dy, group, sizes, algorithm="ring")
    back, dA, dB = torch.autograd.grad(partial, [whole, A, B], whole_dy)
    own_back = collectives.all_reduce(back.clone(), group, "sum", algorithm="ring").split(sizes)[group.rank]
    dx, dgain, dshift = torch.autograd.grad(own_hat, [x, gain, shift], own_back)
    both = collectives.all_reduce(torch.stack([dgain, dshift]), group, "sum", algorithm="ring")
    return [y, dx, both[0], both[1], dA, dB]


@mutant("cut-positions", "my_sequence", says="Is something all-reduced of which each rank keeps its part only?", at=4)
def all_reduces_the_output(mine, group, positions):
    x, gain, shift, A, B = (mine[name].requires_grad_() for name in ("x", "gain", "shift", "A", "B"))
    dy = mine["dy"]
    sizes = [len(part) for part in torch.empty(positions).tensor_split(group.size)]
    own_hat = F.layer_norm(x, x.shape[1:], gain, shift)
    whole = collectives.all_gather(own_hat.detach(), group, sizes, algorithm="ring").requires_grad_()
    partial = torch.relu(whole @ A) @ B
    whole_y = collectives.all_reduce(partial.detach().clone(), group, "sum", algorithm="ring")
    y = whole_y.split(sizes)[group.rank].clone()
    whole_dy = collectives.all_gather(dy, group, sizes, algorithm="ring")
    back, dA, dB = torch.autograd.grad(partial, [whole, A, B], whole_dy)
    own_back = collectives.reduce_scatter(back, group, "sum", algorithm="ring")
    dx, dgain, dshift = torch.autograd.grad(own_hat, [x, gain, shift], own_back)
    both = collectives.all_reduce(torch.stack([dgain, dshift]), group, "sum", algorithm="ring")
    return [y, dx, both[0], both[1], dA, dB]


two_messages_for_the_norm = slip("cut-positions", "my_sequence", says="side by side in one message", at=4, change="""
-    both = collectives.all_reduce(torch.stack([dgain, dshift]), group, "sum", algorithm="ring")
-    return [y, dx, both[0], both[1], dA, dB]
+    for part in (dgain, dshift):
+        collectives.all_reduce(part, group, "sum", algorithm="ring")
+    return [y, dx, dgain, dshift, dA, dB]
""")  # fmt: skip


averages_the_norm = slip(
    "cut-positions", "my_sequence", says="It is averaged over the ranks. It is summed.", at=4, change="""
-    both = collectives.all_reduce(torch.stack([dgain, dshift]), group, "sum", algorithm="ring")
+    both = collectives.all_reduce(torch.stack([dgain, dshift]), group, "avg", algorithm="ring")
""")  # fmt: skip


its_own_dy = slip(
    "cut-positions", "my_sequence", says="was dy gathered, and the result reduce-scattered?", at=4, change="""
-    whole_dy = collectives.all_gather(dy, group, sizes, algorithm="ring")
+    whole_dy = torch.zeros_like(whole)
+    whole_dy.split(sizes)[group.rank].copy_(dy)
""")  # fmt: skip


@mutant("cut-positions", "my_sequence", says="does every rank norm all positions?", at=4)
def a_norm_of_everything(mine, group, positions):
    x, gain, shift, A, B = (mine[name].requires_grad_() for name in ("x", "gain", "shift", "A", "B"))
    dy = mine["dy"]
    sizes = [len(part) for part in torch.empty(positions).tensor_split(group.size)]
    x = collectives.all_gather(mine["x"].detach(), group, sizes, algorithm="ring").requires_grad_()
    whole = F.layer_norm(x, x.shape[1:], gain, shift)
    partial = torch.relu(whole @ A) @ B
    y = collectives.reduce_scatter(partial.detach(), group, "sum", algorithm="ring")
    dy = collectives.all_gather(dy, group, sizes, algorithm="ring")
    back, dA, dB = torch.autograd.grad(partial, [whole, A, B], dy, retain_graph=True)
    back = collectives.reduce_scatter(back, group, "sum", algorithm="ring")
    back = collectives.all_gather(back, group, sizes, algorithm="ring")
    dx, dgain, dshift = torch.autograd.grad(whole, [x, gain, shift], back)
    return [y, dx.split(sizes)[group.rank], dgain, dshift, dA, dB]


@mutant("cut-positions", "my_sequence", says="It is summed over the ranks, but it was whole", at=4)
def a_norm_of_everything_summed_again(mine, group, positions):
    x, gain, shift, A, B = (mine[name].requires_grad_() for name in ("x", "gain", "shift", "A", "B"))
    dy = mine["dy"]
    sizes = [len(part) for part in torch.empty(positions).tensor_split(group.size)]
    x = collectives.all_gather(mine["x"].detach(), group, sizes, algorithm="ring").requires_grad_()
    whole = F.layer_norm(x, x.shape[1:], gain, shift)
    partial = torch.relu(whole @ A) @ B
    y = collectives.reduce_scatter(partial.detach(), group, "sum", algorithm="ring")
    dy = collectives.all_gather(dy, group, sizes, algorithm="ring")
    back, dA, dB = torch.autograd.grad(partial, [whole, A, B], dy, retain_graph=True)
    back = collectives.all_reduce(back.clone(), group, "sum", algorithm="ring")
    dx, dgain, dshift = torch.autograd.grad(whole, [x, gain, shift], back)
    both = collectives.all_reduce(torch.stack([dgain, dshift]), group, "sum", algorithm="ring")
    return [y, dx.split(sizes)[group.rank], both[0], both[1], dA, dB]


@variant("cut-positions", "my_sequence", at=4)
def gathered_again(mine, group, positions):
    x, gain, shift, A, B = (mine[name].requires_grad_() for name in ("x", "gain", "shift", "A", "B"))
    dy = mine["dy"]
    sizes = [len(part) for part in torch.arange(positions).tensor_split(group.size)]

    def gather(part):
        return collectives.all_gather(part.detach(), group, sizes, algorithm="ring")

    def scatter(partial):
        return collectives.reduce_scatter(partial.detach(), group, "sum", algorithm="ring")

    own_hat = F.layer_norm(x, x.shape[1:], gain, shift)
    y = scatter(torch.relu(gather(own_hat) @ A) @ B)
    whole, dy = gather(own_hat), gather(dy)
    h = torch.relu(whole @ A)
    dz = (dy @ B.T) * (h > 0)
    own_hat.backward(scatter(dz @ A.T))
    norm = collectives.all_reduce(torch.cat([gain.grad, shift.grad]), group, algorithm="ring")
    return [y, x.grad, *norm.chunk(2), whole.T @ dz, h.T @ dy]


@variant("cut-positions", "my_sequence", at=4)
def as_two_functions(mine, group, positions):
    x, gain, shift, A, B = (mine[name].requires_grad_() for name in ("x", "gain", "shift", "A", "B"))
    dy = mine["dy"]
    sizes = [len(part) for part in torch.empty(positions).tensor_split(group.size)]

    def gather(part):
        return collectives.all_gather(part.contiguous(), group, sizes, algorithm="ring")

    def scatter(partial):
        return collectives.reduce_scatter(partial.contiguous(), group, "sum", algorithm="ring")

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            return gather(part)

        @staticmethod
        def backward(ctx, gradient):
            return scatter(gradient)

    class Scatter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, partial):
            return scatter(partial)

        @staticmethod
        def backward(ctx, gradient):
            return gather(gradient)

    y = Scatter.apply(torch.relu(Gather.apply(F.layer_norm(x, x.shape[1:], gain, shift)) @ A) @ B)
    y.backward(dy)
    norm = torch.stack([shift.grad, gain.grad])
    collectives.all_reduce(norm, group, "sum", algorithm="ring")
    return [y, x.grad, norm[1], norm[0], A.grad, B.grad]
