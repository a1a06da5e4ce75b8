"""A place where a submission runs, and from which nothing comes back but data and counted bytes.

    open_sandbox(cells, limits)      the answer cells of one submission, behind the best walls that this machine has
    box.call("f", 4, inputs)         f(inputs[rank], group) on four fresh processes: an `Evidence`
    box.value("answer")              a variable
    tier_report()                    what is in force here and what stays possible, in words

Who is who: the *grader* (the caller's process) holds checks, marks and the other ends of all sockets. Its *template*
has PyTorch and labkit loaded and nothing else. For each sandbox the template forks a *warden*, which takes its place
in new namespaces and never runs a submission's code. For each call the warden forks *ranks*; a rank reads its job,
gives up every right (confine.py), and only then reads the answer cells. So a call begins in a clean process, in an
empty home, whatever an earlier one did, and is ended from outside.

What a rank sends is data in a format that cannot name a class (plain_data.py), or labkit's frames, which the grader's
switch forwards and counts (switch.py, transport.py). Who sent a frame is known from the socket it came on.

What stays possible, in any tier:
- To return right results that were not computed as the task says, if bytes, messages and memory are right as well:
  answers typed in for inputs that can be guessed, a patched labkit inside the ranks. Inputs should be fresh.
- What a header *names* (its operation, its call, its lane) is the sender's claim. Source, destination, payload and
  order are not.
- A rank's peak memory is the growth of its resident pages, as the kernel counts them for the process. A rank may hold
  bytes that are not resident there: in pipes and sockets (some MB), or in files of its home (`Limits.disk`).
- Ranks of one call may tell each other things without messages of the switch, by what they take of the machine: its
  processor, its free memory, the cache of its files. That is a trickle, and no payload.
- A rank may use all its limits, and slow down whatever runs beside it on the same cores.
- Pages that a rank inherits from the template and writes to become its own, beside `Limits.memory`: some hundred MB.
- A bug of the kernel in one of the calls that seccomp.py lets through.

And by tier: in "landlock" existence, size and date of files can be seen, and the limit of the disk is looked at 20
times a second instead of kept by a file system. In "none" nothing at all is kept out.
`tests/grading/attacks` holds an attack for each promise.
"""

from .evidence import Delivery, Evidence, Failure
from .limits import Limits
from .plain_data import BadData, NotData
from .sandbox import Sandbox, Unavailable, open_sandbox, stands, tier_report

__all__ = [
    "BadData", "Delivery", "Evidence", "Failure", "Limits", "NotData", "Sandbox", "Unavailable", "open_sandbox",
    "stands", "tier_report",
]  # fmt: skip
