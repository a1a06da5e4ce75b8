"""The zoo of the exercises of chapter 10: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import re

import torch
import torch.nn.functional as F
from torch import nn

from labkit import collectives
from labkit.grading.checks.zoo import mutant, slip, variant
from labkit.parallel.pipeline import execute, from_labels

# Fill and drain -----------------------------------------------------------------------------------------------------


@mutant("fill-and-drain", "my_gpipe", says="begins a backward pass after 1 of")
def one_at_a_time(group, microbatches):
    return [[f"{rank}{action}{k}" for k in range(microbatches) for action in "FB"] for rank in range(group.size)]


@mutant("fill-and-drain", "my_gpipe", says="is in the list of rank 0", at=4)
def stages_from_one(group, microbatches):
    return [[f"{rank + 1}{action}{k}" for action in "FB" for k in range(microbatches)] for rank in range(group.size)]


@mutant("fill-and-drain", "my_gpipe", says="is missing in the list", at=4)
def stops_one_too_early(group, microbatches):
    return [[f"{rank}{action}{k}" for action in "FB" for k in range(microbatches - 1)] for rank in range(group.size)]


@mutant("fill-and-drain", "my_gpipe", says="forwards in another order than rank 0", at=4)
def the_last_rank_begins_at_the_end(group, microbatches):
    rows = []
    for rank in range(group.size):
        order = list(range(microbatches))
        if rank == group.size - 1:
            order.reverse()
        rows.append([f"{rank}F{k}" for k in order] + [f"{rank}B{k}" for k in order])
    return rows


@mutant("fill-and-drain", "my_gpipe", says="backwards in another order than rank 0", at=4)
def early_ranks_drain_the_newest_first(group, microbatches):
    rows = []
    for rank in range(group.size):
        back = range(microbatches) if rank == group.size - 1 else reversed(range(microbatches))
        rows.append([f"{rank}F{k}" for k in range(microbatches)] + [f"{rank}B{k}" for k in back])
    return rows


@mutant("fill-and-drain", "my_gpipe", says="returned no list of", at=4)
def only_my_own(group, microbatches):
    return [f"{group.rank}{action}{k}" for action in "FB" for k in range(microbatches)]


@mutant("fill-and-drain", "my_gpipe", says="returned another schedule than rank 0", at=4)
def others_stay_empty(group, microbatches):
    rows = [[] for _ in range(group.size)]
    rows[group.rank] = [f"{group.rank}{action}{k}" for action in "FB" for k in range(microbatches)]
    return rows


@variant("fill-and-drain", "my_gpipe", at=4)
def the_newest_comes_back_first(group, microbatches):
    rows = []
    for rank in range(group.size):
        forward = [f"{rank}F{k}" for k in range(microbatches)]
        rows.append(forward + [label.replace("F", "B") for label in reversed(forward)])
    return rows


@variant("fill-and-drain", "my_gpipe", at=4)
def slot_by_slot(group, microbatches):
    rows = [[] for _ in range(group.size)]
    slots = microbatches + group.size - 1
    for slot in range(slots):
        for rank in range(group.size):
            if 0 <= slot - rank < microbatches:
                rows[rank].append(f"{rank}F{slot - rank}")
    for slot in range(slots):
        for rank in range(group.size):
            k = slot - (group.size - 1 - rank)
            if 0 <= k < microbatches:
                rows[rank].append(f"{rank}B{k}")
    return rows


# One forward, one backward, in a given room ---------------------------------------------------------------------------


@mutant("one-forward-one-backward", "my_one_f_one_b", says="that is GPipe", at=4)
def gpipe_under_another_name(batch, group, microbatches, room):
    rows = [[f"{rank}{action}{k}" for action in "FB" for k in range(microbatches)] for rank in range(group.size)]
    if batch is None:
        return rows
    torch.manual_seed(group.rank)
    stage = nn.Linear(5, 5).double()
    step = execute(from_labels(rows), stage, group, batch["x"], batch["y"], F.mse_loss)
    return [step.loss, stage.weight.grad, stage.bias.grad, step.in_flight]


@mutant("one-forward-one-backward", "my_one_f_one_b", says="held 4 microbatches in the real run", at=4)
def runs_another_list_than_it_shows(batch, group, microbatches, room):
    def limited(most):
        rows = []
        for rank in range(group.size):
            warmup = min(most[rank], microbatches) - 1
            row = [f"{rank}F{k}" for k in range(warmup)]
            for k in range(microbatches):
                row += [f"{rank}F{k + warmup}"] * (k + warmup < microbatches) + [f"{rank}B{k}"]
            rows.append(row)
        return rows

    if batch is None:
        return limited([min(group.size - rank, room) for rank in range(group.size)])
    torch.manual_seed(group.rank)
    stage = nn.Linear(5, 5).double()
    rows = limited([group.size] * group.size)  # every rank as much as the first
    step = execute(from_labels(rows), stage, group, batch["x"], batch["y"], F.mse_loss)
    return [step.loss, stage.weight.grad, stage.bias.grad, step.in_flight]


a_warmup_of_what_it_may_hold = slip(
    "one-forward-one-backward", "my_one_f_one_b", says="The warmup is one forward too long", at=4, change="""
-        warmup = min(group.size - rank, room, microbatches) - 1
+        warmup = min(group.size - rank, room, microbatches)
""")  # fmt: skip


no_limit_of_memory = slip("one-forward-one-backward", "my_one_f_one_b", says="1F1B without a limit", at=4, change="""
-        warmup = min(group.size - rank, room, microbatches) - 1
+        warmup = min(group.size - rank, microbatches) - 1
""")  # fmt: skip


a_warmup_that_is_too_short = slip(
    "one-forward-one-backward", "my_one_f_one_b", says="one forward more in its warmup", at=4, change="""
-        warmup = min(group.size - rank, room, microbatches) - 1
+        warmup = max(0, min(group.size - rank, room, microbatches) - 2)
""")  # fmt: skip


a_backward_first = slip("one-forward-one-backward", "my_one_f_one_b", says="comes before", at=4, change="""
         for k in range(microbatches):
+            row.append(f"{rank}B{k}")

-            row.append(f"{rank}B{k}")
""")  # fmt: skip


more_warmup_than_microbatches = slip(
    "one-forward-one-backward", "my_one_f_one_b", says="there is no microbatch", at=5, change="""
-        warmup = min(group.size - rank, room, microbatches) - 1
+        warmup = min(group.size - rank, room) - 1
""")  # fmt: skip


@variant("one-forward-one-backward", "my_one_f_one_b", at=4)
def counts_what_it_holds(batch, group, microbatches, room):
    rows = []
    for rank in range(group.size):
        row, held, forward, backward = [], 0, 0, 0
        while backward < microbatches:
            if forward < microbatches and held < min(room, group.size - rank):
                row.append(f"{rank}F{forward}")
                forward, held = forward + 1, held + 1
            else:
                row.append(f"{rank}B{backward}")
                backward, held = backward + 1, held - 1
        rows.append(row)
    if batch is None:
        return rows
    torch.manual_seed(group.rank)
    stage = nn.Linear(5, 5).double()
    step = execute(from_labels(rows), stage, group, batch["x"], batch["y"], F.mse_loss)
    return [step.loss, stage.weight.grad, stage.bias.grad, step.in_flight]


@variant("one-forward-one-backward", "my_one_f_one_b", at=4)
def three_phases(batch, group, microbatches, room):
    def row(rank):
        forwards = iter([f"{rank}F{k}" for k in range(microbatches)])
        backwards = iter([f"{rank}B{k}" for k in range(microbatches)])
        warmup = min(group.size - rank, room, microbatches) - 1
        for _ in range(warmup):
            yield next(forwards)
        for forward in forwards:
            yield forward
            yield next(backwards)
        yield from backwards

    rows = [list(row(rank)) for rank in range(group.size)]
    if batch is None:
        return rows
    torch.manual_seed(group.rank)
    stage = nn.Linear(5, 5).double()
    step = execute(from_labels(rows), stage, group, batch["x"], batch["y"], F.mse_loss)
    return [step.loss, stage.weight.grad, stage.bias.grad, step.in_flight]


# A clock that travels -------------------------------------------------------------------------------------------------


@mutant("a-clock-that-travels", "my_clock", says="wait for each other", at=4)
def sends_that_wait(mine, group, latency):
    now, boxes = 0, []
    for label in mine["row"]:
        action = re.fullmatch(r"\d+([FBIW])\d+", label)[1]
        step = {"F": 1, "B": -1, "I": -1, "W": 0}[action]
        if step and 0 <= group.rank - step < group.size:
            left = int(group.recv(torch.empty(1, dtype=torch.int64), source=group.rank - step))
            now = max(now, left + latency)
        boxes.append((now, now + mine["us"][action]))
        now = boxes[-1][1]
        if step and 0 <= group.rank + step < group.size:
            group.send(torch.tensor([now]), to=group.rank + step)
    return torch.tensor(boxes)


@mutant("a-clock-that-travels", "my_clock", says="messages take no time in your clocks", at=4)
def a_way_that_takes_no_time(mine, group, latency):
    now, boxes, sends = 0, [], []
    for label in mine["row"]:
        action = re.fullmatch(r"\d+([FBIW])\d+", label)[1]
        step = {"F": 1, "B": -1, "I": -1, "W": 0}[action]
        if step and 0 <= group.rank - step < group.size:
            now = max(now, int(group.recv(torch.empty(1, dtype=torch.int64), source=group.rank - step)))
        boxes.append((now, now + mine["us"][action]))
        now = boxes[-1][1]
        if step and 0 <= group.rank + step < group.size:
            sends.append(group.isend(torch.tensor([now]), to=group.rank + step))
    for send in sends:
        send.wait()
    return torch.tensor(boxes)


@mutant("a-clock-that-travels", "my_clock", says="They leave when it ends", at=4)
def sends_when_it_began(mine, group, latency):
    now, boxes, sends = 0, [], []
    for label in mine["row"]:
        action = re.fullmatch(r"\d+([FBIW])\d+", label)[1]
        step = {"F": 1, "B": -1, "I": -1, "W": 0}[action]
        if step and 0 <= group.rank - step < group.size:
            now = max(now, int(group.recv(torch.empty(1, dtype=torch.int64), source=group.rank - step)) + latency)
        boxes.append((now, now + mine["us"][action]))
        if step and 0 <= group.rank + step < group.size:
            sends.append(group.isend(torch.tensor([now]), to=group.rank + step))
        now = boxes[-1][1]
    for send in sends:
        send.wait()
    return torch.tensor(boxes)


@mutant("a-clock-that-travels", "my_clock", says="the later of the two", at=4)
def begins_when_the_message_is_there(mine, group, latency):
    now, boxes, sends = 0, [], []
    for label in mine["row"]:
        action = re.fullmatch(r"\d+([FBIW])\d+", label)[1]
        step = {"F": 1, "B": -1, "I": -1, "W": 0}[action]
        if step and 0 <= group.rank - step < group.size:
            now = int(group.recv(torch.empty(1, dtype=torch.int64), source=group.rank - step)) + latency
        boxes.append((now, now + mine["us"][action]))
        now = boxes[-1][1]
        if step and 0 <= group.rank + step < group.size:
            sends.append(group.isend(torch.tensor([now]), to=group.rank + step))
    for send in sends:
        send.wait()
    return torch.tensor(boxes)


the_sender_pays = slip("a-clock-that-travels", "my_clock", says="sending costs the sender nothing", at=4, change="""
-        source, to = group.rank - step, group.rank + step
-        if step and 0 <= source < group.size:
-            left = int(group.recv(torch.empty(1, dtype=torch.int64), source=source))
-            now = max(now, left + latency)
+        if step and 0 <= group.rank - step < group.size:
+            now = max(now, int(group.recv(torch.empty(1, dtype=torch.int64), source=group.rank - step)))

-        if step and 0 <= to < group.size:
-            sends.append(group.isend(torch.tensor([now]), to=to))
+        if step and 0 <= group.rank + step < group.size:
+            now += latency
+            sends.append(group.isend(torch.tensor([now]), to=group.rank + step))
""")  # fmt: skip


@mutant("a-clock-that-travels", "my_clock", says="What else travels?", at=4)
def says_when_it_is_done(mine, group, latency):
    now, boxes, sends = 0, [], []
    for label in mine["row"]:
        action = re.fullmatch(r"\d+([FBIW])\d+", label)[1]
        step = {"F": 1, "B": -1, "I": -1, "W": 0}[action]
        if step and 0 <= group.rank - step < group.size:
            now = max(now, int(group.recv(torch.empty(1, dtype=torch.int64), source=group.rank - step)) + latency)
        boxes.append((now, now + mine["us"][action]))
        now = boxes[-1][1]
        if step and 0 <= group.rank + step < group.size:
            sends.append(group.isend(torch.tensor([now]), to=group.rank + step))
    collectives.all_gather(torch.tensor([now]), group, algorithm="ring")
    return torch.tensor(boxes)


@variant("a-clock-that-travels", "my_clock", at=4)
def the_message_says_when_it_arrives(mine, group, latency):
    right, left = [label for label in mine["row"] if "F" in label], [x for x in mine["row"] if re.search("[BI]", x)]
    come, sends, now, boxes = {}, [], 0, []
    for source, labels in ((group.rank - 1, right), (group.rank + 1, left)):
        for label in labels if 0 <= source < group.size else []:
            come[label] = group.irecv(torch.empty(1, dtype=torch.int64), source=source)
    for label in mine["row"]:
        if label in come:
            now = max(now, int(come[label].wait()))
        action = re.sub(r"\d", "", label)
        boxes.append([now, now + mine["us"][action]])
        now += mine["us"][action]
        to = {"F": group.rank + 1, "W": -1}.get(action, group.rank - 1)
        if 0 <= to < group.size:
            sends.append(group.isend(torch.tensor([now + latency]), to=to))
    for send in sends:
        send.wait()
    return torch.tensor(boxes, dtype=torch.int64)


@variant("a-clock-that-travels", "my_clock", at=4)
def sends_once_its_neighbours_can_take_it(mine, group, latency):
    us, times = mine["us"], torch.zeros(len(mine["row"]), 2, dtype=torch.int64)
    free, waiting = 0, []
    for place, label in enumerate(mine["row"]):
        stage, action, _ = re.fullmatch(r"(\d+)([FBIW])(\d+)", label).groups()
        assert int(stage) == group.rank
        source = {"F": group.rank - 1, "W": group.size}.get(action, group.rank + 1)
        there = 0
        if source in range(group.size):
            there = group.recv(torch.zeros(1, dtype=torch.int64), source=source).item() + latency
        times[place, 0] = max(free, there)
        free = times[place, 1] = times[place, 0] + us[action]
        to = {"F": group.rank + 1, "W": group.size}.get(action, group.rank - 1)
        if to in range(group.size):
            waiting.append(group.isend(times[place, 1:].clone(), to=to))
    [message.wait() for message in waiting]
    return times


# Messages that wait ---------------------------------------------------------------------------------------------------


@mutant("messages-that-wait", "my_messages", says="this schedule is a deadlock", at=4)
def just_before_and_just_after(rows, group, go):
    full = []
    for rank, row in enumerate(rows):
        mine = []
        for label in row:
            action, k = re.fullmatch(r"\d+([FBIW])(\d+)", label).groups()
            way, kind = {"F": 1, "W": 0}.get(action, -1), "F" if action == "F" else "B"
            if way and 0 <= rank - way < len(rows):
                mine.append(f"{rank}RECV_{kind}{k}")
            mine.append(label)
            if way and 0 <= rank + way < len(rows):
                mine.append(f"{rank}SEND_{kind}{k}")
        full.append(mine)
    rows = full
    for label in rows[group.rank] if go else []:
        action, kind, k = re.fullmatch(r"\d+([A-Z]+)_?([FB]?)(\d+)", label).groups()
        right = kind == "F" if action == "SEND" else kind == "B"
        peer, x = group.rank + (1 if right else -1), torch.zeros(int(k) + 1)
        if action == "SEND":
            group.send(x, to=peer)
        elif action == "RECV":
            group.recv(x, source=peer)
    return rows


@mutant("messages-that-wait", "my_messages", says="this schedule is a deadlock", at=4)
def even_ranks_send_first(rows, group, go):
    full = []
    for rank, row in enumerate(rows):
        mine, later = [], []
        for label in row:
            action, k = re.fullmatch(r"\d+([FBIW])(\d+)", label).groups()
            way, kind = {"F": 1, "W": 0}.get(action, -1), "F" if action == "F" else "B"
            if way and 0 <= rank - way < len(rows):
                mine.append(f"{rank}RECV_{kind}{k}")
            mine += later + [label]
            later = []
            if way and 0 <= rank + way < len(rows):
                (later if rank % 2 else mine).append(f"{rank}SEND_{kind}{k}")
        full.append(mine + later)
    rows = full
    for label in rows[group.rank] if go else []:
        action, kind, k = re.fullmatch(r"\d+([A-Z]+)_?([FB]?)(\d+)", label).groups()
        right = kind == "F" if action == "SEND" else kind == "B"
        peer, x = group.rank + (1 if right else -1), torch.zeros(int(k) + 1)
        if action == "SEND":
            group.send(x, to=peer)
        elif action == "RECV":
            group.recv(x, source=peer)
    return rows


@mutant("messages-that-wait", "my_messages", says="is missing in the list of rank", at=4)
def activations_only(rows, group, go):
    todo = [list(row) for row in rows]
    full, there = [[] for _ in rows], {(0, label[2:]) for row in rows for label in row}
    while any(todo):
        for rank, row in enumerate(todo):
            if row and (row[0][1] != "F" or (rank, row[0][2:]) in there):
                label = row.pop(0)
                full[rank].append(label)
                if label[1] == "F" and rank + 1 < len(rows):
                    full[rank].append(f"{rank}SEND_F{label[2:]}")
                    full[rank + 1].append(f"{rank + 1}RECV_F{label[2:]}")
                    there.add((rank + 1, label[2:]))
    rows = full
    for label in rows[group.rank] if go else []:
        action, kind, k = re.fullmatch(r"\d+([A-Z]+)_?([FB]?)(\d+)", label).groups()
        right = kind == "F" if action == "SEND" else kind == "B"
        peer, x = group.rank + (1 if right else -1), torch.zeros(int(k) + 1)
        if action == "SEND":
            group.send(x, to=peer)
        elif action == "RECV":
            group.recv(x, source=peer)
    return rows


@mutant("messages-that-wait", "my_messages", says="computes in another order than before", at=4)
def fills_first(rows, group, go):
    last = len(rows) - 1
    full = []
    for rank, row in enumerate(rows):
        mine = []
        for label in sorted(row, key=lambda label: "F" not in label):
            action, k = re.fullmatch(r"\d+([FBIW])(\d+)", label).groups()
            way, kind = {"F": 1, "W": 0}.get(action, -1), "F" if action == "F" else "B"
            if way and 0 <= rank - way <= last:
                mine.append(f"{rank}RECV_{kind}{k}")
            mine.append(label)
            if way and 0 <= rank + way <= last:
                mine.append(f"{rank}SEND_{kind}{k}")
        full.append(mine)
    rows = full
    for label in rows[group.rank] if go else []:
        action, kind, k = re.fullmatch(r"\d+([A-Z]+)_?([FB]?)(\d+)", label).groups()
        right = kind == "F" if action == "SEND" else kind == "B"
        peer, x = group.rank + (1 if right else -1), torch.zeros(int(k) + 1)
        if action == "SEND":
            group.send(x, to=peer)
        elif action == "RECV":
            group.recv(x, source=peer)
    return rows


@mutant("messages-that-wait", "my_messages", says="there are no messages in your lists", at=4)
def nothing_written_in(rows, group, go):
    return rows


the_ends_send_too = slip("messages-that-wait", "my_messages", says="there is nothing to carry", at=4, change="""
-            source, to, kind = rank - way, rank + way, "F" if action == "F" else "B"
-            first = not way or not 0 <= source < len(rows)  # nobody to wait for
-            if not row or not (first or (kind, rank, k) in there):
+            kind = "F" if action == "F" else "B"
+            if not row or (way and 0 <= rank - way < len(rows) and (kind, rank, k) not in there):

-            if way and 0 <= to < len(rows):
+            if way:

-                full[to].append(f"{to}RECV_{kind}{k}")
-                there.add((kind, to, k))
+            if way and 0 <= rank + way < len(rows):
+                full[rank + way].append(f"{rank + way}RECV_{kind}{k}")
+                there.add((kind, rank + way, k))
""")  # fmt: skip


@variant("messages-that-wait", "my_messages", at=4)
def slot_by_slot_in_time(rows, group, go):
    last = len(rows) - 1
    done, events = {}, []  # when each computation ends, if all take one unit of time
    at, clock = [0] * len(rows), [0] * len(rows)
    while any(at[r] < len(rows[r]) for r in range(len(rows))):
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                action, k = re.fullmatch(r"\d+([FBIW])(\d+)", row[at[rank]]).groups()
                source = {"F": rank - 1, "W": -1}.get(action, rank + 1)
                kind = "F" if action == "F" else "B"
                if 0 <= source <= last and (source, kind, k) not in done:
                    break
                begin = max(clock[rank], done.get((source, kind, k), 0)) if 0 <= source <= last else clock[rank]
                clock[rank] = begin + 1
                if action != "W":
                    done[rank, kind, k] = clock[rank]
                events.append((clock[rank], rank, at[rank], action, k))
                at[rank] += 1
    full = [[] for _ in rows]
    for _, rank, place, action, k in sorted(events):
        full[rank].append(rows[rank][place])
        to, kind = {"F": rank + 1, "W": -1}.get(action, rank - 1), "F" if action == "F" else "B"
        if 0 <= to <= last:
            full[rank].append(f"{rank}SEND_{kind}{k}")
            full[to].append(f"{to}RECV_{kind}{k}")
    rows = full
    for label in rows[group.rank] if go else []:
        action, kind, k = re.fullmatch(r"\d+([A-Z]+)_?([FB]?)(\d+)", label).groups()
        right = kind == "F" if action == "SEND" else kind == "B"
        peer, x = group.rank + (1 if right else -1), torch.zeros(int(k) + 1)
        if action == "SEND":
            group.send(x, to=peer)
        elif action == "RECV":
            group.recv(x, source=peer)
    return rows


@variant("messages-that-wait", "my_messages", at=4)
def sent_when_they_are_needed(rows, group, go):
    todo, full, made = [list(row) for row in rows], [[] for _ in rows], set()
    while any(todo):
        for rank, row in enumerate(todo):
            if not row:
                continue
            action, k = re.fullmatch(r"\d+([FBIW])(\d+)", row[0]).groups()
            source, kind = {"F": rank - 1, "W": -1}.get(action, rank + 1), "F" if action == "F" else "B"
            if 0 <= source < len(rows):
                if (source, kind, k) not in made:
                    continue
                full[source].append(f"{source}SEND_{kind}{k}")
                full[rank].append(f"{rank}RECV_{kind}{k}")
            full[rank].append(row.pop(0))
            if action != "W":
                made.add((rank, kind, k))
    rows = full
    for label in rows[group.rank] if go else []:
        action, kind, k = re.fullmatch(r"\d+([A-Z]+)_?([FB]?)(\d+)", label).groups()
        right = kind == "F" if action == "SEND" else kind == "B"
        peer, x = group.rank + (1 if right else -1), torch.zeros(int(k) + 1)
        if action == "SEND":
            group.send(x, to=peer)
        elif action == "RECV":
            group.recv(x, source=peer)
    return rows


# Carry it out ------------------------------------------------------------------------------------------------------


fills_and_drains_whatever_the_list_says = slip(
    "carry-it-out", "my_pipeline", says="do what the list says, in its order", at=4, change="""
-    for label in mine["row"]:
+    for label in sorted(mine["row"], key=lambda label: "F" not in label):
""")  # fmt: skip


one_after_the_other_as_numbered = slip(
    "carry-it-out", "my_pipeline", says="do what the list says, in its order", at=4, change="""
-    for label in mine["row"]:
+    row = [label for label in mine["row"] if "F" not in label]
+    ahead = group.size - 1 - group.rank
+    order = []
+    for place in range(len(samples) + ahead):
+        order += [f"0F{place}"] * (place < len(samples)) + row[place - ahead : place - ahead + 1] * (place >= ahead)
+    for label in order:
""")  # fmt: skip


every_microbatch_the_same = slip(
    "carry-it-out", "my_pipeline", says="Every microbatch counts the same", at=4, change="""
-                y = F.mse_loss(y, y_of(k)) * samples[k] / sum(samples)
+                y = F.mse_loss(y, y_of(k)) / len(samples)
""")  # fmt: skip


a_sum_of_means = slip("carry-it-out", "my_pipeline", says="Losses are added up", at=2, change="""
-                y = F.mse_loss(y, y_of(k)) * samples[k] / sum(samples)
+                y = F.mse_loss(y, y_of(k))
""")  # fmt: skip


only_the_loss_is_weighted = slip(
    "carry-it-out", "my_pipeline", says="the gradients are those of the sum", at=2, change="""
-                y = F.mse_loss(y, y_of(k)) * samples[k] / sum(samples)
-                loss += y.detach()
+                y = F.mse_loss(y, y_of(k))
+                loss += y.detach() * samples[k] / sum(samples)
""")  # fmt: skip


the_last_gradient_alone = slip("carry-it-out", "my_pipeline", says="last microbatch alone", at=2, change="""
-            gradient += torch.autograd.grad(y, weight, g)[0]
+            gradient = torch.autograd.grad(y, weight, g)[0]
""")  # fmt: skip


nothing_is_let_go = slip("carry-it-out", "my_pipeline", says="What do you keep when", at=3, change="""
-            x, y, g = kept.pop(k)
+            x, y, g = kept[k]
""")  # fmt: skip


handles_of_everything = slip("carry-it-out", "my_pipeline", says="A handle keeps its tensor, too", at=3, change="""
-        sends = [send for send in sends if not send.done()]
""")  # fmt: skip


sends_that_wait_for_their_receiver = slip("carry-it-out", "my_pipeline", says="wait for each other", at=4, change="""
-                sends.append(group.isend(y.detach(), to=group.rank + 1))
+                group.send(y.detach(), to=group.rank + 1)

-                sends.append(group.isend(back, to=group.rank - 1))
+                group.send(back, to=group.rank - 1)
""")  # fmt: skip


the_input_travels_along = slip("carry-it-out", "my_pipeline", says="What else travels?", at=4, change="""
     def receive(k, source):
+        if source < group.rank:
+            both = torch.empty(2 * samples[k], len(weight), dtype=weight.dtype)
+            return group.recv(both, source=source)[: samples[k]].clone()

-                sends.append(group.isend(y.detach(), to=group.rank + 1))
+                sends.append(group.isend(torch.cat([y.detach(), x.detach()]), to=group.rank + 1))
""")  # fmt: skip


@variant("carry-it-out", "my_pipeline", at=4)
def with_backward_and_dictionaries(mine, group, samples, seed):
    weight = mine["weight"].requires_grad_()

    def stage(x):
        return torch.tanh(x @ weight)

    def x_of(k):
        generator = torch.Generator().manual_seed(seed + 2 * k)
        return torch.randn(samples[k], len(weight), generator=generator, dtype=weight.dtype)

    def y_of(k):
        generator = torch.Generator().manual_seed(seed + 2 * k + 1)
        return torch.randn(samples[k], len(weight), generator=generator, dtype=weight.dtype)

    rank, n, width = group.rank, group.size, len(weight)
    weight.grad = torch.zeros_like(weight)
    inputs, outputs, losses = {}, {}, []
    messages = []  # a handle keeps its tensor: forget it when it is done

    def send(x, to):
        messages[:] = [m for m in messages if not m.done()] + [group.isend(x, to=to)]

    for label in mine["row"]:
        action, k = label.lstrip("0123456789")[0], int(re.search(r"\d+$", label)[0])
        if action == "F":
            if rank:
                inputs[k] = torch.empty(samples[k], width, dtype=weight.dtype)
                group.recv(inputs[k], source=rank - 1)
                inputs[k].requires_grad_()
            else:
                inputs[k] = x_of(k)
            outputs[k] = stage(inputs[k])
            if rank == n - 1:
                part = (outputs[k] - y_of(k)).square().sum() / (sum(samples) * width)
                losses.append(part.detach())
                outputs[k] = part
            else:
                send(outputs[k].detach().clone(), rank + 1)
        elif action == "B":
            g = None
            if rank < n - 1:
                g = group.recv(torch.empty(samples[k], width, dtype=weight.dtype), source=rank + 1)
            outputs[k].backward(g)
            if rank:
                send(inputs[k].grad, rank - 1)
            del inputs[k], outputs[k], g
        elif action == "I":
            g = torch.ones((), dtype=weight.dtype)
            if rank < n - 1:
                g = group.recv(torch.empty(samples[k], width, dtype=weight.dtype), source=rank + 1)
            if rank:
                (back,) = torch.autograd.grad(outputs[k], inputs[k], g, retain_graph=True)
                send(back, rank - 1)
            inputs[k] = g
        else:
            outputs.pop(k).backward(inputs.pop(k), inputs=[weight])
    for message in messages:
        message.wait()
    return [sum(losses) if rank == n - 1 else None, weight.grad]


@variant("carry-it-out", "my_pipeline", at=4)
def receives_posted_ahead(mine, group, samples, seed):
    weight = mine["weight"].requires_grad_()

    def stage(x):
        return torch.tanh(x @ weight)

    def x_of(k):
        generator = torch.Generator().manual_seed(seed + 2 * k)
        return torch.randn(samples[k], len(weight), generator=generator, dtype=weight.dtype)

    def y_of(k):
        generator = torch.Generator().manual_seed(seed + 2 * k + 1)
        return torch.randn(samples[k], len(weight), generator=generator, dtype=weight.dtype)

    rank, end = group.rank, group.size - 1
    whole, width = sum(samples), len(weight)
    order = {way: [int(x[2:]) for x in mine["row"] if x[1] in way] for way in ("F", "BI")}
    posted, kept, out = {}, {}, []
    total, gradient = weight.new_zeros(()).detach(), weight.new_zeros(width, width)

    def come(way, source, k):  # one receive is posted ahead, so that a message never waits for a program
        ahead = order[way]
        for j in ahead[ahead.index(k) : ahead.index(k) + 2]:
            if (way, j) not in posted:
                posted[way, j] = group.irecv(torch.empty(samples[j], width, dtype=weight.dtype), source=source)
        handle = posted[way, k]
        posted[way, k] = None
        return handle.wait()

    for label in mine["row"]:
        action, k = label[1], int(label[2:])
        if action == "F":
            x = x_of(k) if rank == 0 else come("F", rank - 1, k)
            with torch.enable_grad():
                leaf = x.detach().requires_grad_(rank > 0)
                y = stage(leaf)
                if rank == end:
                    y = F.mse_loss(y, y_of(k)) * (samples[k] / whole)
            if rank == end:
                total = total + y.detach()
            else:
                out.append(group.isend(y.detach(), to=rank + 1))
            kept[k] = [leaf, y]
            del x, leaf, y
        elif action in "BI":
            g = come("BI", rank + 1, k) if rank < end else None
            leaf, y = kept[k]
            want = [leaf] * (rank > 0) + [weight] * (action == "B")
            got = list(torch.autograd.grad(y, want, g, retain_graph=action == "I")) if want else []
            if rank > 0:
                out.append(group.isend(got.pop(0), to=rank - 1))
            if action == "B":
                gradient += got[0]
                del kept[k]
            else:
                kept[k].append(g)
            del leaf, y, g, got, want
        else:
            _, y, g = kept.pop(k)
            gradient += torch.autograd.grad(y, [weight], g)[0]
            del y, g
        out = [message for message in out if not message.done()]
    [message.wait() for message in out]
    return [total if rank == end else None, gradient]


# What memory buys -----------------------------------------------------------------------------------------------------


@mutant("what-memory-buys", "my_zero_bubble", says="On the last rank every W stands right behind its I", at=4)
def a_w_behind_every_i(group, microbatches, room):
    rows = []
    for rank in range(group.size):
        warmup = group.size - 1 - rank
        row = [f"{rank}F{k}" for k in range(warmup)]
        for k in range(microbatches):
            row += [f"{rank}F{k + warmup}"] * (k + warmup < microbatches) + [f"{rank}I{k}", f"{rank}W{k}"]
        rows.append(row)
    return rows


@mutant("what-memory-buys", "my_zero_bubble", says="there is room for", at=4)
def every_w_at_the_end(group, microbatches, room):
    rows = []
    for rank in range(group.size):
        warmup = group.size - 1 - rank
        row = [f"{rank}F{k}" for k in range(warmup)]
        for k in range(microbatches):
            row += [f"{rank}F{k + warmup}"] * (k + warmup < microbatches) + [f"{rank}I{k}"]
        rows.append(row + [f"{rank}W{k}" for k in range(microbatches)])
    return rows


h2_in_any_room = slip("what-memory-buys", "my_zero_bubble", says="there is room for", at=4, change="""
-        warmup = min(2 * (group.size - 1 - rank), room - 1 - rank)
-        later = room - 1 - warmup
+        warmup, later = 2 * (group.size - 1 - rank), 2 * rank

-        rows.append(row + [f"{rank}W{k}" for k in range(max(0, microbatches - later), microbatches)])
+        rows.append(row + [f"{rank}W{k}" for k in range(microbatches - later, microbatches)])
""")  # fmt: skip


h1_in_any_room = slip("what-memory-buys", "my_zero_bubble", says="has it room for more?", at=4, change="""
-        warmup = min(2 * (group.size - 1 - rank), room - 1 - rank)
-        later = room - 1 - warmup
+        warmup, later = group.size - 1 - rank, rank

-        rows.append(row + [f"{rank}W{k}" for k in range(max(0, microbatches - later), microbatches)])
+        rows.append(row + [f"{rank}W{k}" for k in range(microbatches - later, microbatches)])
""")  # fmt: skip


@mutant("what-memory-buys", "my_zero_bubble", says="Cut it into I and W", at=4)
def backwards_in_one_piece(group, microbatches, room):
    rows = []
    for rank in range(group.size):
        warmup = group.size - 1 - rank
        row = [f"{rank}F{k}" for k in range(warmup)]
        for k in range(microbatches):
            row += [f"{rank}F{k + warmup}"] * (k + warmup < microbatches) + [f"{rank}B{k}"]
        rows.append(row)
    return rows


@mutant("what-memory-buys", "my_zero_bubble", says="On the last rank every W stands right behind its I", at=4)
def the_first_rank_puts_off_most(group, microbatches, room):
    rows = []
    for rank in range(group.size):
        warmup = group.size - 1 - rank
        later = min(warmup, room - 1 - warmup)
        row = [f"{rank}F{k}" for k in range(warmup)]
        for k in range(microbatches):
            row += [f"{rank}F{k + warmup}"] * (k + warmup < microbatches) + [f"{rank}I{k}"]
            row += [f"{rank}W{k - later}"] * (k >= later)
        rows.append(row + [f"{rank}W{k}" for k in range(microbatches - later, microbatches)])
    return rows


all_the_room_for_forwards = slip("what-memory-buys", "my_zero_bubble", says="are possible", at=5, change="""
-        warmup = min(2 * (group.size - 1 - rank), room - 1 - rank)
+        warmup = min(2 * (group.size - 1 - rank), room - 1)

-        rows.append(row + [f"{rank}W{k}" for k in range(max(0, microbatches - later), microbatches)])
+        rows.append(row + [f"{rank}W{k}" for k in range(microbatches - later, microbatches)])
""")  # fmt: skip


forgets_what_is_left = slip("what-memory-buys", "my_zero_bubble", says="is missing in the list", at=4, change="""
-        rows.append(row + [f"{rank}W{k}" for k in range(max(0, microbatches - later), microbatches)])
+        rows.append(row)
""")  # fmt: skip


@variant("what-memory-buys", "my_zero_bubble", at=4)
def a_queue_of_ws(group, microbatches, room):
    rows = []
    for rank in range(group.size):
        row, behind = [], group.size - 1 - rank
        ahead = 2 * behind if room - 1 - rank >= 2 * behind else room - 1 - rank
        waiting, forward = [], 0
        for k in range(microbatches):
            while forward < min(microbatches, k + ahead + 1):
                row.append(f"{rank}F{forward}")
                forward += 1
            row.append(f"{rank}I{k}")
            waiting.append(f"{rank}W{k}")
            if len(waiting) > room - 1 - ahead:
                row.append(waiting.pop(0))
        rows.append(row + waiting)
    return rows


@variant("what-memory-buys", "my_zero_bubble", at=4)
def counts_as_it_goes(group, microbatches, room):
    rows = []
    for rank in range(group.size):
        done = {"F": 0, "I": 0, "W": 0}
        row = []

        def do(action, row=row, done=done, rank=rank):
            row.append(f"{rank}{action}{done[action]}")
            done[action] += 1

        warmup = min(2 * (group.size - 1 - rank), room - 1 - rank)
        while done["W"] < microbatches:
            held = done["F"] - done["W"]
            if done["F"] < microbatches and done["F"] - done["I"] <= warmup and held < room:
                do("F")
            elif done["I"] < microbatches and (done["F"] - done["I"] > warmup or done["F"] == microbatches):
                do("I")
                if done["F"] - done["W"] >= room and done["F"] < microbatches:
                    do("W")
                elif done["F"] == microbatches and done["I"] - done["W"] > room - 1 - warmup:
                    do("W")
            else:
                do("W")
        rows.append(row)
    return rows
