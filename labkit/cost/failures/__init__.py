"""How often what breaks, what it costs, and what helps.

`reliability` has how often a large job fails, `failure_tables` of what, `failure_kinds` how many GPUs are in repair;
`checkpoint_interval` when to save, `checkpoint_size` how much, `checkpoint_tax` what that and failures cost,
`async_checkpoints` what writing in the background saves, `elastic` when to go on smaller; `recovery` the time that
trains when all stop or one replica does, `stalls` a standstill taken apart; `detection`, `spares`, `corruption`,
`interventions` what else a failure asks for, `ftar` the all-reduce that survives it; `availability` what failures leave
of wide groups, `narrowing` and `boost` how fast a replica is without some GPUs, and with more power.
"""

from .async_checkpoints import *
from .availability import *
from .boost import *
from .checkpoint_interval import *
from .checkpoint_size import *
from .checkpoint_tax import *
from .corruption import *
from .detection import *
from .elastic import *
from .failure_kinds import *
from .failure_tables import *
from .ftar import *
from .interventions import *
from .narrowing import *
from .recovery import *
from .reliability import *
from .spares import *
from .stalls import *
