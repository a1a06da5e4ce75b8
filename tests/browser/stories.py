"""What the reader of each chapter predicts and answers in the browser: one entry for a chapter that is written."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Story:
    """What the reader of a chapter does. predicts: ids; others are skipped. asked: ids of questions, each answered
    wrongly first; texts: (wrong, right) for those that are answered in words."""

    predicts: tuple[str, ...]
    asked: tuple[str, ...]
    texts: dict[str, tuple[str, str]] = field(default_factory=dict)


STORIES = {
    "00_start_here": Story(
        ("who-sends", "loss-curve", "how-many-models"),
        ("what-all-reduce-does", "order-of-a-step", "linear-parameters"),
    ),
    "01_why_distribute": Story(("training-state",), ("cut-a-matrix", "batch-doubled")),
    "02_ranks_and_messages": Story(
        ("telephone",), ("recv-into", "safe-program"), {"safe-program": ("rendezvous", "eager")}
    ),
    "03_collectives": Story(
        ("naive-bytes",),
        ("rank-0-of-16", "half-an-all-reduce", "a-time-without-a-size"),
        {"a-time-without-a-size": ("latency", "the size of the message")},
    ),
    "04_data_parallelism": Story(
        ("exposed", "bucket-size"),
        ("mean-of-means", "same-loss", "order-of-a-step"),
        {"same-loss": ("weights", "the same data")},
    ),
    "05_zero_and_fsdp": Story(
        ("held", "granularity"),
        ("sent-by-three", "order-of-a-layer", "still-out-of-memory"),
        {"still-out-of-memory": ("gradients", "the activations")},
    ),
    "06_scaling_efficiency": Story(
        ("slowest", "verdict"),
        ("which-scaling", "move-the-ratio", "small-batch-cut", "name-of-the-product"),
        {"name-of-the-product": ("throughput", "goodput")},
    ),
    "07_large_batches": Story(
        ("steps-at-512", "what-mends"),
        ("at-critical", "order-of-recipes", "name-the-scale"),
        {"name-the-scale": ("the critical batch", "the gradient noise scale")},
    ),
    "08_loose_synchrony": Story(
        ("typical-staleness", "ranks-for-top-k"),
        ("what-is-stale", "who-may-begin", "order-of-a-round", "name-what-is-kept"),
        {"name-what-is-kept": ("momentum", "error feedback")},
    ),
    "09_tensor_parallelism": Story(
        ("four-orders", "across-nodes"),
        ("columns-of-qkv", "order-of-a-pair", "partner-of-gather"),
        {"partner-of-gather": ("an all-reduce", "a reduce-scatter")},
    ),
    "10_pipeline_parallelism": Story(
        ("naive", "in-flight"),
        ("mark-of-rank-3", "order-of-a-rank", "break-the-circle", "nobody-waits"),
        {"nobody-waits": ("the gradient of the input", "the gradient of the weights")},
    ),
    "11_context_parallelism": Story(
        ("ring-bytes", "positions-forgotten"),
        ("two-parts", "life-of-a-block", "helps-hiding", "seventh-thing"),
        {"seventh-thing": ("the mask", "the positions of its tokens")},
    ),
    "12_experts": Story(
        ("dispatch-bytes", "dropped"),
        ("active-parameters", "who-is-dropped", "order-of-a-journey", "name-the-divisor"),
        {"name-the-divisor": ("the learning rate", "the division")},
    ),
    "13_embeddings": Story(
        ("pull-bytes", "spread-or-copy", "incast-doubled"),
        ("touched-bytes", "lazy-rows", "order-of-a-pull", "name-the-jam"),
        {"name-the-jam": ("a straggler", "incast")},
    ),
    "14_low_precision": Story(
        ("gradients-that-are-lost", "ones-in-sixteen-bits"),
        ("a-code-of-e4m3", "what-stays-wide", "name-the-standstill", "order-of-a-sum"),
        {"name-the-standstill": ("underflow", "swamping")},
    ),
    "15_hybrid_parallelism": Story(
        ("twice-the-replicas", "which-signal"),
        ("rank-of-coordinates", "what-it-adds", "order-of-a-search", "name-the-rule"),
        {"name-the-rule": ("load balancing", "bandwidth matching")},
    ),
    "16_alignment": Story(
        ("two-pools-that-wait", "bytes-of-a-new-layout"),
        ("gpus-of-four-models", "who-keeps-sixteen-bytes", "reward-up-truth-down", "order-of-a-step"),
        {"reward-up-truth-down": ("overfitting", "reward hacking")},
    ),
    "17_when_things_break": Story(
        ("between-failures", "which-check"),
        ("shares-of-a-table", "order-of-a-search", "blind-checks", "named-inner"),
        {"named-inner": ("that of the exchange", "the message")},
    ),
    "18_checkpoints": Story(
        ("interval", "which-examples"),
        ("fifteen-minutes-to-write", "what-is-forgotten", "order-of-a-save", "whole-or-not-at-all"),
        {"whole-or-not-at-all": ("fsync", "a rename")},
    ),
    "19_ft_hsdp": Story(
        ("one-rank-dies", "half-exchanged"),
        ("order-of-a-step", "bytes-in-flight", "what-newcomer-gives"),
        {"what-newcomer-gives": ("nothing", "a gradient of zeros")},
    ),
    "20_nonuniform_tensor_parallelism": Story(
        ("plain-cut", "loss-goes-on"),
        ("fewest-moves", "name-the-layout", "order-of-a-bucket", "same-curve"),
        {"name-the-layout": ("the compute layout", "the sync layout")},
    ),
    "21_hundred_thousand_gpus": Story(
        ("clock-or-random", "one-in-a-thousand"),
        ("bias-or-spread", "between-at-scale", "order-of-hops", "name-the-sorting"),
        {"name-the-sorting": ("more power", "packing")},
    ),
}
