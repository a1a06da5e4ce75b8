"""Wrong versions of what chapter 1 asks its reader to write: words of the sentence that must reject each."""

STEP = "def step_seconds(compute, ranks, messages, waiting, hidden):\n    "

WRONG = {
    "training_bytes": {
        "def training_bytes(model, optimizer):\n    pass": "you returned None",
        "def training_bytes(model, optimizer):\n    return sum(p.nbytes for p in model.parameters())":
            "what the parameters alone take",
        "def training_bytes(model, optimizer):\n    return sum(2 * p.nbytes for p in model.parameters())":
            "Adam's own tensors are missing",
        "def training_bytes(model, optimizer):\n    return 16 * sum(p.numel() for p in model.parameters())":
            "With parameters in bfloat16, of 2 bytes each, 16 bytes for each parameter are not right any more",
        "def training_bytes(model, optimizer):\n    return 4 * sum(p.nbytes for p in model.parameters())":
            "Where one layer is frozen, and has neither gradient nor moments, 16 bytes for each parameter are",
        "def training_bytes(model, optimizer):\n    return 4 * sum(p.numel() for p in model.parameters())":
            "what the parameters alone take",
        "def training_bytes(model, optimizer):\n    return 4 * sum(p.grad.nbytes for p in model.parameters())":
            "'NoneType' object has no attribute 'nbytes'",
        """
        def training_bytes(model, optimizer):
            return sum(t.nbytes for s in optimizer.state.values() for t in s.values())
        """: "Adam's tensors alone. What about",
        """
        def training_bytes(model, optimizer):
            weights = sum(p.nbytes for p in model.parameters())
            return weights + sum(t.nbytes for s in optimizer.state.values() for t in s.values())
        """: "quarter is missing",
        """
        def training_bytes(model, optimizer):
            return sum(2 * p.nbytes for p in model.parameters()) + sum(
                s["exp_avg"].nbytes for s in optimizer.state.values())
        """: "quarter is missing",
        """
        def training_bytes(model, optimizer):
            return sum(2 * p.numel() for p in model.parameters()) + sum(
                s["exp_avg"].numel() + s["exp_avg_sq"].numel() for s in optimizer.state.values())
        """: "count numbers, and not their bytes?",
        """
        def training_bytes(model, optimizer):
            return sum(2 * p.nbytes for p in model.parameters() if p.requires_grad) + sum(
                t.nbytes for s in optimizer.state.values() for t in s.values())
        """: "a frozen parameter still takes memory",
    },
    "step_seconds": {
        STEP + "pass": "you returned None",
        STEP + "return compute + messages + waiting - hidden":
            "Is all the computing still done by each rank?",
        STEP + "return compute / ranks":
            "Where are the messages?",
        STEP + "return compute / ranks + messages - hidden":
            "Where is the waiting?",
        STEP + "return (compute + messages + waiting) / ranks":
            "The computing is divided by the ranks. Are the messages?",
        STEP + "return compute / ranks + messages + waiting + hidden": "and not longer",
        STEP + "return compute / ranks + messages + waiting":
            "What does that hide?",
        STEP + "return compute / ranks + messages + waiting - hidden": "how much can that hide?",
        STEP + "return compute / ranks + messages + waiting - min(hidden, compute / ranks)":
            "you hide more than there was to send",
    },
    "cut_columns": {
        "def cut_columns(x, weight, bias, group):\n    pass": "return the joined columns",
        "def cut_columns(x, weight, bias, group):\n    return F.linear(x, weight, bias)": "nothing was sent",
        """
        def cut_columns(x, weight, bias, group):
            w, b = (p.tensor_split(group.size)[group.rank] for p in (weight, bias))
            return F.linear(x, w, b)
        """: "nobody has the others yet",
        """
        def cut_columns(x, weight, bias, group):
            w = weight.tensor_split(group.size, dim=1)[group.rank]
            return F.linear(x, w, bias)
        """: "so its rows are to be cut",
        """
        def cut_columns(x, weight, bias, group):
            return F.linear(x, weight.tensor_split(group.size)[group.rank], bias)
        """: "differ in length: cut both",
        """
        def cut_columns(x, weight, bias, group):
            return F.linear(x, weight.tensor_split(group.size), bias)
        """: "Take your own one",
        """
        def cut_columns(x, weight, bias, group):
            weights, biases = weight.tensor_split(group.size), bias.tensor_split(group.size)
            mine = F.linear(x, weights[group.rank], biases[group.rank]).T.contiguous()
            return collectives.all_gather(mine, group, [len(b) for b in biases])
        """: "One `.T` is missing",
        """
        def cut_columns(x, weight, bias, group):
            weights = weight.tensor_split(group.size)
            mine = F.linear(x, weights[group.rank]).T.contiguous()
            return collectives.all_gather(mine, group, [len(w) for w in weights]).T
        """: "the bias is missing",
        """
        def cut_columns(x, weight, bias, group):
            weights, biases = weight.tensor_split(group.size), bias.tensor_split(group.size)
            mine = F.linear(x, weights[group.rank], biases[group.rank]).T.contiguous()
            return collectives.all_gather(mine, group).T
        """: "7 columns do not divide by 2",
        """
        def cut_columns(x, weight, bias, group):
            weights, biases = weight.tensor_split(group.size), bias.tensor_split(group.size)
            whole = torch.zeros(len(x), len(bias))
            at = sum(len(b) for b in biases[: group.rank])
            whole[:, at : at + len(biases[group.rank])] = F.linear(x, weights[group.rank], biases[group.rank])
            return collectives.all_reduce(whole, group)
        """: "or pad them with zeros?",
    },
}  # fmt: skip
