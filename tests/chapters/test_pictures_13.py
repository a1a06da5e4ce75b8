"""What chapter 13 says below its pictures of replicated rows and of servers beside a ring."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import labkit
from labkit import collectives, cost
from labkit.book.workbenches import bench
from labkit.chapters.c13_embeddings import clients, drawings, hot, panels, pictures, ports, tables, travel
from labkit.chapters.c13_embeddings.tables import COPIED
from labkit.data import digits
from labkit.models import MLP, MLPConfig
from labkit.optim.synchrony import dirichlet_split, fed_avg
from labkit.wire import Group

PAGE = Path(__file__).parents[2] / "notebooks/13_embeddings.ipynb"


def _took(seconds):
    """A run in which the step with so many replicated rows took so long, for each placement."""
    spans = {f"{by} {copied}": [SimpleNamespace(rank=0, start=1.0, end=1.0 + t)]
             for by, line in seconds.items() for copied, t in zip(COPIED, line, strict=True)}  # fmt: skip
    return SimpleNamespace(trace=SimpleNamespace(spans=spans.get, badge="emulated", collectives=lambda name: []))


def test_hot_rows_are_praised_only_where_they_save_time():
    said = hot.hot_rows(
        _took(
            {
                "range": [0.02, 0.018, 0.015, 0.01005, 0.010, 0.011],
                "modulo": [0.01] * 6,
                "one rank": [0.04, 0.04, 0.04, 0.04, 0.04, 0.03],
            }
        )
    ).sentence
    assert (
        "With range placement a step takes 20 ms without replicated rows, and is 50% shorter with 256 of them." in said
    )
    assert "With modulo placement a step takes 10 ms without replicated rows, and they save no time." in said
    assert said.endswith(
        "With the table on one rank a step takes 40 ms without replicated rows, and is 25% shorter with 2,048 of them."
    )


def _hold(group: Group, width: int, skew: float, rows: int) -> torch.Tensor:
    """What the page's cell does, with fewer rows."""
    ids = tables.batch(group, skew, 128, rows, 0)
    for placement in ("range", "modulo", "one rank"):
        table = tables.sharded(group, placement, rows, width)
        for copied in COPIED:
            table.replicate("table", range(copied))
            group.barrier()
            with group.span(f"{placement} {copied}"):
                table(ids).sum().backward()
                table.step()
    return ids.unique()


@pytest.mark.ranks
@pytest.mark.parametrize(("ranks", "width", "skew"), [(4, 64, 1.1), (2, 4, 1.4)])
def test_what_hot_rows_cost_is_told_beside_what_they_spare(ranks, width, skew):
    run = labkit.launch(_hold, ranks, width, skew, 4000, clock="virtual", network=panels.WIRE)
    said, figure = hot.holding(run, width, 4000), hot.hot_rows(run)
    asked = run.results  # the rows of rank 0 by range are the first, and all others must ask it for them
    of_0 = [int((ids < 4000 // ranks).sum()) for ids in asked[1:]]
    ids = [int((ids >= 4000 // ranks).sum()) for ids in asked[:1]]
    sent = 4 * width * sum(of_0) + 8 * ids[0]
    counts = 2 * 8 * (ranks - 1)  # each rank tells the others two numbers
    assert f"rank 0 has most to do: it sends {pictures.bytes_text(sent + counts)} in the pull" in said
    took = [row["range (ms)"] for row in figure.rows]
    best = next(copied for copied, ms in zip(COPIED, took, strict=True) if ms <= 1.01 * min(took))
    assert (f"With {best:,} replicated rows" in said) == (best > 0) != ("save nothing here" in said)
    for row, copied in zip(figure.rows, COPIED, strict=True):
        share = cost.ring_all_reduce_time(4 * copied * (width + 1), ranks, pictures.LATENCY, 1 / pictures.BANDWIDTH)
        if copied:
            assert row["range, of it all-reduce (ms)"] == pytest.approx(1e3 * share, rel=0.03)
    assert figure.svg.count('stroke-width="2.6"') == 3, "a frame for each placement"


def test_other_ranks_are_those_that_do_not_own_the_row():
    asked = [torch.arange(256), torch.arange(64, 160)]
    assert hot._others(asked, 64, 256, torch.zeros_like) == "0.5 other ranks on average"  # rank 1 asks for 96
    assert hot._others(asked, 64, 256, lambda ids: (ids >= 200).long()) == "0.8 other ranks on average"


def test_a_hit_rate_stands_beside_the_lines_of_the_same_function():
    def cached(group, capacity, policy, skew):
        return capacity / 4000 + 0.1 * (policy == "lfu")

    figure = pictures.hit_rates(cached)(SimpleNamespace(results=[0.025, 0.03]), 100, "lru", 1.1)
    assert (
        "has room for 2.5% of the rows. Under LRU it answers 2% of the look-ups, and under LFU 12%." in figure.sentence
    )
    assert figure.sentence.endswith("Of these sizes, both need 2,000 rows for half of the look-ups.")
    assert pictures._half({name: dict.fromkeys(map(float, pictures.SIZES), rate) for name, rate in
                           (("LRU", 0.4), ("LFU", 0.6))}).endswith("needs 20 rows for half of the look-ups, and LRU "
                                                                   "more than 2,000.")  # fmt: skip
    assert figure.badge == "measured"  # hits are counted, whoever asks for the rows


def test_the_repair_brings_the_sum_of_those_who_came():
    *_, (_, lost), (_, repaired) = drawings.masks().frames
    assert lost.endswith("47 + 14 gives 61, and not 19.")
    assert "61 − 77 − 65 is 19 modulo 100" in repaired


def test_what_a_rank_of_a_recommender_keeps_at_home_does_not_travel():
    recommender = pictures.archetypes().rows[1]
    touched, ranks = 1e-5 * pictures.TABLE, pictures.RANKS
    each = touched / pictures.ROW / ranks * (ranks - 1) / ranks  # rows that others own, of one rank
    assert recommender["sent by a rank or client"] == f"{each * (cost.ID_BYTES + 2 * pictures.ROW) / 1e6:.3g} MB"


def test_a_strip_of_the_table_is_filled_where_rows_are_touched(monkeypatch):
    monkeypatch.setattr(pictures, "in_step", lambda run: [640, 512])
    ids = torch.cat([torch.arange(40), torch.tensor([5999])])
    dense = SimpleNamespace(trace=SimpleNamespace(bytes_sent=lambda: [384_000, 384_000]))
    figure = pictures.dense_or_sparse(dense, SimpleNamespace(results=[ids, ids[:3]]), 6000)
    filled = [float(h) for h in re.findall(r'height="([\d.]+)"[^>]*stroke-width="0"', figure.svg)]
    assert len(filled) == pictures.COLUMNS + 2 and filled[-2:] == pytest.approx([46, 46 / 40], abs=0.1)
    assert "touches 41 of 6,000 rows" in figure.sentence and "384 kB" in figure.sentence and "640 B" in figure.sentence


@pytest.mark.ranks
@pytest.mark.parametrize(("servers", "kilobytes"), [(1, 100), (4, 1)])
def test_where_a_ring_and_servers_change_places_is_where_their_formulas_do(servers, kilobytes, monkeypatch):
    numel = 250 * kilobytes
    ring = [SimpleNamespace(name="all_reduce", start=0.0, end=1e-3)]
    trace = SimpleNamespace(world_size=servers + 4, collectives=lambda: ring)
    monkeypatch.setattr(ports, "_served", lambda run, servers: 2e-3)
    said = ports.by_workers(SimpleNamespace(trace=trace), servers, kilobytes).sentence
    ring = [cost.ring_all_reduce_time(4 * numel, n, ports.LATENCY, ports.BETA) for n in range(2, 33)]
    star = [cost.server_exchange_time(4 * numel, n, servers, ports.LATENCY, ports.BETA) for n in range(2, 33)]
    first = [a < b for a, b in zip(ring, star, strict=True)]
    if len(set(first)) == 1:
        assert f"{'the ring is' if first[0] else 'the server is'} faster for any number of workers up to 32." in said
    else:
        assert f"faster below {2 + first.index(not first[0])} workers" in said
    assert ("In this run it is the other way round" in said) == (not first[2]), "the run has the ring ahead with 4"


@pytest.mark.ranks
def test_a_ring_alone_takes_the_time_of_its_formula():
    for workers, numel in ((2, 250), (4, 250), (8, 25_000)):
        formula = cost.ring_all_reduce_time(4 * numel, workers, ports.LATENCY, ports.BETA)
        assert ports.around_a_ring(workers, numel) == pytest.approx(formula, rel=0.01)


@pytest.mark.ranks
def test_a_ring_after_servers_counts_from_when_its_last_worker_begins():
    def exchange(group: Group) -> None:
        gradient = torch.ones(250)
        ports.push_and_pull(group, range(2), gradient)
        if group.rank >= 2:
            workers = group.subgroup(range(2, group.size))
            workers.barrier()
            collectives.all_reduce(gradient, workers, algorithm="ring")

    run = labkit.launch(exchange, 7, clock="virtual", network=ports.WIRE)
    assert ports._ring(run) == pytest.approx(cost.ring_all_reduce_time(1000, 5, ports.LATENCY, ports.BETA), rel=0.01)


@pytest.mark.ranks
def test_ranks_that_all_serve_are_refused_and_one_worker_has_no_ring() -> None:
    with pytest.raises(labkit.RankFailed, match="with 3 ranks and 4 servers no rank is left to work"):
        labkit.launch(ports.push_and_pull, 3, range(4), torch.ones(100))

    def alone(group: Group) -> None:
        ports.push_and_pull(group, range(2), torch.ones(1000))
        if group.rank == 2:
            collectives.all_reduce(torch.ones(1000), group.subgroup([2]), algorithm="ring")

    said = ports.compared(labkit.launch(alone, 3, clock="virtual", network=ports.WIRE), servers=2)
    assert said.startswith("This run has 1 worker. One exchange through 2 servers takes")
    assert said.endswith("a single worker needs no ring.")


@pytest.mark.parametrize(("ranks", "left"), [(8, 1 / 8), (4, 1 / 4), (2, 1 / 2)])
def test_what_a_hot_row_leaves_of_its_owners_time_is_what_the_page_says(ranks: int, left: float) -> None:
    ring = cost.ring_all_reduce_bytes(1, ranks)  # sent, and received at the same time
    assert ring / (2 * (ranks - 1)) == pytest.approx(left) == 1 / ranks


@pytest.mark.ranks
@pytest.mark.parametrize(("placement", "ranks"), [("range", 2), ("range", 4), ("modulo", 4), ("columns", 2)])
def test_the_busiest_link_of_the_picture_takes_the_time_of_the_step(placement, ranks):
    def look_up(group):
        table = tables.sharded(group, placement)
        ids = tables.batch(group, 1.1)
        table(ids).sum().backward()
        table.step()
        return tables.requests(table, ids)

    run = labkit.launch(look_up, ranks, clock="virtual", transport="local", network=ports.WIRE)
    figure = pictures.sent(run)
    both = [row["sent in the pull (bytes)"] + row["received in the push (bytes)"] for row in figure.rows]
    begin, end = run.trace.during_step(1)
    assert 0.8 * (end - begin) < max(both) / pictures.BANDWIDTH < end - begin
    assert pictures.in_step(run) == pictures.formula_of(run.results)  # sections 2 and 3
    begins = {"range": "Rank 0 has most", "modulo": "All ranks have nearly the same", "columns": "All ranks have"}
    assert figure.sentence.startswith(begins[placement])
    assert ("the jam" in figure.svg) == (placement == "range")
    if placement == "range":  # the owner of the popular rows, who does not send most where two share the table
        assert both[0] == max(both)


def test_lazy_adam_is_a_staircase_with_corners_at_the_steps_that_touch_the_row():
    figure = pictures.rare_row([1.0 - 0.1 * k for k in range(40)], [1.0 - k // 10 for k in range(40)])
    assert [row["step"] for row in figure.rows if row["lazy Adam"] is not None] == [1, 11, 21, 31, 40]
    assert pictures._stairs([3.0, 3.0, 2.0, 2.0]) == [(1, 3), (3, 3), (3, 2), (4, 2)]


def test_buckets_that_moved_are_counted_and_their_bytes_have_the_state_in_them():
    one = (([9, 1, 1, 1], [0, 0, 1, 1]), ([9, 1, 1, 1], [0, 1, 1, 1]), 500)
    (here, before), (there, moved), (_, after) = travel.moved(SimpleNamespace(results=[one, one])).frames
    for svg, asked in ((here, (10, 2)), (there, (9, 3))):  # of each rank
        assert all(f">{n}</text>" in svg for n in asked)
    assert "was asked for 1.67 times the mean" in before  # 10 of 12, on one of two ranks
    assert moved.startswith("Of 4 buckets 1 must move, and 1 of these has moved so far.")
    assert "bucket 1: 1 rows asked for" in there
    assert "asked for 1.50 times the mean" in after
    assert "1 of 4 buckets moved, which have 1 kB with their optimizer's state." in after
    assert moved.endswith("after this move, the busiest rank gets 1.50 times the mean.")  # 9 of 12
    assert after.endswith("rank 0 was the busiest, but all its requests went to a single bucket, which cannot be cut.")
    assert travel._stopped([4, 4, 3, 4], [0, 0, 1, 1], 2).endswith(
        "each of its buckets has at least as many requests as its lead over the rank with fewest."
    )


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, 7])
def test_ids_and_rows_are_drawn_on_their_way(ranks):
    frames = travel.travelling(labkit.launch(tables.trip, ranks, 0)).frames
    for at, words in ((3, "each group of ids goes to its owner"), (6, "the rows go back the same way")):
        svg, said = frames[at]
        assert words in said and "who asks" in svg
    trips = labkit.launch(tables.trip, ranks, 0).results
    crossing = sum(len({i % ranks for i in one.unique} - {r}) for r, one in enumerate(trips))
    arrows = [svg.count("<line") for svg, _ in (frames[3], frames[6])]
    assert arrows == [crossing, crossing]  # a line for each rank that another one asks


def test_what_the_page_says_of_the_messages_of_hot_rows() -> None:
    page, micro = PAGE.read_text(), 1e6 * pictures.LATENCY
    assert f"a latency of {micro:g} µs, in addition to the time for its bytes." in page
    assert f"With 4 ranks that is {2 * 3 * micro:g} µs" in page
    owner, copied = (1e6 * nbytes / pictures.BANDWIDTH for nbytes in (2 * 3 * 256, cost.ring_all_reduce_bytes(260, 4)))
    assert f"takes about {copied:.0f} µs and not {owner:.0f} µs" in page
    assert f"A row of 64 numbers that all ranks ask for saves {owner - copied:.0f} µs, so at least six" in page
    assert 5 * (owner - copied) < 2 * 3 * micro < 6 * (owner - copied)


def test_the_panel_of_hot_rows_begins_with_the_readers_ranks_and_the_page_says_what_it_runs(monkeypatch) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr(panels.book, "workbench", lambda *args, **options: asked.update(options))
    panels.hot_rows(print, 20_000, 7)
    assert asked["ranks"] == 7
    said = str(hot.spread_or_copied(_took({by: [0.01] * 6 for by in ("range", "modulo", "one rank")})))
    assert "takes 6 steps: the first without copies, and the others with 16, 64, 256, 1,024 and 2,048 of" in said
    assert "takes 18 steps" in said


@pytest.mark.parametrize(
    ("copied", "spread", "both", "first", "said"),
    [
        (7e-3, 3e-3, 4e-3, 1, "spreading is the better remedy here, and copies on top of it cost more"),
        (7e-3, 3e-3, 3.01e-3, 1, "and copies on top of it hardly change anything"),
        (2e-3, 3e-3, 3e-3, 0, "spreading alone is not the fastest"),
    ],
)
def test_the_answer_to_the_prediction_about_copies_comes_of_the_run(copied, spread, both, first, said) -> None:
    run = _took({"range": [9e-3, 9e-3, 9e-3, copied, 1, 1], "modulo": [spread, 9e-3, 9e-3, both, 1, 1],
                 "one rank": [1.0] * 6})  # fmt: skip
    assert hot.first(run) == first
    assert said in str(hot.spread_or_copied(run))


@pytest.mark.ranks
def test_what_assignment_loses_is_all_but_one_gradient_of_each_id() -> None:
    def arrived(group: Group, add: Any) -> Any:
        ids = tables.batch(group, 1.1).flatten()
        return add(ids, torch.ones(len(ids), 2))

    def one_each(ids: torch.Tensor, gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        unique = ids.unique()
        return unique, torch.ones(len(unique), 2)

    def counted(ids: torch.Tensor, gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        unique, times = ids.unique(return_counts=True)
        return unique, times[:, None] * torch.ones(1, 2)

    figure = pictures.lost(*(labkit.launch(arrived, 2, add) for add in (counted, one_each)), counted)
    ids = tables.batch(SimpleNamespace(rank=0), 1.1).flatten()
    top, times = ids.unique(return_counts=True)[0], int(ids.bincount().max())
    assert f"has {len(ids):,} gradients" in figure.sentence and f"keeps {len(top):,}, one for each" in figure.sentence
    assert f"loses {1 - len(top) / len(ids):.0%}. Id 0 appears {times:,} times" in figure.sentence
    assert [row["kept by the careless sum"] for row in figure.rows] == [1] * pictures.SHOWN
    assert f">1 of {times:,}</text>" in figure.svg


def _ran(cell: str, **names: object) -> dict[str, object]:
    """The names that are there when a cell of the page has run."""
    cells = json.loads(PAGE.read_text())["cells"]
    exec("".join(next(c["source"] for c in cells if c["id"] == cell)), names)
    return names


@pytest.mark.ranks
def test_as_many_ranks_work_as_the_panel_of_servers_says_and_it_has_both_answers(monkeypatch) -> None:
    monkeypatch.setenv("LABKIT_HEADLESS", "1")
    shown: list[Any] = []
    chosen = SimpleNamespace(server_or_ring=lambda run: shown.append(panels.server_or_ring(run)))
    _ran("server-or-ring", torch=torch, ports=ports, all_reduce=collectives.all_reduce, panels=chosen)
    (one,) = shown
    assert one.said.startswith("run on 5 processes") and "This run has 4 workers." in one.text
    one.set(workers=2, servers=4)
    for kilobytes, first in ((1, 3), (3, 4)):
        one.set(kilobytes=kilobytes)
        assert one.said.startswith("run on 6 processes") and "This run has 2 workers." in one.text
        assert f"the ring is faster below {first} workers, and the servers are faster from there on." in one.text
    one.set(workers=1)
    assert one.said.startswith("run on 5 processes") and "a single worker needs no ring." in one.text


@pytest.mark.ranks
def test_the_two_adams_run_where_pytorch_has_loaded_what_they_need(monkeypatch) -> None:
    def slow(*args: object) -> None:
        raise AssertionError("the first optimizer of the kernel imports PyTorch's compiler, for seconds")

    monkeypatch.setattr(torch.optim.Optimizer, "__init__", slow)
    drawn = _ran("lazy", torch=torch, launch=labkit.launch, pictures=pictures)
    assert len(drawn["dense_adam"]) == len(drawn["lazy_adam"]) == 40


def test_the_picture_of_equal_ids_does_not_name_the_method_that_the_reader_is_to_find() -> None:
    for svg, said in drawings.duplicates().frames:
        assert "index_add" not in svg + said and "added one by one" in svg


@pytest.mark.parametrize(("servers", "kilobytes"), [(1, 1), (1, 100), (2, 1), (2, 3), (4, 1), (4, 3), (4, 10)])
def test_what_a_further_worker_costs_says_who_is_faster_with_many(servers, kilobytes):
    said = ports.many_workers(None, servers, kilobytes)
    ring = cost.ring_all_reduce_time(1000 * kilobytes, 32, pictures.LATENCY, ports.BETA)
    slower = ring > cost.server_exchange_time(1000 * kilobytes, 32, servers, pictures.LATENCY, ports.BETA)
    assert said.endswith("the ring is slower.") == slower
    assert ("as long as a latency" in said) == ((servers, kilobytes) == (1, 1))


def test_from_how_many_workers_on_the_page_says_that_a_ring_is_slower() -> None:
    page, found = PAGE.read_text(), []
    for servers, nbytes in ((2, 1000), (4, 1000), (4, 3000)):
        slower = [
            cost.ring_all_reduce_time(nbytes, n, pictures.LATENCY, ports.BETA)
            > cost.server_exchange_time(nbytes, n, servers, pictures.LATENCY, ports.BETA)
            for n in range(2, 33)
        ]
        first = slower.index(True)
        assert all(slower[first:])
        found.append(2 + first)
    two, one_kb, three_kb = found
    assert f"with 1 kB and two servers the ring is slower from {two} workers on." in page
    assert f"1 kB it is slower from {one_kb} workers on, and with four servers and 3 kB from {three_kb} workers" in page


def test_a_panel_tells_how_many_processes_its_run_had() -> None:
    run = SimpleNamespace(spec=SimpleNamespace(world_size=3), seconds=0.1)
    assert bench._how(5, 0.2, run) == "run on 3 processes in 0.10 s"


def test_a_death_is_drawn_beside_the_same_clients_alive(monkeypatch) -> None:
    views: list[Any] = []
    monkeypatch.setattr(panels.book, "workbench", lambda run, controls, shown, **how: views.extend(shown))

    def ran(alpha: float, epochs: int) -> Any:
        return SimpleNamespace(results=[None, [0.1, alpha / 200]])

    panels.federated(ran)
    run = SimpleNamespace(results=[None, None, [0.1, 0.4]])
    said = views[0](run, alpha=0.2, dies="the largest client", epochs=1).sentence
    assert "50% of the test digits (alpha 100, all alive), and 0% of the test digits (these clients, all alive)" in said
    assert said.endswith("40% of the test digits (these without the largest client, which dies in round 3).")
    assert "all alive), and 40% of the test digits (these clients)." in views[0](run, 0.2, "nobody", 1).sentence


@pytest.mark.ranks
def test_what_the_reader_will_have_found_about_clients() -> None:
    page = PAGE.read_text()
    for said in ("Unlike clients learn more slowly", "the model ends lower, because most images of some digits were",
                 "the smallest client hardly anything changes", "More epochs in a round help here"):  # fmt: skip
        assert said in page
    images, test = digits(seed=0)
    told = SimpleNamespace(federated=lambda run: None)
    names = _ran("federated", images=images, test=test, seed=0, clients=clients, MLP=MLP, MLPConfig=MLPConfig,
                 dirichlet_split=dirichlet_split, fed_avg=fed_avg, launch=labkit.launch, panels=told)  # fmt: skip
    with_clients: Any = names["with_clients"]

    def end(**how: Any) -> float:
        return pictures.curve(with_clients(**how))[8]

    unlike = end()
    assert unlike < end(alpha=100.0) - 0.05
    assert end(dies="the largest client") < unlike - 0.03 and abs(end(dies="the smallest client") - unlike) < 0.03
    assert end(epochs=1) < unlike < end(epochs=16)
    largest = max(parts := dirichlet_split(images.y, 6, 0.1, 1), key=len)
    held = clients.labels_of([largest, *parts], images.y)
    assert sum(2 * mine > sum(c[d] for c in held[1:]) for d, mine in enumerate(held[0])) >= 2, "most of some digits"
