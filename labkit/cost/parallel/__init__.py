"""What each strategy holds and sends: data parallelism, ZeRO, tensor and pipeline parallelism.

`data_parallel` has the buckets of a step, `accumulation` a step of several microbatches; `zero` and `hybrid_shard`
what of the training state each rank holds and sends; `tensor` what tensor parallelism sends (`tensor_step` in a whole
step) and `tensor_memory` what it holds, `vocabulary` its loss, `layers` one layer's work, `placement` which axis
belongs on which link; `pipeline` the bubble of each schedule, `pipeline_memory` what its ranks hold,
`pipeline_traffic` what they send, `depth` how many stages.
"""

from .accumulation import *
from .data_parallel import *
from .depth import *
from .hybrid_shard import *
from .layers import *
from .pipeline import *
from .pipeline_memory import *
from .pipeline_traffic import *
from .placement import *
from .tensor import *
from .tensor_memory import *
from .tensor_step import *
from .vocabulary import *
from .zero import *
