"""What each strategy holds and sends: data parallelism, ZeRO, tensor and pipeline parallelism.

`data_parallel` has the buckets of a step, `accumulation` a step of several microbatches; `zero` and `hybrid_shard`
what of the training state each rank holds and sends; `tensor` what tensor parallelism sends (`tensor_step` in a whole
step) and `tensor_memory` what it holds (`layer_activations` for layers of any widths), `vocabulary` its loss, `layers`
one layer's work, `placement` which axis belongs on which link; `pipeline` the bubble of each schedule,
`pipeline_memory` what its ranks hold, `pipeline_traffic` what they send, `depth` how many stages; `embedding` what
tables cut by rows or columns send, and skew; `server` what a parameter server moves, and when its port is too narrow;
`hybrid` what a rank sends along all axes; `precision` what of all this travels, or is kept, in a few bits a number.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

__all__: list[str] = []
if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the files say in their `__all__`."""


for _name in sorted(module.name for module in iter_modules(__path__)):
    _file = import_module(f"{__name__}.{_name}")
    globals().update({name: getattr(_file, name) for name in _file.__all__})
    __all__ += [_name, *_file.__all__]
