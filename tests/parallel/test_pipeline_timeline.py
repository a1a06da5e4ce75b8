"""A real run on the virtual clock takes exactly what the simulator says, and sends what the closed form says."""

from __future__ import annotations

import pytest
import torch
from slices import few
from torch import nn

from labkit import Link, Network, cost, launch
from labkit.parallel.pipeline import (
    Costs,
    Pipeline,
    gpipe,
    interleaved,
    label,
    naive,
    one_f_one_b,
    pipedream,
    simulate,
    v_half,
    with_messages,
    zb_h1,
    zb_h2,
    zb_v,
)

pytestmark = pytest.mark.ranks

GRID = ((2, 4), (4, 4), (4, 8), (4, 16), (8, 16))
SCHEDULES = (naive, gpipe, one_f_one_b, interleaved, zb_h1, zb_h2, zb_v, v_half)
WIDTH = 3  # numbers that cross a boundary for one example
NETWORKS = {
    "no time": None,
    "one link": Network(nodes=1, intra=Link(bandwidth=1e6, latency=7e-6)),
    "slow": Network(nodes=1, intra=Link(bandwidth=2.9e3, latency=1.234e-3)),  # a message takes longer than a forward
    "two nodes": Network(nodes=2, intra=Link(1e6, 3e-6), inter=Link(7e3, 1e-3)),
}


class One(nn.Module):
    """A stage with one weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return x * self.weight


def costs_of(stages):
    """Different for each stage, and no round numbers."""
    return Costs(
        [1.1e-3 + 17e-6 * s for s in range(stages)], [0.9e-3 + 31e-6 * (s % 3) for s in range(stages)], 1.3e-3, 0.2e-3
    )


APART = 10_000_000_000  # nanoseconds from the beginning of one step to that of the next


def in_turn(group, schedules, costs):
    """Run each schedule, as training step 0, 1, ...; each begins on all ranks at once."""
    for step, schedule in enumerate(schedules):
        modules = [One() for _ in range(schedule.chunks)]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.0) for m in modules]
        pipeline = Pipeline(modules, group, lambda y, t: (y - t).mean(), optimizers=optimizers)
        group.compute((step * APART - group.context.clock_here().now()) / 1e9)
        group.step(step)
        x = torch.ones(schedule.microbatches, WIDTH)
        pipeline.execute(schedule, x, x, seconds=costs[step])


def run_all(schedules, network):
    """(the trace, spans as lists like the schedules': begin and end in nanoseconds since the step began)."""
    costs = [costs_of(schedule.stages) for schedule in schedules]
    run = launch(in_turn, schedules[0].size, schedules, costs, transport="local", clock="virtual", network=network)
    assert run.trace.dropped == 0
    table = {(s.step, s.rank, s.name): (s.start, s.end) for s in run.trace.spans()}
    found = []
    for step, schedule in enumerate(schedules):
        rows = [[table[step, rank, label(schedule, rank, i)] for i in todo] for rank, todo in enumerate(schedule.ranks)]
        found.append([[tuple(round(t * 1e9) - step * APART for t in pair) for pair in row] for row in rows])
    return run.trace, found


def simulated(schedule, network):
    timeline = simulate(schedule, costs_of(schedule.stages), network, nbytes=4 * WIDTH)
    assert timeline.makespan < APART
    return [list(zip(b, e, strict=True)) for b, e in zip(timeline.begin, timeline.end, strict=True)]


@pytest.mark.parametrize("name", few(reversed(NETWORKS), 2))
@pytest.mark.parametrize("size", few([4, 2, 8]))
def test_the_timeline_of_a_run_is_the_simulators_to_the_nanosecond(size, name):
    network = NETWORKS[name]
    schedules = [make(p, count) for p, count in GRID if p == size for make in SCHEDULES]
    trace, found = run_all(schedules, network)
    for step, schedule in enumerate(schedules):
        case = schedule.name, schedule.microbatches
        assert found[step] == simulated(schedule, network), case
        sent, counts = [0] * size, [0] * size
        for m in trace.sends:
            if m.lane == 0 and m.step == step:
                sent[m.src] += m.nbytes
                counts[m.src] += 1
        count, chunks, placement = schedule.microbatches, schedule.chunks, schedule.placement
        assert sent == cost.pipeline_bytes_by_rank(
            1, 1, WIDTH, size, count, chunks, placement=placement, itemsize=4
        ), case  # fmt: skip
        assert counts == cost.pipeline_messages_by_rank(size, count, chunks, placement=placement), case
        if chunks == 1:
            assert sum(sent) == 2 * (size - 1) * count * 4 * WIDTH


@pytest.mark.parametrize("name", ["no time", "two nodes"])
def test_pipedream_and_schedules_with_explicit_messages_too(name):
    schedules = [pipedream(4, 8), with_messages(one_f_one_b(4, 8)), with_messages(zb_h1(4, 4)),
                 with_messages(interleaved(4, 4)), with_messages(zb_v(4, 4))]  # fmt: skip
    _, found = run_all(schedules, NETWORKS[name])
    for schedule, rows in zip(schedules, found, strict=True):
        assert rows == simulated(schedule, NETWORKS[name]), schedule.name


def test_a_second_step_follows_the_first_and_lists_by_hand_need_no_network():
    """What ranks agree on before a step takes no time on the virtual clock, however slow the wire."""
    schedule, costs = one_f_one_b(2, 2), Costs(1e-3, 1e-3, 0)

    def on_rank(group):
        pipeline = Pipeline(One(), group, lambda y, t: (y - t).mean())
        x = torch.ones(2, WIDTH)
        for step in range(2):
            group.step(step)
            pipeline.execute(schedule, x, x, seconds=costs)

    run = launch(on_rank, 2, clock="virtual", network=Network(nodes=1, intra=Link(1e9, 1.0)))
    first = [[s for s in run.trace.spans("0F0") if s.rank == 0][step].start for step in range(2)]
    assert first[0] == 0.0
    assert first[1] == pytest.approx(simulate(schedule, costs, Link(1e9, 1.0), nbytes=12).end[0][-1] / 1e9, abs=1e-9)
