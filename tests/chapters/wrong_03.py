"""Wrong versions of what chapter 3 asks its reader to write: words of the sentence that must reject each."""


def around(name: str, leaves: str, arrives: str, act: str) -> str:
    """A half of the ring; {} in `act` is what came."""
    came = "group.exchange(out, (me + 1) % n, torch.empty_like(into), (me - 1) % n)"
    return f"""
def {name}(chunks, group):
    n, me = group.size, group.rank
    for step in range(n - 1):
        out, into = chunks[{leaves}], chunks[{arrives}]
        {act.replace("{}", came)}
"""


def doubling(
    act: str, partner: str = "group.rank ^ distance", before: str = "", what: str = "x", after: str = "x"
) -> str:
    """Recursive doubling; {} in `act` is what came."""
    return f"""
def my_recursive_doubling(x, group):
    {before}
    distance = 1
    while distance < group.size:
        partner = {partner}
        {act.replace("{}", f"group.exchange({what}, partner, torch.empty_like(x), partner)")}
        distance *= 2
    return {after}
"""


ADD, COPY, NOW, BEFORE, NEXT = (
    "add_around",
    "copy_around",
    "(me - step) % n",
    "(me - step - 1) % n",
    "(me - step + 1) % n",
)

WRONG = {
    "add_around": {
        "def add_around(chunks, group):\n    pass": "nothing was sent. The loop has n - 1 rounds",
        "def add_around(chunks, group):\n    all_reduce(chunks[0], group)": "A ready-made all_reduce did the work",
        around(ADD, NOW, BEFORE, "chunks[(me - step - 1) % n] = into + {}"): "and `chunks[c] = x` make another tensor",
        around(ADD, NOW, BEFORE, "into += {}; return"): "but rank 0 sent 1: does the loop end too early",
        around(ADD, NOW, BEFORE, "into += {}; into /= 2"): "something was divided",
        around(
            ADD, NOW, BEFORE, "into += group.exchange(out, (me - 1) % n, torch.empty_like(into), (me + 1) % n)"
        ): "rank 0 sent to rank 2, which is not its right neighbour",
        around(
            ADD, NOW, BEFORE, "into += group.exchange(out, (me + 1) % n, torch.empty_like(into), (me + 1) % n)"
        ): "Does each rank receive from the one that sends to it?",
        around(
            ADD, NOW, BEFORE, "into += group.exchange(out, (me + 1) % n, into, (me - 1) % n)"
        ): "what arrived is in it twice. `exchange` writes over",
        around(
            ADD,
            NOW,
            BEFORE,
            """
        into += group.exchange(out.float(), (me + 1) % n, torch.empty(len(into)), (me - 1) % n)""",
        ): "was the chunk converted to another dtype?",
        around(ADD, NOW, BEFORE, "into = into + {}"): "does, but `into = into + x`",
        around(ADD, NOW, BEFORE, "into.copy_({})"): "its own numbers are gone",
        around(ADD, "me", "(me - 1) % n", "into += {}"): "twice. In each round a rank passes on",
        around(ADD, NEXT, NOW, "into += {}"): "it has it in chunk 0",
        around(ADD, NOW, NOW, "into += {}"): "numbers of different chunks",
        around(ADD, NOW, BEFORE, "into += {}; into += into"): "every rank's numbers are in it 2 times or more",
        around(ADD, "(me + step) % n", "(me + step - 1) % n", "into += {}"): "Both chunk numbers go down by one",
        """
        def add_around(chunks, group):
            n, me = group.size, group.rank
            for step in range(n - 1):
                group.send(chunks[(me - step) % n], (me + 1) % n)
                into = chunks[(me - step - 1) % n]
                into += group.recv(torch.empty_like(into), (me - 1) % n)
        """: "ranks 0 and 1 wait for each other. All of them send before anybody receives",
        """
        def add_around(chunks, group):
            n, me = group.size, group.rank
            for step in range(n):
                out, into = chunks[(me - step) % n], chunks[(me - step - 1) % n]
                got = group.exchange(out, (me + 1) % n, torch.empty_like(into), (me - 1) % n)
                if step < n - 1:
                    into += got
        """: "does the loop make a round too many",
    },
    "copy_around": {
        "def copy_around(chunks, group):\n    pass": "nothing was sent",
        around(COPY, NEXT, NOW, "into += group.exchange(out, (me + 1) % n, into, (me - 1) % n)"): "has the sum twice",
        around(COPY, "me - step + 1", "me - step", "into.copy_({})"): "Take the numbers of chunks modulo n",
        around(COPY, "(me + 1) % n", NOW, "into.copy_({})"): "chunk 2 has what belongs into chunk 0",
        around(COPY, "(me + 1) % n", "me", "into.copy_({})"): "chunk 2 never arrived",
        around(COPY, NEXT, NOW, "{}"): "none has changed. What arrives is written into the third",
        around(COPY, NEXT, NOW, "into += {}"): "Here what arrives replaces",
        around(COPY, NEXT, NOW, "into = {}"): "give it `into` itself",
        around(COPY, NOW, BEFORE, "into.copy_({})"): "was complete at the beginning, and is not any more",
    },
    "my_recursive_doubling": {
        "def my_recursive_doubling(x, group):\n    return x": "nothing was sent. Begin with distance 1",
        doubling("group.exchange(x, partner, torch.empty_like(x), partner)"): "still has its own numbers",
        doubling("x += group.exchange(x, partner, x, partner)"): "its partner's numbers twice",
        doubling("x += {}", partner="group.rank ^ 1"): "has met the same partner in every round",
        doubling("x += {}", partner="group.rank + distance"): "The partner is `group.rank ^ distance`",
        """
        def my_recursive_doubling(x, group):
            n, me, distance = group.size, group.rank, 1
            while distance < n:
                x += group.exchange(x, (me + distance) % n, torch.empty_like(x), (me - distance) % n)
                distance *= 2
            return x
        """: "does not hold the same bits",
        doubling("x += {}", after="x / group.size"): "half of the sum, as an average of two would be",
        doubling("x += {}", after="None"): "A rank returned None",
        doubling("x += {}", before="own = x.clone()", what="own"): "send the sum so far",
        doubling("x += {}", before="x = x.half()"): "returned float16; its input is float32",
        doubling(
            "group.send(x, partner); x += group.recv(torch.empty_like(x), partner)"
        ): "`group.exchange` does both at the same time",
        """
        def my_recursive_doubling(x, group):
            partner = group.rank ^ 1
            return x + group.exchange(x, partner, torch.empty_like(x), partner)
        """: "the sum over its pair",
        """
        def my_recursive_doubling(x, group):
            distance = 1
            while distance < group.size:
                partner = group.rank ^ distance
                x = group.exchange(x, partner, torch.empty_like(x), partner)
                distance *= 2
            return x
        """: "what arrives must be added",
        """
        def my_recursive_doubling(x, group):
            distance = 1
            while distance < group.size:
                partner = (group.rank + distance) % group.size
                x = x + group.exchange(x, partner, torch.empty_like(x), partner)
                distance *= 2
            return x
        """: "Look at the two ranks in your `exchange`",
        "def my_recursive_doubling(x, group):\n    return all_reduce(x, group)": "A ready-made all_reduce did the work",
    },
}
