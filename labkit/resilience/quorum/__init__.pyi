# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .aggregator import Aggregator as Aggregator
from .client import QuorumClient as QuorumClient
from .errors import (
    BadCall as BadCall,
    NoQuorum as NoQuorum,
    OldIncarnation as OldIncarnation,
    Unanswered as Unanswered,
    WrongToken as WrongToken,
    WrongVersion as WrongVersion,
)
from .heartbeat import Beat as Beat
from .membership import Member as Member, Quorum as Quorum, Registration as Registration
from .service import QuorumService as QuorumService
from .state import QuorumState as QuorumState
