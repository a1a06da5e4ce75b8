"""What a message costs on a link: alpha and beta, the wires of training clusters, and which algorithm they favour.

`wires` has three links that clusters are built with; `fit` finds alpha and beta from measured
messages; `crossover` and `choose` compare algorithms; `bandwidth` is the field's way to report a measured collective.
"""

from .bandwidth import *
from .choose import *
from .crossover import *
from .fit import *
