"""What a reader is to write: the notebook has the book's version, the copy a stub; evidence tells right from wrong."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from pathlib import Path

import pytest
from slices import changed_last

from labkit import book
from labkit.book.reading import chapter as door
from labkit.book.reading.writing import NotWritten, tasks
from labkit.commands.copies import pristine
from labkit.course import load
from labkit.course.chapter_file import load_chapter
from labkit.course.errors import CourseError
from labkit.course.progress import Progress
from labkit.grading.source.markers import SOLUTION, count, inside, replaced

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CHAPTERS = [chapter.name for chapter in load().written() if load_chapter(chapter.name).to_write]
START, WHY, MESSAGES, SUMS, DATA = (
    "00_start_here",
    "01_why_distribute",
    "02_ranks_and_messages",
    "03_collectives",
    "04_data_parallelism",
)
STEP = "def step_seconds(compute, ranks, messages, waiting, hidden):\n    "
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
# chapter, function: wrong versions, each with words of the sentence that must reject it
WRONG = {
    (START, "total"): {
        "def total(x, group):\n    return x": "nothing was added",
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
        """: "ranks 0 and 1 wait for each other",
        """
        def total(x, group):
            left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
            whole = x
            for _ in range(group.size - 1):
                x = group.exchange(x, to=right, like=torch.empty_like(x), source=left)
                whole = whole + x
            return whole
        """: "with 3 ranks rank 1 sent 2 messages, and the target is 1",
        """
        def total(x, group):
            if group.rank == 0:
                for other in range(1, group.size):
                    group.send(x, to=other)
            return group.recv(torch.empty_like(x), source=(group.rank - 1) % group.size)
        """: "while others wait for it",
    },
    (START, "share"): {
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
    (SUMS, "add_around"): {
        "def add_around(chunks, group):\n    pass": "nothing was sent. The loop has n - 1 rounds",
        "def add_around(chunks, group):\n    all_reduce(chunks[0], group)": "A ready-made all_reduce did the work",
        around(ADD, NOW, BEFORE, "chunks[(me - step - 1) % n] = into + {}"): "and `chunks[c] = x` make another tensor",
        around(ADD, NOW, BEFORE, "into += {}; return"): "but rank 0 sent 1: does the loop end too early",
        around(ADD, NOW, BEFORE, "into += {}; into /= 2"): "something was divided",
        around(ADD, NOW, BEFORE, "into += group.exchange(out, (me - 1) % n, torch.empty_like(into), (me + 1) % n)"):
            "rank 0 sent to rank 2, which is not its right neighbour",
        around(ADD, NOW, BEFORE, "into += group.exchange(out, (me + 1) % n, torch.empty_like(into), (me + 1) % n)"):
            "Does each rank receive from the one that sends to it?",
        around(ADD, NOW, BEFORE, "into += group.exchange(out, (me + 1) % n, into, (me - 1) % n)"):
            "what arrived is in it twice. `exchange` writes over",
        around(ADD, NOW, BEFORE, """
        into += group.exchange(out.float(), (me + 1) % n, torch.empty(len(into)), (me - 1) % n)"""):
            "was the chunk converted to another dtype?",
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
    (SUMS, "copy_around"): {
        "def copy_around(chunks, group):\n    pass": "nothing was sent",
        around(COPY, NEXT, NOW, "into += group.exchange(out, (me + 1) % n, into, (me - 1) % n)"): "has the sum twice",
        around(COPY, "me - step + 1", "me - step", "into.copy_({})"): "Take the numbers of chunks modulo n",
        around(COPY, "(me + 1) % n", NOW, "into.copy_({})"): "chunk 2 has what belongs into chunk 0",
        around(COPY, "(me + 1) % n", "me", "into.copy_({})"): "chunk 2 never arrived",
        around(COPY, NEXT, NOW, "{}"): "none has changed. Let `exchange` receive into the chunk",
        around(COPY, NEXT, NOW, "into += {}"): "Here what arrives replaces",
        around(COPY, NEXT, NOW, "into = {}"): "receive into the chunk itself",
        around(COPY, NOW, BEFORE, "into.copy_({})"): "was complete at the beginning, and is not any more",
    },
    (SUMS, "my_recursive_doubling"): {
        "def my_recursive_doubling(x, group):\n    return x": "nothing was sent. Begin with distance 1",
        doubling("group.exchange(x, partner, torch.empty_like(x), partner)"): "still has its own numbers",
        doubling("x += group.exchange(x, partner, x, partner)"): "its partner's numbers twice",
        doubling("x += {}", partner="group.rank ^ 1"): "the second partner is the first one again",
        doubling("x += {}", partner="group.rank + distance"): "The partner is `group.rank ^ distance`",
        doubling("x += {}", after="x / group.size"): "half of the sum, as an average of two would be",
        doubling("x += {}", after="None"): "A rank returned None",
        doubling("x += {}", before="own = x.clone()", what="own"): "send the sum so far",
        doubling("x += {}", before="x = x.half()"): "returned float16; its input is float32",
        doubling("group.send(x, partner); x += group.recv(torch.empty_like(x), partner)"):
            "`group.exchange` does both at the same time",
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
    (WHY, "training_bytes"): {
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
    },
    (WHY, "step_seconds"): {
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
    },
    (WHY, "cut_columns"): {
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
    (MESSAGES, "whisper"): {
        "def whisper(text, group, source, to):\n    return text": "nothing was received",
        """
        def whisper(text, group, source, to):
            if group.rank == source:
                group.send(encode(text), to)
            if group.rank == to:
                return decode(group.recv(torch.zeros(56, dtype=torch.uint8), source))
            return text
        """: "but rank 1 receives uint8[56]",
        """
        def whisper(text, group, source, to):
            if group.rank == source:
                words = torch.zeros(100, dtype=torch.uint8)
                words[: len(text)] = encode(text)
                group.send(words, to)
            if group.rank == to:
                text = decode(group.recv(torch.zeros(100, dtype=torch.uint8), source)).strip(chr(0))
            return text
        """: "rank 0 sent 100 bytes for it; a length of 8 bytes and the text are 38",
        """
        def whisper(text, group, source, to):
            if group.rank == source:
                group.send(torch.tensor([len(text)]), to)
                group.send(encode(text), to)
            if group.rank == to:
                length = group.recv(torch.zeros(1, dtype=torch.int64), source)
                return decode(group.recv(torch.zeros(int(length), dtype=torch.uint8), source))
            return text
        """: "it has more bytes than letters",
        """
        def whisper(text, group, source, to):
            if group.rank == source:
                group.send(torch.tensor([len(text)]), to)
                group.send(encode(text), to)
            else:
                length = group.recv(torch.zeros(1, dtype=torch.int64), source)
                return group.recv(torch.zeros(int(length), dtype=torch.uint8), source)
            return text
        """: "`decode` makes one of the bytes",
        """
        def whisper(text, group, source, to):
            if group.rank == source:
                group.send(torch.tensor([len(text)]), to)
                group.send(encode(text), to)
            if group.rank == to:
                length = group.recv(torch.zeros(1, dtype=torch.int64), source)
                return decode(group.recv(torch.zeros(int(length), dtype=torch.uint8), source))
        """: "must return their own text",
    },
    (MESSAGES, "pass_right"): {
        "def pass_right(mine, group):\n    return mine": "return the one that came from the left",
        """
        def pass_right(mine, group):
            theirs = torch.empty_like(mine)
            group.send(mine, to=(group.rank + 1) % group.size)
            return group.recv(theirs, source=(group.rank - 1) % group.size)
        """: "ranks 0 and 1 wait for each other",
        """
        def pass_right(mine, group):
            theirs, left, right = torch.empty_like(mine), (group.rank - 1) % group.size, (group.rank + 1) % group.size
            if group.rank % 2:
                group.recv(theirs, source=right)
                group.send(mine, to=left)
            else:
                group.send(mine, to=left)
                group.recv(theirs, source=right)
            return theirs
        """: "send to the right, and receive from the left",
        """
        def pass_right(mine, group):
            theirs = [torch.empty_like(mine) for _ in range(group.size)]
            for r in range(group.size):
                for to in range(group.size):
                    if r != to:
                        group.send(mine, to=to) if group.rank == r else None
                        group.recv(theirs[r], source=r) if group.rank == to else None
            return theirs[(group.rank - 1) % group.size]
        """: "With 4 ranks rank 0 sent 3 messages, and 1 is enough",
        """
        def pass_right(mine, group):
            theirs, left, right = torch.empty_like(mine), (group.rank - 1) % group.size, (group.rank + 1) % group.size
            return group.exchange(mine, to=right, like=theirs, source=left)
        """: "all ranks send and receive at once",
        """
        def pass_right(mine, group):
            left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
            if group.rank == 0:
                group.recv(mine, source=left)
                group.send(mine, to=right)
                return mine
            group.send(mine, to=right)
            return group.recv(torch.empty_like(mine), source=left)
        """: "do you receive into `mine` before you have sent it?",
    },
    (DATA, "average_gradients"): {
        "def average_gradients(model, count, group):\n    pass": "nothing was sent",
        """
        def average_gradients(model, count, group):
            for p in model.parameters():
                all_reduce(p.grad, group, op="avg")
        """: "This is the plain average of the ranks. They have 2, 5 samples",
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
    },
    (DATA, "average_bucket"): {
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
            flat = all_reduce(torch.cat([p.grad for p in bucket]), group, op="avg")
        """: "flatten each first",
        """
        def average_bucket(bucket, group):
            flat = all_reduce(torch.cat([p.grad.flatten() for p in bucket]), group, op="avg")
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                return p.grad.copy_(part.view_as(p))
        """: "Only the first gradient got its average back",
    },
    (DATA, "overlapped"): {
        GIVEN + "            pass": "call loss.backward()",
        GIVEN + BACK: "does your hook call `begin`",
        GIVEN + HOOK + BACK + HANG + WAIT: "do you hang it up before you call loss.backward()?",
        GIVEN + BACK + "            for bucket in buckets: end(begin(bucket, group))": "at the end of its backward",
        GIVEN + HOOK + HANG + BACK: "who calls `end`?",
        GIVEN + HOOK.replace("under_way.append(begin(buckets[n], group))", WAITED) + HANG + BACK:
            "waited for bucket 0 before its backward pass was over",
        GIVEN + HOOK.replace("if missing[n] == 0:", "if True:") + HANG + BACK + WAIT: "before all its gradients",
        GIVEN + HOOK.replace("missing[n] -= 1", "pass") + HANG + BACK + WAIT: "does your hook call `begin`",
        GIVEN + HOOK.replace("if missing[n] == 0", "if sum(missing) == 0").replace(
            "under_way.append(begin(buckets[n], group))", "under_way.extend(begin(b, group) for b in buckets)"
        ) + HANG + BACK + WAIT: "does a bucket wait for its own gradients only?",
    },
}  # fmt: skip


class Reader:
    """A namespace in place of a notebook's, a chapter that looks into it, and what it showed."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, object] = {}
        exec(
            "import os, time, torch\nimport torch.nn.functional as F\nfrom labkit import collectives\n"
            "from labkit.collectives import all_reduce\nfrom labkit.data import decode, encode\n"
            "from labkit.chapters.c04_data_parallelism.you_write import begin, end",
            self.names,
        )
        self.progress = Progress(folder / "progress.json")
        self.chapter = door.Chapter(name, {"seed": 0, "world_size": 3}, self.progress)
        self.shown: list[object] = []
        monkeypatch.setattr(door, "namespace", lambda: self.names)
        monkeypatch.setattr(door, "show", self.shown.append)

    def writes(self, code: str, name: str) -> object:
        """Runs `code` as a cell, then the cell below it. Returns what that cell puts in place of the function."""
        exec(textwrap.dedent(code), self.names)
        return self.chapter.check(name)

    @property
    def said(self) -> str:
        return repr(self.shown[-1])


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HEADLESS", "0")
    return lambda name: Reader(name, tmp_path, monkeypatch)


def solved(name: str) -> dict[str, str]:
    """The cells between markers, by the function that each defines."""
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    return {ast.parse(s).body[-1].name: s for s in sources if count(s, SOLUTION)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_notebook_has_the_books_version_and_the_copy_a_stub(name):
    cells, known = solved(name), tasks(name)
    assert list(cells) == list(known) and len(known) == load_chapter(name).to_write
    copy = "\n".join(cell.source for cell in pristine(NOTEBOOKS / f"{name}.ipynb").cells if cell.cell_type == "code")
    for task, cell in cells.items():
        book_s = ast.parse(textwrap.dedent(inspect.getsource(known[task].own))).body[0]
        ours = ast.parse(replaced(cell, SOLUTION, []) and "\n".join(
            line for line in cell.split("\n") if "### " not in line)).body[-1]  # fmt: skip
        for one in (book_s, ours):
            one.decorator_list = []  # type: ignore[attr-defined]
            one.returns = None  # type: ignore[attr-defined]
            for arg in one.args.args:  # type: ignore[attr-defined]
                arg.annotation = None
        assert ast.dump(book_s) == ast.dump(ours), f"{task}: the cell and the room differ"
        assert f'{task} = chapter.check("{task}")' in copy and "raise NotImplementedError(" in copy
        assert "\n".join(inside(cell, SOLUTION)) not in copy


@pytest.mark.ranks
@pytest.mark.parametrize("name", CHAPTERS)
def test_the_books_version_is_right_and_a_stub_is_passed_over(name, reader):
    one = reader(name)
    for task, known in tasks(name).items():
        stub = f"def {task}(*args, **options):\n    raise NotImplementedError('write it')"
        assert (
            one.writes(stub, task) is known.own and "Not written yet" in one.said and "Show a solution" not in one.said
        )
        one.names[task] = lambda *args, own=known.own, **options: own(*args, **options)
        assert one.chapter.check(task) is one.names[task] and "✓ Right." in one.said
        assert one.progress.chapters()[name]["written"][task] | {"at": ""} == {"tries": 1, "right": True, "at": ""}
        one.names[task] = known.own
        assert one.chapter.check(task) is known.own and f"This is the book's {task}" in one.said


@pytest.mark.ranks
@pytest.mark.parametrize("name", changed_last(CHAPTERS))
def test_a_wrong_one_is_told_why_and_may_then_see_a_solution(name, reader):
    one = reader(name)
    assert {task for chapter, task in WRONG if chapter == name} == set(tasks(name))
    for (chapter, task), wrong in WRONG.items():
        for code, words in wrong.items() if chapter == name else ():
            assert one.writes(code, task) is tasks(name)[task].own, code
            assert words in one.said, (code, one.said)
            html = one.shown[-1]._repr_mimebundle_()["text/html"]  # type: ignore[attr-defined]
            assert "Show a solution" in html and 'role="status"' in html


@pytest.mark.ranks
def test_whatever_a_reader_does_is_answered_in_a_sentence_and_nothing_is_left(reader, capfd, monkeypatch):
    one = reader(START)
    monkeypatch.setattr("labkit.world.job.kernel", lambda: "as in a notebook")
    for code, words in (
        ("def total(x, group):\n    while True: time.sleep(0.01)", "did not end within 2 s"),
        ("def total(x, group):\n    print('a' * 1_000_000)\n    return x", "nothing was added"),
        ("def total(x, group):\n    os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("def total(x, group):\n    return 'a sum'", "a sum"),
        ("def total(x):\n    return x", "takes 1 positional argument but 2 were given"),
        ("def total(x, group):\n    return open('/dev/null')", "returned"),
        ("total = 3", "total is a int, and should be a function"),
        ("def total(x, group):\n    return y", "name 'y' is not defined"),
    ):
        assert one.writes(code, "total") is tasks(START)["total"].own
        assert words in one.said, (code, one.said)
    printed = capfd.readouterr().out
    assert printed.count("a") < 201_000 and printed.count("no more of this rank here") == 2
    del one.names["total"]
    one.chapter.check("total")
    assert "There is no total yet: run the cell of your answer" in one.said
    with pytest.raises(CourseError, match="asks nobody to write 'totel' .did you mean 'total'"):
        one.chapter.check("totel")


@pytest.mark.ranks
def test_without_a_reader_a_wrong_one_stops_the_run(reader, monkeypatch):
    monkeypatch.setenv("LABKIT_HEADLESS", "1")
    one = reader(START)
    with pytest.raises(NotWritten, match="nothing was added"):
        one.writes("def total(x, group):\n    return x", "total")


@pytest.mark.ranks
def test_a_cell_that_also_sets_a_name_of_the_chapter_is_told(reader):
    import linecache

    one = reader(START)
    cell = "launch = 1\ndef total(x, group):\n    return x\n"
    linecache.cache["<cell 7>"] = (len(cell), None, cell.splitlines(True), "<cell 7>")
    one.names["In"] = ["", "from functools import partial\nlaunch = partial(print)", "%matplotlib", cell]
    exec(compile(cell, "<cell 7>", "exec"), one.names)
    one.chapter.check("total")
    assert "Your cell also sets launch" in one.said and "partial" not in one.said


def test_a_chapter_that_asks_for_nothing_says_so():
    with pytest.raises(CourseError, match="asks nobody to write 'x'. It asks for: nothing"):
        book.open_chapter("21_hundred_thousand_gpus").check("x")
