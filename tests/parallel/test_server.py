"""The parameter server: equal to an all-reduce to the bit, rows, bytes and times, and deaths in the middle."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from slices import TRANSPORTS, few

import labkit
from labkit import Kill, Network, RankFailed, cost
from labkit.collectives import all_reduce
from labkit.models import seeded
from labkit.optim.synchrony import ASP, BSP, SSP, DelayCompensation, by_root
from labkit.parallel.server import Client, Server, out_of_order
from labkit.wire.network import Link

pytestmark = pytest.mark.ranks

SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
STEPS = 3


def weights():
    with seeded(0):
        return {"w": torch.randn(7, 3), "b": torch.randn(3), "c": torch.randn(())}


def gradient(name, x, worker, step):
    """One that depends on the weights."""
    with seeded(100 * worker + step):
        return torch.sin(x) * torch.randn(x.shape) + len(name)


def by_server(group, servers, policy, optimizer, options=None):
    """Some steps through servers: on a server its rows, its log and who was lost; nothing on a worker."""
    named = weights()
    if group.rank in servers:
        server = Server(named, group, servers, policy=policy, optimizer=optimizer, **options or {})
        server.serve()
        return server.parameters, server.log, server.lost
    with Client(named, group, servers) as client:
        for step in range(STEPS):
            group.step(step)
            pulled = {name: client.pull(name) for name in named}
            group.compute(1e-3 * (1 + (5 * group.rank + 3 * step) % 4))  # they arrive in another order each time
            for name, x in pulled.items():
                client.push(name, gradient(name, x, group.rank, step))
            client.tick()


def by_all_reduce(group, workers, optimizer):
    """The same steps with an all-reduce that adds in the order of ranks."""
    named = {name: torch.nn.Parameter(x) for name, x in weights().items()}
    steps = optimizer(list(named.values()))
    for step in range(STEPS):
        for name, p in named.items():
            mine = gradient(name, p.detach(), workers[group.rank], step)
            p.grad = all_reduce(mine.view(-1), group, algorithm="naive").view_as(p) / group.size
        steps.step()
    return {name: p.detach() for name, p in named.items()}


def joined(results):
    """The whole parameters of the rows of all servers."""
    return {name: torch.cat([rows[name] for rows, *_ in results]).view(x.shape) for name, x in weights().items()}


@pytest.mark.parametrize(
    ("servers", "optimizer", "clock", "transport"),
    few(
        [
            ([3, 1], MOMENTUM, "virtual", "local"),
            *(([0, 2], MOMENTUM, "real", transport) for transport in TRANSPORTS),
            ([0, 1], partial(torch.optim.Adam, lr=0.1), "virtual", "local"),
            ([0, 1, 2, 3], SGD, "virtual", "gloo"),
        ],
        keep=2,
    ),
)
def test_bsp_is_an_all_reduce_to_the_bit(servers, optimizer, clock, transport):
    with labkit.world(5, clock=clock, transport=transport) as world:
        results = world.run(by_server, servers, BSP(), optimizer).results
    workers = [r for r in range(5) if r not in servers]
    with labkit.world(len(workers), transport="local") as world:
        expected = world.run(by_all_reduce, workers, optimizer).results[0]
    found = joined([results[s] for s in servers])
    assert all(torch.equal(found[name], x) for name, x in expected.items())


def test_all_servers_have_the_same_log_and_repeat_it():
    """On the virtual clock, where every server sees every request in the order of their times."""
    with labkit.world(5, clock="virtual", transport="local") as world:
        runs = [world.run(by_server, [0, 4], SSP(1), SGD).results for _ in range(2)]
    logs = [[(u.worker, u.clock, u.version, u.tau) for u in results[s][1]] for results in runs for s in (0, 4)]
    assert len(logs[0]) == 3 * STEPS and logs.count(logs[0]) == 4
    assert all(
        torch.equal(x, y) for x, y in zip(joined(runs[0][::4]).values(), joined(runs[1][::4]).values(), strict=True)
    )


def replayed(log, together=False, rate=lambda tau: 1.0, strength=0.0):
    """The weights after the updates of a log, each on the weights that it says it was computed on."""
    history, rest = {0: weights()}, list(log)
    while rest:
        count = len([u for u in rest if u.clock == rest[0].clock]) if together else 1
        batch, rest = rest[:count], rest[count:]
        before = len(log) - len(rest) - count
        history[before + count] = step = {}
        for name, now in history[before].items():
            total = torch.zeros_like(now)
            for u in batch:
                then = history[u.version][name]
                g = gradient(name, then, u.worker, u.clock)
                total += g + strength * g * g * (now - then)
            step[name] = now - 0.1 * rate(batch[0].tau) * total / count
    return history[len(log)]


def same(found, expected):
    return all(torch.allclose(found[name].view(x.shape), x, atol=1e-5) for name, x in expected.items())


def test_stale_gradients_get_a_smaller_rate_and_are_compensated():
    strength = 0.5
    with labkit.world(4, clock="virtual", transport="local") as world:
        results = world.run(
            by_server, [0], ASP(), SGD, {"rate": by_root, "compensation": DelayCompensation(strength)}
        ).results
    found, log, _ = results[0]
    assert max(u.tau for u in log) >= 2
    assert same(found, replayed(log, rate=by_root, strength=strength))


def test_rows_are_pulled_and_pushed_with_their_duplicates_summed():
    """A table of 11 rows on two servers, against the whole one with the same rows and Adagrad."""
    ids = [torch.tensor([9, 0, 9, 4]), torch.tensor([10, 9]), torch.tensor([], dtype=torch.int64)]
    make = partial(torch.optim.Adagrad, lr=0.5)

    def work(group):
        with seeded(0):
            named = {"table": torch.randn(11, 2)}
        if group.rank < 2:
            server = Server(named, group, [0, 1], policy=BSP(), optimizer=make)
            server.serve()
            return server.parameters["table"]
        mine = ids[group.rank - 2]
        with Client(named, group, [0, 1]) as client:
            for _ in range(STEPS):
                rows = client.pull("table", mine)
                client.push("table", rows.cos(), mine)
                client.tick()
            return rows

    with labkit.world(5, clock="virtual", transport="local") as world:
        run = world.run(work)
    with seeded(0):
        whole = torch.nn.Parameter(torch.randn(11, 2))
    optimizer = make([whole])
    for _ in range(STEPS):
        pulled = [whole.detach()[mine] for mine in ids]
        dense = torch.zeros(11, 2)
        for mine, rows in zip(ids, pulled, strict=True):
            dense.index_add_(0, mine, rows.cos() / 3)
        whole.grad = dense
        optimizer.step()
    assert torch.allclose(torch.cat(run.results[:2]), whole.detach(), atol=1e-6)
    assert torch.allclose(run.results[2], pulled[0], atol=1e-6) and run.results[4].shape == (0, 2)
    different = [len(set(mine.tolist())) for mine in ids]  # ids and gradients go once; so do weights
    heads = cost.server_worker_bytes(1, 1, 2) - 1
    said = [sum(m.nbytes for m in run.trace.sends if m.src == 2 + w and m.collective < 0) for w in range(3)]
    assert said == [STEPS * (heads + n * (8 + 8 + 8)) + 2 * 40 for n in different]


def test_a_module_is_loaded_and_stepped_as_without_a_server():
    """One worker, with a clipped norm, and a gradient that does not lie in memory as its parameter does."""
    with seeded(0):
        module, x = torch.nn.Linear(4, 4), torch.randn(8, 4)

    def backward(own):
        own(x).square().sum().backward()
        own.weight.grad = own.weight.grad.T.contiguous().T

    def work(group):
        named = dict(module.named_parameters())
        if group.rank == 0:
            return Server(named, group, [0], policy=SSP(0), optimizer=MOMENTUM).serve()
        with Client(named, group, [0]) as client:
            for _ in range(STEPS):
                client.load(module)
                backward(module)
                client.step(module, clip=0.5)
            client.load(module)
        return module.state_dict()

    with labkit.world(2, transport="local") as world:
        found = world.run(work).results[1]
    optimizer = MOMENTUM(module.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        backward(module)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
    assert all(torch.equal(found[name], p) for name, p in module.state_dict().items())


def test_bytes_and_times_are_those_of_the_closed_forms():
    """One clock of N workers that push and pull 4,000 bytes at once, over ports that take 1 us for 1,000 bytes."""
    n, alpha, beta = 1000, 1e-3, 1e-9
    link = Link(bandwidth=1 / beta, latency=alpha)

    def work(group, servers):
        named = {"w": torch.zeros(n)}
        if group.rank in servers:
            Server(named, group, servers, policy=BSP(), optimizer=SGD).serve()
            return None
        with Client(named, group, servers) as client:
            client.push("w", torch.ones(n))
            client.tick()
            client.pull("w")

    for servers in ([0], [0, 1], [0, 1, 2]):  # the last has fewer workers than servers
        workers = 5 - len(servers)
        with labkit.world(5, clock="virtual", transport="local", network=Network(intra=link, inter=link)) as world:
            trace = world.run(work, servers).trace
        plain = [m for m in trace.sends if m.collective < 0]
        sent = Counter()
        for m in plain:
            sent[m.src] += m.nbytes
        ends = 40 * len(servers)
        assert [sent[w] for w in range(len(servers), 5)] == [
            cost.server_worker_bytes(4 * n, 1, len(servers)) + ends
        ] * workers
        assert sum(sent[s] for s in servers) == cost.server_step_bytes(4 * n, workers)
        pushes, answers = (
            [m for m in plain if m.src not in servers],
            [m for m in plain if m.src in servers and m.nbytes],
        )
        took = max(m.arrived for m in answers) - min(m.start for m in pushes)
        heads = sum(m.nbytes for m in pushes if m.nbytes == 40) * beta
        beyond = took - cost.server_exchange_time(4 * n, workers, len(servers), alpha, beta)
        assert 0 <= beyond <= heads  # which the form leaves out


@pytest.fixture(scope="module")
def before():
    """How many messages worker 3 of 3 has sent when its second clock begins."""
    trace = labkit.launch(by_server, 4, [0], ASP(), SGD, clock="virtual", transport="local").trace
    return sum(m.src == 3 and m.step < 1 for m in trace.sends)


DEATHS = {"a push half sent": 4, "two pushes of three": 7, "no tick": 9, "nothing pulled": 0, "a push not begun": 3}


@pytest.mark.parametrize("death", few(DEATHS))
@pytest.mark.parametrize("policy", few([BSP(), SSP(1), ASP()], keep=2))
def test_a_worker_that_dies_in_the_middle_of_its_second_update_leaves_nothing_of_it(death, policy, before):
    """Its messages of a clock: three pulls, head and body of three pushes, a tick. The others go on to the end."""
    run = labkit.launch(
        by_server, 4, [0], policy, SGD, clock="virtual", transport="local", on_failure="continue",
        faults=[Kill(3, message=before + DEATHS[death] + 1)],
    )  # fmt: skip
    found, log, lost = run.results[0]
    assert same(found, replayed(log, policy.together))
    assert lost == [3] and [f.rank for f in run.failures] == [3]
    assert out_of_order(log) == []
    assert Counter(u.worker for u in log) == {1: STEPS, 2: STEPS, 3: 1}


@pytest.mark.parametrize(("servers", "nth"), few([([0, 1], 2), ([0], 2), ([0], 3)], keep=1))
def test_a_server_that_dies_ends_all_with_a_sentence(servers, nth):
    """Killed before an update for which everybody waits; what it had applied is on its status page."""
    run = labkit.launch(
        by_server, 5, servers, BSP(), SGD, clock="virtual", transport="local", on_failure="continue",
        faults=[Kill(0, at="update", nth=nth)],
    )  # fmt: skip
    workers = [r for r in range(5) if r not in servers]
    words = {f.rank: str(f.message) for f in run.failures}
    assert set(words) == {0, *workers}
    assert all("the server on rank 0 is gone, and its part of the weights with it" in words[w] for w in workers)
    spans = [s for s in run.trace.spans("update") if s.rank == 0]
    assert [(w, c) for s in spans for w, c in zip(s.attrs["workers"], s.attrs["clocks"], strict=True)] == [
        (w, c) for c in range(nth - 1) for w in workers
    ]
    if len(servers) == 2:  # the other one sees all its workers go
        assert out_of_order(run.results[1][1]) == []


def refused(work, size=3, **options):
    with pytest.raises(RankFailed) as caught:
        labkit.launch(work, size, clock="virtual", transport="local", **options)
    return str(caught.value)


def one_push(value=None, rows=None, name="w", shape=(4, 2), servers=(0,), dtype=torch.float32):
    """What rank 2 pushes in its second clock."""

    def work(group):
        named = {"w": torch.zeros(4, 2)}
        if group.rank == 0:
            return Server(named, group, list(servers), policy=ASP(), optimizer=SGD).serve()
        with Client(named, group, list(servers)) as client:
            client.push("w", torch.ones(4, 2))
            client.tick()
            if group.rank == 2:
                x = torch.ones(shape, dtype=dtype)
                if value is not None:
                    x[1, 1] = value
                client.push(name, x, None if rows is None else torch.tensor(rows))
                client.tick()
            client.pull("w")

    return work


@pytest.mark.parametrize(
    ("work", "words"),
    few(
        [
            (one_push(float("nan")), "server on rank 0: rank 2 at clock 1 pushed a gradient of 'w' in which 1 of 8"),
            (one_push(rows=[0, 4], shape=(2, 2)), "rank 2: 'w' has rows 0 to 3, and no 4"),
            (one_push(name="v"), "rank 2: the servers hold no 'v', but w"),
            (one_push(shape=(2, 4)), "rank 2: a gradient of 'w' here is (4, 2) torch.float32, not (2, 4)"),
            (one_push(dtype=torch.float64), "not (4, 2) torch.float64"),
            (one_push(rows=[0.5], shape=(1, 2)), "rows of 'w' are ids in 1-D int64, not 1-D torch.float32"),
            (one_push(servers=[3]), "servers=[3]: needs different ranks of this group of 3"),
            (one_push(servers=[0, 1]), "rank 1 made a Client, but servers=[0, 1]"),
            (one_push(servers=[0, 0]), "servers=[0, 0]: needs different ranks"),
        ],
        keep=2,
    ),
)
def test_what_cannot_be_is_refused(work, words):
    text = refused(work)
    assert "RefusedError" in text and words in text


def test_an_average_needs_a_pull_in_each_clock():
    def work(group):
        named = {"w": torch.zeros(2)}
        if group.rank == 0:
            return Server(named, group, [0], policy=BSP(), optimizer=SGD).serve()
        with Client(named, group, [0]) as client:
            for _ in range(2 * (2 - group.rank)):
                client.push("w", torch.ones(2))
                client.tick()
            client.pull("w")

    assert "rank 1 ends its clock 1 before all have ended clock 0" in refused(work)
