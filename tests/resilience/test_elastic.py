"""A world that fails is started again from its last checkpoint: here, and by torchrun's own agent."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import torch
from torch import nn

from labkit import Kill, Raise, RankFailed, RefusedError, collectives, launch
from labkit.resilience.checkpoint import Checkpointer, Feed, NotLoaded, read
from labkit.resilience.elastic import GaveUp, restarts, run_elastic

pytestmark = pytest.mark.ranks

DATA = torch.randn(240, 4, generator=torch.Generator().manual_seed(1))


def train(group, directory, steps, batch=12):
    """Least squares on 12 examples a step, whatever the size of the world; returns what it did."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    feed = Feed(240, group, batch=batch // group.size, seed=5)
    began, losses = 0, []
    with Checkpointer(directory, group, model, optimizer, loader=feed) as checkpoints:
        loaded = checkpoints.load()
        began = loaded.step if loaded else 0
        for step in range(began, steps):
            group.step(step)
            optimizer.zero_grad()
            x = DATA[next(feed)]
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            for p in model.parameters():
                collectives.all_reduce(p.grad, group, "avg")
            optimizer.step()
            losses.append(loss.item())
            checkpoints.save(step + 1, wait=step % 2 == 0)
    return {"began": began, "size": group.size, "restarts": restarts(), "feed": feed.state_dict()}


def weights(directory, steps, **options):
    found = read(directory)
    return torch.cat([x.flatten() for x in found.values()])


def test_it_goes_on_where_it_was_at_the_same_size_bit_for_bit(tmp_path):
    faults = [[Kill(1, step=4)], [Raise(0, step=6, text="a cosmic ray")], []]
    run = run_elastic(train, 2, tmp_path / "broken", 9, transport="local", faults=lambda n: faults[n], timeout=30)
    assert [a.world_size for a in run.attempts] == [2, 2, 2]
    assert [a.failure.kind if a.failure else None for a in run.attempts] == ["died", "raised", None]
    assert all(r["restarts"] == 2 and 5 <= r["began"] <= 6 for r in run.results)
    launch(train, 2, tmp_path / "smooth", 9, transport="local")
    assert torch.equal(weights(tmp_path / "broken", 9), weights(tmp_path / "smooth", 9))
    assert run.results[0]["feed"] == {"count": 240, "seed": 5, "shuffle": True, "epoch": 0, "seen": 108}
    assert "3 attempts with 2, 2, 2 ranks" in repr(run)


def test_it_goes_on_smaller(tmp_path):
    faults = [Kill(1, step=3), Kill(3, step=3)]
    run = run_elastic(train, 4, tmp_path / "a", 8, smaller=[3, 2, 1], faults=faults, transport="local", timeout=30)
    sizes = [a.world_size for a in run.attempts]
    assert sizes in ([4, 3], [4, 2])  # whether the second one was dead before the first one's death ended the world
    assert run.results[0]["size"] == sizes[-1] and 2 <= run.results[0]["began"] <= 3
    launch(train, 1, tmp_path / "b", 8, transport="local")
    torch.testing.assert_close(weights(tmp_path / "a", 8), weights(tmp_path / "b", 8), rtol=1e-5, atol=1e-6)
    asked = []

    def half(size, failures):
        asked.append((size, [f.kind for f in failures][:1]))
        return size // 2

    run = run_elastic(train, 2, tmp_path / "c", 5, smaller=half, faults=[Kill(0, step=2)], transport="local")
    assert run.results[0]["size"] == 1 and asked == [(2, ["died"])]


def test_when_it_gives_up(tmp_path):
    def always(group):
        group.step(1)
        raise ValueError("the same each time")

    def refused(group):
        raise NotLoaded("of another model")

    def later(group):
        group.step(1 + restarts())
        raise ValueError("the same, later")

    with pytest.raises(GaveUp, match="the same error was raised twice") as why:
        run_elastic(always, 2, transport="local", max_restarts=9)
    assert isinstance(why.value, RankFailed) and len(why.value.attempts) == 2
    with pytest.raises(GaveUp, match="would end in the same way") as why:
        run_elastic(refused, 1, transport="local")
    assert len(why.value.attempts) == 1
    with pytest.raises(GaveUp, match="it failed 3 times, and max_restarts is 2") as why:
        run_elastic(later, 1, transport="local", max_restarts=2)
    assert [a.failure.step for a in why.value.attempts] == [1, 2, 3]
    with pytest.raises(GaveUp, match="no size is left"):
        run_elastic(
            train, 2, tmp_path, 9, smaller=lambda size, failures: 0, faults=[Kill(1, step=2)], transport="local"
        )


def test_what_is_refused():
    with pytest.raises(RefusedError, match="max_restarts=-1"):
        run_elastic(train, 2, max_restarts=-1)
    with pytest.raises(RefusedError, match="sizes between 1 and 1"):
        run_elastic(train, 2, smaller=[2])
    with pytest.raises(RefusedError, match="leave on_failure out"):
        run_elastic(train, 2, on_failure="return")
    with pytest.raises(RefusedError, match="no option 'transprot'"):
        run_elastic(train, 2, transprot="local")


SCRIPT = textwrap.dedent(
    """
    import json, os, signal, sys, time
    import torch
    from torch import nn
    from labkit import collectives
    from labkit.resilience.checkpoint import Checkpointer, Feed
    from labkit.resilience.elastic import restarts, run_elastic

    folder, steps, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    DATA = torch.randn(240, 4, generator=torch.Generator().manual_seed(1))

    def train(group):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        feed = Feed(240, group, batch=12 // group.size, seed=5)
        with Checkpointer(folder + "/run", group, model, optimizer, loader=feed) as checkpoints:
            loaded = checkpoints.load()
            began = loaded.step if loaded else 0
            with open(f"{folder}/begun-{restarts()}-{group.rank}.json", "w") as f:
                json.dump([group.size, began, os.getpid()], f)
            for step in range(began, steps):
                optimizer.zero_grad()
                x = DATA[next(feed)]
                (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
                for p in model.parameters():
                    collectives.all_reduce(p.grad, group, "avg")
                optimizer.step()
                checkpoints.save(step + 1)
                if step == 3 and restarts() == 0:
                    if how == "kill" and group.rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    if how == "raise" and group.rank == 0:
                        raise RuntimeError("unwell")
                    if how == "node" and group.size == 4:
                        while True:  # until somebody takes the node away
                            group.barrier()
                            time.sleep(0.05)
        return group.size

    sizes = run_elastic(train, 2, transport="local", timeout=20).results
    """
)


def agent(tmp_path, script, how, *options):
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=2", *options,
             str(script), str(tmp_path), "8", how]  # fmt: skip
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process):
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
    process.communicate()


def begun(tmp_path, number):
    files = sorted(tmp_path.glob(f"begun-{number}-*.json"))
    return [json.loads(f.read_text())[:2] for f in files]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "raise"])
def test_torchruns_agent_starts_the_world_again(how, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    process = agent(tmp_path, script, how, f"--master-port={free_port()}", "--monitor-interval=0.1")
    try:
        output = process.communicate(timeout=250)[0]
    finally:
        end(process)
    assert process.returncode == 0, output
    assert begun(tmp_path, 0) == [[2, 0]] * 2 and begun(tmp_path, 1) == [[2, 4]] * 2
    launch(train, 2, tmp_path / "smooth", 8, transport="local")
    assert torch.equal(weights(tmp_path / "run", 8), weights(tmp_path / "smooth", 8))


@pytest.mark.long
def test_torchruns_agent_goes_on_with_the_nodes_that_are_left(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    rendezvous = [
        "--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=elastic",
        "--rdzv-conf=last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=2", "--monitor-interval=0.2",
    ]  # fmt: skip
    first = agent(tmp_path, script, "node", *rendezvous)
    time.sleep(1.0)  # the first one hosts the rendezvous
    second = agent(tmp_path, script, "node", *rendezvous)
    try:
        deadline = time.monotonic() + 60
        while len(list((tmp_path / "run").glob("*-step-4"))) == 0:
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.1)
        for process in (*psutil.Process(second.pid).children(recursive=True), psutil.Process(second.pid)):
            process.send_signal(signal.SIGKILL)
        output = first.communicate(timeout=120)[0]
        assert first.returncode == 0, output
    finally:
        end(first)
        end(second)
    sizes = {size for n in range(4) for size, _ in begun(tmp_path, n)}
    assert begun(tmp_path, 0)[0] == [4, 0] and sizes == {4, 2}
    launch(train, 2, tmp_path / "smooth", 8, transport="local")
    torch.testing.assert_close(weights(tmp_path / "run", 8), weights(tmp_path / "smooth", 8), rtol=1e-5, atol=1e-6)
