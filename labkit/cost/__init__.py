"""Closed forms of the book: what things send and how long they take. Imports no torch.

`collectives` has the bytes, messages, rounds and time of every algorithm of every collective; `fit` finds alpha and
beta of a link from measured messages; `crossover` and `choose` compare algorithms; `bandwidth` is the field's way to
report a measured collective; `textbook` and `slow_sync` recompute numbers of the sources; `shapes` has the
transformers that all this is computed for, `memory` the bytes that training holds, `zero` and `hybrid_shard` what of
them each rank holds and sends; `data_parallel` the buckets of a step, `accumulation` a step of several microbatches;
`fleet` the time of a step on N devices, `scaling` its efficiency, `extrapolate` what two measured sizes say about a
third, `straggler` the wait for the slowest; `batch` the critical batch, `energy` the energy and the price, `roofline`
what a kernel's memory lets it reach; `tensor` what tensor parallelism sends and `tensor_memory` what it holds,
`vocabulary` its loss, `layers` one layer's work, `placement` which axis belongs on which link; `pipeline` the bubble
of each schedule, `pipeline_memory` what its ranks hold, `pipeline_traffic` what they send, `depth` how many stages;
`signals` when one machine is not enough, `reliability` how often a large job fails, `failure_tables` of what;
`checkpoint_interval` when to save, `checkpoint_size` how much, `checkpoint_tax` what that and failures cost,
`checkpoint_runs` the same by drawing failures, `async_checkpoints` what writing in the background saves, `elastic`
when to go on smaller; `recovery` the time that trains when all stop or one replica does (`replica_runs` by drawing),
`stalls` a standstill taken apart; `detection`, `spares`, `corruption`, `interventions` what else a failure asks for,
`ftar` the all-reduce that survives it; `failure_kinds` how many GPUs are in repair, `availability` what that leaves
of wide groups, `narrowing` and `boost` how fast a replica is without some GPUs, and with more power; `topology` the
machines of the sources, what is where on them, and how well large ones are used; `units` writes numbers down.

What draws many samples at once needs NumPy, and is loaded when it is first used: `failure_traces` who fails when,
`histories` numbers that change now and then, `clusters` (with `cluster_use`) what failures leave of a cluster,
`placed_failures` failures placed by chance, `cluster_runs` a cluster through a trace, `fleet_runs` restarts and
FT-HSDP.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import ftar, slow_sync, stalls, textbook, topology, units
from .accumulation import (
    accumulated_step_seconds,
    accumulation_bytes_per_step,
    accumulation_gradient_bytes,
    accumulation_overhead,
    exchanges_saved,
)
from .async_checkpoints import asynchronous_interval, asynchronous_tax, copy_seconds
from .availability import amplification, group_availability, group_availability_of
from .bandwidth import algorithm_bandwidth, bus_bandwidth, bus_factor
from .batch import (
    best_batch,
    critical_batch_from,
    information_gain,
    least_steps_from,
    sample_efficiency,
    samples_to_target,
    seconds_to_target,
    simple_noise_scale,
    steps_to_target,
)
from .boost import PowerBoost
from .checkpoint_interval import best_interval, daly_higher_order_interval, daly_interval, young_interval
from .checkpoint_runs import CheckpointRuns, simulate_checkpoints
from .checkpoint_size import checkpoint_bytes, kept_bytes, write_seconds
from .checkpoint_tax import Tax, checkpoint_tax, first_order_tax, lost_work
from .choose import best_algorithm, rank_algorithms
from .claims import Claim, agreement, claim_rows
from .collectives import *  # noqa: F403  (one list of the closed forms, in collectives/__init__)
from .collectives import __all__ as _closed_forms
from .corruption import (
    corrupted_before_found,
    interruptions_per_host,
    replay_overhead,
    runs_to_clear,
    steps_until_found,
)
from .crossover import (
    crossover,
    crossover_by_bisection,
    line_crossing,
    ring_recursive_doubling_crossover,
    ring_tree_crossover,
)
from .data_parallel import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Bucket,
    DataParallelStep,
    data_parallel_step,
    fill_buckets,
    global_batch,
)
from .depth import (
    Depth,
    depth_tradeoff,
)
from .detection import deadline_for, detection_seconds, false_alarms, share_interval
from .elastic import going_on_smaller, shortest_wait_for_smaller
from .energy import (
    INFINIBAND_PICOJOULES,
    NVLINK_PICOJOULES,
    movement_joules,
    movement_watts,
    price,
    price_per_gpu_hour,
)
from .estimates import Estimate
from .extrapolate import (
    Measured,
    ScalingFit,
    communication_growth,
    fit_scaling,
)
from .failure_kinds import LLAMA3_RATE, FailureKind, llama3_kinds, mean_failed, time_above
from .failure_tables import (
    FT_HSDP_FAILURES,
    LLAMA3_FAILURES,
    Cause,
    FailureTable,
    minutes_between_interruptions,
    per_thousand_servers_a_day,
    rate_of_interval,
)
from .fit import LinkFit, fit_alpha_beta, fit_sends, points_of_sends
from .fleet import (
    amdahl_ceiling,
    communication_ceiling,
    communication_ratio,
    devices_for,
    regime,
    scaling_efficiency,
    speedup,
    step_seconds,
    training_flops,
    training_seconds,
)
from .ftar import ftar_in_flight_bytes, ftar_partitions, ftar_ratios, ftar_rounds
from .hybrid_shard import (
    Sent,
    hybrid_bytes_per_step,
    hybrid_state_bytes,
    node_egress_bytes,
)
from .interventions import INTERVENTIONS, intervention_factor, samples_lost, step_noise_factor
from .layers import (
    LayerFlops,
    layer_flops,
    layer_parameters,
    replicated_layer_parameters,
)
from .links import Links
from .memory import (
    ACTIVATION_STRATEGIES,
    ADAM_STATE,
    GPU_MEMORY,
    StateBytes,
    activation_bytes,
    checkpointed_activation_bytes,
    devices_to_hold,
    gathered_bytes,
    gradient_unit_bytes,
    kept_activation_bytes,
    largest_model,
    peak_activation_bytes,
    state_bytes,
    state_parts,
)
from .narrowing import WORK_480B, narrow_speed
from .pipeline import (
    PIPELINE_SCHEDULES,
    bubble_fraction,
    bubble_overhead,
    interleaved_bubble,
    microbatches_for,
    naive_bubble_fraction,
    pipeline_idle_seconds,
    pipeline_step_seconds,
    zero_bubble_fraction,
)
from .pipeline_memory import (
    InFlight,
    in_flight_by_rank,
    in_flight_microbatches,
    pipeline_activation_bytes_by_rank,
    weight_versions_by_rank,
)
from .pipeline_traffic import (
    pipeline_boundary_bytes,
    pipeline_bytes_by_rank,
    pipeline_messages_by_rank,
    tensor_over_pipeline_bytes,
    tied_embedding_bytes,
)
from .placement import (
    TensorParallelLayer,
    all_reduces_that_fit,
    least_hidden_size,
    tensor_parallel_layer,
)
from .recovery import (
    fault_tolerant_effective_time,
    random_fault_tolerant_effective_time,
    random_synchronous_effective_time,
    synchronous_effective_time,
)
from .reliability import mtbf_from_survival, mtbf_of, observed_mtbf, survival, survival_hours, unit_mtbf_of
from .replica_runs import ReplicaRuns, simulate_replicas
from .roofline import elementwise_intensity, machine_balance, product_intensity, roofline_share
from .scaling import (
    amdahl_speedup,
    equivalent_ranks,
    fastest_size,
    goodput,
    mfu,
    strong_efficiency,
    weak_efficiency,
)
from .shapes import SHAPES, Shape
from .signals import SIGNALS, Machine, Training, distribution_signals
from .spares import in_repair, poisson_tail, spares_needed
from .stalls import Growth, Restart, fit_growth, kill_stall_seconds, rejoin_stall_seconds
from .straggler import (
    Exponential,
    Lomax,
    Normal,
    RareDelay,
    expected_maximum_of,
    harmonic,
    normal_maximum,
)
from .tensor import (
    TensorParallelCalls,
    tensor_parallel_bytes,
    tensor_parallel_bytes_by_rank,
    tensor_parallel_calls,
    tensor_parallel_payload_bytes,
    tensor_parallel_seconds,
)
from .tensor_memory import (
    model_parallel_state_bytes,
    tensor_parallel_activation_bytes,
    weight_gradient_activation_bytes,
)
from .tensor_step import replicated_gradient_bytes_by_rank, tensor_parallel_model_bytes_by_rank
from .units import format_bandwidth, format_bytes, format_seconds
from .vocabulary import (
    gathered_scores_bytes,
    vocabulary_parallel_embedding_bytes,
    vocabulary_parallel_loss_bytes,
    vocabulary_parallel_loss_bytes_by_rank,
)
from .zero import (
    zero1_by_all_reduce_bytes,
    zero_bytes_per_step,
    zero_bytes_per_step_by_rank,
    zero_saving,
    zero_saving_limit,
    zero_state_bytes,
    zero_state_bytes_by_rank,
    zero_state_parts,
)

if TYPE_CHECKING:
    from .cluster_runs import (
        ClusterRun,
        FixedBatch,
        domain_history,
        fixed_batch,
        run_cluster,
        run_unpacked,
        spares_without_pause,
    )
    from .cluster_use import Use
    from .clusters import Cluster
    from .failure_traces import FailureTrace, draw_failures
    from .fleet_runs import FleetRuns, simulate_fleet
    from .histories import History
    from .placed_failures import loss_at, place_failures

# What needs NumPy. No module is called like a name in this table: importing it would put it in the name's place.
_HOME = {
    "Cluster": "clusters",
    "ClusterRun": "cluster_runs",
    "FailureTrace": "failure_traces",
    "FixedBatch": "cluster_runs",
    "FleetRuns": "fleet_runs",
    "History": "histories",
    "Use": "cluster_use",
    "domain_history": "cluster_runs",
    "draw_failures": "failure_traces",
    "fixed_batch": "cluster_runs",
    "loss_at": "placed_failures",
    "place_failures": "placed_failures",
    "run_cluster": "cluster_runs",
    "run_unpacked": "cluster_runs",
    "simulate_fleet": "fleet_runs",
    "spares_without_pause": "cluster_runs",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


__all__ = [
    "ACTIVATION_STRATEGIES",
    "ADAM_STATE",
    "BUCKET_BYTES",
    "Bucket",
    "Cause",
    "CheckpointRuns",
    "Claim",
    "Cluster",
    "ClusterRun",
    "DataParallelStep",
    "Depth",
    "Estimate",
    "Exponential",
    "FIRST_BUCKET_BYTES",
    "FT_HSDP_FAILURES",
    "FailureKind",
    "FailureTable",
    "FailureTrace",
    "FixedBatch",
    "FleetRuns",
    "GPU_MEMORY",
    "Growth",
    "History",
    "INFINIBAND_PICOJOULES",
    "INTERVENTIONS",
    "InFlight",
    "LLAMA3_FAILURES",
    "LLAMA3_RATE",
    "LayerFlops",
    "LinkFit",
    "Links",
    "Lomax",
    "Machine",
    "Measured",
    "NVLINK_PICOJOULES",
    "Normal",
    "PIPELINE_SCHEDULES",
    "PowerBoost",
    "RareDelay",
    "ReplicaRuns",
    "Restart",
    "SHAPES",
    "SIGNALS",
    "ScalingFit",
    "Sent",
    "Shape",
    "StateBytes",
    "Tax",
    "TensorParallelCalls",
    "TensorParallelLayer",
    "Training",
    "Use",
    "WORK_480B",
    "accumulated_step_seconds",
    "accumulation_bytes_per_step",
    "accumulation_gradient_bytes",
    "accumulation_overhead",
    "activation_bytes",
    "agreement",
    "algorithm_bandwidth",
    "all_reduces_that_fit",
    "amdahl_ceiling",
    "amdahl_speedup",
    "amplification",
    "asynchronous_interval",
    "asynchronous_tax",
    "best_algorithm",
    "best_batch",
    "best_interval",
    "bubble_fraction",
    "bubble_overhead",
    "bus_bandwidth",
    "bus_factor",
    "checkpoint_bytes",
    "checkpoint_tax",
    "checkpointed_activation_bytes",
    "claim_rows",
    "communication_ceiling",
    "communication_growth",
    "communication_ratio",
    "copy_seconds",
    "corrupted_before_found",
    "critical_batch_from",
    "crossover",
    "crossover_by_bisection",
    "daly_higher_order_interval",
    "daly_interval",
    "data_parallel_step",
    "deadline_for",
    "depth_tradeoff",
    "detection_seconds",
    "devices_for",
    "devices_to_hold",
    "distribution_signals",
    "domain_history",
    "draw_failures",
    "elementwise_intensity",
    "equivalent_ranks",
    "exchanges_saved",
    "expected_maximum_of",
    "false_alarms",
    "fastest_size",
    "fault_tolerant_effective_time",
    "fill_buckets",
    "first_order_tax",
    "fit_alpha_beta",
    "fit_growth",
    "fit_scaling",
    "fit_sends",
    "fixed_batch",
    "format_bandwidth",
    "format_bytes",
    "format_seconds",
    "ftar",
    "ftar_in_flight_bytes",
    "ftar_partitions",
    "ftar_ratios",
    "ftar_rounds",
    "gathered_bytes",
    "gathered_scores_bytes",
    "global_batch",
    "going_on_smaller",
    "goodput",
    "gradient_unit_bytes",
    "group_availability",
    "group_availability_of",
    "harmonic",
    "hybrid_bytes_per_step",
    "hybrid_state_bytes",
    "in_flight_by_rank",
    "in_flight_microbatches",
    "in_repair",
    "information_gain",
    "interleaved_bubble",
    "interruptions_per_host",
    "intervention_factor",
    "kept_activation_bytes",
    "kept_bytes",
    "kill_stall_seconds",
    "largest_model",
    "layer_flops",
    "layer_parameters",
    "least_hidden_size",
    "least_steps_from",
    "line_crossing",
    "llama3_kinds",
    "loss_at",
    "lost_work",
    "machine_balance",
    "mean_failed",
    "mfu",
    "microbatches_for",
    "minutes_between_interruptions",
    "model_parallel_state_bytes",
    "movement_joules",
    "movement_watts",
    "mtbf_from_survival",
    "mtbf_of",
    "naive_bubble_fraction",
    "narrow_speed",
    "node_egress_bytes",
    "normal_maximum",
    "observed_mtbf",
    "peak_activation_bytes",
    "per_thousand_servers_a_day",
    "pipeline_activation_bytes_by_rank",
    "pipeline_boundary_bytes",
    "pipeline_bytes_by_rank",
    "pipeline_idle_seconds",
    "pipeline_messages_by_rank",
    "pipeline_step_seconds",
    "place_failures",
    "points_of_sends",
    "poisson_tail",
    "price",
    "price_per_gpu_hour",
    "product_intensity",
    "random_fault_tolerant_effective_time",
    "random_synchronous_effective_time",
    "rank_algorithms",
    "rate_of_interval",
    "regime",
    "rejoin_stall_seconds",
    "replay_overhead",
    "replicated_gradient_bytes_by_rank",
    "replicated_layer_parameters",
    "ring_recursive_doubling_crossover",
    "ring_tree_crossover",
    "roofline_share",
    "run_cluster",
    "run_unpacked",
    "runs_to_clear",
    "sample_efficiency",
    "samples_lost",
    "samples_to_target",
    "scaling_efficiency",
    "seconds_to_target",
    "share_interval",
    "shortest_wait_for_smaller",
    "simple_noise_scale",
    "simulate_checkpoints",
    "simulate_fleet",
    "simulate_replicas",
    "slow_sync",
    "spares_needed",
    "spares_without_pause",
    "speedup",
    "stalls",
    "state_bytes",
    "state_parts",
    "step_noise_factor",
    "step_seconds",
    "steps_to_target",
    "steps_until_found",
    "strong_efficiency",
    "survival",
    "survival_hours",
    "synchronous_effective_time",
    "tensor_over_pipeline_bytes",
    "tensor_parallel_activation_bytes",
    "tensor_parallel_bytes",
    "tensor_parallel_bytes_by_rank",
    "tensor_parallel_calls",
    "tensor_parallel_layer",
    "tensor_parallel_model_bytes_by_rank",
    "tensor_parallel_payload_bytes",
    "tensor_parallel_seconds",
    "textbook",
    "tied_embedding_bytes",
    "time_above",
    "topology",
    "training_flops",
    "training_seconds",
    "unit_mtbf_of",
    "units",
    "vocabulary_parallel_embedding_bytes",
    "vocabulary_parallel_loss_bytes",
    "vocabulary_parallel_loss_bytes_by_rank",
    "weak_efficiency",
    "weight_gradient_activation_bytes",
    "weight_versions_by_rank",
    "write_seconds",
    "young_interval",
    "zero1_by_all_reduce_bytes",
    "zero_bubble_fraction",
    "zero_bytes_per_step",
    "zero_bytes_per_step_by_rank",
    "zero_saving",
    "zero_saving_limit",
    "zero_state_bytes",
    "zero_state_bytes_by_rank",
    "zero_state_parts",
]
__all__ += _closed_forms
