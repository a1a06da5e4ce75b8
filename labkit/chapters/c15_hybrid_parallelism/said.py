"""What chapter 15 shows of a search or a run: each function draws what was found, and says it in sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from IPython.display import display

from labkit import book, cost
from labkit.chapters.c15_hybrid_parallelism import cases, doing, pictures, same, small
from labkit.cost import planner
from labkit.cost.planner import Advice, Estimate, MeasuredStep
from labkit.cost.units import GB, format_bandwidth, format_bytes, format_seconds
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
        {"alone": "{n} is a prime number, so your mesh has only one axis. Take 4, 6 or 8 ranks for more.", "True": ""},
        alone=layout.size in (2, 3, 5, 7), n=layout.size, wrong=wrong, where=" and ".join(wrong),
    )  # fmt: skip


def agreement() -> book.Conclusion:
    """Who compares meshes, and the numbers of two fleets."""
    fleet, large = Layout({"pp": 8, "dp": 16, "tp": 8}), Layout({"pp": 16, "dp": 128, "tp": 8})
    return book.conclude(
        "Something must check that the ranks agree. labkit found the first error because it compares what the members "
        "of a group have called. NCCL does not compare, and PyTorch does so only if you set "
        "`TORCH_DISTRIBUTED_DEBUG=DETAIL`. Without a check, a job whose tensors happen to have the same size adds "
        "gradients to partial sums and goes on. The second error comes from `Mesh`, which compares the sizes at the "
        "start.\n\n"
        "The same function numbers a real fleet. Take TP8 PP8 DP16 on 1,024 GPUs in nodes of 8. GPU 700 has the "
        "coordinates pp {at[pp]}, dp {at[dp]} and tp {at[tp]}. Its tensor partners are the other GPUs of its node, its "
        "data partners are {next_dp} ranks apart, and its pipeline partners {next_pp}.\n\n"
        "No rank talks to many others. With TP8 PP16 DP128 there are {gpus:,} GPUs, and each has only {partners} "
        "partners.",
        at=fleet.coordinates(700), next_pp=fleet.stride("pp"), next_dp=fleet.stride("dp"), gpus=large.size,
        partners=sum(size - 1 for size in large.sizes.values()),
    )  # fmt: skip


# 2: traffic ------------------------------------------------------------------------------------------------------


def grows(runs: Mapping[str, Any]) -> book.Conclusion:
    """name -> run: a base, and with twice its degree of tensor, of pipeline and of data parallelism."""
    display(pictures.grows(runs))
    base, tensor, _, data = map(pictures.busiest, runs.values())
    return book.conclude(
        "Each degree has a different price:\n\n"
        "- *Twice as many tensor ranks.* A rank computes half as much, but sends {tensor:.2f} times as much for its "
        "sums. It has half of the gradients.\n"
        "- *Twice as many stages.* A rank has half of the layers, so it sends about half of everything.\n"
        "- *Twice as many replicas.* A rank sends {data:.2f} times as much of its gradients, because "
        "$2\\cdot\\frac{{1}}{{2}}$ has become $2\\cdot\\frac{{3}}{{4}}$. Tensor traffic stays as it was.\n\n",
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
    burst = 2 * (plan.data - 1) * 4 * model.params  # a ring of all replicas, 4 bytes a gradient
    return book.conclude(
        "A single GPU sends only {more:.1%} more gradients, and all GPUs together twice as much.\n\n"
        "Tensor parallelism sends most by far: {tensor} in a step of {model}, for the busiest GPU. But these are many "
        "small exchanges, and in one sum inside a layer a GPU sends only {one_sum}. It cannot compute while it waits "
        "for that, so these sums need the fastest links.\n\n"
        "The largest *single* exchange is that of the gradients. Once a step the busiest GPU sends {data}, and all "
        "GPUs together {burst}. A part of it can travel during the last microbatch's backward pass, so gradients may "
        "leave the node.\n\n"
        "<details><summary>Where do the {tensor} come from?</summary>\n\n"
        "A GPU has {layers} layers, with four sums in each. For each sum it sends $2\\cdot\\frac{{7}}{{8}}$ of an "
        "activation. For a replica's {n} sequences these are {four}.",
        {"abs(ratio - 1.25) < 0.001": "The rest, a quarter more, is the price of sequence parallelism (chapter 9): "
         "a rank gathers the inputs of a layer's two halves again in the backward pass. Each of these two gathers is "
         "half a sum, so a layer sends as much as five sums.",
         "True": "What it really sends is {ratio:.3f} times that."},
        "\n\n</details>",
        more=wider.sent["data"] / before.sent["data"] - 1, model=model.name,
        tensor=format_bytes(before.sent["tensor"], 3),
        data=format_bytes(before.sent["data"], 3), burst=format_bytes(burst, 3),
        one_sum=format_bytes(2 * 7 / 8 * payload, 3), layers=layers, n=sequences, four=format_bytes(four, 3),
        ratio=before.sent["tensor"] / four,
    )  # fmt: skip


def placed(runs: Mapping[str, Any]) -> book.Conclusion:
    """ "tensor inside", "pipeline inside", "data inside" -> run."""
    display(pictures.placed(runs))
    took = {name.split()[0]: small.seconds(run) for name, run in runs.items()}
    return book.conclude(
        {"tensor == fastest": "Tensor ranks should be neighbours. If the data ranks are, a step takes {ratio:.2f} "
         "times as long, because all sums inside the layers cross the slow links. If a job is slow in this way, "
         "put tp last in the order of the axes.",
         "True": "Here the fastest placement is not that of tensor ranks: with them a step takes {tensor_s}."},
        {"waits_inside < waits_pipeline": "With the pipeline inside, ranks wait longer even for the pipeline, although "
         "its messages are fast now. A stage takes longer for each microbatch, because of its slow sums, and the "
         "others wait for it.",
         "True": ""},
        "\n\nHow many GPUs are one hop away? Step through three machines that one can buy. In a node of 8, NVSwitch "
        "makes every GPU a neighbour of every other one. In a **scale-up domain** such as an NVL72 rack the same is "
        "true of 72. Everything beyond is **scale-out**: it goes over the network.",
        tensor=took["tensor"], fastest=min(took.values()), tensor_s=format_seconds(took["tensor"], 3),
        ratio=took["data"] / took["tensor"], waits_inside=doing.shares(runs["tensor inside"])["pipeline"],
        waits_pipeline=doing.shares(runs["pipeline inside"])["pipeline"],
    )  # fmt: skip


def links(narrow: Estimate, wide: Estimate) -> book.Conclusion:
    """Two cuts, of which the second has its tensor ranks on two nodes."""
    display(pictures.links(narrow, wide))
    checks, others = ({one.axis: one for one in planner.bandwidth_check(plan)} for plan in (narrow, wide))
    return book.conclude(
        "*Tensor ranks belong inside a node.* With TP16 a step waits {longer:.2g} times as long for its sums as with "
        "TP8. A factor of 2 is no fault of the links: with half as many stages a rank has twice as many layers. The "
        "rest is the slow link, because now a part of each sum must leave the node. The bytes beside the bar are only "
        "that part.\n\n"
        "*Stages may be furthest apart.* Their messages take {hop:.1%} of the time of computing. Alibaba's network HPN "
        "lets only pipelines cross from one pod to another, where links are shared "
        "([Qian et al. 2024](https://doi.org/10.1145/3651890.3672265); more of it in chapter 21).\n\n"
        "*Gradients are between the two.* A gradient is final when the last microbatch has added to it, so its sum can "
        "hide behind one backward pass only. A step has {m} of them, so with TP8 only {hidden:.0%} of the exchange is "
        "hidden.\n\n"
        "Such a *feasibility check* needs no run.",
        longer=others["tensor"].waited / checks["tensor"].waited, hop=checks["pipeline"].share,
        m=narrow.plan.microbatches, hidden=1 - checks["data"].waited / checks["data"].alone,
    )  # fmt: skip


# 3: one device ---------------------------------------------------------------------------------------------------


def by_hand(
    signals: same.Signals, sizes: Mapping[str, int], seed: int, norm: Callable[..., float]
) -> book.Conclusion:  # fmt: skip
    """Of a step with every sum written out, on a mesh of these sizes. norm: the reader's function in it."""
    off = signals.off(seed)
    return book.conclude(
        {"worst < near": "With these sums and {whose} norm the mesh is one device: no signal is further off than "
         "{worst:.0e}, which is rounding.",
         "True": "The mesh is not one device: the {which} {verb} off by {worst:.2g}. If you have not changed "
         "this cell, look at `grad_norm`."},
        {"pp == 1": "(Your mesh has a single stage, so the sum over the first and the last one had nothing to do.)",
         "tp == 1": "(Your mesh has no tensor ranks, so no partial sums were added up.)",
         "True": ""},
        pp=sizes["pp"], tp=sizes["tp"], whose=book.whose(norm), worst=max(off.values()),
        which=max(off, key=lambda name: off[name]), near=same.NEAR,
        verb="are" if max(off, key=lambda name: off[name]).startswith(("weights", "copies")) else "is",
    )  # fmt: skip


def first_to_differ(run: Any) -> str:
    """The choice of the prediction that a run confirms."""
    choices = ("The loss of step 1.", "The norm of the gradient in step 1.", "Nothing in step 1; the loss of step 2.")
    loss, norm, *_ = run.results[0].off(run.seed).values()
    return choices[0 if loss > same.NEAR else 1 if norm > same.NEAR else 2]


def mistakes(spoiled: Mapping[str, Any]) -> book.Conclusion:
    """mistake -> run of three steps."""
    display(pictures.watched(spoiled))
    off = {name: list(run.results[0].off(run.seed).values()) for name, run in spoiled.items()}
    return book.conclude(
        "Print three signals in the first step of every run, beside those of a cut that you trust. The loss of step 1 "
        "sees the forward pass and the data. The norm sees the backward pass and all sums. Comparing copies sees what "
        "drifts apart.\n\n",
        {"tied[0] < 1e-9 and tied[1] > 1e-9": "- *Tied matrix apart.* The loss of step 1 is right, because nobody has "
         "changed a weight yet. The norm is already wrong, and after the update the two copies differ.\n",
         "True": "- *Tied matrix apart.* It shows in other signals here.\n"},
        {"data[0] > 1e-9": "- *Data by rank.* Wrong examples show in the very first loss.\n",
         "True": "- *Data by rank.* Wrong examples do not show in the first loss with this seed.\n"},
        {"average[1] > 1e-9 and average[3] < 1e-6": "- *Average, not sum.* The norm is half of what it should be, and "
         "the weights hardly differ. The gradient is still far above the limit for clipping, and what is clipped to "
         "the same length gives the same step.\n",
         "True": "- *Average, not sum.* The norm is wrong, and the weights are off by {average[3]:.2g}.\n"},
        "\nCheck a checkpoint in the same way: loaded into another cut, it must give the same next loss (chapter 18).",
        tied=off["tied matrix apart"], data=off["data by rank"], average=off["average, not sum"],
    )  # fmt: skip


# 4: memory and time ----------------------------------------------------------------------------------------------


def held(found: Mapping[str, tuple[float, float]]) -> book.Conclusion:
    """name -> bytes of training state on the fullest rank, and by the planner."""
    display(pictures.held(found))
    ten, fourteen, sixteen = planner.static_memory()
    return book.conclude(
        {"off < 0.03": "For the training state the planner is right to {off:.1%} or better. Activations and buffers "
         "were not measured here.",
         "True": "The planner is off by up to {off:.1%} here. The rest are buffers that it does not know."},
        "\n\nWhen you read a number of gigabytes for a plan, ask which bytes were counted. Take 175 billion parameters "
        "cut TP8 PP16:\n\n"
        "- Weights and Adam's two moments are 10 bytes a parameter, and a GPU holds {ten:.1f} GB.\n"
        "- With a 32-bit copy of the weights they are 14 bytes, and {fourteen:.1f} GB.\n"
        "- With gradients of 2 bytes they are 16, and {mean:.1f} GB on average. The first stage also has the "
        "embedding, and holds {sixteen:.1f} GB.\n\n"
        "Our planner adds up gradients in 4 bytes, so it counts 18.\n\n"
        "<details><summary>May a plan fill the whole card?</summary>\n\n"
        "No: the driver, the buffers of the communication library and the gaps between tensors need memory too. The "
        "80 GiB of an H100 are {card:.1f} GB. A plan that *fits* fills at most 80 GB, and leaves {part:.1%} free. That "
        "is no guarantee: Rajbhandari et al. (2020, section 3.2) saw runs that were out of memory while over 30% of it "
        "was still free, in pieces that were too small.\n\n</details>",
        off=max(abs(computed / measured - 1) for measured, computed in found.values()),
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
    return CHOICES[min(ran, key=lambda name: small.seconds(ran[name]))[0]]


def three(ran: Mapping[str, Any], variants: Mapping[str, Any]) -> book.Conclusion:
    """name -> run of A, B and C; and of data parallelism alone with two ways to sum: in nodes first, and by a ring."""
    display(pictures.placed({**ran, **variants}, "Three configurations, and two variants of A"))
    a, b, c = (small.seconds(run) for run in ran.values())
    (wide, _, all_axes), (plain, ring) = ran.values(), variants.values()
    return book.conclude(
        {"c < min(a, b)": "C is the fastest, although it uses all three axes.",
         "True": "C is not the fastest: beside it, B takes {b_c:.2f} times as long, and A {a_c:.2f} times."},
        "All three compute equally long. A waits {a_data} for its gradients alone, and C waits {c_waits} in "
        "all.\n\n"
        "A is so slow because the exchange of ZeRO-1 ignores the nodes: {wide_n} times, one after the other, all ranks "
        "wait for messages over slow links. Data parallelism *without* ZeRO adds up inside the nodes first. Then both "
        "ranks of a node send at once, half of the data each, so the slow links have only {plain_n} turns, and a step "
        "takes {plain_s}.",
        {"abs(a - ring_t) < 0.01 * a": "If this sum goes around one ring, there are {ring_n} turns again, and it takes "
         "as long as A.",
         "True": "If this sum goes around one ring, there are {ring_n} turns, and it takes {ring_s}."},
        "So where data parallelism is slow, first change how it adds up, and then the cut.",
        a_data=format_seconds(doing.shares(wide)["data"], 3),
        c_waits=format_seconds(c - doing.shares(all_axes)["computing"], 3),
        a_c=a / c, b_c=b / c, a=a, b=b, c=c, plain_s=format_seconds(small.seconds(plain), 3),
        wide_n=small.slow_turns(wide, 2), plain_n=small.slow_turns(plain, 2), ring_n=small.slow_turns(ring, 2),
        ring_t=small.seconds(ring), ring_s=format_seconds(small.seconds(ring), 3),
    )  # fmt: skip


def at_1024(three: Mapping[str, Estimate]) -> book.Conclusion:
    """A, B and C for 175 billion parameters on 1,024 H100s."""
    a, b, c = three.values()
    bars = {f"{name} ({pictures.degrees(*one.plan.cut)})": one for name, one in three.items()}
    display(pictures.memory(bars, f"Memory of the fullest GPU: {a.model.name} with ZeRO-1"))
    return book.conclude(
        {"not a_fits and not b_fits and c_fits": "On {gpus:,} H100s, with a batch of {batch:,} "
         "sequences, memory decides: only C fits. A GPU of A would need {a_gb:,.0f} GB, and one of B {b_gb:.0f} GB.",
         "True": "They need {a_gb:,.0f}, {b_gb:.0f} and {c_gb:.0f} GB."},
        {"a_s < min(b_s, c_s)": "If A did fit, it would even be the fastest, because nothing is sent inside its "
         "layers: {a_s:.2f} s where C takes {c_s:.2f} s. Here all exchanges add up inside the nodes first.",
         "True": "A would not be the fastest either."},
        gpus=a.plan.gpus, batch=a.plan.batch,
        a_s=a.seconds, b_s=b.seconds, c_s=c.seconds, a_fits=a.fits, b_fits=b.fits, c_fits=c.fits,
        a_gb=a.held.total / GB, b_gb=b.held.total / GB, c_gb=c.held.total / GB,
    )  # fmt: skip


def predicted(timed: Mapping[str, MeasuredStep], step_seconds: Callable[..., float]) -> book.Conclusion:
    """name -> run with its plan; beside the planner's word and that of the reader's function."""
    yours = {name: step_seconds(**small.ingredients(one)) for name, one in timed.items()}
    display(pictures.beside(timed, yours=yours))
    off = pictures.errors(timed)
    worst = max(off, key=lambda name: abs(off[name]))
    yours_off = {name: yours[name] / one.seconds - 1 for name, one in timed.items()}
    near, *_, far = sorted(yours_off, key=lambda name: abs(yours_off[name]))
    fast, *_, slow = sorted(timed, key=lambda name: timed[name].seconds)
    return book.conclude(
        "A planner is useful if its errors are smaller than the differences between plans. Here the slowest plan, "
        "{slow}, takes {spread:.2g} times as long as the fastest. The planner predicts half of the plans within "
        "{median:.1%}.\n\n"
        "Its largest error is {most:+.1%}, for {worst}.",
        {"most < -0.05": "There it is too optimistic: it counts a message between two stages as hidden as soon as "
         "there is enough to compute. But in so tight a schedule a stage often has nothing else to do until the "
         "message is there.",
         "True": "It comes from messages that wait a little longer, or a little less, than the closed forms think."},
        {"lucky and 'zb' in worst": "{whose} two lines are nearer there ({lucky_off:+.1%}), by luck: they know nothing "
         "of the schedule.",
         "True": ""},
        "\n\n{whose} two lines are nearest to the truth for {near}, and furthest from it for {far} ({far_off:+.0%}). "
        "They leave out the messages between stages and the logits, which make the turns of the last stage longer.\n\n"
        "We made this machine up, so we knew the speed of everything. Of a real one you know only the data sheet. So "
        "one fits a few figures to a few measured steps, and then looks at *other* plans. "
        "Next we fit two figures to four of the runs, and look at the other four.",
        median=median(map(abs, off.values())), worst=worst, most=off[worst], near=near, slow=slow,
        spread=timed[slow].seconds / timed[fast].seconds,
        lucky=abs(yours_off[worst]) < abs(off[worst]), lucky_off=yours_off[worst],
        whose=book.whose(step_seconds).capitalize(), far=far, far_off=yours_off[far],
    )  # fmt: skip


def fitted(fit: Any, timed: Mapping[str, MeasuredStep], seen: Sequence[str]) -> book.Conclusion:
    """What was fitted to the runs of these names, and how far off it is on them and on the others."""
    others = {name: one for name, one in timed.items() if name not in seen}
    display(pictures.beside(others, fit))
    return book.conclude(
        "On the runs that it was fitted to ({names}) the model is off by at most {seen:.1%}, and on the others by up "
        "to {unseen:.1%}.",
        {"unseen > seen": "Only the second number tells you how far to trust it.",
         "True": "The second number tells you how far to trust it, and that it is the smaller one is luck."},
        "\n\nThe fit finds that kernels reach {products:.0%} of their peak and links between nodes {across:.0%} of "
        "their bandwidth. The true value of both is 100%.",
        products=fit.efficiency.products, across=fit.efficiency.across, seen=fit.worst, names=", ".join(seen),
        unseen=max(map(abs, pictures.errors(others, fit).values())),
    )  # fmt: skip


# 5: the planner --------------------------------------------------------------------------------------------------


def search(job: cases.Job, cut: tuple[int, int, int], best_cut: Callable[..., Any]) -> book.Conclusion:
    """The cut that the reader's search has found, beside the planner's plan."""
    yours, best, whose = job.of(*cut), job.found.winner, book.whose(best_cut)
    display(
        pictures.steps(
            {f"{whose} search: {pictures.short(yours)}": yours, f"the planner: {pictures.short(best)}": best}
        )
    )
    return book.conclude(
        "{whose} search has varied the three degrees; ZeRO-1 and computing attention again (`sel`) were given. "
        "The planner also varies the size of a microbatch, the schedule "
        "and its chunks, the stage of ZeRO, what is computed again, and a fourth axis, context parallelism. In all it "
        "looks at {considered:,} plans, and its step is {gain:.0%} shorter.",
        whose=whose.capitalize(), considered=job.found.considered, gain=1 - best.seconds / yours.seconds,
    )  # fmt: skip


# 7: more questions -----------------------------------------------------------------------------------------------


def rule_of_thumb(given: Advice, smaller: Advice) -> book.Conclusion:
    """The rungs of a job, and what stopping on the first that fits costs there and for a smaller job."""
    display(pictures.ladder(given))
    return book.conclude(
        "The rule names something that works, so it is a good way to begin. But *fits* and *fast* are different "
        "questions: for {job} stopping there costs {large:.0%}, and for {other} {small:.0%}.",
        job=_job(given), other=_job(smaller), large=price(given), small=price(smaller),
    )  # fmt: skip


def _job(given: Advice) -> str:
    return f"{given.found.model.name} on {given.found.cluster.gpus:,} GPUs"


def price(given: Advice) -> float:
    """By which part a step is longer if one stops at the first rung on which something fits."""
    assert given.first is not None and given.first.best is not None
    return given.first.best.seconds / given.found.winner.seconds - 1


def sixteen_nodes(four: Mapping[str, Estimate]) -> book.Conclusion:
    """Four proposals for one job: tensor over all, a pipeline, sharding, and everything."""
    wide, deep, shards, mix = four.values()
    display(pictures.steps({f"{name}: {pictures.short(one)}": one for name, one in four.items()}, "Four proposals"))
    return book.conclude(
        "No strategy is better than the others in general: each one becomes wrong where its own limit binds.",
        {"all(fits)": "All four fit (simulated).", "True": "Not all of them fit (simulated)."},
        "\n\n- *Tensor parallelism over all GPUs* takes {times:.2g} times as long as the mixture, because the sums of "
        "every layer cross the network.\n"
        "- *The pipeline* reaches an MFU of {deep:.0%}. Of what it loses, {deep_again:.0%} is computing activations "
        "again to save memory. Most of the rest is its bubble: so small a batch leaves few microbatches for each "
        "replica.\n"
        "- *Sharding alone* reaches {shards:.0%}. Of its loss, {shards_again:.0%} is computing again. For the rest, a "
        "GPU must gather all layers to work on a single sequence.\n"
        "- *The mixture* reaches {mix:.0%}.",
        times=wide.seconds / mix.seconds, deep=deep.mfu, shards=shards.mfu, mix=mix.mfu,
        fits=[one.fits for one in four.values()], deep_again=_again(deep), shards_again=_again(shards),
    )  # fmt: skip


def _again(one: Estimate) -> float:
    """The part of what is not computing that is computing again."""
    return one.parts["recomputed"] / (one.seconds - one.parts["computing"])


def rails(dense: Any, experts: Any) -> book.Conclusion:
    """What goes from rail to rail, of a dense cut with tensor ranks inside the nodes, and of eight experts."""
    display(pictures.rails({"without experts": dense, "with eight experts": experts}, per_node=2))
    off, left = (sum(small.crossing(run, 2)["another rail"].values()) for run in (dense, experts))
    return book.conclude(
        {"off == 0": "Without experts no byte crosses the network from one rail to another (measured), because the "
         "tensor ranks fill a node, and all other axes connect equal places in the nodes.",
         "True": "Without experts {off_b} cross the network from one rail to another (measured)."},
        "So a **rail-optimized network** serves a dense model well: the network cards with the same number in all "
        "nodes share a switch, and the links from rail to rail may be thin. In a *fat tree* all routes are equally "
        "wide, which costs more.",
        {"left > 0": "The rows of experts go to any rank (chapter 12), so sent directly they cross rails. If a row "
         "first went over NVLink to the right place of its own node, it could stay on one.", "True": ""},
        off=off, off_b=format_bytes(off, 3), left=left,
    )  # fmt: skip


def shift(domains: Mapping[int, Estimate], theirs: Estimate) -> book.Conclusion:
    """domain -> its best plan; and a source's plan, with tensor parallelism over a domain of 16."""
    few, many = min(domains), max(domains)
    first, last = domains[few], domains[many]
    shown = {f"{n} GPUs in a domain: {pictures.short(one)}": one for n, one in domains.items()}
    wide = f"all {theirs.plan.tensor} for tensor: {pictures.short(theirs)}"
    display(pictures.steps({**shown, wide: theirs}, "A step in larger domains"))
    return book.conclude(
        "A larger fast domain changes the plan more than the time.",
        {"stages > 1 and stages_after == 1": "With {many} GPUs in a domain the pipeline has disappeared: with ZeRO-3 "
         "all GPUs share the state, and most of the gathering stays inside the domains.",
         "True": "The stages have gone from {stages} to {stages_after}."},
        {"first_lost == last_lost": "In small domains and in large ones, most time after computing goes to "
         "{first_lost}. That is the next limit.",
         "True": "After computing, most time goes to {first_lost} at first, and to {last_lost} at the end."},
        "\n\nA domain that *allows* wide tensor parallelism is no reason to use all of it. The last bar does so in "
        "domains of {t}, and a step takes {theirs:.1f} s.\n\n"
        "A B200 has NVLink 5, with {nvlink} each way [quoted]. It can also multiply in 4 bits, but the planner stays "
        "with 16 (chapter 14).",
        many=many, nvlink=format_bandwidth(last.cluster.topology.levels[0].bandwidth),
        first_lost=pictures.largest(first), last_lost=pictures.largest(last),
        stages=first.plan.pipeline, stages_after=last.plan.pipeline, theirs=theirs.seconds,
        t=theirs.plan.tensor,
    )  # fmt: skip


# The record ------------------------------------------------------------------------------------------------------


def kept(
    timed: Mapping[str, MeasuredStep], fit: Any, seen: Sequence[str], placements: Mapping[str, Any],
    found: planner.Search,
) -> dict[str, float]:  # fmt: skip
    """What the chapter records: errors of predictions, what a placement is worth, and how many plans there are."""
    off = sorted(map(abs, pictures.errors(timed).values()))
    others = {name: one for name, one in timed.items() if name not in seen}
    return {
        "planner_median": median(off), "planner_worst": off[-1],
        "unseen_worst": max(map(abs, pictures.errors(others, fit).values())),
        "placement_ratio": small.seconds(placements["data inside"]) / small.seconds(placements["tensor inside"]),
        "searched_plans": found.considered,
    }  # fmt: skip
