"""Wrong versions of what chapter 14 asks its reader to write: words of the sentence that must reject each."""


def number(
    fraction: str = "code % 2**mantissa_bits / 2**mantissa_bits",
    exponent: str = "(code >> mantissa_bits) % 2**exponent_bits",
    bias: str = "2 ** (exponent_bits - 1) - 1",
    small: str = "fraction * 2.0 ** (1 - bias)",
    size: str = "(1 + fraction) * 2.0 ** (exponent - bias)",
    end: str = "return -size if code >> (exponent_bits + mantissa_bits) else size",
) -> str:
    return f"""
def number(code, exponent_bits, mantissa_bits):
    fraction = {fraction}
    exponent = {exponent}
    bias = {bias}
    size = {small} if exponent == 0 else {size}
    {end}
"""


def scale(amax: str, end: str = "return largest / amax if amax > 0 else 1.0") -> str:
    return f"""
def scale_of(x, group, largest):
    {amax}
    {end}
"""


ASKED = "found = torch.tensor([float(bad)]); all_reduce(found, group, op='max')"
ASK = 'all_reduce(amax, group, op="max")'


def agree(body: str) -> str:
    return f"""
def everyone_finite(gradients, group):
    bad = any(not g.isfinite().all() for g in gradients)
    {body}
"""


def summed(
    messages: str = "[pack(part) for part in x.chunk(group.size)]",
    mine: str = "all_to_all(torch.cat(messages), group).chunk(group.size)",
    total: str = "sum(unpack(message) for message in mine)",
    sums: str = "all_gather(pack(total), group).chunk(group.size)",
    end: str = "return torch.cat([unpack(message) for message in sums])",
) -> str:
    return f"""
def sum_in_eight_bits(x, group):
    from labkit.chapters.c14_low_precision.wires import all_to_all, pack, unpack
    from labkit.collectives import all_gather
    messages = {messages}
    mine = {mine}
    total = {total}
    sums = {sums}
    {end}
"""


WRONG = {
    "number": {
        number(end="return size"): "The first bit is the sign",
        number(small="(1 + fraction) * 2.0 ** -bias"): "there is no leading 1, so that codes reach down to 0",
        number(small="fraction * 2.0 ** -bias"): "share the power of exponent 1",
        number(small="0.0"): "the number is fraction * 2^(1 - bias)",
        number(bias="2 ** (exponent_bits - 1)"): "is the bias 2^(exponent_bits - 1) - 1?",
        number(size="fraction * 2.0 ** (exponent - bias)"): "has a leading 1 that is not stored",
        number(size="(1 + code % 2**mantissa_bits) * 2.0 ** (exponent - bias)"): "divide it by 2^mantissa_bits",
        number(end="return None"): "returned no number for code",
    },
    "scale_of": {
        scale("amax = x.abs().max()"): "the largest number of this rank alone",
        scale(f"amax = x.max(); {ASK}"): "a negative one may be larger in size",
        scale("amax = x.abs().max(); all_reduce(amax, group)"): "are added up",
        scale("amax = x.abs().max(); all_reduce(amax, group); amax /= group.size"): "the mean of the ranks' amaxes",
        scale(f"amax = x.abs().max(); {ASK}", "return amax / largest if amax > 0 else 1.0"): "turned around",
        scale(f"amax = x.abs().max(); {ASK}", "return largest / amax"): "a tensor of zeros has the scale inf",
        scale('amax = all_reduce(x.abs(), group, op="max").max()'): "send that, and not the tensor",
        scale(f"x.abs_(); amax = x.max(); {ASK}"): "`x` has changed",
        scale(f"amax = x.abs().max(); {ASK}", "return None"): "return a number, the scale",
    },
    "everyone_finite": {
        agree("return not bad"): "it has looked at its own gradients only",
        agree(f"{ASKED}; return found.item() > 0"): "says",
        agree(f"if bad: return False\n    {ASKED}; return found.item() == 0"): "Every rank must call `all_reduce`",
        agree(f"{ASKED.replace('max', 'min')}; return found.item() == 0"): "says",
        agree(f"bad = any(g.isnan().any() for g in gradients); {ASKED}; return found.item() == 0"):
            "which has one itself",
        agree(f"{ASKED}; return None"): "should return True or False",
        agree(f"bad = not torch.stack([g.isfinite().all() for g in gradients]).all(); {ASKED}; return not found"):
            "there `gradients` is an empty list",
        agree(f"bad = not torch.cat([*gradients]).isfinite().all(); {ASKED}; return not found.item()"):
            "there `gradients` is an empty list",
        agree(f"bad = max(not g.isfinite().all() for g in gradients); {ASKED}; return not found.item()"):
            "there `gradients` is an empty list",
        agree(f"bad += torch.zeros_like(gradients[0]).sum(); {ASKED}; return found.item() == 0"):
            "there `gradients` is an empty list",
    },
    "sum_in_eight_bits": {
        summed(end="return torch.cat([unpack(m) for m in sums]) / group.size"): "that is the average",
        summed(sums="all_gather(total, group).chunk(group.size)", end="return torch.cat(sums)"):
            "`pack` each before it is gathered",
        summed(end="out = [unpack(m) for m in sums]; out[group.rank] = total; return torch.cat(out)"):
            "as it was before `pack`",
        summed(end="return torch.cat(sums)"): "you returned bytes",
        summed(end="return total"): "is each part put back in its place?",
        summed(total="unpack(sum(m.int() for m in mine).to(torch.uint8))"): "Codes cannot be added",
        summed(end="from labkit.collectives import all_reduce; return all_reduce(x.clone(), group)"):
            "it has travelled in more than 8 bits",
        summed(end="return sum(unpack(m) for m in all_gather(pack(x), group).chunk(group.size))"):
            "Pack each part by itself",
        summed(end="return torch.cat([unpack(pack(part)) for part in x.chunk(group.size)])"):
            "packed and unpacked this rank's own numbers",
        summed(end="total = torch.cat([unpack(m) for m in sums]); x.copy_(total); return total"): "`x` has changed",
    },
}  # fmt: skip
