"""Wrong versions of what chapter 15 asks its reader to write: words of the sentence that must reject each."""


def mine(at: str = "rank // stride % size", first: str = "rank - at[axis] * stride", step: str = "stride") -> str:
    return f"""
def my_groups(rank, sizes):
    import math
    at, groups, stride = {{}}, {{}}, math.prod(sizes.values())
    for axis, size in sizes.items():
        stride //= size
        at[axis] = {at}
        first = {first}
        groups[axis] = [first + i * {step} for i in range(size)]
    return at, groups
"""


def norm(body: str, end: str = "all_reduce(total, group).sqrt().item()") -> str:
    return f"""
def grad_norm(pieces, group):
    total = torch.zeros(1, dtype=torch.float64)
    for gradient, copies in pieces:
        {body}
    return {end}
"""


def cut(
    keep: str, end: str = "min(fitting, key=lambda cut: seconds(*cut), default=None)", p: str = "layers + 1"
) -> str:
    return f"""
def best_cut(gpus, heads, layers, fits, seconds):
    fitting = []
    for t in range(1, heads + 1):
        for p in range(1, {p}):
            {keep}
    return {end}
"""


def held(nbytes: str) -> str:
    return f"def state_bytes(params, t, p, d, weight, gradient, optimizer):\n    return {nbytes}"


def step(stage: str, end: str = "(m + p - 1) * stage + gradients") -> str:
    return f"""
def step_seconds(t, p, m, layers, layer, sums, gradients):
    stage = {stage}
    return {end}
"""


STAGE = "layers / p * (layer / t + sums)"
SQUARES = "total += gradient.double().square().sum()"
RIGHT = (
    "if heads % t == 0 and gpus % (t * p) == 0 and fits(t, p, gpus // (t * p)): fitting.append((t, p, gpus // (t * p)))"
)

WRONG = {
    "my_groups": {
        "def my_groups(rank, sizes):\n    pass": "None was returned",
        "def my_groups(rank, sizes):\n    return {}, {}": "`at` has the axes (none)",
        mine(at="rank % size"): "right for the last axis alone",
        mine(at="rank // stride"): "modulo the size of the axis",
        mine(step="1"): "are neighbours",
        mine(first="rank"): "from there forward",
        mine(first="rank + (size - 1 - at[axis]) * stride", step="-stride"): "take them by their coordinate",
        mine(first="0"): "is not in its group",
        """
def my_groups(rank, sizes):
    at, groups, stride = {}, {}, 1
    for axis, size in sizes.items():
        at[axis] = rank // stride % size
        groups[axis] = [rank + (i - at[axis]) * stride for i in range(size)]
        stride *= size
    return at, groups
""": "as if the *first* axis were the innermost",
        """
def my_groups(rank, sizes):
    from labkit.parallel import Layout
    return Layout(sizes).coordinates(rank), {axis: "all" for axis in sizes}
""": "should be a list of ranks",
        """
def my_groups(rank, sizes):
    import math
    from labkit.parallel import Layout
    return Layout(sizes).coordinates(rank), {axis: list(range(math.prod(sizes.values()))) for axis in sizes}
""": "and that axis has a size of",
    },
    "grad_norm": {
        "def grad_norm(pieces, group):\n    pass": "Return one number",
        norm(f"{SQUARES} / copies", "all_reduce(total, group).sqrt()"): "makes a number of a tensor",
        norm(SQUARES): "what 4 ranks hold was counted 4 times",
        norm(f"{SQUARES} / copies", "total.sqrt().item()"): "this is the part of one rank",
        norm(SQUARES, "total.sqrt().item()"): "these are the pieces of one rank alone",
        norm(f"{SQUARES} / copies", "all_reduce(total.sqrt(), group).item()"): "norms were added",
        norm(f"{SQUARES} / copies", "all_reduce(total, group).item()"): "this is the square of the norm",
        norm("total += (gradient.double() / copies).square().sum()"): "*before* they were squared",
        norm(SQUARES, "(all_reduce(total, group) / group.size).sqrt().item()"): "its own number of copies",
        norm(
            f"{SQUARES} / copies", "(all_reduce(total, group) / group.size).sqrt().item()"
        ): "at the end. It is complete",
        norm("total += (all_reduce(gradient.double().square() / copies, group)).sum()", "total.sqrt().item()"): (
            "One number of 8 bytes is enough"
        ),
        norm(
            "total += all_reduce(gradient.double().square().sum().reshape(1) / copies, group)", "total.sqrt().item()"
        ): ("add up all 4 pieces before you send"),
        norm("total += gradient.mul_(gradient).sum() / copies"): "has changed the gradients",
        norm(f"{SQUARES} / copies", "all_reduce(total.float(), group).sqrt().item()"): "somewhere the sum has 32 bits",
    },
    "state_bytes": {
        "def state_bytes(params, t, p, d, weight, gradient, optimizer):\n    pass": "Return a number",
        held("params / (t * p) * (weight + gradient + optimizer)"): "divides the state of the optimizer",
        held("params / (t * p * d) * (weight + gradient + optimizer)"): "which is ZeRO-3",
        held("params / (t * p) * (weight + (gradient + optimizer) / d)"): "which is ZeRO-2",
        held("params * (weight + gradient + optimizer / d)"): "still have the whole model",
        held("params / t * (weight + gradient + optimizer / d)"): "only 1/p of the layers",
        held("params / p * (weight + gradient + optimizer / d)"): "only 1/t of each layer",
        held("params / (t * p) * (weight + gradient) + params * optimizer / d"): "only for its own parameters",
        held("params / (t * p) * (weight + optimizer / d)"): "Where are the gradients",
        held("params / (t * p) * (weight + gradient)"): "Where is the optimizer",
        held("175e9"): "and you say 175,000,000,000",
    },
    "step_seconds": {
        "def step_seconds(t, p, m, layers, layer, sums, gradients):\n    pass": "Return a number",
        step(STAGE, "m * stage + gradients"): "at work from the first moment",
        step("layers * (layer / t + sums)"): "all of the layers",
        step("layers / p * (layer + sums)"): "computed whole",
        step("layers / p * (layer + sums) / t"): "Does a sum become shorter",
        step("layers / p * layer / t"): "Where are the sums",
        step("layers / p * layer / t + sums"): "a stage has several layers",
        step(STAGE, "(m + p - 1) * stage"): "Where are the gradients",
        step(STAGE, "(m + p - 1) * (stage + gradients)"): "once a step",
        step(STAGE, "(m + p - 1) * stage + m * gradients"): "once a step",
        step(STAGE, "m * (stage + gradients)"): "at work from the first moment",
        step(STAGE, "(m + p) * stage + gradients"): "one turn too many",
        step(STAGE, "m * p * stage + gradients"): "leave the last stage",
        step(STAGE, "-m * stage"): "and you say -",
    },
    "best_cut": {
        "def best_cut(gpus, heads, layers, fits, seconds):\n    pass": "You returned None",
        "def best_cut(gpus, heads, layers, fits, seconds):\n    return 3": "Return three whole numbers",
        cut(RIGHT, "fitting[0] if fitting else None"): "keep the",
        cut(RIGHT, "(lambda c: c and (c[1], c[0], c[2]))(min(fitting, key=lambda cut: seconds(*cut), default=None))"): (
            "the other way round"
        ),
        cut(RIGHT.replace(" and fits(t, p, gpus // (t * p))", "")): "ask `fits` first",
        cut(RIGHT.replace("heads % t == 0 and ", "")): "t must divide the",
        cut(RIGHT, p="gpus + 1"): "only 3 layers",
        cut(RIGHT.replace("gpus % (t * p) == 0 and ", "")): "what is left for d",
        cut(RIGHT.replace("if ", "if t & (t - 1) == 0 and p & (p - 1) == 0 and ")): "no powers of two",
        cut(RIGHT.replace("if ", "if layers % p == 0 and ")): "p need not divide the layers",
        cut(RIGHT.replace("if ", "if t < heads and ")): "Did you try t = 8, which is all of the heads?",
        cut(RIGHT, p="layers"): "Did you try p = 8, which is all of the layers?",
        cut(RIGHT, "min(fitting, key=lambda cut: seconds(*cut))", p="layers"): "all of the layers? `range` leaves out",
        cut(RIGHT, "max(fitting, key=lambda cut: seconds(*cut), default=None)"): "not the fastest",
        cut(RIGHT, "min(fitting, key=lambda cut: seconds(*cut)) if fitting else (1, 1, gpus)"): "return None",
        cut(RIGHT, "min(fitting, key=lambda cut: seconds(*cut))"): "your list of cuts is empty",
        cut(
            "if heads % t == 0 and gpus % (t * p) == 0: fitting.append((t, p, gpus // (t * p)))",
            "min((c for c in sorted(fitting, key=lambda c: seconds(*c)) if fits(*c)), key=lambda c: seconds(*c), "
            "default=None)",
        ): "look at the memory first",
    },
}
