"""A process of the job under torchft: the lighthouse, or one replica group of one rank; or the bare loop beside it.

Written as torchft's own example does it (`train_ddp.py` of its repository): a Manager, a process group of gloo, its
DistributedDataParallel, and its optimizer around a plain one; but states go by its HTTP transport, Manager's default.
Without ddp the gradients are added up by `Manager.allreduce`, all in one tensor, as DDP and labkit have them in one
bucket. The model, the loss and the stand-in kernel are those of `Watched`.

Why both ways: in torchft 0.2.0 (torch 2.13) no replica outlives, under gloo and DistributedDataParallel, an all-reduce
that fails because a process died. `wait` of gloo's work raises; the Manager notes the error as it should, but makes its
future only after `wait`, and DDP's hook asserts that there is one (`assert fut._fut`). Seen with torchft alone, too,
without anything of this file. By `Manager.allreduce` they go on.

Started by `rivals`, with its options as one JSON argument:

    parent: the process that it dies with. role: "lighthouse", "replica" or "bare". Lighthouse: waits (arguments of
    LighthouseServer). Replica: replica, replicas, seconds, folder, lighthouse, ddp, gloo (seconds, None for torchft's
    own) and waits (time-outs of Manager in seconds). Bare: replica, replicas, seconds, folder.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.resilience.ft_hsdp.data import numbers
from labkit.world.process import die_with_parent

from .diaries import Diary, Watched

HOST = "127.0.0.1"
BATCH = 4  # samples of a replica in a step


class Alone:
    """What `Standing` asks of a group, for a process that has none."""

    def __init__(self, replica: int):
        self.global_ranks = [replica]

    @contextlib.contextmanager
    def compute(self, seconds: float) -> Iterator[None]:
        """Stand for a kernel of `seconds`, the work inside included."""
        end = time.monotonic() + seconds
        yield
        time.sleep(max(0.0, end - time.monotonic()))


def lighthouse(options: dict[str, Any]) -> None:
    """Print the port, and serve until the process is ended."""
    server = import_module("torchft._torchft").LighthouseServer(bind=f"{HOST}:0", min_replicas=1, **options["waits"])
    print(server.address().rpartition(":")[2], flush=True)
    while True:
        time.sleep(60)


def bare(options: dict[str, Any]) -> None:
    """The loop without any other process."""
    model, optimizer, loss = Watched(options["seconds"], options["folder"])(Alone(options["replica"]), 0)
    _train(model, optimizer, loss, options)


def replica(options: dict[str, Any]) -> None:
    """One replica group, until the process is ended."""
    torchft = import_module("torchft")
    plain, inside, loss = Watched(options["seconds"], options["folder"])(Alone(options["replica"]), 0)
    store = _store()
    gloo = {} if options["gloo"] is None else {"timeout": timedelta(seconds=options["gloo"])}
    waits = {name: timedelta(seconds=seconds) for name, seconds in options["waits"].items()}
    manager = _on_loopback(waits.get("timeout"))(
        pg=torchft.ProcessGroupGloo(**gloo), min_replica_size=1, rank=0, world_size=1, hostname=HOST,
        load_state_dict=lambda state: (plain.load_state_dict(state["model"]), inside.load_state_dict(state["optim"])),
        state_dict=lambda: {"model": plain.state_dict(), "optim": inside.state_dict()},
        replica_id=f"replica_{options['replica']}", store_addr=HOST, store_port=store.port,
        lighthouse_addr=options["lighthouse"], **waits,
    )  # fmt: skip
    optimizer = torchft.Optimizer(manager, inside)
    if options["ddp"]:
        _train(torchft.DistributedDataParallel(manager, plain), optimizer, loss, options)
    else:
        _train(plain, optimizer, loss, options, lambda: _add_up(manager, list(plain.parameters())))


def _add_up(manager: Any, parameters: list[nn.Parameter]) -> None:
    """Average the gradients. If that fails, the Manager knows, the optimizer does not step, and they do not matter."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    together = torch.cat([g.flatten() for g in gradients])
    manager.allreduce(together).wait()
    for gradient, part in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def _train(model: Any, optimizer: Any, loss: Any, options: dict[str, Any],
           exchange: Callable[[], None] = lambda: None) -> None:  # fmt: skip
    here, position = options["replica"], 0
    while True:
        optimizer.zero_grad()
        loss(model, numbers(here, position, BATCH, options["replicas"])).backward()
        exchange()
        optimizer.step()
        position += BATCH


def _store() -> dist.TCPStore:
    """The store that torchrun gives a replica group. On a socket of ours, because its own listens everywhere."""
    listening = socket.create_server((HOST, 0))
    port = listening.getsockname()[1]
    return dist.TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


def _on_loopback(timeout: timedelta | None) -> Any:
    """torchft's Manager, with the manager's server and the server of states bound to the loopback.

    Both bind to all interfaces and have no option for it; the second one also gives the host's name as its address.
    Nothing else of them is touched. Raises RuntimeError where this release of torchft cannot be held to it.
    """
    manager: Any = import_module("torchft.manager")
    http: Any = import_module("torchft.checkpointing.http_transport")
    server = manager.ManagerServer

    def bound(**options: Any) -> Any:
        return server(**{**options, "bind": f"{HOST}:0"})

    class Local(ThreadingHTTPServer):
        request_queue_size = http._IPv6HTTPServer.request_queue_size

        def __init__(self, address: tuple[str, int], handler: Any):
            super().__init__((HOST, address[1]), handler)

    class Transport(http.HTTPTransport):
        def address(self) -> str:
            return f"http://{HOST}:{self._server.server_address[1]}/checkpoint/"

    manager.ManagerServer, http._IPv6HTTPServer = bound, Local
    # the Manager's own default: its time-out, and no chunks
    transport = Transport(timeout=timeout or timedelta(seconds=60), num_chunks=0)
    if transport._server.server_address[0] != HOST:
        raise RuntimeError("this release of torchft serves states on all interfaces, and could not be told otherwise")
    return lambda **options: manager.Manager(checkpoint_transport=transport, **options)


def main(options: dict[str, Any]) -> None:
    """Play the part. What ends it is written into its diary, and raised."""
    die_with_parent(options["parent"])
    torch.set_num_threads(1)  # as in labkit's ranks
    try:
        {"lighthouse": lighthouse, "replica": replica, "bare": bare}[options["role"]](options)
    except BaseException as error:
        if "replica" in options:
            Diary(options["folder"], options["replica"]).write("error", said(error))
        raise


def said(error: BaseException) -> str:
    """The first line of an error, and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    first = next(iter(str(error).splitlines()), place.line)
    return f"{type(error).__name__}: {first} ({'/'.join(Path(place.filename).parts[-2:])}, line {place.lineno})"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
