"""The zoo of the exercises of chapter 16: wrong programs with the sentence that rejects each, and other right ones.

What a function here may use is what the first cell of the notebook imports.
"""

import torch

from labkit import collectives
from labkit.chapters.c16_alignment.checks import log_probabilities
from labkit.chapters.c16_alignment.pools import post, reference, reward, take, write, write_together
from labkit.grading.checks.zoo import mutant, slip, variant

# Groups of unequal responses ------------------------------------------------------------------------------------------


means_of_means = slip("groups-of-unequal-responses", "my_update", says="mean of the ranks' means", change="""
-    sums = torch.cat([gradient.flatten(), total.detach()[None], torch.tensor([float(count)])])
+    sums = torch.cat([gradient.flatten(), total.detach()[None]]) / max(count, 1)
+    sums = torch.cat([sums, torch.ones(1)])
""")  # fmt: skip


keeps_its_gradient_to_itself = slip("groups-of-unequal-responses", "my_update", says="its own tokens", change="""
-    collectives.all_reduce(sums, group, algorithm="ring")
+    sums[-1] = collectives.all_reduce(torch.tensor([float(count)]), group, algorithm="ring")
""")  # fmt: skip


each_response_counts_the_same = slip(
    "groups-of-unequal-responses", "my_update", says="each response counts the same", change="""
-        total = total + (beta * (away.exp() - 1 - away) - gain).sum()
-        count += len(tokens)
+        total = total + (beta * (away.exp() - 1 - away) - gain).mean()
+        count += 1
""")  # fmt: skip


divides_by_responses = slip("groups-of-unequal-responses", "my_update", says="number of responses", change="""
-        count += len(tokens)
+        count += 1
""")  # fmt: skip


divides_by_g = slip("groups-of-unequal-responses", "my_update", says="divides by g. It should", change="""
-        advantage = (rewards[i] - own.mean()) / own.std() if own.max() > own.min() else 0.0
+        advantage = (rewards[i] - own.mean()) / own.std(unbiased=False) if own.max() > own.min() else 0.0
""")  # fmt: skip


does_not_divide = slip("groups-of-unequal-responses", "my_update", says="not divided by the standard", change="""
-        advantage = (rewards[i] - own.mean()) / own.std() if own.max() > own.min() else 0.0
+        advantage = rewards[i] - own.mean() if own.max() > own.min() else 0.0
""")  # fmt: skip


compares_with_all_of_the_rank = slip(
    "groups-of-unequal-responses", "my_update", says="all responses of its rank", change="""
-        own = rewards[prompts == prompts[i]]
+        own = rewards
""")  # fmt: skip


takes_neighbours_for_a_group = slip(
    "groups-of-unequal-responses", "my_update", says="those that stand beside it", change="""
-    rewards, prompts = mine["rewards"], mine["prompts"]
+    rewards, prompts = mine["rewards"], mine["prompts"].sort().values
""")  # fmt: skip


divides_by_what_rounding_left = slip(
    "groups-of-unequal-responses", "my_update", says="what rounding left", change="""
-        advantage = (rewards[i] - own.mean()) / own.std() if own.max() > own.min() else 0.0
+        advantage = (rewards[i] - own.mean()) / (own.std() + 1e-8) if len(own) > 1 else 0.0
""")  # fmt: skip


divides_by_nothing = slip("groups-of-unequal-responses", "my_update", says="not finite", change="""
-        advantage = (rewards[i] - own.mean()) / own.std() if own.max() > own.min() else 0.0
+        advantage = (rewards[i] - own.mean()) / own.std()
""")  # fmt: skip


never_clips = slip("groups-of-unequal-responses", "my_update", says="nothing was clipped", change="""
-        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
+        gain = ratio * advantage
""")  # fmt: skip


always_clips = slip("groups-of-unequal-responses", "my_update", says="clipped ratio was taken everywhere", change="""
-        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
+        gain = ratio.clamp(1 - clip, 1 + clip) * advantage
""")  # fmt: skip


turns_k3_around = slip("groups-of-unequal-responses", "my_update", says="upside down", change="""
-        away = mine["reference"][i] - now
+        away = now - mine["reference"][i]
""")  # fmt: skip


takes_k1 = slip("groups-of-unequal-responses", "my_update", says="estimated by k1", change="""
-        total = total + (beta * (away.exp() - 1 - away) - gain).sum()
+        total = total + (-beta * away - gain).sum()
""")  # fmt: skip


seeks_distance = slip("groups-of-unequal-responses", "my_update", says="so that it is sought", change="""
-        total = total + (beta * (away.exp() - 1 - away) - gain).sum()
+        total = total - (beta * (away.exp() - 1 - away) + gain).sum()
""")  # fmt: skip


climbs = slip("groups-of-unequal-responses", "my_update", says="loss has the wrong sign", change="""
-        total = total + (beta * (away.exp() - 1 - away) - gain).sum()
+        total = total + (beta * (away.exp() - 1 - away) + gain).sum()
""")  # fmt: skip


stays_away_without_responses = slip("groups-of-unequal-responses", "my_update", says="while others wait", change="""
-    leaf = logits.clone().requires_grad_()
+    if not mine["tokens"]:
+        return [torch.zeros(()), torch.zeros_like(logits)]
+    leaf = logits.clone().requires_grad_()
""")  # fmt: skip


a_gradient_for_each_response = slip("groups-of-unequal-responses", "my_update", says="gradients only once", change="""
-    collectives.all_reduce(sums, group, algorithm="ring")
+    most = torch.tensor([float(len(mine["tokens"]))])
+    most = int(collectives.all_reduce(most, group, op="max", algorithm="ring"))
+    parts = [sums / max(len(mine["tokens"]), 1)] * len(mine["tokens"])
+    parts += [torch.zeros_like(sums)] * (most - len(parts))
+    sums = sum(collectives.all_reduce(part.clone(), group, algorithm="ring") for part in parts)
""")  # fmt: skip


@variant("groups-of-unequal-responses", "my_update")
def counts_first_and_goes_backward(mine, group, logits, clip, beta):
    count = torch.tensor([sum(len(x) for x in mine["tokens"])])
    collectives.all_reduce(count, group, algorithm="ring")
    logits = logits.clone().requires_grad_()
    loss = torch.zeros(1)
    rewards, prompts = mine["rewards"], mine["prompts"]
    advantages = torch.zeros(len(rewards))
    for number in prompts.unique():
        own = prompts == number
        if len(rewards[own].unique()) > 1:
            advantages[own] = (rewards[own] - rewards[own].mean()) / rewards[own].std()
    for tokens, old, other, a in zip(mine["tokens"], mine["old"], mine["reference"], advantages, strict=True):
        now = log_probabilities(logits, tokens)
        ratio, log_q = torch.exp(now - old), other - now
        worst = torch.where(a > 0, ratio.clamp(max=1 + clip), ratio.clamp(min=1 - clip)) * a
        share = (beta * (torch.expm1(log_q) - log_q) - worst).sum() / count[0]
        share.backward()
        loss += share.detach()
    gradient = torch.zeros_like(logits) if logits.grad is None else logits.grad
    collectives.all_reduce(gradient, group, algorithm="ring")
    collectives.all_reduce(loss, group, algorithm="ring")
    return [loss[0], gradient.detach()]


@variant("groups-of-unequal-responses", "my_update")
def all_tokens_in_one_tensor(mine, group, logits, clip, beta):
    table = logits.clone().requires_grad_()
    rewards, prompts = mine["rewards"], mine["prompts"]
    same = (prompts[:, None] == prompts[None, :]).float()
    sizes = same.sum(1)
    mean = same @ rewards / sizes
    spread = (same * (rewards[None, :] - mean[:, None]).square()).sum(1) / (sizes - 1).clamp(min=1)
    equal = [bool((rewards[prompts == p] == rewards[i]).all()) for i, p in enumerate(prompts.tolist())]
    a = torch.where(torch.tensor(equal, dtype=torch.bool), 0.0, (rewards - mean) / spread.sqrt())
    lengths = torch.tensor([len(x) for x in mine["tokens"]], dtype=torch.int64)
    none = [table.sum() * torch.zeros(0)]
    now = torch.cat(none + [log_probabilities(table, x) for x in mine["tokens"]])
    a = a.repeat_interleave(lengths)
    ratio = (now - torch.cat([torch.zeros(0), *mine["old"]])).exp()
    q = (torch.cat([torch.zeros(0), *mine["reference"]]) - now).exp()
    losses = torch.maximum(-ratio * a, -ratio.clamp(1 - clip, 1 + clip) * a) + beta * (q - 1 - q.log())
    (gradient,) = torch.autograd.grad(losses.sum() + 0 * table.sum(), table)
    whole = torch.cat([gradient.view(-1), torch.stack([losses.sum().detach(), lengths.sum().float()])])
    collectives.all_reduce(whole, group, algorithm="ring")
    return [whole[-2] / whole[-1], (whole[:-2] / whole[-1]).view_as(logits)]


# From one layout to another -------------------------------------------------------------------------------------------


@mutant("from-one-layout-to-another", "my_reshard", says="or that it does not keep", at=4)
def gathers_everything(mine, group, tensor, layers):
    stages = len(layers)
    stage, t = divmod(group.rank, tensor)
    column = group.subgroup([s * tensor + t for s in range(stages)])
    whole = collectives.all_gather(mine, column, algorithm="ring")
    return [t * stages + stage, whole.chunk(stages, dim=1)[stage].contiguous()]


@mutant("from-one-layout-to-another", "my_reshard", says="Rank 1 took part 1", at=4)
def takes_the_part_of_its_number(mine, group, tensor, layers):
    n, stages = group.size, len(layers)
    stage, t = divmod(group.rank, tensor)
    pieces = mine.chunk(stages, dim=1)
    each = pieces[0][0].numel()
    out = [each * len(mine) if r // stages == t else 0 for r in range(n)]
    into = [0] * n
    for s, count in enumerate(layers):
        into[s * tensor + group.rank // stages] = each * count
    came = collectives.all_to_all(torch.cat([piece.flatten() for piece in pieces]), group, out, into)
    return [group.rank, came.view(sum(layers), *pieces[0].shape[1:])]


says_another_number = slip("from-one-layout-to-another", "my_reshard", says="says that it has part", at=4, change="""
-    return [t * stages + stage, came.view(sum(layers), *pieces[0].shape[1:])]
+    return [group.rank, came.view(sum(layers), *pieces[0].shape[1:])]
""")  # fmt: skip


everybody_takes_the_same = slip(
    "from-one-layout-to-another", "my_reshard", says="should be on one rank", at=4, change="""
-    return [t * stages + stage, came.view(sum(layers), *pieces[0].shape[1:])]
+    return [t, came.view(sum(layers), *pieces[0].shape[1:])]
""")  # fmt: skip


cuts_layers_and_not_rows = slip("from-one-layout-to-another", "my_reshard", says="entries are wrong", at=4, change="""
-    away = torch.cat([piece.flatten() for piece in pieces])
+    away = mine.flatten()
""")  # fmt: skip


counts_on_equal_stages = slip("from-one-layout-to-another", "my_reshard", says="With 6 ranks", at=6, change="""
-    came = collectives.all_to_all(away, column, [each * len(mine)] * stages, [each * count for count in layers])
+    came = collectives.all_to_all(away, column, [each * len(mine)] * stages, [each * len(mine)] * stages)
""")  # fmt: skip


last_stage_first = slip("from-one-layout-to-another", "my_reshard", says="entries are wrong", at=4, change="""
-    return [t * stages + stage, came.view(sum(layers), *pieces[0].shape[1:])]
+    return [t * stages + stage, came.view(sum(layers), *pieces[0].shape[1:]).flip(0)]
""")  # fmt: skip


sends_everybody_what_it_has = slip(
    "from-one-layout-to-another", "my_reshard", says="it lacks only", at=4, change="""
-    column = group.subgroup([s * tensor + t for s in range(stages)])
+    column = group.subgroup([s * tensor + t for s in range(stages)])
+    everybody = collectives.all_gather(mine[:1, :1].contiguous(), group, algorithm="ring")
""")  # fmt: skip


@variant("from-one-layout-to-another", "my_reshard", at=4)
def message_by_message_in_another_order(mine, group, tensor, layers):
    n, stages = group.size, len(layers)
    stage, t = divmod(group.rank, tensor)
    number = t * stages + (stages - 1 - stage)
    pieces = [piece.contiguous() for piece in mine.chunk(stages, dim=1)]
    parts, sends = [], []
    for s in range(stages):
        if s != stage:
            sends.append(group.isend(pieces[stages - 1 - s], s * tensor + t))
    for s, count in enumerate(layers):
        like = torch.empty(count, *pieces[0].shape[1:])
        parts.append(pieces[stages - 1 - stage] if s == stage else group.recv(like, s * tensor + t))
    for send in sends:
        send.wait()
    assert number < n
    return [number, torch.cat(parts)]


@variant("from-one-layout-to-another", "my_reshard", at=4)
def in_the_group_of_all(mine, group, tensor, layers):
    stages = len(layers)
    stage, t = divmod(group.rank, tensor)
    pieces = mine.chunk(stages, dim=1)
    each = pieces[0][0].numel()
    here = [rank % tensor == t for rank in range(group.size)]
    out = [each * len(mine) * mate for mate in here]
    into = [each * layers[rank // tensor] * mate for rank, mate in enumerate(here)]
    came = collectives.all_to_all(torch.cat([p.reshape(-1) for p in pieces]), group, out, into)
    return [t * stages + stage, came.view(-1, *pieces[0].shape[1:])]


# Whoever is free ------------------------------------------------------------------------------------------------------


in_turn = slip("whoever-is-free", "my_rollout", says="were dealt out in turn", change="""
-            rank = min(range(1, group.size), key=lambda one: clock[one])
+            rank = 1 + number % (group.size - 1)
""")  # fmt: skip


by_the_last_chunk = slip("whoever-is-free", "my_rollout", says="steps of a rank's last chunk", change="""
-            clock[rank] += int(steps)
+            clock[rank] = int(steps)
""")  # fmt: skip


counts_tokens = slip("whoever-is-free", "my_rollout", says="not as many as it has tokens", change="""
-            clock[rank] += int(steps)
+            clock[rank] += sum(len(x) for x in found[number])
""")  # fmt: skip


counts_chunks = slip("whoever-is-free", "my_rollout", says="were dealt out in turn", change="""
-            clock[rank] += int(steps)
+            clock[rank] += 1
""")  # fmt: skip


to_the_last_one_free = slip("whoever-is-free", "my_rollout", says="that is free last", change="""
-            rank = min(range(1, group.size), key=lambda one: clock[one])
+            rank = max(range(1, group.size), key=lambda one: clock[one])
""")  # fmt: skip


the_highest_of_several = slip("whoever-is-free", "my_rollout", says="with the higher number got", at=4, change="""
-            rank = min(range(1, group.size), key=lambda one: clock[one])
+            rank = min(range(group.size - 1, 0, -1), key=lambda one: clock[one])
""")  # fmt: skip


as_they_come_back = slip("whoever-is-free", "my_rollout", says="not in the order of the prompts", change="""
-    return [[response for number in range(len(chunks)) for response in found[number]], torch.tensor(who)]
+    return [[response for some in sorted(found.items(), reverse=True) for response in some[1]], torch.tensor(who)]
""")  # fmt: skip


forgets_the_last_chunk = slip("whoever-is-free", "my_rollout", says="responses, and there are", change="""
-    return [[response for number in range(len(chunks)) for response in found[number]], torch.tensor(who)]
+    return [[response for number in range(len(chunks) - 1) for response in found[number]], torch.tensor(who)]
""")  # fmt: skip


one_rank_after_the_other = slip("whoever-is-free", "my_rollout", says="wrote one after the other", change="""
-        if rank >= group.size:
-            collect()
+        collect()
+        if rank >= group.size:
""")  # fmt: skip


nobody_is_told_that_it_is_over = slip("whoever-is-free", "my_rollout", says="has finished while others wait", change="""
-    for rank in range(1, group.size):
-        post([], group, rank).wait()
+    who = list(who)
""")  # fmt: skip


@mutant("whoever-is-free", "my_rollout", says="before it had the answer to its chunk")
def knows_beforehand_how_long_it_takes(prompts, group, chunk):
    if group.rank:
        while own := take(group, 0):
            post(write(own), group, 0).wait()
        return None
    clock, mine, who, sent = [0] * group.size, {}, [], []
    for begin in range(0, len(prompts), chunk):
        some = prompts[begin : begin + chunk]
        rank = len(mine) + 1 if len(mine) < group.size - 1 else min(range(1, group.size), key=lambda r: clock[r])
        mine.setdefault(rank, []).append(begin)
        sent.append(post(some, group, rank))
        clock[rank] += int(write(some)[0])
        who += [rank] * len(some)
    found = {}
    for rank, begins in mine.items():
        for begin in begins:
            found[begin] = take(group, rank)[1:]
    sent += [post([], group, rank) for rank in range(1, group.size)]
    for message in sent:
        message.wait()
    return [[response for begin in sorted(found) for response in found[begin]], torch.tensor(who)]


@mutant("whoever-is-free", "my_rollout", says="an empty message at the end are")
def writes_everything_itself(prompts, group, chunk):
    if group.rank:
        while own := take(group, 0):
            post(write(own), group, 0).wait()
        return None
    clock, found, who = [0] * group.size, [], []
    for number, begin in enumerate(range(0, len(prompts), chunk)):
        some = prompts[begin : begin + chunk]
        rank = number + 1 if number < group.size - 1 else min(range(1, group.size), key=lambda r: clock[r])
        steps, *responses = write(some)
        clock[rank] += int(steps)
        found += responses
        who += [rank] * len(some)
    for rank in range(1, group.size):
        post([], group, rank).wait()
    return [found, torch.tensor(who)]


@variant("whoever-is-free", "my_rollout")
def a_heap_of_clocks(prompts, group, chunk):
    import heapq

    if group.rank:
        own = take(group, 0)
        while own:
            post(write(own), group, 0).wait()
            own = take(group, 0)
        return None
    responses, by = [None] * len(prompts), torch.zeros(len(prompts), dtype=torch.int64)
    begins = range(0, len(prompts), chunk)

    def give(begin, rank):
        post(prompts[begin : begin + chunk], group, rank).wait()
        by[begin : begin + chunk] = rank

    def answer(begin, rank, time):
        steps, *found = take(group, rank)
        responses[begin : begin + chunk] = found
        return time + int(steps), rank

    first = list(zip(begins, range(1, group.size), strict=False))
    for begin, rank in first:
        give(begin, rank)
    free = [answer(begin, rank, 0) for begin, rank in first]
    heapq.heapify(free)
    for begin in begins[len(first) :]:
        time, rank = free[0]
        give(begin, rank)
        heapq.heapreplace(free, answer(begin, rank, time))
    for rank in range(1, group.size):
        post([], group, rank).wait()
    return [responses, by]


@variant("whoever-is-free", "my_rollout")
def sends_that_are_waited_for_at_the_end(prompts, group, chunk):
    sent, others = [], range(1, group.size)
    if group.rank:
        while len(own := take(group, 0)):
            sent.append(post(write(own), group, 0))
    else:
        clock, waiting, found, by = {}, {}, {}, {}
        begins = list(range(0, len(prompts), chunk))
        while begins or waiting:
            fresh = [rank for rank in others if rank not in clock and rank not in waiting]
            if begins and fresh:
                rank = fresh[0]
            else:
                for rank, begin in list(waiting.items()):
                    answer = take(group, rank)
                    clock[rank] = clock.get(rank, 0) + answer[0].item()
                    found[begin] = answer[1:]
                    del waiting[rank]
                if not begins:
                    break
                rank = min(clock, key=lambda one: (clock[one], one))
            begin = begins.pop(0)
            sent.append(post(prompts[begin : begin + chunk], group, rank))
            waiting[rank] = begin
            by |= dict.fromkeys(range(begin, min(begin + chunk, len(prompts))), rank)
        sent += [post([], group, rank) for rank in others]
    for message in sent:
        message.wait()
    if group.rank == 0:
        return [sum((found[begin] for begin in sorted(found)), []), torch.tensor([by[i] for i in range(len(prompts))])]


# Read while it writes -------------------------------------------------------------------------------------------------


sends_when_all_is_written = slip(
    "read-while-it-writes", "my_experience", says="was written. The other models", change="""
-                old[i] = logprobs
-                for rank in sorted({owner("reference", i), owner("reward", i)}):
-                    sending.append(post([prompt, response], group, rank))
+                old[i] = (logprobs, response)

-        for i, logprobs in old.items():
+        for i, (_, response) in old.items():
+            for rank in sorted({owner("reference", i), owner("reward", i)}):
+                sending.append(post([prompts[i], response], group, rank))
+        for i, (logprobs, _) in old.items():
""")  # fmt: skip


waits_for_every_answer = slip("read-while-it-writes", "my_experience", says="wrote nothing meanwhile", change="""
-                    sending.append(post([prompt, response], group, rank))
-        for i, logprobs in old.items():
-            other = group.recv(torch.empty_like(logprobs), owner("reference", i))
-            score = group.recv(torch.empty(1), owner("reward", i))
-            rewards.append(-beta * (logprobs - other))
-            rewards[-1][-1] += score[0]
+                    sending.append(post([prompt, response], group, rank))
+                other = group.recv(torch.empty_like(logprobs), owner("reference", i))
+                score = group.recv(torch.empty(1), owner("reward", i))
+                rewards.append(-beta * (logprobs - other))
+                rewards[-1][-1] += score[0]
""")  # fmt: skip


turns_the_penalty_around = slip("read-while-it-writes", "my_experience", says="penalty has the wrong sign", change="""
-            rewards.append(-beta * (logprobs - other))
+            rewards.append(-beta * (other - logprobs))
""")  # fmt: skip


rewards_every_token = slip("read-while-it-writes", "my_experience", says="every token has the reward", change="""
-            rewards[-1][-1] += score[0]
+            rewards[-1] += score[0]
""")  # fmt: skip


rewards_the_first_token = slip("read-while-it-writes", "my_experience", says="the first token has", change="""
-            rewards[-1][-1] += score[0]
+            rewards[-1][0] += score[0]
""")  # fmt: skip


no_penalty_at_the_end = slip(
    "read-while-it-writes", "my_experience", says="the last token has the reward alone", change="""
-            rewards[-1][-1] += score[0]
+            rewards[-1][-1] = score[0]
""")  # fmt: skip


one_penalty_for_a_response = slip(
    "read-while-it-writes", "my_experience", says="whole penalty is at the last", change="""
-            rewards.append(-beta * (logprobs - other))
-            rewards[-1][-1] += score[0]
+            rewards.append(torch.zeros_like(other))
+            rewards[-1][-1] = score[0] - beta * (logprobs - other).sum()
""")  # fmt: skip


forgets_beta = slip("read-while-it-writes", "my_experience", says="not multiplied by `beta`", change="""
-            rewards.append(-beta * (logprobs - other))
+            rewards.append(other - logprobs)
""")  # fmt: skip


twice_to_a_rank_with_both = slip(
    "read-while-it-writes", "my_experience", says="once to each rank that reads", change="""
-                for rank in sorted({owner("reference", i), owner("reward", i)}):
-                    sending.append(post([prompt, response], group, rank))
+                for rank in (owner("reference", i), owner("reward", i)):
+                    sending.append(post([prompt, response], group, rank))

-                prompt, response = take(group, source)
+                prompt, response = take(group, source)
+                if len(models) > 1:
+                    take(group, source)
""")  # fmt: skip


everything_from_the_first_rank = slip(
    "read-while-it-writes", "my_experience", says="returned the rewards of", change="""
-        return pools[role][i % len(pools[role])]
+        return pools[role][i % len(pools[role]) if role != "policy" else 0]
""")  # fmt: skip


writes_alone = slip("read-while-it-writes", "my_experience", says="all-reduces", at=3, change="""
-        policy = group.subgroup(pools["policy"])
+        policy = group.subgroup([group.rank])
""")  # fmt: skip


@variant("read-while-it-writes", "my_experience")
def answers_in_two_passes(prompts, group, pools, count, beta):
    who = {role: [ranks[i % len(ranks)] for i in range(count)] for role, ranks in pools.items()}
    me, handles = group.rank, []
    if me in who["reference"] + who["reward"]:
        for i in range(count):
            if me in (who["reference"][i], who["reward"][i]):
                told = take(group, who["policy"][i])
                for role, model in (("reference", reference), ("reward", reward)):
                    if who[role][i] == me:
                        handles.append(group.isend(model(*told), who["policy"][i]))
    found = []
    if me in pools["policy"]:
        written = []
        for i, prompt in enumerate(prompts):
            tokens, old = write_together(prompt, group.subgroup(pools["policy"]))
            if who["policy"][i] == me:
                written.append((i, old))
                handles += [post([prompt, tokens], group, to) for to in {who["reference"][i], who["reward"][i]}]
        for i, old in written:
            same, score = torch.empty(len(old)), torch.empty(1)
            group.recv(same, who["reference"][i])
            group.recv(score, who["reward"][i])
            last = torch.zeros(len(old))
            last[-1] = score
            found.append(last - beta * (old - same))
    for handle in handles:
        handle.wait()
    return found if me in pools["policy"] else None


@variant("read-while-it-writes", "my_experience")
def receives_that_are_posted_ahead(prompts, group, pools, count, beta):
    def at(role, i):
        return pools[role][i % len(pools[role])]

    if group.rank not in pools["policy"]:
        sends = []
        for i in range(count):
            mine = [at("reference", i) == group.rank, at("reward", i) == group.rank]
            if any(mine):
                told = take(group, at("policy", i))
                sends += [group.isend(reference(*told), at("policy", i))] if mine[0] else []
                sends += [group.isend(reward(*told), at("policy", i))] if mine[1] else []
        for send in sends:
            send.wait()
        return None
    policy, begun = group.subgroup(pools["policy"]), []
    for i, prompt in enumerate(prompts):
        response, old = write_together(prompt, policy)
        if at("policy", i) != group.rank:
            continue
        sends = [post([prompt, response], group, to) for to in sorted({at("reference", i), at("reward", i)})]
        ahead = [group.irecv(torch.empty(len(old)), at("reference", i)), group.irecv(torch.empty(1), at("reward", i))]
        begun.append((old, ahead, sends))
    rewards = []
    for old, (other, score), sends in begun:
        rewards.append(beta * (other.wait() - old))
        rewards[-1][-1] += score.wait().item()
        for send in sends:
            send.wait()
    return rewards
