"""What a run does when something breaks: find it, keep the state, go on with the others.

Names load when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
