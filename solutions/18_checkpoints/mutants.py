"""The zoo of the exercises of chapter 18: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import json
import zlib

import torch

from labkit import collectives
from labkit.grading.checks.zoo import mutant, slip, variant

# Each example once --------------------------------------------------------------------------------------------------


@mutant("each-example-once", "my_batches", says="in life 1, step 0")
def counts_steps(state, group, count, each, seed, steps):
    taken, first = [], state or 0
    a_step = each * group.size
    an_epoch = -(-count // a_step)
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(seed + step // an_epoch)
        order = torch.randperm(count, generator=generator)
        coming = order[step % an_epoch * a_step :][:a_step]
        taken.append(coming.tensor_split(group.size)[group.rank])
    return [taken, first + steps]


@mutant("each-example-once", "my_batches", says="in life 1, step 0")
def begins_again(state, group, count, each, seed, steps):
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    taken = []
    for step in range(steps):
        coming = order[step * each * group.size :][: each * group.size]
        taken.append(coming.tensor_split(group.size)[group.rank])
    return [taken, 0]


@mutant("each-example-once", "my_batches", says="shared in another way")
def one_by_one(state, group, count, each, seed, steps):
    epoch, seen = state or (0, 0)
    taken = []
    for _ in range(steps):
        if seen == count:
            epoch, seen = epoch + 1, 0
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
        coming = order[seen : seen + each * group.size]
        seen += len(coming)
        taken.append(coming[group.rank :: group.size])
    return [taken, [epoch, seen]]


@mutant("each-example-once", "my_batches", says="The right examples, shared in another way", at=1)
def sorted_for_the_disk(state, group, count, each, seed, steps):
    epoch, seen = state or (0, 0)
    taken = []
    for _ in range(steps):
        if seen == count:
            epoch, seen = epoch + 1, 0
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
        coming = order[seen : seen + each * group.size]
        seen += len(coming)
        taken.append(coming.sort().values.tensor_split(group.size)[group.rank])
    return [taken, [epoch, seen]]


the_same_order_in_every_epoch = slip(
    "each-example-once", "my_batches", says="Which examples does nobody take", change="""
-    def order_of(epoch):
-        return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))

-        coming = order_of(epoch)[seen : seen + each * group.size]
+        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
+        coming = order[seen : seen + each * group.size]
""")  # fmt: skip


@mutant("each-example-once", "my_batches", says="after 4 steps of 3")
def drops_what_is_left(state, group, count, each, seed, steps):
    epoch, seen = state or (0, 0)
    taken = []
    for _ in range(steps):
        if seen + each * group.size > count:
            epoch, seen = epoch + 1, 0
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
        coming = order[seen : seen + each * group.size]
        seen += len(coming)
        taken.append(coming.tensor_split(group.size)[group.rank])
    return [taken, [epoch, seen]]


@mutant("each-example-once", "my_batches", says="What says in two numbers where the data stand")
def keeps_a_list_of_all_it_saw(state, group, count, each, seed, steps):
    epoch, old = state or (0, [])
    old, taken = list(old), []
    for _ in range(steps):
        if len(old) == count:
            epoch, old = epoch + 1, []
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
        coming = order[len(old) :][: each * group.size]
        old += coming.tolist()
        taken.append(coming.tensor_split(group.size)[group.rank])
    return [taken, [epoch, old]]


@mutant("each-example-once", "my_batches", says="returned another state than rank 0")
def a_state_of_its_own(state, group, count, each, seed, steps):
    epoch, seen, _ = state or (0, 0, 0)
    taken = []
    for _ in range(steps):
        if seen == count:
            epoch, seen = epoch + 1, 0
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
        coming = order[seen : seen + each * group.size]
        seen += len(coming)
        taken.append(coming.tensor_split(group.size)[group.rank])
    return [taken, [epoch, seen, group.rank]]


rank_0_deals_out = slip("each-example-once", "my_batches", says="messages were sent. None is needed", change="""
-    def order_of(epoch):
-        return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))

-        coming = order_of(epoch)[seen : seen + each * group.size]
+        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
+        order = collectives.broadcast(order, group, root=0)
+        coming = order[seen : seen + each * group.size]
""")  # fmt: skip


@variant("each-example-once", "my_batches")
def one_number_for_all_epochs(state, group, count, each, seed, steps):
    total, taken = state or 0, []
    for _ in range(steps):
        epoch, seen = divmod(total, count)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
        coming = order[seen : seen + each * group.size]
        total += len(coming)
        taken.append(coming.tensor_split(group.size)[group.rank])
    return [taken, total]


@variant("each-example-once", "my_batches")
def by_hand_in_a_dictionary(state, group, count, each, seed, steps):
    state = dict(state) if state else {"epoch": 0, "seen": 0}
    taken = []
    for _ in range(steps):
        if state["seen"] >= count:
            state = {"epoch": state["epoch"] + 1, "seen": 0}
        generator = torch.Generator().manual_seed(seed + state["epoch"])
        order = torch.randperm(count, generator=generator).tolist()
        coming = order[state["seen"] : state["seen"] + each * group.size]
        share, more = divmod(len(coming), group.size)
        begin = group.rank * share + min(group.rank, more)
        taken.append(torch.tensor(coming[begin : begin + share + (group.rank < more)], dtype=torch.int64))
        state["seen"] += len(coming)
    return [taken, json.loads(json.dumps(state))]


# Which tensor? ------------------------------------------------------------------------------------------------------


@mutant("which-tensor", "my_damaged", says="Another rank does: all must know it")
def only_its_own_file(mine, group):
    found = []
    for name, offset, nbytes, crc in mine["pieces"]:
        if zlib.crc32(bytes(mine["data"][offset : offset + nbytes].tolist())) != crc:
            found.append(name)
    return sorted(set(found))


@mutant("which-tensor", "my_damaged", says="does not name")
def nothing_is_ever_wrong(mine, group):
    return []


@mutant("which-tensor", "my_damaged", says="its pieces are all as they were written")
def believes_nothing_behind_a_fault(mine, group):
    wrong, bad = torch.zeros(len(mine["names"])), False
    for name, offset, nbytes, crc in mine["pieces"]:
        bad = bad or zlib.crc32(bytes(mine["data"][offset : offset + nbytes].tolist())) != crc
        if bad:
            wrong[mine["names"].index(name)] = 1
    wrong = collectives.all_reduce(wrong, group, "sum")
    return sorted(name for name, times in zip(mine["names"], wrong.tolist(), strict=True) if times)


trusts_what_is_short = slip("which-tensor", "my_damaged", says="does not name", change="""
-        if zlib.crc32(bytes(mine["data"][offset : offset + nbytes].tolist())) != crc:
+        data = bytes(mine["data"][offset : offset + nbytes].tolist())
+        if len(data) == nbytes and zlib.crc32(data) != crc:
""")  # fmt: skip


stops_at_the_first = slip("which-tensor", "my_damaged", says="does not name", change="""
             wrong[mine["names"].index(name)] = 1
+            break
""")  # fmt: skip


@mutant("which-tensor", "my_damaged", says="Sort the names, each once")
def in_the_order_of_the_checkpoint_from_below(mine, group):
    wrong = torch.zeros(len(mine["names"]))
    for name, offset, nbytes, crc in mine["pieces"]:
        if zlib.crc32(bytes(mine["data"][offset : offset + nbytes].tolist())) != crc:
            wrong[mine["names"].index(name)] += 1
    wrong = collectives.all_reduce(wrong, group, "sum")
    return [name for name, times in zip(mine["names"], wrong.tolist(), strict=True) if times][::-1]


@mutant("which-tensor", "my_damaged", says="A number for each of")
def sends_its_file_to_all(mine, group):
    sizes = [int(n) for n in collectives.all_gather(torch.tensor([len(mine["data"])]), group)]
    rows = torch.tensor([[mine["names"].index(name), *rest] for name, *rest in mine["pieces"]])
    counts = [int(n) for n in collectives.all_gather(torch.tensor([len(rows)]), group)]
    files = collectives.all_gather(mine["data"], group, sizes).split(sizes)
    found = set()
    for data, pieces in zip(files, collectives.all_gather(rows, group, counts).split(counts), strict=True):
        for number, offset, nbytes, crc in pieces.tolist():
            if zlib.crc32(bytes(data[offset : offset + nbytes].tolist())) != crc:
                found.add(mine["names"][number])
    return sorted(found)


@variant("which-tensor", "my_damaged")
def all_verdicts_of_all_ranks(mine, group):
    good = torch.ones(1, len(mine["names"]), dtype=torch.uint8)
    for name, offset, nbytes, crc in mine["pieces"]:
        data = mine["data"][offset : offset + nbytes].numpy().tobytes()
        good[0, mine["names"].index(name)] &= int(zlib.crc32(data) == crc)
    every = collectives.all_gather(good, group).view(group.size, -1)
    return sorted(name for k, name in enumerate(mine["names"]) if not every[:, k].all())


@variant("which-tensor", "my_damaged")
def around_the_ring(mine, group):
    wrong = torch.zeros(len(mine["names"]), dtype=torch.int64)
    for name, offset, nbytes, crc in mine["pieces"]:
        wrong[mine["names"].index(name)] |= zlib.crc32(bytes(mine["data"][offset:][:nbytes].tolist())) != crc
    moving = wrong.clone()
    for _ in range(group.size - 1):
        right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        moving = group.exchange(moving, to=right, like=torch.empty_like(moving), source=left)
        wrong |= moving
    return sorted(mine["names"][k] for k in wrong.nonzero().flatten().tolist())


# Whole or not at all ------------------------------------------------------------------------------------------------


@mutant("whole-or-not-at-all", "my_save", says="A manifest may have its name when the parts of all ranks are there")
def nobody_waits(mine, group, step, old):
    calls = [["write", f"{step}-{group.rank}", mine], ["fsync", f"{step}-{group.rank}"]]
    if group.rank == 0:
        lines = "\n".join(f"{step}-{rank}" for rank in range(group.size))
        calls += [["write", "new", lines.encode()], ["fsync", "new"], ["rename", "new", f"step-{step}"], ["sync"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        calls += [["remove", name] for name in old]
    return calls


@mutant("whole-or-not-at-all", "my_save", says="Give the manifest its name when it is whole.")
def a_manifest_in_place(mine, group, step, old):
    calls = [["write", f"{step}-{group.rank}", mine], ["fsync", f"{step}-{group.rank}"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        for rank in range(group.size):
            calls.append(["write", f"step-{step}", f"{step}-{rank}\n".encode()])
        calls += [["fsync", f"step-{step}"], ["sync"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        calls += [["remove", name] for name in old]
    return calls


@mutant("whole-or-not-at-all", "my_save", says="must be on the disk before the manifest has its name")
def parts_that_sit_in_memory(mine, group, step, old):
    calls = [["write", f"{step}-{group.rank}", mine]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        lines = "\n".join(f"{step}-{rank}" for rank in range(group.size))
        calls += [["write", "new", lines.encode()], ["fsync", "new"], ["rename", "new", f"step-{step}"], ["sync"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        calls += [["remove", name] for name in old]
    return calls


@mutant("whole-or-not-at-all", "my_save", says="when it is whole, and on the disk")
def a_manifest_that_sits_in_memory(mine, group, step, old):
    calls = [["write", f"{step}-{group.rank}", mine], ["fsync", f"{step}-{group.rank}"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        lines = "\n".join(f"{step}-{rank}" for rank in range(group.size))
        calls += [["write", "new", lines.encode()], ["rename", "new", f"step-{step}"], ["fsync", f"step-{step}"]]
        calls += [["sync"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        calls += [["remove", name] for name in old]
    return calls


@mutant("whole-or-not-at-all", "my_save", says="Names are on the disk after sync")
def without_sync(mine, group, step, old):
    calls = [["write", f"{step}-{group.rank}", mine], ["fsync", f"{step}-{group.rank}"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        lines = "\n".join(f"{step}-{rank}" for rank in range(group.size))
        calls += [["write", "new", lines.encode()], ["fsync", "new"], ["rename", "new", f"step-{step}"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        calls += [["remove", name] for name in old]
    return calls


@mutant("whole-or-not-at-all", "my_save", says="ranks that are done must not run ahead")
def others_run_ahead(mine, group, step, old):
    calls = [["write", f"{step}-{group.rank}", mine], ["fsync", f"{step}-{group.rank}"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        lines = "\n".join(f"{step}-{rank}" for rank in range(group.size))
        calls += [["write", "new", lines.encode()], ["fsync", "new"], ["rename", "new", f"step-{step}"], ["sync"]]
        calls += [["remove", name] for name in old]
    return calls


@mutant("whole-or-not-at-all", "my_save", says="The old one may go when the new one is safe")
def makes_room_first(mine, group, step, old):
    calls = []
    if group.rank == 0:
        calls += [["remove", name] for name in old]
    calls += [["write", f"{step}-{group.rank}", mine], ["fsync", f"{step}-{group.rank}"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        lines = "\n".join(f"{step}-{rank}" for rank in range(group.size))
        calls += [["write", "new", lines.encode()], ["fsync", "new"], ["rename", "new", f"step-{step}"], ["sync"]]
    group.barrier()
    calls.append(["barrier"])
    return calls


@mutant("whole-or-not-at-all", "my_save", says="The old one must stay as it is until the new one is safe")
def old_parts_go_too_early(mine, group, step, old):
    calls = [["write", f"{step}-{group.rank}", mine], ["fsync", f"{step}-{group.rank}"]]
    calls += [["remove", old[1 + group.rank]]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        lines = "\n".join(f"{step}-{rank}" for rank in range(group.size))
        calls += [["write", "new", lines.encode()], ["fsync", "new"], ["rename", "new", f"step-{step}"], ["sync"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        calls += [["remove", old[0]]]
    return calls


@mutant("whole-or-not-at-all", "my_save", says="is still there: nothing reads it any more")
def leaves_the_old_parts(mine, group, step, old):
    calls = [["write", f"{step}-{group.rank}", mine], ["fsync", f"{step}-{group.rank}"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        lines = "\n".join(f"{step}-{rank}" for rank in range(group.size))
        calls += [["write", "new", lines.encode()], ["fsync", "new"], ["rename", "new", f"step-{step}"], ["sync"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        calls += [["remove", old[0]]]
    return calls


@mutant("whole-or-not-at-all", "my_save", says="a barrier is noted, and no rank waited")
def only_says_that_it_waits(mine, group, step, old):
    calls = [["write", f"{step}-{group.rank}", mine], ["fsync", f"{step}-{group.rank}"], ["barrier"]]
    if group.rank == 0:
        lines = "\n".join(f"{step}-{rank}" for rank in range(group.size))
        calls += [["write", "new", lines.encode()], ["fsync", "new"], ["rename", "new", f"step-{step}"], ["sync"]]
    calls.append(["barrier"])
    if group.rank == 0:
        calls += [["remove", name] for name in old]
    return calls


@variant("whole-or-not-at-all", "my_save")
def parts_get_their_names_late_too(mine, group, step, old):
    part = f"part-{group.rank}-of-{step}"
    calls = [["write", part + ".new", mine], ["fsync", part + ".new"], ["rename", part + ".new", part], ["sync"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == group.size - 1:
        lines = "".join(f"part-{rank}-of-{step}\n" for rank in range(group.size))
        calls += [["write", "m", lines.encode()], ["fsync", "m"], ["rename", "m", f"step-{step}"], ["sync"]]
    group.barrier()
    calls.append(["barrier"])
    calls.append(["remove", old[1 + group.rank]])
    if group.rank == group.size - 1:
        calls.append(["remove", old[0]])
    return calls


@variant("whole-or-not-at-all", "my_save")
def the_last_barrier_at_the_end(mine, group, step, old):
    calls = [["write", f"{step}.{group.rank}", mine[:7]], ["write", f"{step}.{group.rank}", mine[7:]]]
    calls += [["fsync", f"{step}.{group.rank}"]]
    group.barrier()
    calls.append(["barrier"])
    if group.rank == 0:
        lines = "\n".join(f"{step}.{rank}" for rank in range(group.size))
        calls += [["write", "new", lines.encode()], ["fsync", "new"], ["rename", "new", f"step-{step}"], ["sync"]]
        calls += [["remove", name] for name in old] + [["sync"]]
    group.barrier()
    calls.append(["barrier"])
    return calls


# Only what they lack ------------------------------------------------------------------------------------------------


@mutant("only-what-they-lack", "my_reshard", says="which lacks", at=4)
def gathers_everything(x, group, old, new):
    def places(runs):
        return torch.cat([torch.arange(0), *(torch.arange(begin, end) for begin, end in runs)])

    held = [places(runs) for runs in old]
    whole = torch.empty(sum(map(len, held)), dtype=x.dtype)
    whole[torch.cat(held)] = collectives.all_gather(x, group, [len(h) for h in held])
    return whole[places(new[group.rank])]


@mutant("only-what-they-lack", "my_reshard", says="which lacks", at=4)
def sends_its_whole_part(x, group, old, new):
    def places(runs):
        return torch.cat([torch.arange(0), *(torch.arange(begin, end) for begin, end in runs)])

    held, wanted = places(old[group.rank]), places(new[group.rank])
    whole = torch.empty(max(end for runs in old for _, end in runs), dtype=x.dtype)
    whole[held] = x
    sends = []
    for other in range(group.size):
        if other != group.rank and torch.isin(held, places(new[other])).any():
            sends.append(group.isend(x, to=other))
    for other in range(group.size):
        theirs = places(old[other])
        if other != group.rank and torch.isin(theirs, wanted).any():
            whole[theirs] = group.recv(torch.empty(len(theirs), dtype=x.dtype), source=other)
    for send in sends:
        send.wait()
    return whole[wanted]


@mutant("only-what-they-lack", "my_reshard", says="messages;", at=4)
def an_empty_message_to_the_others(x, group, old, new):
    def places(runs):
        return torch.cat([torch.arange(0), *(torch.arange(begin, end) for begin, end in runs)])

    held, wanted = places(old[group.rank]), places(new[group.rank])
    whole = torch.empty(max(end for runs in old for _, end in runs), dtype=x.dtype)
    whole[held] = x
    others = [other for other in range(group.size) if other != group.rank]
    sends = [group.isend(x[torch.isin(held, places(new[other]))], to=other) for other in others]
    for other in others:
        theirs = places(old[other])
        coming = theirs[torch.isin(theirs, wanted)]
        whole[coming] = group.recv(torch.empty(len(coming), dtype=x.dtype), source=other)
    for send in sends:
        send.wait()
    return whole[wanted]


a_message_for_each_element = slip("only-what-they-lack", "my_reshard", says="messages;", at=2, change="""
-    me, held, wanted = group.rank, places(old[group.rank]), places(new[group.rank])
-    whole = torch.empty(max(end for runs in old for _, end in runs), dtype=x.dtype)  # where places are filled in
+    held, wanted = places(old[group.rank]), places(new[group.rank])
+    whole = torch.empty(max(end for runs in old for _, end in runs), dtype=x.dtype)

-        if other != me and lacked.any():
-            sends.append(group.isend(x[lacked], to=other))
+        if other != group.rank:
+            sends += [group.isend(element.reshape(1), to=other) for element in x[lacked]]

-        coming = theirs[torch.isin(theirs, wanted)]
-        if other != me and len(coming):
-            whole[coming] = group.recv(torch.empty(len(coming), dtype=x.dtype), source=other)
+        for place in theirs[torch.isin(theirs, wanted)] if other != group.rank else []:
+            whole[place] = group.recv(torch.empty(1, dtype=x.dtype), source=other)[0]
""")  # fmt: skip


@mutant("only-what-they-lack", "my_reshard", says="elements are wrong", at=4)
def in_the_order_in_which_they_came(x, group, old, new):
    def places(runs):
        return torch.cat([torch.arange(0), *(torch.arange(begin, end) for begin, end in runs)])

    held, wanted = places(old[group.rank]), places(new[group.rank])
    sends, parts = [], [x[torch.isin(held, wanted)]]  # its own first
    for other in range(group.size):
        lacked = torch.isin(held, places(new[other]))
        if other != group.rank and lacked.any():
            sends.append(group.isend(x[lacked], to=other))
    for other in range(group.size):
        coming = int(torch.isin(places(old[other]), wanted).sum())
        if other != group.rank and coming:
            parts.append(group.recv(torch.empty(coming, dtype=x.dtype), source=other))
    for send in sends:
        send.wait()
    return torch.cat(parts)


@mutant("only-what-they-lack", "my_reshard", says="elements of float32", at=4)
def keeps_what_it_had(x, group, old, new):
    return x


sorted_whatever_was_asked_for = slip("only-what-they-lack", "my_reshard", says="to columns from below", at=4, change="""
-    me, held, wanted = group.rank, places(old[group.rank]), places(new[group.rank])
+    held, wanted = places(old[group.rank]), places(new[group.rank]).sort().values

-        if other != me and lacked.any():
+        if other != group.rank and lacked.any():

-        if other != me and len(coming):
+        if other != group.rank and len(coming):
""")  # fmt: skip


@variant("only-what-they-lack", "my_reshard", at=4)
def by_intersections_of_runs(x, group, old, new):
    def common(held, wanted):
        at = 0
        for begin, end in held:
            for first, last in wanted:
                low, high = max(begin, first), min(end, last)
                if low < high:
                    yield at + low - begin, low, high - low
            at += end - begin

    whole = torch.empty(max(end for runs in old for _, end in runs), dtype=x.dtype)
    for at, place, length in common(old[group.rank], new[group.rank]):
        whole[place : place + length] = x[at : at + length]
    sends = []
    for other in range(group.size):
        pieces = [x[at : at + length] for at, _, length in common(old[group.rank], new[other])]
        if other != group.rank and pieces:
            sends.append(group.isend(torch.cat(pieces), to=other))
    for other in range(group.size):
        pieces = list(common(old[other], new[group.rank]))
        if other != group.rank and pieces:
            came = group.recv(torch.empty(sum(n for *_, n in pieces), dtype=x.dtype), source=other)
            for _, place, length in pieces:
                whole[place : place + length], came = came[:length], came[length:]
    for send in sends:
        send.wait()
    return torch.cat([whole[:0], *(whole[begin:end] for begin, end in new[group.rank])])


@variant("only-what-they-lack", "my_reshard", at=4)
def element_by_element_in_turns(x, group, old, new):
    places = [[i for begin, end in runs for i in range(begin, end)] for runs in old]
    targets = [[i for begin, end in runs for i in range(begin, end)] for runs in new]
    have = dict(zip(places[group.rank], x, strict=True))
    for distance in range(1, group.size):
        to, source = (group.rank + distance) % group.size, (group.rank - distance) % group.size
        leaving = sorted(set(places[group.rank]) & set(targets[to]))
        coming = sorted(set(places[source]) & set(targets[group.rank]))
        send = group.isend(torch.stack([have[i] for i in leaving]), to=to) if leaving else None
        if coming:
            have |= dict(zip(coming, group.recv(torch.empty(len(coming), dtype=x.dtype), source=source), strict=True))
        if send:
            send.wait()
    return torch.tensor([have[i].item() for i in targets[group.rank]], dtype=x.dtype)


# A copy that stays as it is -----------------------------------------------------------------------------------------


@mutant("a-copy-that-stays", "my_training", says="Values of other steps are in it", at=4)
def without_a_copy(w, group, steps, every, parts):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    whole, sent = None, parts
    for step in range(1, steps + 1):
        w.mul_(-1).add_(step)
        if step % every == 0:
            pieces, coming, sent = w.tensor_split(parts), [], 0
        if sent < parts:
            piece = pieces[sent]
            coming.append(group.exchange(piece, to=right, like=torch.empty_like(piece), source=left))
            sent += 1
            if sent == parts:
                whole = [step - parts + 1, torch.cat(coming)]
    return whole


@mutant("a-copy-that-stays", "my_training", says="Values of other steps are in it", at=4)
def into_the_last_whole_one(w, group, steps, every, parts):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    there, begun, sent = torch.zeros_like(w), 0, parts
    for step in range(1, steps + 1):
        w.mul_(-1).add_(step)
        if step % every == 0:
            pieces, places, sent = w.clone().tensor_split(parts), there.tensor_split(parts), 0
        if sent < parts:
            piece = pieces[sent]
            places[sent].copy_(group.exchange(piece, to=right, like=torch.empty_like(piece), source=left))
            sent += 1
            if sent == parts:
                begun = step - parts + 1
    return [begun, there] if begun else None


@mutant("a-copy-that-stays", "my_training", says="a piece in each step of a save are", at=4)
def everything_at_once(w, group, steps, every, parts):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    whole, arrived = None, None
    for step in range(1, steps + 1):
        w.mul_(-1).add_(step)
        if step % every == 0:
            arrived = [
                group.exchange(p, to=right, like=torch.empty_like(p), source=left) for p in w.tensor_split(parts)
            ]
            begun = step
        if arrived and step == begun + parts - 1:
            whole = [begun, torch.cat(arrived)]
    return whole


@mutant("a-copy-that-stays", "my_training", says="whole is that of step", at=4)
def the_step_at_which_it_was_over(w, group, steps, every, parts):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    whole, sent = None, parts
    for step in range(1, steps + 1):
        w.mul_(-1).add_(step)
        if step % every == 0:
            pieces, coming, sent = w.clone().tensor_split(parts), [], 0
        if sent < parts:
            piece = pieces[sent]
            coming.append(group.exchange(piece, to=right, like=torch.empty_like(piece), source=left))
            sent += 1
            if sent == parts:
                whole = [step, torch.cat(coming)]
    return whole


@mutant("a-copy-that-stays", "my_training", says="from whom does a rank receive", at=4)
def keeps_its_own_copy(w, group, steps, every, parts):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    whole, sent = None, parts
    for step in range(1, steps + 1):
        w.mul_(-1).add_(step)
        if step % every == 0:
            copy, sent = w.clone(), 0
        if sent < parts:
            piece = copy.tensor_split(parts)[sent]
            group.exchange(piece, to=right, like=torch.empty_like(piece), source=left)
            sent += 1
            if sent == parts:
                whole = [step - parts + 1, copy]
    return whole


@mutant("a-copy-that-stays", "my_training", says="no save is whole yet")
def what_is_not_whole(w, group, steps, every, parts):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    whole, sent = None, parts
    for step in range(1, steps + 1):
        w.mul_(-1).add_(step)
        if step % every == 0:
            pieces, coming, sent = w.clone().tensor_split(parts), [], 0
        if sent < parts:
            piece = pieces[sent]
            coming.append(group.exchange(piece, to=right, like=torch.empty_like(piece), source=left))
            sent += 1
            if sent == parts or whole is None:
                whole = [step - sent + 1, torch.cat(coming)]
    return whole


@mutant("a-copy-that-stays", "my_training", says="to no other", at=4)
def to_the_left(w, group, steps, every, parts):
    right, left = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    whole, sent = None, parts
    for step in range(1, steps + 1):
        w.mul_(-1).add_(step)
        if step % every == 0:
            pieces, coming, sent = w.clone().tensor_split(parts), [], 0
        if sent < parts:
            piece = pieces[sent]
            coming.append(group.exchange(piece, to=right, like=torch.empty_like(piece), source=left))
            sent += 1
            if sent == parts:
                whole = [step - parts + 1, torch.cat(coming)]
    return whole


@variant("a-copy-that-stays", "my_training", at=4)
def two_rooms_that_change_places(w, group, steps, every, parts):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    staged, room, other = torch.empty_like(w), torch.empty_like(w), torch.empty_like(w)
    begun, of_whole = 0, 0
    for step in range(1, steps + 1):
        w.mul_(-1).add_(step)
        if step % every == 0:
            staged.copy_(w)
            begun = step
        number = step - begun
        if begun and number < parts:
            piece, place = staged.tensor_split(parts)[number], other.tensor_split(parts)[number]
            place.copy_(group.exchange(piece, to=right, like=torch.empty_like(piece), source=left))
            if number == parts - 1:
                room, other, of_whole = other, room, begun
    return [of_whole, room] if of_whole else None


@variant("a-copy-that-stays", "my_training", at=4)
def each_piece_copied_when_it_is_cut(w, group, steps, every, parts):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    waiting, came, newest = [], [], None
    for step in range(1, steps + 1):
        w.mul_(-1).add_(step)
        if step % every == 0:
            waiting, came = [piece.clone() for piece in w.tensor_split(parts)], [step]
        if waiting:
            piece = waiting.pop(0)
            send = group.isend(piece, to=right)
            came.append(group.recv(torch.empty_like(piece), source=left))
            send.wait()
            if not waiting:
                newest = [came[0], torch.cat(came[1:])]
    return newest
