"""What the loop of FTAR counts as movement, and what its messages carry though none has a tensor of its own."""

from __future__ import annotations

import time

import pytest
import torch
from leftovers import NEVER
from slices import REBUILDABLE, few

import labkit
from labkit import Corrupt, Drop
from labkit.resilience.errors import Recoverable
from labkit.resilience.ftar.exchange import ft_all_reduce
from labkit.resilience.ftar.plan import make_plan
from labkit.wire.recording import record as rec

from .ftar_cases import raised

pytestmark = pytest.mark.ranks


def test_a_neighbour_that_leaves_when_it_has_everything_is_no_movement(tmp_path) -> None:
    """Rank 0 waits for the last message of rank 2. That rank 1 is through and leaves does not make it wait longer."""

    class Hands:
        """Rank 0's clock, turned by what has happened: at 0.9 of its patience rank 1 leaves, and then it runs on."""

        looks, at = 0, 0.0

        def monotonic(self):
            if said("through-1") and said("through-2"):
                self.looks += 1
            if self.looks == 10:  # it has had the time to take what was sent
                self.at = 0.9
                say("nearly")
            if said("left"):
                self.at += 0.01
            return self.at

    def say(what):
        (tmp_path / what).touch()

    def said(what):
        return (tmp_path / what).exists()

    def work(group):
        x = torch.ones(5)
        if group.rank == 0:
            from labkit.wire import relay

            relay.time = hands = Hands()
            error = raised(Recoverable, lambda: ft_all_reduce(x, group, quiet=1.0))
            say("end")
            return error.late, error.peer, hands.at
        ft_all_reduce(x, group)
        say(f"through-{group.rank}")
        if group.rank == 1:
            wait_for("nearly")
            group.leave()
            say("left")
        wait_for("end")

    def wait_for(what):
        while not said(what):
            time.sleep(0.01)

    run = labkit.launch(work, 3, transport="local", faults=[Drop(2, message=4)], timeout=NEVER)
    late, peer, at = run.results[0]
    assert late and peer == 2 and 1.0 <= at < 1.2


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_a_flipped_bit_travels_on_to_all(transport) -> None:
    def work(group):
        return ft_all_reduce(torch.ones(1000), group, chunk_bytes=400, chunks=2).tolist()

    for result in labkit.launch(work, 4, transport=transport, faults=[Corrupt(1, message=1)], timeout=30).results:
        wrong = [i for i, value in enumerate(result) if value != 4.0]
        assert wrong == [250 + 42]  # the middle of the first chunk of part 1, of 84 elements


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_the_records_know_the_place_of_each_message(transport) -> None:
    def work(group):
        ft_all_reduce(torch.ones(1000), group, chunk_bytes=400, chunks=2)

    events = labkit.launch(work, 3, transport=transport, timeout=30).trace.events
    for rank in range(3):
        plan = make_plan(1000, 4, 3, rank, 400, 2)
        for kind, cuts in ((rec.SEND, plan.outs), (rec.RECV, plan.intos)):
            rows = events[(events["kind"] == kind) & (events["rank"] == rank)]
            found = list(zip(rows["offset"].tolist(), rows["nbytes"].tolist(), strict=True))
            assert found == [(4 * start, 4 * (stop - start)) for start, stop, _ in cuts]
            assert rows["seq"].tolist() == list(range(1, len(cuts) + 1))
