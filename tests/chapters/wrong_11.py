"""Wrong versions of what chapter 11 asks its reader to write: words of the sentence that must reject each."""

BEGIN = "import math\nfrom labkit.chapters.c11_context_parallelism.attention import attend\n"
BEGIN += "from labkit.chapters.c11_context_parallelism.you_write import merge\n"


def merged(both: str, out: str, lse: str = "both") -> str:
    """`merge`, with shares a and b."""
    return f"""
def merge(out, lse, other, other_lse):
    both = {both}
    a, b = (lse - both).exp()[..., None], (other_lse - both).exp()[..., None]
    return {out}, {lse}
"""


def ring(
    body: str, rounds: str = "n", owner: str = "(me - i) % n", send: str = "i < n - 1", last: str = "return out"
) -> str:
    """The ring's loop; {} in `body` is the exchange."""
    came = "kv = group.exchange(kv, (me + 1) % n, torch.empty_like(kv), (me - 1) % n)"
    return f"""{BEGIN}
def ring(q, k, v, positions, group):
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    out, lse = torch.zeros_like(q), torch.full_like(q[..., 0], -math.inf)
    kv = torch.stack((k, v))
    for i in range({rounds}):
        owner = {owner}
        {
        body.replace(
            "READ", "out, lse = merge(out, lse, *attend(q, kv[0], kv[1], positions[me], positions[owner]))"
        ).replace("PASS", f"if {send}: " + came)
    }
    {last}
"""


LOG, SUM = "torch.logaddexp(lse, other_lse)", "a * out + b * other"

AT = "logits = model(inputs, context.positions)"


def part(first: str, result: str) -> str:
    """`part_loss`, by its first line and by what it returns."""
    last = f"\n    return {result}" if result else ""
    line = "from labkit.models import next_token_loss"
    return f"def part_loss(model, inputs, targets, context):\n    {line}\n    {first}{last}"


WRONG = {
    "merge": {
        "def merge(out, lse, other, other_lse):\n    pass": "Return two tensors, the joined mean and its lse",
        "def merge(out, lse, other, other_lse):\n    return out, lse": "the other part is not in it",
        "def merge(out, lse, other, other_lse):\n    return other, other_lse": "Only the other part came back",
        merged(LOG, "(out + other) / 2"): "That is the plain average of the two means",
        merged("torch.maximum(lse, other_lse)", SUM): "is the larger of the two, so the shares",
        merged(LOG, "out + other"): "The two means were added",
        merged(LOG, "b * out + a * other"): "The shares have changed places",
        merged(LOG, "a * out + other"): "The other part was added whole",
        merged(LOG, "out + b * other"): "The first part was added whole",
        merged(LOG, "a[..., 0] * out + b * other"): "share a last dimension",
        merged("(lse.exp() + other_lse.exp()).log()", SUM): "exp(300) is larger than any float32",
        merged(LOG, SUM, "lse + other_lse"): "the logarithm of the product",
        merged("lse + other_lse", SUM): "Use `torch.logaddexp`",
        merged(LOG, SUM, "torch.maximum(lse, other_lse)"): "the smaller part is missing from it",
        merged(LOG, SUM, "lse"): "Yours is still that of the first part",
        merged(LOG, SUM, "both[..., None]"): "The mean should have the shape",
        merged("torch.maximum(lse, other_lse)", f"({SUM}) / (a + b)", "both + (a + b).log()"): "share a last dimension",
        """
        def merge(out, lse, other, other_lse):
            total = lse[..., None] + other_lse[..., None]
            both = torch.logaddexp(lse, other_lse)
            return (lse[..., None] * out + other_lse[..., None] * other) / total, both
        """: "You used the lse themselves as weights",
        """
        def merge(out, lse, other, other_lse):
            top = torch.maximum(lse, other_lse)
            both = torch.where(other_lse < lse, top + ((other_lse - lse) * 1.0).exp().log1p(), top + (lse - other_lse)
                .exp().log1p()) + 0 * other_lse
            return (lse - both).exp()[..., None] * out + (other_lse - both).exp()[..., None] * other, both
        """: "must change nothing",
    },
    "ring": {
        f"{BEGIN}def ring(q, k, v, positions, group):\n    pass": "rank 0 returned NoneType: return `out`",
        ring("pass"): "`out` is still 0: nothing was merged into it",
        ring("READ"): "nothing was sent. In every round but the last",
        ring("READ\n        PASS", rounds="n - 1"): "`out` is still 0",
        ring("PASS\n        READ"): "Read first, then pass on",
        ring("READ\n        PASS", owner="(me + i) % n"): "with the positions of other owners",
        ring("READ\n        PASS").replace("kv[0], kv[1]", "kv[1], kv[0]"): "keys and values have changed places",
        ring("READ\n        PASS").replace("positions[me], positions[owner]", "positions[owner], positions[me]"): (
            "wants the positions of the queries first"
        ),
        ring("READ\n        PASS").replace("*attend(", "attend("): "`attend` returns two things",
        ring("READ\n        PASS", owner="i"): "you took the positions of rank i",
        ring("READ\n        PASS", owner="me"): "each was read as if it were its own",
        ring(
            "READ\n        if i < n - 1: kv = torch.stack([group.exchange(x, right, torch.empty_like(x), left) "
            "for x in (kv[0].contiguous(), kv[1].contiguous())])"
        ): "exchange it as one tensor",
        ring("READ\n        PASS", send="n > 1"): "does the last round send a block that nobody reads?",
        ring("READ\n        PASS", send="True"): "A single rank has nobody to exchange with",
        ring("READ\n        if i < n - 1: group.exchange(kv, right, kv.clone(), left)"): "`kv = group.exchange(...)`",
        ring("READ\n        if i < n - 1: kv = group.exchange(kv, left, torch.empty_like(kv), right)"): "right neighb",
        ring("READ\n        if i < n - 1: kv = group.exchange(kv, right, torch.empty_like(kv), right)"): "receive fro",
        ring(
            "READ\n        if i < n - 1: group.send(kv, right); kv = group.recv(torch.empty_like(kv), left)"
        ): "All of",
        ring(
            "out, lse = attend(q, kv[0], kv[1], positions[me], positions[owner])\n        PASS"
        ): "merge each part with what was there",
        ring(
            "out, lse = merge(out, lse, *attend(q, k, v, positions[me], positions[owner]))\n        PASS"
        ): "its own keys were read in every round",
        ring("merge(out, lse, *attend(q, kv[0], kv[1], positions[me], positions[owner]))\n        PASS"): "still 0",
        ring(
            "READ\n        if i < n - 1: kv = group.exchange(kv.float(), right, torch.empty(kv.shape), left).double()"
        ): "was a block sent in another dtype?",
        ring("READ\n        if i < n - 1: kv = group.exchange(kv, right, torch.empty_like(k), left)"): (
            "What travels is `kv`, so receive into"
        ),
        ring("READ\n        PASS\n        return out"): "Does your `return` stand inside the loop?",
    },
    "zigzag": {
        "def zigzag(rank, size, length):\n    pass": "you returned NoneType for rank 0",
        "def zigzag(rank, size, length):\n    return torch.arange(length).chunk(size)[rank]": "rank 0 only",
        "def zigzag(rank, size, length):\n    return torch.arange(rank, length, size)": "the striped positions",
        """
        def zigzag(rank, size, length):
            c = torch.arange(length).tensor_split(size)
            return torch.cat((c[rank], c[-1 - rank]))
        """: "cut the text into n chunks",
        """
        def zigzag(rank, size, length):
            few = length // (2 * size)
            other = 2 * size - 1 - rank
            return torch.cat((torch.arange(rank * few, (rank + 1) * few), torch.arange(other * few, (other + 1) * few)))
        """: "your chunks leave the rest out",
        "def zigzag(rank, size, length):\n    return torch.arange(length).tensor_split(2 * size)[rank]": "no rank has",
        """
        def zigzag(rank, size, length):
            c = torch.arange(length).tensor_split(2 * size)
            return torch.cat((c[rank], c[2 * size - rank - 2]))
        """: "position 4 comes twice: chunk r goes with",
        """
        def zigzag(rank, size, length):
            c = torch.arange(length).tensor_split(2 * size)
            return torch.cat((c[rank], c[2 * size - rank]))
        """: "There is no such chunk",
        """
        def zigzag(rank, size, length):
            c = torch.arange(length).tensor_split(2 * size)
            return torch.cat((c[2 * rank], c[2 * rank + 1]))
        """: "Give rank r chunk r and chunk 2 n - 1 - r",
        """
        def zigzag(rank, size, length):
            c = torch.arange(length).tensor_split(2 * size)
            return torch.cat((c[-1 - rank], c[rank]))
        """: "put the early chunk first",
        """
        def zigzag(rank, size, length):
            c = torch.arange(length).tensor_split(2 * size)
            return torch.cat((c[rank], c[-1 - rank].flip(0)))
        """: "leave each chunk as it is",
        "def zigzag(rank, size, length):\n    return torch.tensor([rank, 2 * size - 1 - rank])": "numbers of the two",
        """
        def zigzag(rank, size, length):
            c = torch.arange(float(length)).tensor_split(2 * size)
            return torch.cat((c[rank], c[-1 - rank]))
        """: "no whole numbers",
        """
        def zigzag(rank, size, length):
            c = torch.arange(length).chunk(2 * size)
            return torch.cat((c[rank], c[-1 - rank]))
        """: "`tensor_split` always gives as many",
    },
    "part_loss": {
        part("pass", ""): "Return this rank's share of the mean loss",
        part("logits = model(inputs)", "context.weight * next_token_loss(logits, targets)"): "of each part from 0",
        part("logits = model(inputs)", "next_token_loss(logits, targets)"): "of each part from 0",
        part(AT, "next_token_loss(logits, targets)"): "multiply it by the rank's share",
        part("logits = model(inputs, context.positions[context.group.rank])", "next_token_loss(logits, targets)"): (
            "take them as they are, without an index"
        ),
        part(
            "t = inputs.shape[1]; at = torch.arange(t) + t * context.group.rank; logits = model(inputs, at)",
            "context.weight * next_token_loss(logits, targets)",
        ): "as if parts were contiguous",
        part(AT, "context.weight * next_token_loss(logits, inputs)"): "taken against the inputs",
        part(AT, "next_token_loss(targets, logits)"): "wants the logits first",
        part(AT, "context.group.size * context.weight * next_token_loss(logits, targets)"): "by the number of ranks",
        part(
            AT + "\n    loss = next_token_loss(logits, targets)\n    from labkit import collectives",
            "collectives.all_reduce(loss, context.group)",
        ): "Nothing is sent here",
        part(AT, "logits"): "as the logits are; give them to `next_token_loss`",
        part(AT, "next_token_loss(logits, targets) / context.weight"): "so multiply by it",
        part(AT, "targets.shape[1] * next_token_loss(logits, targets)"): "each is a sum over the tokens",
        part(AT, "next_token_loss(logits, targets) / context.group.size"): "they have different lengths",
        part("logits = model(targets, context.positions)", "context.weight * next_token_loss(logits, inputs)"): (
            "inputs and targets have changed places"
        ),
        part(AT, "context.weight * next_token_loss(logits[:, :-1], targets[:, 1:])"): "shifted once more",
        part(AT, "context.weight * next_token_loss(logits, targets.roll(-1, 1))"): "shifted once more",
        part(AT, "targets.numel() * next_token_loss(logits, targets)"): "each is a sum over the tokens",
        part(AT, "next_token_loss(logits, targets) / 4"): "multiplied by 0.25, however long the part is",
        part("logits = model(inputs, context.positions + 1)", "context.weight * next_token_loss(logits, targets)"): (
            "give the model `context.positions` as they are"
        ),
        part(AT + "\n    logits = context.join(logits)", "context.weight * next_token_loss(logits, targets)"): (
            "the logits of its `inputs`, and its `targets`"
        ),
        part(
            "inputs, targets = context.cut(inputs), context.cut(targets)\n    " + AT,
            "context.weight * next_token_loss(logits, targets)",
        ): "do not cut them again",
        part(AT, "5 * context.weight * next_token_loss(logits, targets)"): "add up to",
        part(AT, "context.weight * next_token_loss(logits, targets).detach()"): "still has its gradient",
        part(AT, "context.weight * next_token_loss(logits, targets).item()"): "still has its gradient",
        part(AT, "context.weight * (next_token_loss(logits.detach(), targets) + 0 * logits.sum())"): (
            "but their gradients do not"
        ),
    },
}
