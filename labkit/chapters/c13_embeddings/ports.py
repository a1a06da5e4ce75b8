"""A parameter server's port: who waits before it, and from how many workers on a ring is faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import labkit
from labkit import Link, Network, book, collectives, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg
from labkit.chapters.c13_embeddings.pictures import BANDWIDTH, LATENCY
from labkit.cost.units import format_bytes, format_seconds
from labkit.optim.synchrony import BSP
from labkit.parallel import Client, Server
from labkit.wire import Group
from labkit.wire.errors import RefusedError

BETA = 1 / BANDWIDTH
NUMEL = 25_000  # numbers of a dense gradient of 100 kB
WIRE = Network(intra=Link(bandwidth=BANDWIDTH, latency=LATENCY))


def serve(weights: Mapping[str, Tensor], group: Group) -> int:
    """What rank 0 does as the only server: a step of SGD when all workers have pushed. Returns how many of the rows
    it updated when all of them have ended."""
    server = Server(dict(weights), group, [0], policy=BSP(), optimizer=_sgd)
    server.serve()
    return int(server.parameters["rows"].any(1).sum())


def _sgd(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, 0.1)


def push_and_pull(group: Group, servers: Sequence[int], gradient: Tensor) -> None:
    """All workers push a dense gradient to the servers at once, and then pull the weights.

    Raises RefusedError where every rank would serve.
    """
    if len(servers) >= group.size:
        raise RefusedError(
            f"with {group.size} ranks and {len(servers)} servers no rank is left to work: take more "
            "ranks or fewer servers"
        )
    weights = {"w": torch.zeros_like(gradient)}
    if group.rank in servers:
        Server(weights, group, servers, policy=BSP(), optimizer=_sgd).serve()
        return
    with Client(weights, group, servers) as client:
        client.push("w", gradient)
        client.tick()
        client.pull("w")


def emulated(fn: Callable[..., Any], ranks: int, *args: Any) -> Any:
    """A run of `fn(group, *args)` with the links of this section, on the virtual clock."""
    return labkit.launch(fn, ranks, *args, clock="virtual", transport="local", network=WIRE)


def _one_server(workers: int) -> Any:
    return emulated(push_and_pull, workers + 1, [0], torch.ones(NUMEL))


def through_a_server(workers: int) -> float:
    """Seconds of one exchange of a gradient of 100 kB through one server (virtual clock)."""
    return _served(_one_server(workers), 1)


def _served(run: Any, servers: int) -> float:
    """From the first push to the last pulled weight; the first ranks serve."""
    plain = [m for m in run.trace.sends if m.collective < 0]
    answers = [m.arrived for m in plain if m.src < servers and m.nbytes]
    return float(max(answers) - min(m.start for m in plain if m.src >= servers))


def around_a_ring(workers: int, numel: int = NUMEL) -> float:
    """Seconds of a ring all-reduce of the same gradient among the workers (virtual clock)."""

    def on_rank(group: Group) -> None:
        collectives.all_reduce(torch.ones(numel), group, algorithm="ring")

    begin, end = emulated(on_rank, workers).trace.during("all_reduce")
    return end - begin


def _ring(run: Any) -> float:
    """Seconds of the workers' ring, from when the last of them begins: they leave the barrier one after the other."""
    calls = [call for call in run.trace.collectives() if call.name == "all_reduce"]
    return float(max(call.end for call in calls) - max(call.start for call in calls))


def compared(run: Any, servers: int) -> str:
    """Both ways of one run, in which the first ranks serve: `push_and_pull`, and then a ring of the workers."""
    workers = run.trace.world_size - servers
    if workers == 1:
        ring = "a single worker needs no ring."
    else:
        ring = f"the ring takes {format_seconds(_ring(run), 3)}."
    return (
        f"This run has {workers} worker{'s' * (workers > 1)}. One exchange through {servers} "
        f"server{'s' * (servers > 1)} takes {format_seconds(_served(run, servers), 3)}, and {ring}"
    )


def by_workers(run: Any, servers: int, kilobytes: int) -> book.Figure:
    """The same gradient by the formulas, for more and more workers, and where this run stands."""
    nbytes, here = 1000 * kilobytes, run.trace.world_size - servers
    counts = range(2, 33)
    by_server = {n: cost.server_exchange_time(nbytes, n, servers, LATENCY, BETA) for n in counts}
    by_ring = {n: cost.ring_all_reduce_time(nbytes, n, LATENCY, BETA) for n in counts}
    lines = {f"servers ({servers})": by_server, "ring": by_ring,
             "this run, servers (emulated)": {here: _served(run, servers)}}  # fmt: skip
    if here > 1:
        lines["this run, ring (emulated)"] = {here: _ring(run)}
    many = {True: "the ring is faster", False: f"the server{'s are' if servers > 1 else ' is'} faster"}
    ahead = [by_ring[n] < by_server[n] for n in counts]
    change = next((n for n in counts if (by_ring[n] < by_server[n]) != ahead[0]), None)
    if change is not None:
        lines[f"from {change} workers on {many[not ahead[0]]}"] = {change: max(by_ring[change], by_server[change])}
    return book.lines(
        {name: {float(n): 1e3 * t for n, t in line.items()} for name, line in lines.items()}, x="workers",
        y="milliseconds", title="More workers", badge="simulated", log="y", y_text="{:g}".format,
        sentence=f"By the formulas, which are the lines, {many[ahead[0]]} "
        + (f"for any number of workers up to {max(counts)}." if change is None else
           f"below {change} workers, and {many[not ahead[0]]} from there on.")
        + " The single points are this run."
        + (_headers_decide(run, servers, by_ring[here] < by_server[here]) if here > 1 else ""),
    )  # fmt: skip


def _headers_decide(run: Any, servers: int, ring_first: bool) -> str:
    """Where the run has another winner than the formulas."""
    if (_ring(run) < _served(run, servers)) == ring_first:
        return ""
    return " In this run it is the other way round, because the formulas leave out the header of each message."


def many_workers(run: Any, servers: int, kilobytes: int) -> str:
    """Why the ring or the servers are faster with many workers: what a further one costs either of them."""
    share = 1000 * kilobytes / servers
    takes, each, part = share * BETA, "the server", "gradient"
    if servers > 1:
        each, part = "each server", "share of a gradient"
    told = (
        f"Each further worker makes the ring two latencies of {format_seconds(LATENCY)} longer. Through {each}, it "
        f"adds one more {part} to each of the two directions. This {part.split()[0]} has {format_bytes(share, 3)} and "
        f"takes {format_seconds(takes, 3)}. "
    )
    if abs(takes - LATENCY) < 1e-9:
        return told + "That is as long as a latency, so both become slower alike, and the ring stays faster."
    return told + (
        "That is longer than a latency, so with many workers the ring is faster."
        if takes > LATENCY
        else "That is shorter than a latency, so with many workers the ring is slower."
    )


def served(run: Any, rows: int) -> book.Conclusion:
    """What the server of a run sent, beside its table of `rows` rows of 16 numbers, and how many it has updated."""
    moved, sent = run.results[0], run.trace.bytes_sent()[0]
    return book.conclude(
        "The server has updated {moved:,} of {rows:,} rows.",
        {"sent > own": "It sent {sent_b}. That is more than the {own_b} of these rows, because a row that several "
         "workers pull is sent to each of them.",
         "True": "It sent {sent_b} of rows."},
        "The whole table has {table_b}.",
        {"sent > table": "So small a table is touched nearly everywhere, and the {workers} workers together pull more "
         "than the table.",
         "True": ""},
        moved=moved, rows=rows, sent=sent, own=64 * moved, table=64 * rows, workers=run.trace.world_size - 1,
        sent_b=format_bytes(sent, 3), own_b=format_bytes(64 * moved, 3), table_b=format_bytes(64 * rows, 3),
    )  # fmt: skip


def incast(workers: int) -> book.Player:
    """Pushes of 100 kB that come at once, and go through the port of one server one after the other: a real run."""
    run = _one_server(workers)
    pushes = sorted((m for m in run.trace.sends if m.collective < 0 and m.dst == 0 and m.nbytes > 40),
                    key=lambda m: m.arrived)  # fmt: skip
    begin = min(m.start for m in pushes)
    order = [m.src for m in pushes]
    n = len(order)
    title = "Incast: many senders, one port"
    frames, rows = [], []
    for k in range(n + 1):
        at = begin if k == 0 else pushes[k - 1].arrived
        waits = n - k - 1
        if k == 0:
            said = f"{n} workers push at the same moment. The port of the server takes one gradient at a time."
        elif k < n:
            said = f"After {format_seconds(at - begin, 3)}: {k} of {n} gradients {'has' if k == 1 else 'have'} "
            said += "arrived, one is in the port"
            said += f", and {waits} wait." if waits > 1 else ", and one waits." if waits else "."
        else:
            said = (
                f"After {format_seconds(at - begin, 3)} {'both' if n == 2 else f'all {n}'} have arrived. Each worker's "
                f"own link was at work for 1/{n} of that time."
            )
        frames.append((_port(title, said, order, k, run.trace.badge), said))
        rows.append({"arrived": k, "seconds": at - begin, "worker": f"rank {order[k - 1]}" if k else "none"})
    return book.play(frames, title=title, badge=run.trace.badge, rows=rows, still=min(2, n))


def _port(title: str, said: str, order: Sequence[int], k: int, badge: str) -> str:
    svg = Svg(WIDTH, title, said)
    top = max(heading(svg, badge, said), 74.0) + 8
    n, high = len(order), 232.0
    band = high / n
    cy, port = top + high / 2, 420.0
    svg.rect(port - 8, cy - 22, 80, 44, dash="5 3", stroke_width=1.5)
    svg.text(port + 32, cy - 28, "the port", 11.5, "middle", bold=True)
    svg.rect(port + 120, top, 150, high, radius=6, stroke_width=1.6)
    svg.text(port + 195, top + 16, "server", 12, "middle", bold=True)
    for place, rank in enumerate(order):
        y = top + (rank - 1) * band
        look = SERIES[rank % 8]
        svg.rect(12, y + 3, 92, band - 6, radius=5)
        svg.text(18, y + band / 2 + 4, f"worker {rank}", 11)
        svg.line(108, y + band / 2, port - 12, cy, width=2.4 if place == k else 0.7, dash="" if place == k else "4 3")
        if place < k:
            x, up = port + 132, top + 24 + place * min(24.0, (high - 30) / n)
        elif place == k:
            x, up = port, cy - 9
        else:
            x, up = 122, y + band / 2 - 9
        svg.rect(x, up, 64, 18, look.colour, look.hatch, ON_COLOUR, stroke_width=0.8)
        svg.rect(x + 10, up + 3, 44, 12, "#ffffff", stroke="none", radius=3)
        svg.text(x + 32, up + 13, f"from {rank}", 9.5, "middle", on_colour=True)
    svg.text(12, top + high + 18, "thick line: what travels now   dashed: has sent, or waits for the port", 11)
    return svg.render(top + high + 30)
