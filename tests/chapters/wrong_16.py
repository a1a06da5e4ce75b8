"""Wrong versions of what chapter 16 asks its reader to write: words of the sentence that must reject each."""

GROW = """cache.keys = torch.cat([cache.keys, k_gk[None]])
    cache.values = torch.cat([cache.values, v_gk[None]])"""


def attend(
    grow: str = GROW,
    spread: str = "x.repeat_interleave(n, dim=1)",
    scores: str = 'torch.einsum("hk,thk->ht", q_hk, keys) / q_hk.shape[1] ** 0.5',
    end: str = 'return torch.einsum("ht,thk->hk", scores.softmax(dim=1), values)',
) -> str:
    return f"""
def attend_next(q_hk, k_gk, v_gk, cache):
    {grow}
    n = len(q_hk) // len(k_gk)
    keys, values = ({spread} for x in (cache.keys, cache.values))
    scores = {scores}
    {end}
"""


def clipped(
    ratios: str = "(logprobs - old).exp()",
    taken: str = "torch.minimum(ratios * advantages, near * advantages)",
    end: str = "return -objective[mask].sum() / total",
) -> str:
    return f"""
def clipped_loss(logprobs, old, advantages, mask, total, clip):
    ratios = {ratios}
    near = ratios.clamp(1 - clip, 1 + clip)
    objective = {taken}
    {end}
"""


def dpo(margins: str = "(chosen - ref_chosen) - (rejected - ref_rejected)",
        end: str = "return -F.logsigmoid(beta * margins).mean()") -> str:  # fmt: skip
    return f"""
def dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta):
    margins = {margins}
    {end}
"""


def packed(
    order: str = "sorted(range(len(lengths)), key=lambda i: -lengths[i])", fits: str = "<= room", put: str = "i",
    rows: str = "rows",
) -> str:  # fmt: skip
    return f"""
def pack(lengths, room):
    rows = []
    for i in {order}:
        for row in {rows}:
            if sum(lengths[j] for j in row) + lengths[i] {fits}:
                row.append({put})
                break
        else:
            rows.append([{put}])
    return rows
"""


ONE_BY_ONE = """
def pack(lengths, room):
    return [[i] for i in range(len(lengths))]
"""
OF_LENGTHS = """
def pack(lengths, room):
    rows = []
    for n in sorted(lengths, reverse=True):
        for row in rows:
            if sum(row) + n <= room:
                row.append(n)
                break
        else:
            rows.append([n])
    return rows
"""

WRONG = {
    "attend_next": {
        attend(grow="pass"): "nothing was read",
        attend(grow="cache.keys, cache.values = k_gk[None], v_gk[None]"): "the newest token alone",
        attend(scores='torch.einsum("hk,thk->ht", q_hk, keys)'): "square root of k",
        attend(scores='torch.einsum("hk,thk->ht", q_hk, keys) / q_hk.shape[1]'): "in place of its square root",
        attend(spread="x.repeat(1, n, 1)"): "repeat_interleave",
        attend(end='return torch.einsum("ht,thk->hk", scores.softmax(dim=0), values)'): "runs over the heads",
        attend(end='return torch.einsum("ht,thk->hk", scores.softmax(dim=1), values).flatten()'): "should be",
        attend(grow="k, v = torch.cat([cache.keys, k_gk[None]]), torch.cat([cache.values, v_gk[None]])",
               spread="(k if x is cache.keys else v).repeat_interleave(n, dim=1)"): "Put the new key",
        attend(end="return None"): "return a tensor",
    },
    "clipped_loss": {
        clipped(end="return objective[mask].sum() / total"): "sign is wrong",
        clipped(taken="ratios * advantages"): "without the clip",
        clipped(taken="near * advantages"): "the clipped ratio alone",
        clipped(taken="torch.maximum(ratios * advantages, near * advantages)"): "the larger one",
        clipped(end="return -objective[mask].mean()"): "divided by its own tokens",
        clipped(end="return -objective.sum() / total"): "look at `mask`",
        clipped(ratios="(old - logprobs).exp()"): "upside down",
        clipped(ratios="logprobs - old"): "e to the difference",
        clipped(ratios="(logprobs.detach() - old).exp()"): "no gradient reaches",
        clipped(end="return -objective[mask] / total"): "return one number",
    },
    "dpo_loss": {
        dpo("(rejected - ref_rejected) - (chosen - ref_chosen)"): "rejected response has the plus",
        dpo("chosen - rejected"): "The reference is missing",
        dpo(end="return -F.logsigmoid(margins).mean()"): "left out `beta`",
        dpo(end="return -beta * F.logsigmoid(margins).mean()"): "stands outside",
        dpo(end="return F.logsigmoid(beta * margins).mean()"): "sign is wrong",
        dpo(end="return -F.logsigmoid(beta * margins).sum()"): "Take their mean",
        dpo(end="return -torch.sigmoid(beta * margins).mean()"): "logarithm is missing",
        dpo("(chosen + ref_chosen) - (rejected + ref_rejected)"): "must be subtracted",
        dpo(end="return -F.logsigmoid(beta * margins)"): "return one number",
    },
    "pack": {
        packed(order="range(len(lengths))"): "Take the longest first",
        packed(fits="< room"): "fills a row exactly",
        packed(fits="<= room + 1"): "more than there is room for",
        packed(rows="rows[::-1]"): "*first* row",
        packed(rows="rows[-1:]"): "*first* row",
        ONE_BY_ONE: "a row of its own",
        OF_LENGTHS: "hold lengths",
        packed(order="sorted(lengths, reverse=True)"): "an index that does not exist",
        "def pack(lengths, room):\n    return []\n": "exactly one row",
        "def pack(lengths, room):\n    return None\n": "return a list of rows",
    },
}  # fmt: skip
