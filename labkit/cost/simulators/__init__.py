"""What is drawn, many samples at once; needs NumPy, so it is loaded with the first of its names.

`checkpoint_runs` and `replica_runs` draw failures of one run; `failure_traces` who fails when in a cluster,
`histories` numbers that change now and then, `clusters` (with `cluster_use`) what failures leave of a cluster,
`placed_failures` failures placed by chance, `cluster_runs` a cluster through a trace, `fleet_runs` restarts and
FT-HSDP.
"""

from .checkpoint_runs import *
from .cluster_runs import *
from .cluster_use import *
from .clusters import *
from .failure_traces import *
from .fleet_runs import *
from .histories import *
from .placed_failures import *
from .replica_runs import *
