"""Closed forms of the book: what things send and how long they take. Imports no torch.

`collectives` has the bytes, messages, rounds and time of every algorithm of every collective; `fit` finds
alpha and beta of a link from measured messages; `crossover` and `choose` compare algorithms; `bandwidth` is
the field's way to report a measured collective; `textbook` and `slow_sync` recompute numbers of the sources;
`memory` has the bytes that training holds, `zero` what of them each rank holds and sends; `fleet` the time of a
step on N devices, `signals` when one machine is not enough, `reliability` how often a large job fails, `shapes` the
transformers that all this is computed for; `units` writes numbers down.
"""

from . import slow_sync, textbook, units
from .bandwidth import algorithm_bandwidth, bus_bandwidth, bus_factor
from .choose import best_algorithm, rank_algorithms
from .collectives import *  # noqa: F403  (one list of the closed forms, in collectives/__init__)
from .collectives import __all__ as _closed_forms
from .crossover import (
    crossover,
    crossover_by_bisection,
    line_crossing,
    ring_recursive_doubling_crossover,
    ring_tree_crossover,
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
from .links import Links
from .memory import (
    ADAM_STATE,
    GPU_MEMORY,
    StateBytes,
    activation_bytes,
    checkpointed_activation_bytes,
    devices_to_hold,
    largest_model,
    state_bytes,
    state_parts,
)
from .reliability import mtbf_from_survival, mtbf_of, observed_mtbf, survival, survival_hours, unit_mtbf_of
from .shapes import SHAPES, Shape
from .signals import SIGNALS, Machine, Training, distribution_signals
from .units import format_bandwidth, format_bytes, format_seconds
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

__all__ = [
    "ADAM_STATE",
    "GPU_MEMORY",
    "LinkFit",
    "Links",
    "Machine",
    "SHAPES",
    "SIGNALS",
    "Shape",
    "StateBytes",
    "Training",
    "activation_bytes",
    "algorithm_bandwidth",
    "amdahl_ceiling",
    "best_algorithm",
    "bus_bandwidth",
    "bus_factor",
    "checkpointed_activation_bytes",
    "communication_ceiling",
    "communication_ratio",
    "crossover",
    "crossover_by_bisection",
    "devices_for",
    "devices_to_hold",
    "distribution_signals",
    "fit_alpha_beta",
    "fit_sends",
    "format_bandwidth",
    "format_bytes",
    "format_seconds",
    "largest_model",
    "line_crossing",
    "mtbf_from_survival",
    "mtbf_of",
    "observed_mtbf",
    "points_of_sends",
    "rank_algorithms",
    "regime",
    "ring_recursive_doubling_crossover",
    "ring_tree_crossover",
    "scaling_efficiency",
    "slow_sync",
    "speedup",
    "state_bytes",
    "state_parts",
    "step_seconds",
    "survival",
    "survival_hours",
    "textbook",
    "training_flops",
    "training_seconds",
    "unit_mtbf_of",
    "units",
    "zero1_by_all_reduce_bytes",
    "zero_bytes_per_step",
    "zero_bytes_per_step_by_rank",
    "zero_saving",
    "zero_saving_limit",
    "zero_state_bytes",
    "zero_state_bytes_by_rank",
    "zero_state_parts",
]
__all__ += _closed_forms
