"""Who trains the next step together: one small service process, and a client in every replica. No PyTorch in here.

    QuorumService.start(replicas=4)   the service as a process of its own: `.address`, `.token`, `.stop()`
    QuorumClient(address, token)      a replica calls `register`, `join`, `beat`, `confirm`, `leave`; who supervises
                                      calls `begin`, `dead`, `promote`, `status`
    Quorum, Member, Registration      what they return
    QuorumState                       the rules of the service, as a pure state machine with an explicit clock

Names load when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
