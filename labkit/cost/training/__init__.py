"""A training step, on one device and on N: memory, batch, time, energy.

`memory` has the bytes that training holds, `batch` the critical batch,
`energy` the energy and the price, `roofline` what a kernel's memory lets it reach; `fleet` the time of a step on N
devices, `scaling` its efficiency, `extrapolate` what two measured sizes say about a third, `straggler` the wait for the
slowest; `signals` when one machine is not enough; `compression` what a compressed gradient takes on the wire; `local`
what is sent where ranks do not average in every step.
"""

from .batch import *
from .compression import *
from .energy import *
from .extrapolate import *
from .fleet import *
from .local import *
from .memory import *
from .roofline import *
from .scaling import *
from .signals import *
from .straggler import *
