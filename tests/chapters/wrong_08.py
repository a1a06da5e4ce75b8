"""Wrong versions of what chapter 8 asks its reader to write: words of the sentence that must reject each."""


def rule(test: str, slowest: str = "min(clocks.values())") -> str:
    """`answered`, with another test."""
    return f"def answered(waiting, clocks, s):\n    low = {slowest}\n    return [w for w in waiting if {test}]"


def outer(
    result: str = "begun - lr * (g + momentum * v)", g: str = "begun - mean", v: str = "momentum * velocity + g",
    speed: str = "v",
) -> str:  # fmt: skip
    """`outer_step`, with some of its lines changed."""
    return f"""
def outer_step(begun, mean, velocity, lr, momentum):
    g = {g}
    v = {v}
    return {result}, {speed}
"""


def power(
    p: str = "torch.linalg.qr(all_reduce(m @ q, group, 'avg')).Q", q: str = "all_reduce(m.T @ p, group, 'avg')",
    result: str = "p, q",
) -> str:  # fmt: skip
    """`power_step`, with some of its lines changed."""
    return f"""
def power_step(m, q, group):
    p = {p}
    q = {q}
    return {result}
"""


def mixed(
    begin: str = "row[group.rank] * x", add: str = "mixed + row[j] * came", who: str = "weight and j != group.rank",
    came: str = "group.recv(torch.empty_like(x), j)", send: str = "group.isend(x, j)",
) -> str:  # fmt: skip
    """`mix_once`, with some of its lines changed."""
    return f"""
def mix_once(x, row, group):
    near = [j for j, weight in enumerate(row) if {who}]
    sending = [{send} for j in near]
    mixed = {begin}
    for j in near:
        came = {came}
        mixed = {add}
    for handle in sending:
        if handle is not None:
            handle.wait()
    return mixed
"""


def feedback(sent: str, kept: str) -> str:
    """`with_feedback`, by what it sends and what it keeps."""
    return f"def with_feedback(gradient, residual, compress):\n    sent = {sent}\n    return sent, {kept}"


WRONG = {
    "answered": {
        "def answered(waiting, clocks, s):\n    pass": "you returned NoneType",
        rule("True"): "and that is ASP",
        "def answered(waiting, clocks, s):\n    return set(waiting)": "you returned set",
        "def answered(waiting, clocks, s):\n    return [9 for w in waiting]": "Your list has worker 9, who",
        rule("False"): "never lets anybody go on",
        rule("clocks[w] - low < s"): "may still go on, and yours has to wait",
        rule("clocks[w] <= s"): "compares the clock itself with s",
        rule("low - clocks[w] <= s", "max(clocks.values())"): "holds up the slow ones",
        rule("clocks[w] - low <= s", "max(clocks.values())"): "compare with the fastest",
        rule("low - clocks[w] <= s"): "has the other sign",
        rule("clocks[w] - low <= s", "min([clocks[v] for v in waiting], default=0)"): "the slowest of those who *wait*",
        rule("clocks[w] - low <= s", "sum(clocks.values()) / len(clocks)"): "the average clock",
        rule("clocks[w] == low"): "only the slowest go on",
        rule("clocks[w] - low <= s + 1"): "these may go on",
        "def answered(waiting, clocks, s):\n    return [w for w in clocks if clocks[w] - min(clocks.values()) <= s]": (
            "who does not wait"
        ),
        rule("clocks[w] - low <= s", "min(clocks)"): "*number of a worker*",
    },
    "outer_step": {
        "def outer_step(begun, mean, velocity, lr, momentum):\n    pass": "Return two tensors",
        outer("mean"): "that is plain local SGD",
        outer(g="mean - begun"): "Your gradient points to where the ranks went",
        outer(v="velocity + g"): "The old velocity must fade",
        outer(v="momentum * velocity"): "The gradient is missing from the velocity",
        outer(v="momentum * velocity + lr * g"): "The learning rate belongs to the step",
        outer(v="momentum * velocity + (1 - momentum) * g"): "This is a running average",
        outer(speed="velocity"): "The velocity came back as it was",
        outer("v", speed="begun - lr * (g + momentum * v)"): "have changed places",
        outer("begun - lr * g"): "no momentum",
        outer("begun - lr * v"): "That is ordinary momentum",
        outer("begun - lr * (g + momentum * velocity)"): "with the *new* velocity",
        outer("begun - (g + momentum * v)"): "The learning rate is missing from the step",
        outer("begun + lr * (g + momentum * v)"): "The step goes uphill",
        outer("mean - lr * (g + momentum * v)"): "The step begins at the average",
        outer("begun - lr * momentum * v"): "The gradient is missing from the step",
        outer("begun - 2 * lr * v"): "The velocity is right, and the step is not",
        outer("begun.sub_(lr * (g + momentum * v))"): "was changed on the way",
    },
    "mix_once": {
        "def mix_once(x, row, group):\n    pass": "returned NoneType",
        "def mix_once(x, row, group):\n    return x": "it still holds its own numbers",
        "def mix_once(x, row, group):\n    return all_reduce(x.clone(), group, 'avg')": "A ready-made all_reduce",
        "def mix_once(x, row, group):\n    return row[group.rank] * x": "nothing has come from your neighbours",
        mixed(begin="torch.zeros_like(x)"): "its own part is missing",
        mixed(begin="x"): "its own numbers count whole",
        mixed(begin="x", add="mixed + came"): "added without their weights",
        mixed(add="mixed + came"): "was not multiplied by its weight",
        mixed(begin="x / (len(near) + 1)", add="mixed + came / (len(near) + 1)"): "here the weights differ",
        mixed(begin="x", add="mixed + row[j] * (came - mixed)"): "mixed into what was already mixed",
        mixed(who="j != group.rank"): "it is no neighbour",
        mixed(who="weight"): "A rank is no neighbour of itself",
        mixed(send="group.send(x, j)"): "Begin every send with `group.isend`",
        mixed().replace("return mixed", "return x.copy_(mixed)"): "was changed, perhaps before it had been sent",
        mixed(begin="x.mul_(row[group.rank])"): "was changed, perhaps before it had been sent",
        mixed(
            begin="(row[group.rank] * x, one := torch.empty_like(x))[0]",
            came="group.recv(one, j)",
            add="[*(mixed if isinstance(mixed, list) else [mixed]), (row[j], came)]",
        ).replace(
            "return mixed", "return mixed[0] + sum(w * came for w, came in mixed[1:])"
        ): "Give each a tensor of its own",
        mixed(
            send="(group.isend(x, j), group.isend(x, j))[0]",
            came="(group.recv(torch.empty_like(x), j), group.recv(torch.empty_like(x), j))[0]",
        ): "one to each is enough",  # fmt: skip
        mixed(came="group.recv(j)"): "needs a tensor to write into",
        mixed().replace("handle.wait()", "pass"): "never waited for",
        mixed(add="mixed - row[j] * came"): "Multiply the x of rank j by row[j]",
    },
    "with_feedback": {
        "def with_feedback(gradient, residual, compress):\n    pass": "Return two tensors",
        feedback("compress(gradient)", "residual"): "Nothing is kept: the residual comes back",
        feedback("compress(gradient)", "0 * residual"): "Nothing is kept: your residual is always 0",
        feedback("compress(gradient + residual)", "0 * residual"): "but the new one is always 0",
        feedback("compress(gradient + residual)", "residual"): "The residual comes back as it was",
        feedback("compress(gradient)", "gradient - sent"): "compress gradient + residual, not the gradient alone",
        feedback("compress(gradient)", "residual + gradient - sent"): "it grows without end",
        feedback("compress(gradient + residual)", "gradient - sent"): "What was kept before is missing",
        feedback("compress(gradient + residual)", "2 * residual + gradient - sent"): "counts twice",
        feedback("compress(gradient + residual)", "sent - gradient - residual"): "has the wrong sign",
        feedback("gradient + residual", "0 * residual"): "You send everything",
        feedback("gradient + residual", "sent - compress(sent)"): "then sent the sum itself",
        feedback("compress(gradient) + residual", "gradient + residual - compress(gradient)"): "on the wire whole",
        feedback("compress(gradient) + residual", "gradient - (sent - residual)"): "added after the compression",
        feedback("gradient + residual - compress(gradient + residual)", "compress(gradient + residual)"): (
            "have changed places"
        ),
        feedback("compress(gradient - residual)", "gradient - residual - sent"): "the wrong numbers were sent",
        feedback("compress(gradient + residual)", "(gradient + residual - sent) / 2"): "together are not the gradient",
    },
    "power_step": {
        "def power_step(m, q, group):\n    pass": "Return two tensors",
        power(result="p"): "Return two tensors",
        power(result="q, p"): "have changed places",
        power(result="p.T, q"): "P has the shape (2, 24)",
        power(p="torch.linalg.qr(m @ q).Q"): "The ranks have different P",
        power(p="all_reduce(torch.linalg.qr(m @ q).Q, group, 'avg')"): "orthonormal first, and averaged then",
        power(p="all_reduce(m @ q, group, 'avg')"): "are not orthonormal",
        power(p="torch.nn.functional.normalize(all_reduce(m @ q, group, 'avg'), dim=0)"): "not at right angles",
        power(p="torch.linalg.qr(all_reduce(m @ q.flip(0), group, 'avg')).Q"): "other directions",
        power(q="q"): "Q came back as it was",
        power(q="m.T @ p"): "a Q of its own",
        power(q="all_reduce(m.T @ p, group)"): "a sum over the ranks",
        power(q="torch.linalg.qr(all_reduce(m.T @ p, group, 'avg')).Q"): "lost how large M is",
        power(q="2 * all_reduce(m.T @ p, group, 'avg')"): "P is right, and Q is not",
        power("torch.linalg.qr((m := all_reduce(m, group, 'avg')) @ q).Q", "m.T @ p"): "Let only the thin matrices",
        power(result="(p, q, m.zero_())[:2]"): "was changed on the way",
    },
}
