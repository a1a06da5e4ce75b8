"""How tightly ranks are held together, and what is done about gradients that come late.

policies.py      BSP, SSP and ASP: when a worker may have the weights for its next clock
corrections.py   rates by staleness, delay compensation, momentum that asynchrony brings by itself
local.py         local SGD, and DiLoCo: average after H steps, or give the average to an outer optimizer
graphs.py        who averages with whom: mixing matrices, and their mixing rate
gossip.py        D-PSGD: average with neighbours, in step with them
ad_psgd.py       AD-PSGD: average with one neighbour at a time, and wait for nobody
federated.py     FedAvg: a server and its clients, some of which drop out
secure.py        the same, in which the server sees no client's weights
splits.py        which client has which examples
masking.py       sums of which a server learns nothing but the sum
errands.py       one rank that speaks with many, and does not wait for those that never answer
weights.py       a module's weights as one flat tensor

A worker's *clock* is the number of updates that it has finished. The *staleness* tau of an update is the number of
updates that were applied between the pull that it was computed on and its own application. The server that obeys the
policies is `labkit.parallel.server`.
"""

from labkit.optim.synchrony import graphs, masking
from labkit.optim.synchrony.ad_psgd import ADPSGD
from labkit.optim.synchrony.corrections import DelayCompensation, by_inverse, by_root, explicit_momentum
from labkit.optim.synchrony.federated import Round, fed_avg
from labkit.optim.synchrony.gossip import GossipSGD, consensus_distance, mix
from labkit.optim.synchrony.local import LocalSGD, nesterov
from labkit.optim.synchrony.policies import ASP, BSP, SSP, Policy
from labkit.optim.synchrony.secure import masked_fed_avg
from labkit.optim.synchrony.splits import dirichlet_split

__all__ = [
    "ADPSGD",
    "ASP",
    "BSP",
    "SSP",
    "DelayCompensation",
    "GossipSGD",
    "LocalSGD",
    "Policy",
    "Round",
    "by_inverse",
    "by_root",
    "consensus_distance",
    "dirichlet_split",
    "explicit_momentum",
    "fed_avg",
    "graphs",
    "masked_fed_avg",
    "masking",
    "mix",
    "nesterov",
]
