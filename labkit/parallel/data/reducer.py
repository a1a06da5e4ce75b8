"""The reducer: gradients arrive, buckets fill and leave, while backward is still at work on earlier layers.

    forward    arm()       a backward with communication is coming
    backward   _arrived(i) a gradient is ready: put it into its bucket; if that is full, start its all-reduce
    its end    _finish()   wait for all buckets

Three rules keep the ranks together. Buckets are the same on every rank. They leave in bucket order, whatever the
order in which they fill. And every bucket leaves in every step, so a parameter without a gradient sends zeros.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from labkit.collectives import all_reduce, broadcast
from labkit.parallel.data.buckets import Buffer, plan
from labkit.parallel.data.hooks import AnyHook, Handle, NamedHook
from labkit.parallel.refusals import gradients as refusals
from labkit.parallel.refusals.gradients import refuse_nan
from labkit.wire.group import Group


class Reducer:
    """Sums the gradients of `named` parameters over `group`, bucket by bucket.

    named: those that are trained, in the module's order. missing: what to do about a parameter that got no gradient:
    "refuse"; "find" (all ranks find out together, in every step); "learn" (as "find" in the first step, and the
    same parameters ever after). check_nan: look at each bucket before it leaves.
    """

    def __init__(
        self, named: Mapping[str, nn.Parameter], group: Group, hook: AnyHook, *, first_bytes: int, bucket_bytes: int,
        rebuild: bool = True, missing: str = "refuse", check_nan: bool = False,
    ):  # fmt: skip
        self.group, self.hook, self.missing = group, hook, missing
        self.check_nan = check_nan or (isinstance(hook, NamedHook) and hook.check_nan)
        self._feedback = isinstance(hook, NamedHook) and hook.feedback
        self.names, self.parameters = list(named), list(named.values())
        self._sizes, self._rebuild = (first_bytes, bucket_bytes), rebuild
        self._order, self._next_order = list(reversed(range(len(self.names)))), list[int]()
        self._learned: tuple[set[int], list[bool]] | None = None  # "learn": absent here, present anywhere
        self._armed = self._queued = False  # does this backward communicate? will `_finish` be called?
        self._local = self.unsent = False  # does it add up here only? are there gradients that nobody else has seen?
        self._arrivals: dict[int, bool] = {}  # parameter -> whether it had a gradient, in order of arrival
        self._absent: set[int] | None = None  # parameters that this backward will not reach, if that is known
        self._handles: list[Handle] = []
        self._sent = 0  # buckets of this step that have left
        self.buffers: list[Buffer] = []
        self._buffer_of: dict[int, Buffer] = {}
        self._view_of: dict[int, Tensor] = {}
        self._arrange()
        for i, p in enumerate(self.parameters):
            p.register_post_accumulate_grad_hook(_calling(weakref.WeakMethod(self._arrived), i))

    # -- before the step ---------------------------------------------------------------------------------------

    def arm(self, share: Callable[[], float]) -> None:
        """The next backward communicates. share(): what this rank's gradients are multiplied by before the sum.

        Called in the forward of a step. `share` is asked when the first gradient arrives.
        """
        if self._arrivals:
            raise refusals.unfinished(self.group.rank)
        if not self._armed:
            self._absent = None
            if self._next_order:
                self._order, self._next_order = self._next_order, []
                self._arrange()
        self._armed, self._local, self._share = True, False, share
        self._queued = False  # a backward that broke off takes its callback with it

    def disarm(self, local: bool = True) -> None:
        """The next backward adds up gradients on this rank only. local=False: and is not ours at all."""
        self._armed, self._local = False, local

    def reaches(self, leaves: set[int] | None) -> None:
        """Of the forward that just ran: its output depends on `leaves` only (ids of parameters; None: on any)."""
        without = {i for i, p in enumerate(self.parameters) if leaves is not None and id(p) not in leaves}
        self._absent = without if self._absent is None else self._absent & without

    def begin(self, _: Tensor | None = None) -> None:
        """Backward has begun: ask to be called at its end.

        Hung on the outputs of a forward, so that the end is that of the outermost backward, and so that a second
        backward from the same outputs communicates, too.
        """
        self._armed = True
        if not self._queued:
            self._queued = True
            Variable._execution_engine.queue_callback(self._finish)

    # -- while backward runs -----------------------------------------------------------------------------------

    def _arrived(self, i: int) -> None:
        """Autograd has finished `.grad` of parameter i."""
        if not self._armed:
            if self._local:
                self.unsent = True
                self._put(i, 1.0)
            return
        if not self._arrivals:
            self.begin()
            self._open()
        if i in self._arrivals:
            raise refusals.came_again(self.group.rank, self.names[i], self._arrivals[i], self._learned is not None)
        self._ready(i)

    def _open(self) -> None:
        """The first gradient of this step is here: those that will never come count as here, too."""
        self._factor = self._share()
        self._used = [False] * len(self.names)
        for i in sorted(self._learned[0] if self._learned is not None else self._absent or ()):
            self._ready(i, absent=True)

    def _ready(self, i: int, absent: bool = False) -> None:
        """Put gradient i into its bucket, and send what is full."""
        self._arrivals[i] = not absent
        self._put(i, self._factor)
        self._used[i] = self.parameters[i].grad is not None
        self._buffer_of[i].missing -= 1
        while self._sent < len(self.buffers) and not self.buffers[self._sent].missing:
            buffer = self.buffers[self._sent]
            if self.check_nan:
                refuse_nan(self.group.rank, buffer.flat, buffer.layout.names, buffer.views)
            self._handles.append(self._start(buffer))
            self._sent += 1

    def _start(self, buffer: Buffer) -> Handle:
        """Have the hook begin to sum a bucket."""
        if isinstance(self.hook, NamedHook):
            named = dict(zip(buffer.layout.names, buffer.views, strict=True))
            return self.hook.bucket(buffer.flat, named, self.group)
        return self.hook(buffer.flat, self.group)

    def _put(self, i: int, factor: float) -> None:
        """The bucket's part for parameter i = factor * gradient; `.grad` becomes that part. One copy at most."""
        p, view = self.parameters[i], self._view_of[i]
        grad = p.grad
        if grad is None or factor == 0:  # not 0 * gradient: what does not count may be NaN
            view.zero_()
        elif grad is not view:
            torch.mul(grad.detach(), factor, out=view)
        elif factor != 1:
            view.mul_(factor)
        if grad is not None:
            p.grad = view

    def refuse_step(self, parameters: set[int]) -> None:
        """Raise RefusedError if one of these (by `id`) has a gradient that was added up here and never averaged."""
        for i, p in enumerate(self.parameters if self.unsent else ()):
            if id(p) in parameters and p.grad is not None and p.grad is self._view_of[i]:
                raise refusals.never_averaged(self.group.rank)

    # -- at the end of backward --------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Account for what did not arrive, then wait until every bucket holds the sum over the ranks."""
        self._queued = False
        if not self._arrivals:  # no parameter had a part in this backward: torch.autograd.grad, say
            return
        late = [i for i in self._order if i not in self._arrivals]
        if late and (self.missing == "refuse" or self._learned is not None):
            names = [self.names[i] for i in late]
            raise refusals.never_came(self.group.rank, names, self._learned is not None)
        for i in late:
            self._ready(i, absent=True)
        anywhere = self._used_anywhere()
        for handle in self._handles:
            handle.wait()
        for i, used in enumerate(anywhere):
            # some rank had a gradient, or something was left of an earlier one: then this is the average, also where
            # there was none
            if used or (self._feedback and bool(self._view_of[i].any())):
                self.parameters[i].grad = self._view_of[i]
        if self.missing == "learn" and self._learned is None:
            self._learned = ({i for i, came in self._arrivals.items() if not came}, anywhere)
        if self._rebuild:
            self._agree_on_order()
        self._start_over()

    def send_all(self, factor: float = 1.0) -> None:
        """Sum what `.grad` holds, times `factor`, if no backward is to come: those of a pipeline have been."""
        self._factor, self._used = factor, [False] * len(self.names)
        for i in self._order:
            self._ready(i)
        self._finish()

    def stand_in(self) -> None:
        """Take part in the step of the others with nothing to add: what a rank does whose data has ended."""
        for p in self.parameters:
            p.grad = None
        self._factor, self._used = self._share(), [False] * len(self.names)
        for i in self._order:
            self._ready(i, absent=True)
        self._finish()

    def _used_anywhere(self) -> list[bool]:
        """Whether some rank had a gradient, for each parameter. No gradient is not the same as a gradient of zero."""
        if self.missing == "refuse":
            return [True] * len(self.names)
        if self._learned is not None:
            return self._learned[1]
        used = torch.tensor(self._used, dtype=torch.uint8, device=self.group.device)
        return [bool(u) for u in all_reduce(used, self.group, "max").tolist()]

    def _agree_on_order(self) -> None:
        """After the first step: from now on buckets follow the order in which gradients arrived on rank 0.

        Ranks may have seen different orders, and a bucket must hold the same parameters everywhere.
        """
        self._rebuild = False
        came = [i for i, there in self._arrivals.items() if there]
        order = torch.tensor(came + [i for i in self._order if i not in set(came)], device=self.group.device)
        agreed = broadcast(order, self.group, root=0).tolist()
        self._next_order = agreed if agreed != self._order else []

    # -- memory ------------------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        """Make the buckets of `self._order`. Gradients that exist move into them."""
        self.buffers, self._buffer_of, self._view_of = [], {}, {}  # the old ones go before the new ones come
        members = plan(self.parameters, self._order, *self._sizes)
        self.buffers = [Buffer(numbers, self.names, self.parameters) for numbers in members]
        self._buffer_of = {i: buffer for buffer in self.buffers for i in buffer.members}
        self._view_of = {i: view for b in self.buffers for i, view in zip(b.members, b.views, strict=True)}
        for i in self._order:
            self._put(i, 1.0)
        self._start_over()

    def _start_over(self) -> None:
        for buffer in self.buffers:
            buffer.missing = len(buffer.members)
        self._arrivals, self._absent, self._handles, self._sent = {}, None, [], 0
        self._armed = self._local = self.unsent = False


def _calling(method: weakref.WeakMethod, i: int) -> Callable[[Tensor], None]:
    """A hook that does nothing once the reducer is gone: a module may be wrapped again."""

    def hook(_: Tensor) -> None:
        arrived = method()
        if arrived is not None:
            arrived(i)

    return hook
