"""Wrong versions of what chapter 12 asks its reader to write: words of the sentence that must reject each."""


def route(body: str) -> str:
    return f"""
def route(logits_ne, k):
    {body}
"""


SORT = "s = logits_ne.softmax(-1); e = s.sort(dim=-1, descending=True, stable=True).indices[:, :k]; w = s.gather(1, e)"


def through(
    out: str = "(expert_m // per_rank).bincount(minlength=group.size)",
    order: str = "expert_m.sort(stable=True).indices",
    which: str = "expert_m[order]",
    back: str = "into, out",
    end: str = "result = torch.empty_like(y); result[order] = y; return result",
) -> str:
    return f"""
def through_experts(x_md, expert_m, compute, group, per_rank):
    from labkit.chapters.c12_experts.layers import all_to_all
    order = {order}
    counts = {out}
    out, into = counts.tolist(), all_to_all(counts, group).tolist()
    rows = all_to_all(x_md[order], group, out, into)
    which = all_to_all({which}, group, out, into)
    y = all_to_all(compute(rows, which), group, {back})
    {end}
"""


def within(body: str) -> str:
    return f"""
def within_capacity(expert_m, experts, slots):
    place = F.one_hot(expert_m, experts).cumsum(0).gather(1, expert_m[:, None])[:, 0] - 1
    {body}
"""


def average(among: str, divide: str = "p.grad /= group.size") -> str:
    return f"""
def average_gradients(model, group, replicas):
    for name, p in model.named_parameters():
        expert = "experts" in name
        {among}
        {divide}
"""


def rebalance(total: str, move: str) -> str:
    return f"""
def rebalance(bias_e, load_e, group, rate):
    total_e = {total}
    {move}
"""


ALL = "all_reduce(load_e.clone(), group)"
BOTH = "all_reduce(p.grad, replicas if expert else group)"

WRONG = {
    "route": {
        route("pass"): "Return two tensors",
        route(f"{SORT}; return w, e"): "Return the experts first",
        route(f"{SORT}; w = w.detach(); return e, w / w.sum(-1, keepdim=True)"): "this router could never learn",
        route(f"{SORT}; return e, w"): "divide them by their sum",
        route(f"{SORT}; return e[:, :1], w[:, :1] / w[:, :1]"): "there should be 6 x 2 experts",
        route(f"{SORT}; return e, logits_ne.gather(1, e)"): "These are logits",
        route(f"{SORT}; return e, torch.full_like(w, 1 / k)"): "All choices count alike",
        route(f"{SORT}; return e, w / w.sum()"): "of *all* tokens together",
        route(f"{SORT}; return e, w / w.sum(-1)"): "Does the sum keep its dimension?",
        route(f"{SORT}; return e, w / w.sum(0)"): "a sum over the tokens",
        route(f"{SORT}; e = e.sort(-1).values; w = s.gather(1, e); return e, w / w.sum(-1, keepdim=True)"): (
            "not the best one first"
        ),
        route(
            "e = logits_ne.sort(dim=-1, stable=True).indices[:, :k]; return e, logits_ne.gather(1, e).softmax(-1)"
        ): "the *lowest* logits",
        route(
            "e = logits_ne.softmax(0).sort(dim=-1, descending=True, stable=True).indices[:, :k]; "
            "return e, logits_ne.gather(1, e).softmax(-1)"
        ): "The softmax runs over the tokens",
        route(
            "e = 31 - logits_ne.flip(-1).sort(dim=-1, descending=True, stable=True).indices[:, :k]; "
            "return e, logits_ne.gather(1, e).softmax(-1)"
        ): "the expert with the lower number first",
        route(f"{SORT.replace(', stable=True', '')}; w = w / w.sum(-1, keepdim=True); return e, w"): "unstable sort",
        route("e = logits_ne.topk(k).indices; return e, logits_ne.gather(1, e).softmax(-1)"): "`topk`",
        route(f"{SORT}; w = logits_ne.gather(1, e).sigmoid(); return e, w / w.sum(-1, keepdim=True)"): "are sigmoids",
        route("logits_ne.copy_(logits_ne.softmax(-1)); e = logits_ne.topk(k).indices; return e, e"): "has changed",
    },
    "through_experts": {
        "def through_experts(x_md, expert_m, compute, group, per_rank):\n    pass": "nothing was returned",
        "def through_experts(x_md, expert_m, compute, group, per_rank):\n    return x_md": "gone through an expert",
        "def through_experts(x_md, expert_m, compute, group, per_rank):\n    return compute(x_md, expert_m)": (
            "No row has left its rank yet"
        ),
        "def through_experts(x_md, expert_m, compute, group, per_rank):\n    return 10 * x_md": "multiplied by 10",
        through(which="expert_m[order] % per_rank"): "wants the numbers of `expert_m`",
        through(end="return y"): "still sorted by expert",
        through(end="return y[order]"): "sorted a second time",
        through(order="torch.arange(len(expert_m))"): "Sort the rows by their expert",
        through(out="(expert_m // per_rank).bincount(minlength=group.size)").replace(
            "group, out, into)\n    which", "group, counts, into)\n    which"
        ): "call `.tolist()`",
        through().replace(
            "rows = all_to_all(x_md[order], group, out, into)", "rows = collectives.all_gather(x_md, group)"
        ): ("every row to every rank"),
        through().replace("all_to_all(x_md[order]", "all_to_all(x_md"): "Sort the rows by their expert",
        through(which="expert_m"): "the numbers came in another order",
        through().replace("compute(rows, which)", "compute(rows, expert_m)"): "the numbers of this rank's own rows",
        through().replace("    order =", "    if group.rank == 1: return\n    order ="): "Has it left without",
        through(out="(expert_m // per_rank).bincount()"): "bincount(minlength=group.size)",
        through(out="(expert_m % group.size).bincount(minlength=group.size)"): "expert e is on rank `e // per_rank`",
        through(back="out, into"): "On the way back the two lists change places",
        through(end="collectives.all_gather(y[:1], group); r = torch.empty_like(y); r[order] = y; return r"): (
            "sends everything to everybody"
        ),
        through().replace("labkit.chapters.c12_experts.layers", "labkit.collectives"): "gradients do not come home",
        through(end="result = torch.empty_like(y); result[order] = y; return result.detach()"): (
            "gradients do not come home"
        ),
    },
    "within_capacity": {
        within("pass"): "Return one True or False",
        within("return place"): "These are the places",
        within("return place <= slots"): "One choice too many",
        within("return place + 1 < slots"): "One choice too few",
        within("return place >= slots"): "the other way round",
        within("return torch.arange(len(expert_m)) < slots"): "a queue of its own",
        within("return (place < slots).long()"): "not numbers",
        within("return expert_m.bincount()[expert_m] <= slots"): "You drop *all* choices",
        within("return torch.ones_like(place, dtype=torch.bool)"): "compare a choice's place",
        within("return (F.one_hot(expert_m, experts).cumsum(0) - 1) < slots"): "answers are expected",
        within("return expert_m.bincount()[expert_m] - 1 - place < slots"): "You keep the *last* ones",
    },
    "average_gradients": {
        average("pass", "pass"): "still this rank's own",
        average("all_reduce(p.grad, group)", "pass"): "the sum over all ranks",
        average("all_reduce(p.grad, group)"): "4 of the 6 hold other experts",
        average("all_reduce(p.grad, replicas)"): "summed over `replicas` alone",
        average("pass"): "never summed over the ranks",
        average(BOTH, "p.grad /= (replicas if expert else group).size"): "After the sum it has the tokens of all 6",
        average(BOTH, "p.grad /= group.size // replicas.size if expert else group.size"): "the length of a row",
        average(BOTH, "p.grad /= 1 if expert else group.size"): "was not divided",
        average("if not expert: all_reduce(p.grad, group)"): "not summed over `replicas`",
        average("if not expert: all_reduce(p.grad, group)", "p.grad /= 1 if expert else group.size"): "is as it was",
        average(BOTH, "p.grad /= group.size; p.grad /= group.size"): "divided twice",
        average("p.grad = p.grad / group.size", "pass"): "never summed over the ranks",
    },
    "rebalance": {
        rebalance(ALL, "pass"): "no bias has moved",
        rebalance(ALL, "return bias_e + rate * (total_e.mean() - total_e).sign()"): "no bias has moved",
        rebalance(ALL, "bias_e -= rate * (total_e.mean() - total_e).sign()"): "yours goes up",
        rebalance("load_e", "bias_e += rate * (total_e.mean() - total_e).sign()"): "own tokens",
        rebalance("load_e", "bias_e -= rate * (total_e.mean() - total_e).sign()"): "wrong way",
        rebalance(ALL, "bias_e += rate * (total_e.mean() - total_e)"): "grows with the load",
        rebalance(ALL, "bias_e += (total_e.mean() - total_e).sign()"): "should be `rate`",
        rebalance(ALL, "bias_e += torch.where(total_e > total_e.mean(), -rate, rate)"): "just the mean load",
        rebalance(ALL, "bias_e += torch.where(total_e < total_e.mean(), rate, -rate)"): "just the mean load",
        rebalance(ALL, "bias_e += rate * (total_e.mean() - load_e).sign()"): "own load is compared",
        rebalance(ALL, "bias_e += rate * (total_e.max() - total_e).sign()"): "where the mean is",
        rebalance("all_reduce(load_e, group)", "bias_e += rate * (total_e.mean() - total_e).sign()"): (
            "`load_e` has changed"
        ),
    },
}
