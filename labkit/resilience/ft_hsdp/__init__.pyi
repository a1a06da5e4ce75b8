# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .config import FtConfig as FtConfig
from .data import numbers as numbers
from .learning_rate import factor as factor
from .persistence import Checkpoints as Checkpoints
from .reference import plain_hsdp as plain_hsdp
from .replaying import replay as replay, steps_of as steps_of
from .result import Attempt as Attempt, Result as Result
from .server import StateServer as StateServer
from .trainer import train as train
from .transfer import fetch_state as fetch_state
