"""Wrong versions of what chapter 13 asks its reader to write: words of the sentence that must reject each."""

BEGIN = "from labkit.collectives import all_gather, all_to_all\n"


def pull(
    ask: str = "unique", there: str = "out, into", look: str = "asked // group.size", back: str = "into, out",
    put: str = "found[order] = came", end: str = "found[inverse]", order: str = "owner.argsort(stable=True)",
    send: str = "unique[order]",
) -> str:  # fmt: skip
    return f"""{BEGIN}
def pull(ids, mine, group):
    unique, inverse = {ask if ask != "unique" else "ids.unique(return_inverse=True)"}
    owner = unique % group.size
    order = {order}
    counts = owner.bincount(minlength=group.size)
    out, into = counts.tolist(), all_to_all(counts, group).tolist()
    asked = all_to_all({send}, group, {there})
    came = all_to_all(mine[{look}], group, {back})
    found = torch.empty_like(came)
    {put}
    return {end}
"""


def masked(sign: str, begin: str = "numbers.clone()", last: str = "return total") -> str:
    return f"""
from labkit.optim.synchrony.masking import stream
def masked(numbers, secrets, me):
    total = {begin}
    for partner, secret in secrets.items():
        mask = stream(secret, len(numbers))
        {sign}
    {last}
"""


def summed(
    total: str = "gradients.new_zeros(len(unique), gradients.shape[1])", add: str = "inverse, gradients",
    end: str = "total",
) -> str:  # fmt: skip
    return f"""
def sum_equal(ids, gradients):
    unique, inverse = ids.unique(return_inverse=True)
    total = {total}
    total.index_add_(0, {add})
    return unique, {end}
"""


def step(squares: str, mine: str) -> str:
    return f"""
def step_rows(mine, squares, places, g, lr):
    {squares}
    {mine}
"""


MEAN = "squares[places] += g.square().mean(1)"
MOVE = "mine[places] -= lr * g / (squares[places].sqrt()[:, None] + 1e-8)"

WRONG = {
    "pull": {
        "def pull(ids, mine, group):\n    pass": "returned NoneType: return the rows of its ids",
        "def pull(ids, mine, group):\n    return mine[ids // group.size]": "nothing was sent, but most rows",
        "def pull(ids, mine, group):\n    return mine[ids]": "divide before you look up",
        pull(put="found = came", end="found"): "in which the all-to-all brought them",
        pull(end="found"): "a row for each *different* id",
        pull(put="found = came"): "First undo the sorting",
        pull(put="found = came[order]"): "done twice and not undone",
        pull(end="found[inverse].flip(0)"): "but in another order",
        pull(look="asked"): "divide before you look up",
        pull(back="out, into"): "the lists swapped",
        pull(ask="ids, torch.arange(len(ids))"): "ask for `unique`, not for `ids`",
        pull(send="ids"): "`out` counts each id once",
        pull(order="torch.arange(len(unique))"): "must sort by owner",
        pull(send="unique"): "you sent `unique` as it is",
        pull(send="ids[order]"): "`order` sorts the different ids",
        pull(look="asked % group.size"): "`%` says which rank has a row",
        pull(look="asked % len(mine)"): "An owner counts its rows from 0",
        pull(
            put="found[order] = came\n    every = came.new_zeros(len(ids), came.shape[1])\n"
            "    every[[ids.tolist().index(i) for i in unique]] = found",
            end="every",
        ): "only one of these places",
        pull(put="found[order] = mine[(unique[order] // group.size)]"): "has another row",
        """
        from labkit.collectives import all_gather
        def pull(ids, mine, group):
            every = all_gather(mine, group)
            return every[ids % group.size * len(mine) + ids // group.size]
        """: "Whole shards travelled",
    },
    "sum_equal": {
        "def sum_equal(ids, gradients):\n    pass": "Return two tensors",
        "def sum_equal(ids, gradients):\n    return ids, gradients": "each different id should come once",
        """
        def sum_equal(ids, gradients):
            unique = ids.unique()
            return unique, torch.stack([gradients[ids == i].sum(0) for i in unique])
        """: "a batch without ids has nothing to stack",
        """
        def sum_equal(ids, gradients):
            unique, inverse = ids.unique(return_inverse=True)
            total = gradients.new_zeros(len(unique), gradients.shape[1])
            total[inverse] += gradients
            return unique, total
        """: "only one of its gradients is there",
        """
        def sum_equal(ids, gradients):
            unique, inverse = ids.unique(return_inverse=True)
            total = gradients.new_zeros(len(unique), gradients.shape[1])
            total[inverse] = gradients
            return unique, total
        """: "equal ids overwrite one another",
        """
        def sum_equal(ids, gradients):
            unique, inverse, times = ids.unique(return_inverse=True, return_counts=True)
            total = gradients.new_zeros(len(unique), gradients.shape[1])
            total.index_add_(0, inverse, gradients)
            return unique, total / times[:, None]
        """: "its gradients were averaged",
        """
        def sum_equal(ids, gradients):
            unique, inverse = ids.unique(return_inverse=True)
            total = gradients.new_zeros(len(unique), gradients.shape[1])
            total.index_add(0, inverse, gradients)
            return unique, total
        """: "does your tensor change",
        """
        def sum_equal(ids, gradients):
            unique, inverse = ids.unique(return_inverse=True)
            total = gradients.new_zeros(len(ids), gradients.shape[1])
            total.index_add_(0, inverse, gradients)
            return unique, total
        """: "the sums should have shape",
        """
        def sum_equal(ids, gradients):
            unique, inverse = ids.unique(return_inverse=True)
            total = gradients.new_zeros(int(ids.max()) + 1 if len(ids) else 0, gradients.shape[1])
            total.index_add_(0, ids, gradients)
            return torch.arange(len(total)), total
        """: "the different ones are",
        """
        def sum_equal(ids, gradients):
            unique = ids.unique()
            return unique, torch.stack([gradients[ids == i].mean(0) for i in unique])
        """: "its gradients were averaged",
        summed("torch.zeros(len(unique), gradients.shape[1])"): "another dtype than the gradients",
        """
        def sum_equal(ids, gradients):
            unique, inverse = ids.unique(return_inverse=True)
            total = torch.zeros(len(unique), gradients.shape[1])
            total[inverse] += gradients
            return unique, total
        """: "reads each place once",
        """
        def sum_equal(ids, gradients):
            unique = ids.unique()
            return unique, torch.stack([gradients[ids == i].sum(0) for i in unique]).float() if len(ids) else gradients
        """: "of torch.float32 where the gradients are of torch.float64",
        summed("torch.zeros(len(unique), gradients.shape[1])", "ids, gradients"): "An id was used as a place",
        summed("torch.zeros(len(unique), gradients.shape[1])", end="total / inverse.bincount()[:, None]"): (
            "its gradients were averaged"
        ),
        summed("gradients.new_zeros(len(unique))"): "needs a row for each",
        summed(
            "gradients.new_zeros(int(ids.max()) + 1, gradients.shape[1])", add="ids, gradients"
        ): "one for each different id",
        summed(add="ids, gradients"): "An id was used as a place",
        summed(add="unique, gradients"): "that is `inverse`",
        summed(end="total / inverse.bincount()"): "a second dimension: `[:, None]`",
    },
    "step_rows": {
        "def step_rows(mine, squares, places, g, lr):\n    pass": "Nothing changed",
        step(MEAN.replace("mean(1)", "sum(1)"), MOVE): "the sum of g² over the columns",
        step(MEAN.replace("mean(1)", "mean()"), MOVE): "one mean for all rows together",
        step(MEAN.replace("+=", "="), MOVE): "It should grow from step to step",
        step(MEAN.replace(".mean(1)", ""), MOVE): "one for each weight",
        step(MEAN.replace("mean(1)", "mean(0)"), MOVE): "the mean over the rows",
        step(MEAN.replace("mean(1)", "mean(1, keepdim=True)"), MOVE): "without `keepdim`",
        step(MEAN.replace("[places]", ""), MOVE): "a row for each touched row only",
        step(MEAN, MOVE.replace("mine[places]", "mine")): "a row for each touched row only",
        step(MEAN, MOVE.replace("[:, None]", "")): "a second dimension, `.sqrt()[:, None]`",
        step("pass", MOVE): "`squares` is as before",
        step(MEAN, MOVE.replace(" + 1e-8", "")): "divides 0 by 0: add 1e-8",
        step(MEAN.replace(".square()", ""), MOVE): "the mean of g and not that of g²",
        step("squares[places] += g.mean(1).square()", MOVE): "the square of the mean",
        step(MEAN + "\n    squares += 1", MOVE): "The sum of a row that no step touched",
        step(MOVE, MEAN): "divided by the old sum",
        step(MEAN, MOVE.replace(".sqrt()", "")): "not by its root",
        step(MEAN, MOVE.replace("-=", "+=")): "moved uphill",
        step(MEAN, "mine[places] -= lr * g"): "that of SGD",
        step(MEAN, MOVE.replace("lr * ", "")): "learning rate is missing",
        step(MEAN, "pass"): "no weight has moved",
        step(MEAN, MOVE + "\n    mine -= 0.01"): "no step touched has moved",
    },
    "masked": {
        "def masked(numbers, secrets, me):\n    pass": "return a tensor like `numbers`",
        "def masked(numbers, secrets, me):\n    return numbers": "sends its numbers as they are",
        masked("total += mask"): "each is in the sum twice",
        masked("total -= mask"): "takes every mask away",
        masked("total += mask if me < partner else 0 * mask"): "does not take it away",
        masked("total += mask if me > partner else -mask"): "the signs are the other way round",
        masked("total += mask if me < partner else -mask", begin="torch.zeros_like(numbers)"): "numbers are missing",
        masked("total += mask if me < partner else -mask", begin="numbers.double()"): "floating point numbers",
        masked("total += mask if me < partner else -mask", begin="numbers.long()"): "keep int32",
        masked("total += mask if me < partner else -mask", begin="numbers"): "begin with `numbers.clone()`",
        masked("mask = mask[:1]; total += mask if me < partner else -mask"): "Every number needs its own",
        masked("if abs(me - partner) == 1: total += mask if me < partner else -mask"): "of every partner",
        masked("total += mask if me < partner else -mask", last="    return total"): "inside the loop",
        masked("total = numbers + (mask if me < partner else -mask)"): "last partner only",
        """
        def masked(numbers, secrets, me):
            from labkit.optim.synchrony.masking import stream
            total = numbers.clone()
            for secret in secrets:
                total += stream(secret, len(numbers))
            return total
        """: "which has both",
        masked("total += secret"): "A secret is not yet a mask",
        masked("total += secret if me < partner else -mask"): "A secret is not yet a mask",
        masked("total += mask if partner % 2 else -mask"): "Which of two clients adds the mask",
    },
}
