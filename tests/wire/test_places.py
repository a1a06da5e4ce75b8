"""Where buffers lie in the tensor of a collective, as records say it."""

import pytest
import torch

import labkit
from labkit import collectives
from labkit.collectives import algorithm
from labkit.wire.ops import SUM
from labkit.wire.recording.places import Places


def test_a_buffer_is_found_by_its_address_and_its_newest_meaning():
    x, memory = torch.zeros(6, 2), torch.zeros(8)
    places = Places()
    places.enter(x, 0, nested=False)
    assert [places.find(t) for t in (x, x[1], x[2:4], x[5, 1:], memory)] == [0, 2, 4, 11, -1]
    places.copy(memory, x[1:3])
    assert places.find(memory[3:]) == 5
    places.copy(memory[2:4], x[4])  # inside of what is known, and newer
    assert (places.find(memory[2:]), places.find(memory[4:])) == (8, 6)
    places.copy(memory, x)  # given out again: all that lay in it is forgotten
    assert places.find(memory[2:]) == 2


def test_a_whole_in_another_order_goes_around_and_a_dtype_does_not_matter():
    places, mine = Places(), torch.zeros(2, 3)
    places.enter(mine, 4, nested=False)  # rows 4 and 5 of the joined result
    assert places.find(mine[1]) == 15
    around = torch.zeros(6, 3, dtype=torch.float64)
    places.whole(around, 4)
    assert [places.find(around[r]) for r in range(6)] == [12, 15, 0, 3, 6, 9]


def test_a_collective_inside_another_begins_where_its_input_lies():
    x, stranger = torch.zeros(8), torch.zeros(2)
    places, room = Places(), torch.zeros(4)
    places.enter(x, 0, nested=False)
    places.enter(x[6:], 1, nested=True)  # joins rows, of which these are 1 and 2: the first is element 5
    places.whole(room, 0)
    assert places.origin == 5 and places.find(room[2:]) == 7
    places.enter(stranger, 0, nested=True)
    places.whole(stranger, 0)
    assert places.find(stranger) == -1


@pytest.mark.ranks
def test_after_a_nested_collective_the_outer_one_goes_on_where_it_was():
    @algorithm("all_reduce", "outer")
    def outer(x, group, op=SUM):
        collectives.ring_all_reduce(x[4:], group, op)
        room = torch.empty_like(x)
        group.work_on(room)
        group.exchange(x[:4], 1 - group.rank, room[:4], 1 - group.rank)
        return x

    del collectives.ALGORITHMS["all_reduce"]["outer"]
    run = labkit.launch(lambda g: outer(torch.ones(8), g), 2, transport="local")
    assert [(m.offset, m.recv_offset) for m in run.trace.sends if m.src == 0] == [(4, 4), (6, 6), (0, 0)]
