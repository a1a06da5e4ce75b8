"""ZeRO: data parallelism without the redundancy (Rajbhandari et al. 2020).

    model = ZeRO2(GPT(config), group, AdamW(lr=3e-4))      # or ZeRO1, ZeRO3
    loss = next_token_loss(model(tokens), targets)         # this rank's part of the batch
    loss.backward()
    model.step()
    model.zero_grad()

Read `stages.py` and `stage3.py` first: what each stage cuts. `unit.py` is how anything is cut, `state.py` what 12 of
the 16 bytes are, `adamw.py` the step, `base.py` what the stages share.
"""

from .adamw import AdamW
from .base import ZeRO
from .stage3 import ZeRO3
from .stages import ZeRO1, ZeRO2
from .state import Copies

__all__ = ["AdamW", "Copies", "ZeRO", "ZeRO1", "ZeRO2", "ZeRO3"]
