"""What chapter 2 says of messages that wait for their receivers, beside runs."""

from __future__ import annotations

import pytest
import torch

import labkit
from labkit import Link, Network
from labkit.chapters.c02_ranks_and_messages import pictures
from labkit.chapters.c02_ranks_and_messages.you_write import pass_right

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("size", [2, 3, 5])
def test_without_buffers_a_single_exception_makes_the_whole_circle_wait(size: int) -> None:
    run = labkit.launch(lambda group: pass_right(torch.ones(8), group), size, transport="local")
    assert pictures.without_buffers(run) == size


def test_even_and_odd_ranks_need_two_messages_and_an_exchange_one() -> None:
    def by_parity(group):  # type: ignore[no-untyped-def]
        x, right, left = torch.ones(8), (group.rank + 1) % 4, (group.rank - 1) % 4
        if group.rank % 2:
            group.recv(torch.zeros(8), source=left)
        group.send(x, to=right)
        if not group.rank % 2:
            group.recv(torch.zeros(8), source=left)

    def at_once(group):  # type: ignore[no-untyped-def]
        group.exchange(torch.ones(8), to=(group.rank + 1) % 4, like=torch.zeros(8), source=(group.rank - 1) % 4)

    assert pictures.without_buffers(labkit.launch(by_parity, 4, transport="local")) == 2
    assert pictures.without_buffers(labkit.launch(at_once, 4, transport="local")) is None


def test_on_an_emulated_link_bytes_leave_before_the_receiver_is_there_and_the_page_says_so() -> None:
    link = Link(bandwidth=1e7, latency=1e-4)

    def pass_on(group):  # type: ignore[no-untyped-def]
        pass_right(torch.ones(62_500), group)
        return link.seconds(250_000)

    run = labkit.launch(pass_on, 5, clock="virtual", network=Network(intra=link))
    told = pictures.in_messages(run)
    assert "it would be 5 times (simulated)" in told
    assert run.trace.duration < 2.5 * link.seconds(250_000)
