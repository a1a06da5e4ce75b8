"""Wrong versions of what chapter 0 asks its reader to write: words of the sentence that must reject each."""

WRONG = {
    "total": {
        "def total(x, group):\n    return x": "No rank sent a message",
        "def total(x, group):\n    return x * group.size": "No rank sent a message",
        """
        def total(x, group):
            if group.rank == 0:
                for other in range(1, group.size):
                    group.recv(torch.empty_like(x), source=other)
                for other in range(1, group.size):
                    group.send(x, to=other)
            else:
                group.send(x, to=0)
                group.recv(torch.empty_like(x), source=0)
            return x
        """: "nothing was added",
        "def total(x, group):\n    pass": "does each of them come to a `return`?",
        "def total(x, group):\n    return all_reduce(x, group)": "a function of labkit made it",
        """
        def total(x, group):
            if group.rank:
                group.send(x, to=0)
                return x
            return x + sum(group.recv(torch.empty_like(x), source=r) for r in range(1, group.size))
        """: "rank 0 must send the sum back",
        """
        def total(x, group):
            if group.rank:
                group.send(x, to=0)
                return group.recv(x, source=0)
            x = sum(group.recv(x, source=r).clone() for r in range(1, group.size))
            for other in range(1, group.size):
                group.send(x, to=other)
            return x
        """: "did `recv` write over it?",
        """
        def total(x, group):
            if group.rank:
                group.send(x, to=0)
                return group.recv(torch.empty_like(x), source=0)
            for other in range(1, group.size):
                x = x + group.recv(x, source=other)
            for other in range(1, group.size):
                group.send(x, to=other)
            return x
        """: "so what rank 0 had is lost",
        """
        def total(x, group):
            if group.rank:
                group.send(x, to=0)
                return group.recv(torch.empty_like(x), source=0)
            for other in range(1, group.size):
                x = x + group.recv(torch.empty_like(x), source=other)
                group.send(x, to=other)
            return x
        """: "Rank 1 got a sum that was not finished",
        """
        def total(x, group):
            for to in range(group.size):
                if to != group.rank:
                    group.send(x, to=to)
            return x + sum(group.recv(torch.empty_like(x), source=r) for r in range(group.size) if r != group.rank)
        """: "ranks 0 and 1 wait for each other. Each `send` needs its `recv` on the other rank",
        """
        def total(x, group):
            for other in range(1, group.size):
                x = x + group.recv(torch.empty_like(x), source=other)
            for other in range(1, group.size):
                group.send(x, to=other)
            return x
        """: "rank 1 cannot recv from itself. Every rank runs this function",
        """
        def total(x, group):
            left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
            whole = x
            for _ in range(group.size - 1):
                x = group.exchange(x, to=right, like=torch.empty_like(x), source=left)
                whole = whole + x
            return whole
        """: "with 3 ranks the messages of rank 1 are 2, and the target is 1",
        """
        def total(x, group):
            if group.rank == 0:
                for other in range(1, group.size):
                    group.send(x, to=other)
            return group.recv(torch.empty_like(x), source=(group.rank - 1) % group.size)
        """: "while others wait for it. Each `send` needs its `recv` on the other rank, and each `recv` its `send`",
    },
    "share": {
        "def share(gradients, group):\n    all_reduce(gradients, group)": "call it once for each",
        "def share(gradients, group):\n    return gradients": "who knows the others' gradients?",
        "def share(gradients, group):\n    [all_reduce(g, group) for g in gradients]": "times the average",
        "def share(gradients, group):\n    [g.div_(group.size) for g in gradients]": "nothing was added",
        "def share(gradients, group):\n    [all_reduce(g, group).div_(4) for g in gradients]": "divided the sum by 4",
        """
        def share(gradients, group):
            [all_reduce(g.div_(group.size), group, op="avg") for g in gradients]
        """: "Did you divide twice",
        """
        def share(gradients, group):
            for g in gradients:
                return all_reduce(g, group, op="avg")
        """: "Only the first tensor",
        """
        def share(gradients, group):
            for g in gradients:
                all_reduce(g, group)
            g /= group.size
        """: "should the division stand inside the loop?",
        """
        def share(gradients, group):
            return [all_reduce(g.clone(), group) / group.size for g in gradients]
        """: "your average is in other tensors",
        """
        def share(gradients, group):
            for g in gradients:
                all_reduce(g, group)
                g = g / group.size
        """: "`g /= group.size` changes the one that you have",
    },
}
