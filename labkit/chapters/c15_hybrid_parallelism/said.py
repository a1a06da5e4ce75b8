"""What chapter 15 shows of its runs: each function draws what was found, and says it in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from IPython.display import display

from labkit import book, cost
from labkit.chapters.c15_hybrid_parallelism import cases, doing, pictures, same, small
from labkit.cost import planner
from labkit.cost.planner import Estimate, MeasuredStep
from labkit.cost.units import GB, format_bytes, format_seconds
from labkit.parallel import Layout

# 1: the mesh -----------------------------------------------------------------------------------------------------


def own_groups(run: Any, sizes: Mapping[str, int]) -> book.Conclusion:
    """run: of ranks that return what each has added up along each axis."""
    display(book.Table(
        [{"rank": rank, **{f"sum along {axis}": n for axis, n in row.items()}} for rank, row in enumerate(run.results)],
        caption="What each rank has added up with its partners (measured)",
    ))  # fmt: skip
    layout = Layout(sizes)
    wrong = [
        axis for axis in sizes
        if any(row.get(axis) != sum(layout.group_of(rank, axis)) for rank, row in enumerate(run.results))
    ]  # fmt: skip
    return book.conclude(
        {"not wrong": "Every rank has added up the numbers of its own groups.",
         "True": "Along {where} not every rank has added up the numbers of its own group: look at the stride there."},
        {"alone": "{n} is a prime number, so only one axis of your mesh is longer than 1. Take 4, 6 or 8 ranks "
         "for more.", "True": ""},
        alone=layout.size in (2, 3, 5, 7), n=layout.size, wrong=wrong, where=" and ".join(wrong),
    )  # fmt: skip


def agreement(errors: str) -> book.Conclusion:
    """In which errors ranks end that disagree; who compares meshes, and the numbers of two fleets."""
    print(errors)
    fleet, large = Layout({"pp": 8, "dp": 16, "tp": 8}), Layout({"pp": 16, "dp": 128, "tp": 8})
    return book.conclude(
        "The first time labkit noticed that members of one group had called all-reduces of different sizes. The "
        "second time `Mesh` had compared the axes before anything was sent, so the message names the real mistake. "
        "NCCL compares nothing, and PyTorch does so only if you set `TORCH_DISTRIBUTED_DEBUG=DETAIL`. If the tensors "
        "happen to have the same size, a job without such a check adds gradients to partial sums and goes on.\n\n"
        "Your function works for a real fleet, too. Take TP8 PP8 DP16 on 1,024 GPUs in nodes of 8. GPU 700 has the "
        "coordinates pp {at[pp]}, dp {at[dp]} and tp {at[tp]}. Its tensor partners are the other GPUs of its node. "
        "From one of its data partners to the next it is {next_dp} ranks, and from one pipeline partner to the next "
        "{next_pp}.\n\n"
        "A rank works with few of the others. With TP8 PP16 DP128 there are {gpus:,} GPUs, but in its three groups a "
        "GPU has only {each} = {partners} partners.",
        at=fleet.coordinates(700), next_pp=fleet.stride("pp"), next_dp=fleet.stride("dp"), gpus=large.size,
        each=" + ".join(str(large.sizes[axis] - 1) for axis in ("tp", "pp", "dp")),
        partners=sum(size - 1 for size in large.sizes.values()),
    )  # fmt: skip


# 2: traffic ------------------------------------------------------------------------------------------------------


def grows(several: Sequence[Any]) -> book.Conclusion:
    """Runs: a base, and with twice its degree of tensor, of pipeline and of data parallelism."""
    runs = {pictures.cut_name(run.results[0].config): run for run in several}
    display(pictures.grows(runs))
    base, tensor, _, data = map(pictures.busiest, runs.values())
    return book.conclude(
        "Each degree has a different price:\n\n"
        "- *Twice as many tensor ranks.* A rank computes half as much, but sends {tensor:.2f} times as much for its "
        "all-reduces, because $2\\cdot\\frac{{1}}{{2}}$ has become $2\\cdot\\frac{{3}}{{4}}$. It holds half of the "
        "weights, so it sends about half as much of their gradients.\n"
        "- *Twice as many stages.* A rank has half of the layers, so it sends about half as much for its all-reduces "
        "and for its gradients. Only small messages are new: those between the stages, and "
        "one sum of the embedding's gradient over the first and the last stage (section 3).\n"
        "- *Twice as many replicas.* A rank sends {data:.2f} times as much of its gradients, for the same reason as "
        "the tensor ranks. Tensor traffic stays as it was.\n\n",
        {"exact": "Every byte on every rank is that of the closed forms of chapters 4, 9 and 10 "
         "(`cost.hybrid_bytes_by_rank`).",
         "True": "Not every byte is that of the closed forms."},
        exact=all(map(_as_computed, runs.values())), tensor=tensor["tensor"] / base["tensor"],
        data=data["data"] / base["data"],
    )  # fmt: skip


def _as_computed(run: Any) -> bool:
    config = run.results[0].config
    forms = cost.hybrid_bytes_by_rank(small.GPT, config, 8 * config.dp, small.GPT.context, itemsize=2)
    return all(
        (row["tensor"], row["data"], row["pipeline"] + row["numbers"])
        == (form.tensor, form.data, form.pipeline + form.numbers)
        for row, form in zip(small.sent_by_axis(run), forms, strict=True)
    )


def scale(before: Estimate, wider: Estimate) -> book.Conclusion:
    """A fleet, and one with twice as many replicas."""
    model, plan = before.model, before.plan
    payload = cost.tensor_parallel_payload_bytes(plan.microbatch, model.sequence, model.hidden)
    layers, sequences = model.layers // plan.pipeline, plan.microbatches * plan.microbatch
    four = cost.tensor_parallel_bytes(1, model.sequence, model.hidden, layers, plan.tensor, microbatches=sequences)
    part = 4 * model.params / (plan.tensor * plan.pipeline)  # 4 bytes a gradient
    burst = 2 * (plan.data - 1) / plan.data * part * plan.gpus  # a ring of all replicas
    return book.conclude(
        "One GPU sends only {more:.1%} more bytes of gradients, because $2\\cdot\\frac{{{ring[0]}}}{{{ring[1]}}}$ "
        "has become $2\\cdot\\frac{{{ring[2]}}}{{{ring[3]}}}$. All GPUs together send twice as much, because there are "
        "twice as many.\n\n"
        "Do gradients need the fast links, then? Tensor parallelism sends far more, {tensor} in a step of {model}, but "
        "in many small exchanges, and in these formulas a GPU waits for each. Gradients are the largest "
        "*single* exchange, {data} for the busiest GPU, but they travel once a step, and a part of them during the "
        "last microbatch's backward pass. So gradients may leave the node.\n\n"
        "<details><summary>Where do the {data} come from, and what do all GPUs send together?</summary>\n\n"
        "Gradients are added up in 4 bytes. A GPU holds 1/{parts} of the model, so it sends "
        "$2\\cdot\\frac{{{ring[0]}}}{{{ring[1]}}}$ of {part}, or {mean} on average. The busiest GPU also holds an "
        "embedding. All {gpus:,} GPUs together send {burst}.\n\n</details>\n\n"
        "<details><summary>Where do the {tensor} come from?</summary>\n\n"
        "A GPU has {layers} layers, with four all-reduces in each for every sequence. In one of them it sends "
        "$2\\cdot\\frac{{7}}{{8}}$ of an activation, {one_sum}, so for {n} sequences it sends {four}.",
        {"abs(ratio - 1.25) < 0.001": "The rest is the price of sequence parallelism (chapter 9): twice in a layer, a "
         "rank gathers inputs again in the backward pass, and each time sends half as much as in an all-reduce.",
         "True": "What it really sends is {ratio:.3f} times that."},
        "\n\n</details>",
        more=wider.sent["data"] / before.sent["data"] - 1, model=model.name, part=format_bytes(part, 3),
        ring=[plan.data - 1, plan.data, wider.plan.data - 1, wider.plan.data], parts=plan.tensor * plan.pipeline,
        tensor=format_bytes(before.sent["tensor"], 3),
        data=format_bytes(before.sent["data"], 3), burst=format_bytes(burst, 3), gpus=plan.gpus,
        mean=format_bytes(burst / plan.gpus, 3),
        one_sum=format_bytes(2 * 7 / 8 * payload, 3), layers=layers, n=sequences, four=format_bytes(four, 3),
        ratio=before.sent["tensor"] / four,
    )  # fmt: skip


def placed(by_axis: Mapping[str, Any]) -> book.Conclusion:
    """ "tensor", "pipeline" or "data", whose ranks are neighbours -> run."""
    runs = {f"{axis} inside": run for axis, run in by_axis.items()}
    display(pictures.partners(runs), pictures.placed(runs))
    took = {axis: small.seconds(run) for axis, run in by_axis.items()}
    return book.conclude(
        {"tensor == fastest": "Tensor ranks should be neighbours. If the data ranks are neighbours instead, a step "
         "takes {ratio:.2f} times as long, because all tensor traffic then crosses the slow links. So put tp "
         "last in the order of the axes.",
         "True": "Here the fastest placement is not that of tensor ranks: with them a step takes {tensor_s}."},
        {"waits_inside < waits_pipeline": "With the pipeline ranks as neighbours their messages are fast, and yet a "
         "rank waits longer for its pipeline: {slow_pipe} instead of {fast_pipe}. Each stage now takes longer for "
         "a microbatch, because its all-reduces are slow, and the next stage has to wait for it.",
         "True": ""},
        "\n\nGPUs that fast links connect form a **scale-up domain**: the 8 of a node with NVSwitch, for example, or "
        "the 72 of an NVL72 rack. Everything beyond it is **scale-out** and goes over the slower network.",
        tensor=took["tensor"], fastest=min(took.values()), tensor_s=format_seconds(took["tensor"], 3),
        ratio=took["data"] / took["tensor"], waits_inside=doing.shares(runs["tensor inside"])["pipeline"],
        waits_pipeline=doing.shares(runs["pipeline inside"])["pipeline"],
        fast_pipe=format_seconds(doing.shares(runs["tensor inside"])["pipeline"], 3),
        slow_pipe=format_seconds(doing.shares(runs["pipeline inside"])["pipeline"], 3),
    )  # fmt: skip


def links(narrow: Estimate, wide: Estimate) -> book.Conclusion:
    """Two cuts, of which the second has its tensor ranks on two nodes."""
    display(pictures.links(narrow, wide))
    checks, others = ({one.axis: one for one in planner.bandwidth_check(plan)} for plan in (narrow, wide))
    return book.conclude(
        "*Tensor ranks belong inside a node.* With TP16 a step waits {longer:.2g} times as long for its all-reduces as "
        "with TP8. A factor of 2 comes from the cut: with half as many stages, a rank has twice as many layers. The "
        "rest comes from the {left} that must now leave the node, over a slower link.\n\n"
        "*Stages may be furthest apart.* With TP8 their messages take {hop_s}, and hardly any of it is hidden. But "
        "this is only {hop:.1%} of the {computing} of computing. Alibaba builds on this: in its network HPN only "
        "pipeline messages leave a pod, a group of 15,360 GPUs ([Qian et al. 2024](https://doi.org/10.1145/3651890.3672265)).\n\n"
        "*Gradients are between the two.* A gradient is final only when the last microbatch has added to it. So of the "
        "{m} backward passes in a step only the last one can hide their exchange, and only the first forward pass can "
        "hide the gathering of ZeRO-1's new parameters. With TP8 the two hide {hidden:.0%}, "
        "{hidden_s} of {data_s}.\n\n"
        "The next picture shows the three axes of TP8 PP8 DP16 on their links.",
        longer=others["tensor"].waited / checks["tensor"].waited, left=format_bytes(others["tensor"].nbytes, 3),
        hop=checks["pipeline"].alone / narrow.parts["computing"], hop_s=format_seconds(checks["pipeline"].alone, 2),
        computing=format_seconds(narrow.parts["computing"], 2), m=narrow.plan.microbatches,
        hidden=1 - checks["data"].waited / checks["data"].alone, data_s=format_seconds(checks["data"].alone, 2),
        hidden_s=format_seconds(checks["data"].alone - checks["data"].waited, 2),
    )  # fmt: skip


def rails(dense: Any, experts: Any) -> book.Conclusion:
    """What goes from rail to rail, of a dense cut with tensor ranks inside the nodes, and of eight experts."""
    display(pictures.rails({"without experts": dense, "with eight experts": experts}, per_node=2))
    off, left = (sum(small.crossing(run, 2)["another rail"].values()) for run in (dense, experts))
    return book.conclude(
        {"off == 0": "Without experts no byte crosses the network from one rail to another (measured), because the "
         "tensor ranks fill a node, and all other axes connect ranks with the same place in their nodes.",
         "True": "Without experts {off_b} cross the network from one rail to another (measured)."},
        "So a **rail-optimized network** serves a dense model well: the network cards with the same number in all "
        "nodes share a switch, and the links from rail to rail may be thin.",
        {"left > 0": "The tokens of experts go to any rank (chapter 12), so they cross from rail to rail if they are "
         "sent directly. A token can stay on one rail if it first goes over NVLink to the GPU of its own node that is "
         "on the rail of its target.", "True": ""},
        off=off, off_b=format_bytes(off, 3), left=left,
    )  # fmt: skip


# 3: one device ---------------------------------------------------------------------------------------------------


def by_hand(
    signals: same.Signals, sizes: Mapping[str, int], seed: int, norm: Callable[..., float]
) -> book.Conclusion:  # fmt: skip
    """Of a step with every sum written out, on a mesh of these sizes. norm: the reader's function in it."""
    off = signals.off(seed)
    display(pictures.watched({"your step": signals}, seed, head="run"))
    if broken := [name for name, value in off.items() if not math.isfinite(value)]:
        return book.conclude("{which} is no finite number: did something divide by zero?", which=broken[0].capitalize())
    return book.conclude(
        {"worst < near": "With these all-reduces and {whose} norm the mesh gives the same results as one device: no "
         "signal is further off than {worst:.0e}, which is rounding.",
         "True": "The mesh gives other results than one device: the {which} {verb} off by {worst:.2g}. If you have "
         "not changed this cell, look at `grad_norm`. If you have, which signal shows it, and which one does not?"},
        {"ends > near": "The first and the last stage have different gradients for their copies of the tied matrix, "
         "because nobody added them up. Your norm counts each of them half, as if they were equal. (The next table "
         "counts them in full, so there the norm is off by another number.)",
         "pp == 1": "(Your mesh has a single stage, so no all-reduce over the first and the last one was needed.)",
         "tp == 1": "(Your mesh has no tensor ranks, so no partial sums were added up.)",
         "True": ""},
        pp=sizes["pp"], tp=sizes["tp"], whose=book.whose(norm), worst=max(off.values()),
        ends=signals.ends,
        which=max(off, key=lambda name: off[name]), near=same.NEAR,
        verb="are" if max(off, key=lambda name: off[name]).startswith(("weights", "copies")) else "is",
    )  # fmt: skip


def which_differ(run: Any) -> str:
    """The choice of the prediction that a run confirms."""
    loss, norm, _, weights = (off > 1e-6 for off in run.results[0].off(run.seed).values())
    if loss:
        return "All of them, the loss of step 1 included."
    if weights:
        return "The gradient norm and the weights, because each step is half as long."
    return "The gradient norm alone." if norm else "None: clipping hides the mistake completely."


def mistakes(spoiled: Mapping[str, Any]) -> book.Conclusion:
    """mistake -> run of three steps."""
    signals, seed = {name: run.results[0] for name, run in spoiled.items()}, spoiled["none"].seed
    display(pictures.watched(signals, seed))
    off = {name: list(each.off(seed).values()) for name, each in signals.items()}
    return book.conclude(
        "In the first step of every run print the loss, the gradient norm and the difference between copies, and "
        "compare them with those of a cut that you trust. The loss shows mistakes in the forward pass or the data, and "
        "the norm those in the backward pass or the all-reduces. The copies show whether equal weights drift "
        "apart.\n\n",
        {"twice[0] < 1e-9 < twice[1] and twice[2] < 1e-9 < twice[3] < 0.1": "- *Norm counted twice.* The loss is right "
         "and the copies agree, but the norm is too large. So the gradients are clipped to too short a length. AdamW "
         "divides by their size, so the weights get only a little wrong.\n",
         "True": "- *Norm counted twice.* With this seed it shows in other signals.\n"},
        {"tied[0] < 1e-9 and tied[1] > 1e-9": "- *Tied matrix apart.* The loss of step 1 is right, because nobody has "
         "changed a weight yet. The norm is already wrong, and after the update the two copies differ.\n",
         "True": "- *Tied matrix apart.* With this seed it shows in other signals.\n"},
        {"data[0] > 1e-9": "- *Data by rank.* Wrong examples show in the very first loss.\n",
         "True": "- *Data by rank.* Wrong examples do not show in the first loss with this seed.\n"},
        {"average[1] > 1e-9 and average[3] < 1e-6": "- *Averaged twice.* The norm is half of what it should be, but "
         "the weights hardly differ. Both gradients are above the limit for clipping, and clipped to "
         "the same length they give the same step. Without clipping AdamW would hide it, too, because it "
         "divides by the size of the gradient. (The weights do differ by {average[3]:.0e}, because clipping adds "
         "1e-6 to the norm before it divides.)\n",
         "True": "- *Averaged twice.* The norm is wrong, and the weights are off by {average[3]:.2g}.\n"},
        "\nCheck a checkpoint in the same way: loaded into another cut, it must give the same next loss (chapter 18).",
        twice=off["norm counted twice"], tied=off["tied matrix apart"], data=off["data by rank"],
        average=off["averaged twice"],
    )  # fmt: skip


# 4: memory and time ----------------------------------------------------------------------------------------------


def held(found: Mapping[str, tuple[Mapping[str, float], float]]) -> book.Conclusion:
    """name -> bytes of training state on the fullest rank by part, and all of them by the planner."""
    display(pictures.held(found))
    ten, fourteen, sixteen = planner.static_memory()
    return book.conclude(
        {"off < 0.03": "For this count the ranks compute in 32 bits, so a parameter takes 4 bytes, its gradient 4 and "
         "Adam's moments 8. ZeRO-1 leaves an eighth of the moments on each of eight ranks, and ZeRO-3 an eighth of "
         "everything. In the last bar the model is cut in four, and ZeRO-1 halves the moments. Activations "
         "and buffers were not measured.",
         "True": "The planner is off by up to {off:.1%} here. The rest are buffers that it does not know."},
        "\n\n<details><summary>If somebody says how many gigabytes a plan needs, which bytes were counted?</summary>"
        "\n\n"
        "Take 175 billion parameters cut TP8 PP16:\n\n"
        "- Weights and Adam's two moments are 10 bytes a parameter, and a GPU holds {ten:.1f} GB.\n"
        "- With a 32-bit copy of the weights they are 14 bytes, and {fourteen:.1f} GB.\n"
        "- With gradients of 2 bytes they are 16, and {mean:.1f} GB on average. The first stage also has the "
        "embedding, and holds {sixteen:.1f} GB.\n\n"
        "Our planner adds up gradients in 4 bytes instead of 2, so it counts 18 bytes a parameter.\n\n</details>\n\n"
        "<details><summary>May a plan fill the whole card?</summary>\n\n"
        "No: the driver, the buffers of the communication library and the gaps between tensors need memory too. The "
        "80 GiB of an H100 are {card:.1f} GB. A plan that *fits* fills at most 80 GB, and leaves {part:.1%} free, "
        "which is no guarantee: memory that is free in small pieces does not help.\n\n</details>\n\n"
        "Memory says which plans are possible. Which of them is the fastest depends on what waits for what. Eight "
        "small ranks have room for A, B and C alike, so let them find out.",
        off=max(abs(computed / sum(held.values()) - 1) for held, computed in found.values()),
        card=(planner.H100.memory + planner.H100.reserve) / GB,
        part=planner.H100.reserve / (planner.H100.memory + planner.H100.reserve),
        ten=ten.found, fourteen=fourteen.found, sixteen=sixteen.found, mean=175 * 16 / 128,
    )  # fmt: skip


CHOICES = {
    "A": "A: it has no bubble, and nothing is sent inside a layer.",
    "B": "B: a part of the gradients, and no bubble.",
    "C": "C: the least gradients for each rank, and a bubble.",
}


def winner(ran: Mapping[str, Any]) -> str:
    """The choice of the prediction that the runs of A, B and C confirm."""
    return CHOICES[min(ran, key=lambda name: small.seconds(ran[name]))]


def three(
    ran: Mapping[str, Any], variants: Mapping[str, Any], at_1024: Mapping[str, Estimate]
) -> book.Conclusion:  # fmt: skip
    """name -> run of A, B and C; of data parallelism alone with two ways to sum, in nodes first and by a ring; and
    what the planner says of A, B and C on 1,024 GPUs."""
    named = {f"{name} ({pictures.cut_name(run.results[0].config)})": run for name, run in {**ran, **variants}.items()}
    display(pictures.placed(named, "Three configurations, and two variants of A"))
    far_a, _, far_c = at_1024.values()
    a, b, c = (small.seconds(run) for run in ran.values())
    (wide, half, all_axes), (plain, ring) = ran.values(), variants.values()
    return book.conclude(
        {"c < min(a, b)": "C is the fastest. All three compute equally long, so the waiting decides. In C a rank has "
         "half as many gradients as in B, and exchanges them with one rank instead of three. So it waits {c_data} "
         "for them instead of {b_data}, which saves more than the {c_pipe} that it waits for its pipeline.",
         "True": "C is not the fastest: beside it, B takes {b_c:.2f} times as long, and A {a_c:.2f} times."},
        "\n\nWhy does A wait {a_data} for its gradients? Here the exchange of ZeRO-1 is one ring over all data ranks, "
        "so it ignores the nodes. Data parallelism *without* ZeRO (*plain* in the picture) adds up inside the nodes "
        "first, and a step takes {plain_s}.",
        {"abs(a - ring_t) < 0.01 * a": "If all its ranks add up in one ring, too, it is as slow as A.",
         "True": "If all its ranks add up in one ring, a step takes {ring_s}."},
        "So if data parallelism is slow, first try another algorithm for its all-reduce, and change the cut if that "
        "does not help enough.\n\n"
        "<details><summary>Count the rounds</summary>\n\n",
        {"wide_n == 14": "One ring over 8 ranks takes 14 rounds: 7 in which they reduce-scatter the gradients, and 7 "
         "in which they gather the new weights. In each round all ranks wait for messages over slow links.",
         "True": "One ring over 8 ranks takes {wide_n} rounds over slow links."},
        {"plain_n == 6": "If they add up inside the nodes first, each rank has half of the gradients left for 4 nodes, "
         "so there are 6 slow rounds instead of 14. A round carries as much as one in A, an eighth of the gradients.",
         "True": "If they add up inside the nodes first, there are {plain_n} slow rounds."},
        "\n\n</details>\n\n"
        "What is fastest here need not be fastest elsewhere.",
        {"far_a < far_c": "On the 1,024 H100s A would take {far_a_s} and C {far_c_s}, if A did fit. A sends nothing "
         "inside its layers, and for H100s the planner assumes that ZeRO-1 adds up inside the nodes first.",
         "True": "On the 1,024 H100s A would take {far_a_s} and C {far_c_s}."},
        far_a=far_a.seconds, far_c=far_c.seconds, far_a_s=format_seconds(far_a.seconds, 3),
        far_c_s=format_seconds(far_c.seconds, 3),
        a_data=format_seconds(doing.shares(wide)["data"], 3),
        b_data=format_seconds(doing.shares(half)["data"], 3), c_data=format_seconds(doing.shares(all_axes)["data"], 3),
        c_pipe=format_seconds(doing.shares(all_axes)["pipeline"], 3),
        a_c=a / c, b_c=b / c, a=a, b=b, c=c, plain_s=format_seconds(small.seconds(plain), 3),
        wide_n=small.slow_turns(wide, 2), plain_n=small.slow_turns(plain, 2),
        ring_t=small.seconds(ring), ring_s=format_seconds(small.seconds(ring), 3),
    )  # fmt: skip


def at_1024(
    three: Mapping[str, Estimate], nbytes: Mapping[str, float], state_bytes: Callable[..., float]
) -> book.Conclusion:  # fmt: skip
    """A, B and C for 175 billion parameters on 1,024 H100s, beside what the reader's function says of their state."""
    a, b, c = three.values()
    yours = [nbytes[name] / GB for name in three]
    theirs = [(one.held.parameters + one.held.gradients + one.held.optimizer) / GB for one in three.values()]
    bars = {f"{name} ({pictures.degrees(*one.plan.cut)})": one for name, one in three.items()}
    display(pictures.memory(bars, f"Memory of the fullest GPU: {a.model.name} with ZeRO-1"))
    return book.conclude(
        {"not a_fits and not b_fits and c_fits": "Only C fits. A and B fail by what ZeRO-1 leaves whole: the "
         "parameters and their gradients, {a_whole:,.0f} GB of them in A and {b_whole:.0f} GB in B. Only tensor and "
         "pipeline parallelism make these smaller, or a higher stage of ZeRO.",
         "True": "They need {a_gb:,.0f}, {b_gb:.0f} and {c_gb:.0f} GB."},
        "{whose} function says {yours[0]:,.0f}, {yours[1]:.1f} and {yours[2]:.1f} GB, and the planner "
        "{theirs[0]:,.0f}, {theirs[1]:.1f} and {theirs[2]:.1f} GB.",
        {"near": "The planner knows the exact number of parameters, and it looks at the fullest GPU, which in C also "
         "holds an embedding.", "True": "They differ by more than an embedding: look at `state_bytes` again."},
        "With a batch of {batch:,} sequences, activations add {act_a:.0f} GB in A, and {act:.1f} GB in C.\n\n"
        "Can you trust a planner that only adds up? Let it compute what eight real ranks hold at the end of a backward "
        "pass, and then count the bytes of their tensors.",
        whose=book.whose(state_bytes).capitalize(), yours=yours, theirs=theirs,
        near=all(abs(x / y - 1) < 0.03 for x, y in zip(yours, theirs, strict=True)),
        batch=a.plan.batch, a_whole=(a.held.parameters + a.held.gradients) / GB,
        b_whole=(b.held.parameters + b.held.gradients) / GB, act_a=a.held.activations / GB,
        act=c.held.activations / GB, a_fits=a.fits, b_fits=b.fits, c_fits=c.fits,
        a_gb=a.held.total / GB, b_gb=b.held.total / GB, c_gb=c.held.total / GB,
    )  # fmt: skip


def predicted(
    timed: Mapping[str, MeasuredStep], yours: Mapping[str, float], step_seconds: Callable[..., float]
) -> book.Conclusion:  # fmt: skip
    """name -> run with its plan; beside the planner's word and that of the reader's function."""
    display(pictures.beside(timed, yours=yours))
    off = pictures.errors(timed)
    worst = max(off, key=lambda name: abs(off[name]))
    yours_off = {name: yours[name] / one.seconds - 1 for name, one in timed.items()}
    near, *_, far = sorted(yours_off, key=lambda name: abs(yours_off[name]))
    fast, *_, slow = sorted(timed, key=lambda name: timed[name].seconds)
    return book.conclude(
        "labkit's planner adds up more than your two lines, each part a closed form of an earlier chapter:\n\n"
        "| in the pictures | what it adds up |\n|---|---|\n"
        "| *computing*, *recomputation* | the kernels of each layer, and activations that were not kept, made again |\n"
        "| *tensor* | waiting for the all-reduces inside layers |\n"
        "| *pipeline* | the bubble, a stage with more work than others, and messages between stages |\n"
        "| *data* | waiting for gradients and parameters |\n"
        "| *optimizer* | the update |\n\n"
        "Communication is hidden only as far as there is computing to hide it behind.\n\n"
        "A planner is useful if its errors are smaller than the differences between plans. Here the slowest plan, "
        "{slow}, takes {spread:.2g} times as long as the fastest. The planner predicts half of the plans within "
        "{median:.1%}. Its largest error is {most:+.1%}, for {worst}.",
        {"most < -0.05": "There it counts a message between two stages as hidden as soon as there is enough to "
         "compute. But in so tight a schedule a stage often has nothing else to do until the message is there.",
         "True": "It comes from messages that wait a little longer, or a little less, than the closed forms think."},
        "\n\n{whose} two lines are nearest to the truth for {near}, and furthest from it for {far} ({far_off:+.0%}). "
        "They leave out the messages between stages, and the logits, which give the last stage more work.",
        {"luck": "For {worst} they come nearer than the planner, but only by luck: they count a bubble that is too "
         "long, and leave out messages and logits, and the two mistakes nearly cancel.", "True": ""},
        "\n\nHere the planner knew the machine, because we made it up. Of a real machine you know only the data sheet, "
        "and a data sheet promises too much. So people measure a few steps, fit a few parameters to them, and then "
        "test the planner on *other* plans. The next cell does the same with four of the runs. It fits two shares: how "
        "much of its peak a matrix product reaches, and how much of its bandwidth a link between nodes reaches. Its "
        "picture has the other four runs.",
        luck="zb" in worst and abs(yours_off[worst]) < abs(off[worst]), median=median(map(abs, off.values())),
        worst=worst, most=off[worst], near=near, slow=slow,
        spread=timed[slow].seconds / timed[fast].seconds,
        whose=book.whose(step_seconds).capitalize(), far=far, far_off=yours_off[far],
    )  # fmt: skip


def fitted(fit: Any, sheet: Mapping[str, MeasuredStep], seen: Sequence[str]) -> book.Conclusion:
    """What was fitted to the runs of these names, and how far off it is on them and on the others. sheet: the runs, of
    a planner that knows the data sheet only."""
    others = {name: one for name, one in sheet.items() if name not in seen}
    display(pictures.beside(others, fit))
    return book.conclude(
        "By the data sheet alone, every step would take less than it does, and the planner would be off by up to "
        "{sheet:.0%}. The fit finds that matrix products reach {products:.0%} of their peak, and the links between "
        "nodes {across:.0%} of their bandwidth. We made the machine, so we know the true shares: {true_products:.0%} "
        "and {true_across:.0%}.\n\n"
        "On the runs to which it was fitted ({names}) the planner is now off by at most {seen:.1%}, and on the others "
        "by up to {unseen:.1%}.",
        {"unseen > seen": "Only the second number tells you how far to trust it.",
         "True": "The second number tells you how far to trust it, and that it is the smaller one is luck."},
        products=fit.efficiency.products, across=fit.efficiency.across, seen=fit.worst, names=", ".join(seen),
        unseen=max(map(abs, pictures.errors(others, fit).values())),
        sheet=max(map(abs, pictures.errors(sheet).values())),
        true_products=cases.SHEET["products"], true_across=cases.SHEET["across"],
    )  # fmt: skip


# The record ------------------------------------------------------------------------------------------------------


def kept(
    timed: Mapping[str, MeasuredStep], sheet: Mapping[str, MeasuredStep], fit: Any, seen: Sequence[str],
    placements: Mapping[str, Any], found: planner.Search,
) -> dict[str, float]:  # fmt: skip
    """What the chapter records: errors of predictions, what a placement is worth, and how many plans there are."""
    off = sorted(map(abs, pictures.errors(timed).values()))
    others = {name: one for name, one in sheet.items() if name not in seen}
    return {
        "planner_median": median(off), "planner_worst": off[-1],
        "unseen_worst": max(map(abs, pictures.errors(others, fit).values())),
        "placement_ratio": small.seconds(placements["data"]) / small.seconds(placements["tensor"]),
        "searched_plans": found.considered,
    }  # fmt: skip
