"""Data parallelism: the same model on every rank, a different part of the batch, one average of the gradients.

wrapper.py    `DataParallel`: what a training loop talks to
buckets.py    which parameters travel together
reducer.py    gradients arrive, buckets fill and leave, while backward still runs
hooks.py      how a full bucket is summed: plainly, in 16 bits, compressed, or your own way
join.py       ranks whose data ends earlier than that of others
sampler.py    which examples a rank sees
"""

from labkit.parallel.data.buckets import Bucket
from labkit.parallel.data.hooks import NamedHook, all_reduce_hook, bf16_hook
from labkit.parallel.data.sampler import Sampler
from labkit.parallel.data.wrapper import DataParallel

__all__ = ["Bucket", "DataParallel", "NamedHook", "Sampler", "all_reduce_hook", "bf16_hook"]
