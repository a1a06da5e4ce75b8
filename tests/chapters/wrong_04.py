"""Wrong versions of what chapter 4 asks its reader to write: words of the sentence that must reject each."""

# What stands above the cells of chapter 4: how its third function begins, and a hook that is right.
GIVEN = """
        def overlapped(loss, buckets, group):
            place = {p: n for n, bucket in enumerate(buckets) for p in bucket}
            missing, under_way, hooks = [len(bucket) for bucket in buckets], [], []
"""
HOOK = """
            def arrived(p):
                n = place[p]
                missing[n] -= 1
                if missing[n] == 0:
                    under_way.append(begin(buckets[n], group))
"""
HANG = """
            hooks += [p.register_post_accumulate_grad_hook(arrived) for p in place]
"""
BACK = """
            loss.backward()
"""
WAITED = "end(begin(buckets[n], group))"
WAIT = """
            for work in under_way:
                end(work)
"""

IN_ORDER = """
            def overlapped_in_order(loss, buckets, group):
                place = {p: n for n, bucket in enumerate(buckets) for p in bucket}
                missing, under_way = [len(bucket) for bucket in buckets], []

                def arrived(p):
                    missing[place[p]] -= 1
                    HOOK

                hooks = [p.register_post_accumulate_grad_hook(arrived) for p in place]
                loss.backward()
                for work in under_way:
                    end(work)
                for hook in hooks:
                    hook.remove()
"""

WRONG = {
    "average_gradients": {
        "def average_gradients(model, count, group):\n    pass": "nothing was sent",
        """
        def average_gradients(model, count, group):
            total = all_reduce(torch.tensor(float(count)), group, op="avg").item()
            for p in model.parameters():
                p.grad *= count / total
                all_reduce(p.grad, group)
        """: "times too large: is your number of all samples",
        """
        def average_gradients(model, count, group):
            total = all_reduce(torch.tensor(count), group).item()
            for p in model.parameters():
                p.grad *= total / count
                all_reduce(p.grad, group)
        """: "the other way round",
        """
        def average_gradients(model, count, group):
            for p in model.paramters():
                all_reduce(p.grad, group)
        """: "'Model' object has no attribute 'paramters'",
        """
        def average_gradients(model, count, group):
            for p in model.parameters():
                all_reduce(p.grad, group, op="avg")
        """: "This is the plain average of the ranks. They have 2 and 5 samples",
        """
        def average_gradients(model, count, group):
            for p in model.parameters():
                all_reduce(p.grad, group)
        """: "all with the same weight",
        """
        def average_gradients(model, count, group):
            for p in model.parameters():
                p.grad *= count
                all_reduce(p.grad, group)
        """: "not divided by the number of all samples",
        """
        def average_gradients(model, count, group):
            total = all_reduce(torch.tensor(count), group).item()
            for p in model.parameters():
                p.grad = all_reduce(p.grad, group) / total
        """: "you did not multiply this rank's mean gradient by its `count` first",
        """
        def average_gradients(model, count, group):
            total = all_reduce(torch.tensor(count), group).item()
            for p in model.parameters():
                p.grad = all_reduce(p.grad, group) * (count / total)
        """: "Weight a rank's own gradients *before*",
        """
        def average_gradients(model, count, group):
            total = all_reduce(torch.tensor(float(count)), group)
            for p in model.parameters():
                p.grad *= count / total
        """: "the sum over the ranks is missing",
        """
        def average_gradients(model, count, group):
            total = all_reduce(torch.tensor(float(count)), group)
            for p in model.parameters():
                p.grad *= count / total
                all_reduce(p.grad, group, op="avg")
        """: "the weights add up to 1 already",
        """
        def average_gradients(model, count, group):
            for p in model.parameters():
                p.grad *= count / group.size
                all_reduce(p.grad, group)
        """: "The weights are samples over *ranks*",
        """
        def average_gradients(model, count, group):
            total = all_reduce(torch.tensor(float(count)), group)
            for p in model.parameters():
                all_reduce(p.grad * count / total, group)
        """: "put the result into `p.grad`, in place",
        """
        def average_gradients(model, count, group):
            total = all_reduce(torch.tensor(float(count)), group)
            for p in model.parameters():
                p.grad *= count / total
                return all_reduce(p.grad, group)
        """: "is there a `return` inside the loop?",
        """
        def average_gradients(model, count, group):
            total = all_reduce(torch.tensor(float(count)), group)
            for p in model.parameters():
                p.grad *= count / total
            all_reduce(p.grad, group)
        """: "should the all-reduce stand inside the loop?",
        """
        def average_gradients(model, count, group):
            total = all_reduce(torch.tensor(count), group)
            for p in model.parameters():
                p.grad *= count / total
                all_reduce(p.grad, group)
        """: "take the plain number with `.item()`",
    },
    "average_bucket": {
        "def average_bucket(bucket, group):\n    pass": "nothing was sent",
        """
        def average_bucket(bucket, group):
            for p in bucket:
                all_reduce(p.grad, group, op="avg")
        """: "made 3 all-reduces, one after the other",
        """
        def average_bucket(bucket, group):
            flat = torch.cat([p.grad.flatten() for p in bucket])
            all_reduce(flat, group, op="avg")
        """: "copy its parts back",
        """
        def average_bucket(bucket, group):
            flat = all_reduce(torch.cat([p.flatten() for p in bucket]), group, op="avg")
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))
        """: "You averaged the parameters, not their gradients",
        """
        def average_bucket(bucket, group):
            flat = all_reduce(torch.cat([p.data.flatten() for p in bucket]), group)
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))
        """: "You added up the parameters, not their gradients",
        """
        def average_bucket(bucket, group):
            flat = all_reduce(torch.cat([p.grad.flatten() for p in bucket]), group, op="avg")
            turned = bucket[::-1]
            for p, part in zip(turned, flat.split([p.numel() for p in turned])):
                p.grad.copy_(part.view_as(p))
        """: "in the order in which you joined the gradients",
        """
        def average_bucket(bucket, group):
            flat = all_reduce(torch.cat([p.grad.flatten() for p in bucket]), group)
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))
        """: "hold the sums over the ranks",
        """
        def average_bucket(bucket, group):
            flat = all_reduce(torch.cat([p.grad.flatten() for p in bucket]), group, op="avg")
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part)
        """: "with `view_as`",
        """
        def average_bucket(bucket, group):
            flat = all_reduce(torch.cat([p.grad.flatten() for p in bucket]), group, op="avg")
            for p, part in zip(bucket, flat.chunk(len(bucket))):
                p.grad.copy_(part.view_as(p))
        """: "split it by their `numel()`",
        """
        def average_bucket(bucket, group):
            flat = all_reduce(torch.cat([p.grad.flatten() for p in bucket]), group, op="avg")
            for p in bucket:
                p.grad.copy_(flat[: p.numel()].view_as(p))
        """: "Each parameter got the beginning of the flat tensor: every part begins",
        """
        def average_bucket(bucket, group):
            flat = all_reduce(torch.cat([p.grad.flatten() for p in bucket]), group)
            for p in bucket:
                p.grad.copy_(flat[: p.numel()].view_as(p))
        """: "times too large, since they are sums and no averages; and each parameter",
        """
        def average_bucket(bucket, group):
            flat = all_reduce(torch.cat([p.grad for p in bucket]), group, op="avg")
        """: "flatten each first",
        """
        def average_bucket(bucket, group):
            flat = all_reduce(torch.cat([p.grad.flatten() for p in bucket]), group, op="avg")
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                return p.grad.copy_(part.view_as(p))
        """: "Only the first gradient got its average back",
    },
    "overlapped": {
        GIVEN + "            pass": "call loss.backward()",
        GIVEN + BACK: "does your hook call `begin`",
        GIVEN + HOOK + HANG.replace("register_post_accumulate_grad_hook", "register_hook") + BACK + WAIT: (
            "called with a gradient"
        ),
        GIVEN + HOOK + BACK + HANG + WAIT: "do you register it before you call loss.backward()?",
        GIVEN + BACK + "            for bucket in buckets: end(begin(bucket, group))": "at the end of its backward",
        GIVEN + HOOK.replace("begin(buckets[n]", "begin(buckets") + HANG + BACK + WAIT: "`begin` takes one bucket",
        GIVEN + HOOK + HANG + BACK: "Keep in `under_way` what `begin` returns, and call `end` for each of them",
        GIVEN + HOOK + HANG + BACK + WAIT.replace("in under_way", "in under_way[-1:]"): "Only some of the buckets were",
        GIVEN + HOOK.replace("begin(buckets[n]", "begin(n") + HANG + BACK + WAIT: "`place[p]` is only its number",
        GIVEN
        + HOOK.replace("under_way.append(begin(buckets[n], group))", WAITED)
        + HANG
        + BACK: "waited for bucket 0 before its backward pass was over",
        GIVEN + HOOK.replace("if missing[n] == 0:", "if True:") + HANG + BACK + WAIT: "before all its gradients",
        GIVEN + HOOK.replace("missing[n] -= 1", "pass") + HANG + BACK + WAIT: "does your hook call `begin`",
        GIVEN
        + HOOK.replace("if missing[n] == 0", "if sum(missing) == 0").replace(
            "under_way.append(begin(buckets[n], group))", "under_way.extend(begin(b, group) for b in buckets)"
        )
        + HANG
        + BACK
        + WAIT: "does a bucket wait for its own gradients only?",
        GIVEN + HOOK + HANG + BACK + WAIT: "of your hooks are still registered",
    },
    "overlapped_in_order": {
        IN_ORDER.replace("HOOK", "pass"): "Your hook begins no bucket",
        IN_ORDER.replace(
            "HOOK", "if missing[place[p]] == 0: under_way.append(begin(buckets[place[p]], group))"
        ): "Rank 1 sent bucket 1 before bucket 0",
        IN_ORDER.replace(
            "HOOK",
            "if len(under_way) < len(buckets) and missing[len(under_way)] == 0: "
            "under_way.append(begin(buckets[len(under_way)], group))",
        ): "look at the next one too",
        IN_ORDER.replace(
            "HOOK",
            "while missing[len(under_way)] == 0: under_way.append(begin(buckets[len(under_way)], group))",
        ): "after the last one",
        IN_ORDER.replace(
            "HOOK", "if not any(missing): under_way.extend(begin(bucket, group) for bucket in buckets)"
        ): "they left too late",
    },
    "accumulate": {
        """
        def accumulate(model, pieces, loss_of):
            from contextlib import nullcontext
            for number, piece in enumerate(pieces, 1):
                with model.no_sync() if number == len(pieces) else nullcontext():
                    (loss_of(piece) / len(pieces)).backward()
        """: "exchange the two",
        """
        def accumulate(model, pieces, loss_of):
            for piece in pieces[:-1]:
                with model.no_sync():
                    (loss_of(piece) / len(pieces)).backward()
            loss_of(pieces[-1]).backward()
        """: "the loss of the last one was not divided",
        """
        def accumulate(model, pieces, loss_of):
            for x, _ in pieces:
                model(x).square().mean().backward()
        """: "These are the gradients of another loss",
        """
        def accumulate(model, pieces, loss_of):
            for piece in pieces:
                (loss_of(model, piece) / len(pieces)).backward()
        """: "`loss_of` takes one argument",
        "def accumulate(model, pieces, loss_of):\n    pass": "No parameter has a gradient",
        """
        def accumulate(model, pieces, loss_of):
            (sum(loss_of(piece) for piece in pieces) / len(pieces)).backward()
        """: "exist at once",
        """
        def accumulate(model, pieces, loss_of):
            for number, piece in enumerate(pieces, 1):
                with nullcontext() if number == 1 else model.no_sync():
                    (loss_of(piece) / len(pieces)).backward()
        """: "You send after the first piece",
        """
        def accumulate(model, pieces, loss_of):
            for piece in pieces:
                (loss_of(piece) / len(pieces)).backward()
        """: "made 3 all-reduces for its 3 pieces",
        """
        def accumulate(model, pieces, loss_of):
            for piece in pieces[:-1]:
                loss = loss_of(piece) / len(pieces)
                with model.no_sync():
                    loss.backward()
            (loss_of(pieces[-1]) / len(pieces)).backward()
        """: "the wrapper decides in the forward pass whether it will send",
        """
        def accumulate(model, pieces, loss_of):
            for number, piece in enumerate(pieces, 1):
                with nullcontext() if number == len(pieces) else model.no_sync():
                    loss_of(piece).backward()
        """: "3 times too large",
        """
        def accumulate(model, pieces, loss_of):
            with model.no_sync():
                for piece in pieces:
                    (loss_of(piece) / len(pieces)).backward()
        """: "the last pass must",
        """
        def accumulate(model, pieces, loss_of):
            with model.no_sync():
                for piece in pieces[:-1]:
                    loss_of(piece).backward()
            (loss_of(pieces[-1]) / len(pieces)).backward()
        """: "Only the loss of the last piece was divided",
        """
        def accumulate(model, pieces, loss_of):
            for number, piece in enumerate(pieces, 1):
                model.zero_grad()
                with nullcontext() if number == len(pieces) else model.no_sync():
                    (loss_of(piece) / len(pieces)).backward()
        """: "Only the last piece is in the gradients, divided by 3",
        """
        def accumulate(model, pieces, loss_of):
            (loss_of(pieces[-1])).backward()
        """: "Only the last piece is in the gradients: did",
        """
        def accumulate(model, pieces, loss_of):
            for number, piece in enumerate(pieces, 1):
                with nullcontext() if number == len(pieces) else model.no_sync():
                    (loss_of(piece) / len(pieces) / model.group.size).backward()
        """: "times too small: the wrapper has divided",
    },
}
