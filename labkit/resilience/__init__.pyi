# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .audit import AuditFailed as AuditFailed, AuditLog as AuditLog
from .checkpoint.checkpointer import Checkpointer as Checkpointer
from .checkpoint.feed import Feed as Feed
from .deadlines import Deadlines as Deadlines, Limit as Limit
from .elastic import run_elastic as run_elastic
from .errors import Fatal as Fatal, Recoverable as Recoverable, classify as classify
from .ft_hsdp import FtConfig as FtConfig, plain_hsdp as plain_hsdp, replay as replay, train as train
from .ftar.exchange import ft_all_reduce as ft_all_reduce
from .ftar.queued import Ftar as Ftar, Work as Work
from .quorum import Quorum as Quorum, QuorumClient as QuorumClient, QuorumService as QuorumService
from .supervising.incidents import Incident as Incident
from .supervising.run import (
    FtJob as FtJob,
    FtRun as FtRun,
    RunFailed as RunFailed,
    run_ft_hsdp as run_ft_hsdp,
    start_ft_hsdp as start_ft_hsdp,
)
from .supervising.supervisor import Supervisor as Supervisor
