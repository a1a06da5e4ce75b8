"""FT-HSDP: replicas of a model train together, and go on when one of them breaks.

Names load when first used. `train` is what every rank runs; `protocol` says why it is right.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
