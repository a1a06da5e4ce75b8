"""The worker's side of a parameter server: pull, push, and the end of a clock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from labkit.parallel.server.shards import END, PULL, PUSH, TICK, WHOLE, Shards, summed
from labkit.wire.errors import PeerLost, RefusedError
from labkit.wire.group import Group
from labkit.wire.handle import MessageHandle


class Client:
    """What a worker calls. Made on all workers while the servers make their `Server`, with the same arguments.

    named: the parameters by name; only their shapes and dtypes matter here. servers: ranks of `group`.
    Every call sends a head of 40 bytes to each server. Raises PeerLost with a sentence when a server is gone: its part
    of the weights went with it. As a context manager it says at the end that this worker is through.
    """

    def __init__(self, named: Mapping[str, Tensor], group: Group, servers: Sequence[int]):
        self.shards, self.group, self.clock = Shards(named, group, servers, serving=False), group, 0
        self._under_way: list[MessageHandle] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            return self.end()
        with contextlib.suppress(PeerLost):  # the first error is the one to tell, and at once
            self._leave()

    def pull(self, name: str, rows: Tensor | None = None) -> Tensor:
        """The parameter, or these rows of it (1-D int64 ids, in any order, also twice). Waits as the policy says.

        Sends the different ids (8 bytes each), and receives the rows that they name, each once.
        """
        self.shards.check_rows(name, rows)
        ids, place = (None, None) if rows is None else rows.unique(return_inverse=True)
        shape = self.shards.shapes[name]
        whole = torch.empty(shape if ids is None else (len(ids), *shape[1:]), dtype=self.shards.dtypes[name])
        with self._request("pull"):
            self._ask(PULL, name, ids)
            parts = zip(self.shards.servers, self.shards.parts(name, ids), strict=True)
            for answer in [self.group.irecv(whole[part], server) for server, part in parts]:
                answer.wait()
        return whole.view(self.shards.outer[name]) if place is None else whole[place]

    def push(self, name: str, gradient: Tensor, rows: Tensor | None = None) -> None:
        """Hand in a gradient of the parameter, or of these rows of it: a part of the update that `tick` ends.

        Of an id that comes twice the gradients are added up before they are sent. Sends the different ids (8 bytes
        each) and their gradients. What one worker pushes in one clock is applied as a whole, or not at all.
        """
        self.shards.check_rows(name, rows)
        shape = self.shards.outer[name]
        wanted = shape if rows is None else (len(rows), *shape[1:])
        if tuple(gradient.shape) != wanted or gradient.dtype != self.shards.dtypes[name]:
            raise RefusedError(
                f"rank {self.group.rank}: a gradient of {name!r} here is {wanted} {self.shards.dtypes[name]}, "
                f"not {tuple(gradient.shape)} {gradient.dtype}"
            )
        values = gradient.detach().reshape(wanted or (1,))
        ids = None
        if rows is not None:
            ids, values = summed(rows, values)
        values = values.clone(memory_format=torch.contiguous_format)  # the caller may change its own meanwhile
        with self._request("push"):
            self._ask(PUSH, name, ids)
            self._send([values[part] for part in self.shards.parts(name, ids)])

    def tick(self) -> None:
        """This worker's update is complete, and its clock goes on by one."""
        with self._request("tick"):
            self._ask(TICK)
        self.clock += 1

    def end(self) -> None:
        """This worker needs the servers no more. Returns when what it ticked is applied; what it did not is dropped."""
        with self._request("end"):
            for answer in self._leave():
                answer.wait()

    def load(self, module: nn.Module) -> None:
        """Pull all parameters into those of `module`."""
        with torch.no_grad():
            for name, p in module.named_parameters():
                p.copy_(self.pull(name))

    def step(self, module: nn.Module, clip: float | None = None) -> None:
        """Push the gradients of `module`, clear them, and tick. clip: the largest norm that they may have, together."""
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        for name, p in module.named_parameters():
            if p.grad is not None:
                self.push(name, p.grad)
                p.grad = None
        self.tick()

    def _leave(self) -> list[MessageHandle]:
        self._ask(END)
        return [self.group.irecv(torch.empty(0), server) for server in self.shards.servers]

    @contextlib.contextmanager
    def _request(self, what: str) -> Iterator[None]:
        with self.group.span(what, clock=self.clock):
            try:
                yield
            except PeerLost as why:
                raise PeerLost(
                    f"rank {self.group.rank}: the server on rank {why.peer} is gone, and its part of the weights with "
                    "it: start all of them again from a checkpoint",
                    why.peer,
                ) from why

    def _ask(self, what: int, name: str | None = None, ids: Tensor | None = None) -> None:
        """Send every server the head of a request and, if it is about some rows, the ids of its own."""
        self._settle()
        number = -1 if name is None else self.shards.names.index(name)
        parts = [slice(0, 0)] * len(self.shards.servers) if name is None else self.shards.parts(name, ids)
        counts = [WHOLE if ids is None else part.stop - part.start for part in parts]
        now = self.group.context.clock_here().now()
        self._send([torch.tensor([what, self.clock, number, count, now]) for count in counts])
        if ids is not None:
            self._send([ids[part] for part in parts])

    def _send(self, parts: Sequence[Tensor]) -> None:
        self._under_way += [self.group.isend(x, to) for x, to in zip(parts, self.shards.servers, strict=True)]

    def _settle(self) -> None:
        """Wait until the servers have taken what was sent to them: a worker is at most one request ahead of them."""
        while self._under_way:
            self._under_way.pop(0).wait()
