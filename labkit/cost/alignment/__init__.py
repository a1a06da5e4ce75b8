"""Alignment training: several models at once, generating and training in turn, sequences of unequal lengths.

`models` has the bytes of the models, `decoding` the KV cache and what generating is bound by, `lengths` what padding
wastes and a sequence costs, `phases` how well a fleet is used, by where its models are placed, `placements` a step of
four models on given ranks, message by message.
"""

from .decoding import *
from .lengths import *
from .models import *
from .phases import *
from .placements import *
from .resharding import *
