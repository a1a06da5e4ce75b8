"""Times from CUDA events. There was no GPU: made-up events play the part, on a device whose clock the test turns."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

import labkit
from labkit.wire.clock import Clock, VirtualClock
from labkit.wire.context import Context
from labkit.wire.device_clock import ANCHOR, LOOK, DeviceClock
from labkit.wire.recording import record as rec


class Device:
    """A stream that lags behind the host: work is queued at once, and events happen when the device comes to them."""

    def __init__(self) -> None:
        self.queued = self.reached = 0  # nanoseconds of the device's own time
        self.waits = 0

    def work(self, nanoseconds: int) -> None:
        self.queued += nanoseconds

    def synchronize(self) -> None:
        self.reached = self.queued
        self.waits += 1

    def event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, device: Device):
        self.device, self.at = device, device.queued

    def query(self) -> bool:
        return self.at <= self.device.reached

    def elapsed_time(self, later: Event) -> float:
        assert self.query() and later.query(), "CUDA raises for an event that has not happened"
        return float(np.float32((later.at - self.at) / 1e6))  # milliseconds, as coarse as CUDA's


@pytest.fixture
def made():
    """(device, host's clock, recorder, device clock): the host is at 5000 ns when the device is at 0."""
    device, host = Device(), types.SimpleNamespace(now=5000)
    recorder = rec.Recorder(rec.Page(rec.create_pages(1), 0, 1))
    return device, host, recorder, DeviceClock(recorder, lambda: host.now, device.synchronize, device.event)


def box(recorder: rec.Recorder, clock: DeviceClock, host: types.SimpleNamespace, work) -> int:
    number = recorder.begin(rec.SPAN, host.now)
    begun = clock.mark()
    work()
    recorder.end(number, host.now)
    clock.span(number, begun)
    return number


def times(recorder: rec.Recorder, number: int) -> tuple[int, int]:
    row = recorder.page.record(number - 1)
    return int(row["t0"]), int(row["t1"])


def test_a_span_gets_the_time_in_which_its_work_ran_and_nobody_waits_for_it(made) -> None:
    device, host, recorder, clock = made
    waits = device.waits
    first = box(recorder, clock, host, lambda: device.work(3_000_000))
    second = box(recorder, clock, host, lambda: device.work(1_000_000))
    assert times(recorder, first) == times(recorder, second) == (5000, 5000)  # until then the host's
    assert device.waits == waits
    clock.resolve()
    assert times(recorder, first) == (5000, 3_005_000)
    assert times(recorder, second) == (3_005_000, 4_005_000)


def test_microseconds_survive_an_hour(made) -> None:
    device, host, recorder, clock = made
    for i in range(1800):
        device.work(2 * ANCHOR + 977 * i)
        host.now += 2 * ANCHOR
        number = box(recorder, clock, host, lambda: device.work(7_000))
    begins = device.queued - 7_000 + 5000
    clock.resolve()
    start, end = times(recorder, number)
    coarse = 3600e9 * 2**-24  # what one 32-bit difference over the whole hour would be good for
    assert abs(start - begins) < coarse / 10 and abs(end - start - 7_000) < 200


def test_what_is_over_is_settled_on_the_way_and_the_rest_at_the_end(made) -> None:
    device, host, recorder, clock = made
    first = box(recorder, clock, host, lambda: device.work(1000))
    device.reached = device.queued
    for _ in range(LOOK - 1):
        last = box(recorder, clock, host, lambda: device.work(1000))
    assert times(recorder, first) == (5000, 6000) and times(recorder, last) == (5000, 5000)
    clock.resolve(waiting=False)  # as when the run failed: the device may never be through
    assert times(recorder, last) == (5000, 5000)
    clock.resolve()
    assert times(recorder, last)[1] == 5000 + 1000 * LOOK


def test_only_a_gpu_in_real_time_has_one(monkeypatch) -> None:
    recorder = rec.Recorder(rec.Page(rec.create_pages(1), 0, 1))

    def context(device: str, clock: type) -> Context:
        return Context(0, 1, recorder, clock(0), None, None, device=torch.device(device))

    assert context("cpu", Clock).device_clock is None and context("cuda", VirtualClock).device_clock is None
    device = Device()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda d: device.synchronize())
    monkeypatch.setattr("labkit.wire.accelerator.CUDA.event", lambda timing: device.event())
    one = context("cuda", Clock)
    assert isinstance(one.device_clock, DeviceClock) and one.device_clock is one.device_clock
    one.close_books()
    assert device.waits == 3


@pytest.mark.ranks
def test_spans_compute_and_collectives_take_their_times_from_the_device() -> None:
    def work(group):
        from labkit import collectives

        device = Device()
        clock = group.context.clock
        made = DeviceClock(group.context.recorder, clock.now, device.synchronize, device.event)
        group.context.__dict__["device_clock"] = made
        with group.span("layer"):
            device.work(10**12)
        with group.compute(0):
            device.work(10**12)
        collectives.all_reduce(torch.ones(4), group, algorithm="ring")
        group.context.close_books()

    run = labkit.launch(work, 2, transport="local")
    for rank in range(2):
        layer, compute = (next(s for s in run.trace.spans(n) if s.rank == rank) for n in ("layer", "compute"))
        assert abs(layer.end - layer.start - 1000) < 1e-3 and abs(compute.end - compute.start - 1000) < 1e-3
        assert compute.start == pytest.approx(layer.end, abs=1e-3)
        reduced = next(c for c in run.trace.collectives("all_reduce") if c.rank == rank)
        assert reduced.start == reduced.end == pytest.approx(compute.end, abs=1e-3)
