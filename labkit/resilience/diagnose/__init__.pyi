# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .channel import Agent as Agent, Collector as Collector, report_to as report_to
from .detector import Detector as Detector
from .flips import Flip as Flip, find_flip as find_flip
from .guards import FiniteGuard as FiniteGuard, ForwardWatch as ForwardWatch, NotFinite as NotFinite
from .pytorch import from_pytorch as from_pytorch
from .reading import Pages as Pages
from .replays import Replayed as Replayed, replay as replay
from .replicas import Differs as Differs, checksum as checksum, compare as compare
from .report import Report as Report
from .slowness import Speeds as Speeds, find_slow as find_slow, since as since, stragglers as stragglers
from .spikes import Spike as Spike, SpikeGuard as SpikeGuard
from .verdict import Verdict as Verdict, diagnose as diagnose
from .waits import Clue as Clue, Waits as Waits
