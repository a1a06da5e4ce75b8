"""Messages: groups, transports, the trace of what was sent, emulated links and the virtual clock.

Names load when first used, so that what needs only the errors does not load PyTorch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
