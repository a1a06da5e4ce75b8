"""The same function under torchrun: two agents on this machine, two ranks each."""

import json
import random
import socket
import subprocess
import sys
import textwrap

import numpy
import pytest
import torch

pytestmark = pytest.mark.ranks

SCRIPT = textwrap.dedent(
    """
    import json, os, sys, time
    import torch, labkit
    from labkit import collectives

    def good(group):
        x = torch.full((1000,), float(group.rank))
        collectives.all_reduce(x, group, algorithm="ring")
        return x[0].item(), group.ranks_per_node

    def bad(group):
        if group.rank == 3:
            raise ValueError("rank three is unwell")
        group.recv(torch.ones(2), 3)

    def drawn(group):
        import random, numpy
        return torch.rand(1).item(), random.random(), float(numpy.random.rand()), group.transport

    def lopsided(group):
        torch.ones(1 << 20)  # nothing is held: only what is alive at a mark counts
        kept = torch.ones(1000 * (group.rank + 1))
        with group.span("held"):
            pass
        return len(kept)

    def early(group):
        handle = group.isend(torch.full((4,), 5.0), 1) if group.rank == 0 else None
        collectives.all_reduce(torch.ones(8), group, algorithm="native")  # nobody passes before rank 0 gets here
        if group.rank == 1:
            return group.recv(torch.ones(4), 0)[0].item()
        if handle is not None:
            handle.wait()

    def crossed(group):
        mine = torch.full((4,), float(group.rank))
        return collectives.all_gather(mine, group, algorithm="ring", of=f"block {group.rank // 3}")

    def hungry(group):
        return len(torch.ones(400 << 18)) if group.rank == 2 else None

    def all_of_it(transport):
        begin = time.perf_counter()
        run = labkit.launch(good, 7, transport=transport, timeout=250)
        around = time.perf_counter() - begin
        seen = {"results": run.results, "options": []}
        for options in ({"transports": "local"}, {"faults": [labkit.Kill(int(os.environ["RANK"]), step=1)]}):
            try:
                labkit.launch(good, 4, **options)
            except labkit.RefusedError as error:
                seen["options"].append(str(error))
        second = labkit.launch(drawn, 4, transport=transport, timeout=250, seed=7)
        seen["early"] = labkit.launch(early, 4, transport=transport, timeout=250).results[int(os.environ["RANK"])]
        if os.environ["RANK"] == "3":
            time.sleep(0.7)  # it comes late to the next launch, and its trace says so
        third = labkit.launch(lopsided, 4, transport=transport, timeout=250, memory="resident")
        seen["mine"] = second.results[int(os.environ["RANK"])]
        if os.environ["RANK"] == "0":
            seen["late"] = [span.start for span in third.trace.spans("held")]
            seen["peaks"] = third.trace.peak_bytes()
            seen["drawn"], seen["sent"] = second.results, second.trace.bytes_sent()
            mine = [s for s in run.trace.sends if s.src == 0]
            seen["times"] = [0, min(s.start for s in mine), max(s.end for s in mine), around]
            seen["bytes"] = run.trace.bytes_sent()
            seen["messages"] = run.trace.messages()
            seen["matched"] = all(m.arrived == m.arrived for m in run.trace.sends)
        try:
            labkit.launch(bad, 4, transport=transport, timeout=250)
        except labkit.RankFailed as error:
            seen["failed"] = str(error)
            seen["everyone"] = [(f.rank, f.kind) for f in error.run.failures]
        for _ in range(10):  # a rank that fails at once leaves while others may still connect to it
            kept = labkit.launch(bad, 4, transport=transport, timeout=250, on_failure="return")
        seen["kept"] = [f.rank for f in kept.failures][:1]
        try:
            labkit.launch(crossed, 4, transport=transport, timeout=250)
        except labkit.RankFailed as error:
            seen["crossed"] = error.failure.message
        try:
            labkit.launch(hungry, 4, transport=transport, timeout=250, memory_limit=200 << 20)
        except labkit.RankFailed as error:
            seen["hungry"] = error.failure.message
        return seen

    found = {transport: all_of_it(transport) for transport in ("local", "gloo")}
    with open(f"{sys.argv[1]}/{os.environ['RANK']}.json", "w") as f:
        json.dump(found, f)
    """
)


def test_two_agents_run_worlds_over_both_transports(tmp_path):
    """In one run: what takes long is that four ranks and two agents start PyTorch."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2",
             "--master-addr=127.0.0.1", f"--master-port={port}", str(script), str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for node in (0, 1)
    ]  # fmt: skip
    output = [agent.communicate(timeout=280)[0] for agent in agents]
    if any(agent.returncode for agent in agents):
        pytest.fail("\n".join(output))
    assert output[0].count("the cell asks for 7 ranks; torchrun started 4, and they are used") == 2
    assert "the cell asks" not in output[1]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for transport in ("local", "gloo"):
        judge(transport, [each[transport] for each in found])


def judge(transport, seen):
    """What the four ranks saw over one transport."""
    assert seen[0]["results"] == [[6.0, 2]] * 4
    for rank in range(4):
        wrong, faults = seen[rank]["options"]
        assert "no option 'transports'" in wrong and "faults= needs ranks that labkit started itself" in faults
    torch.manual_seed(7)
    assert seen[0]["drawn"] == [[torch.rand(1).item(), random.Random(7).random(),
                                 float(numpy.random.RandomState(7).rand()), transport]] * 4  # fmt: skip
    assert seen[1]["mine"] == seen[0]["drawn"][1] and seen[0]["sent"] == [0] * 4  # each launch has a trace of its own
    assert [peak - 4000 * (r + 1) for r, peak in enumerate(seen[0]["peaks"])] == [0] * 4
    assert [seen[rank]["early"] for rank in range(4)] == [None, 5.0, None, None]
    assert seen[0]["late"][3] > 0.5
    if transport == "local":  # gloo connects all ranks before the function runs, so everybody is late
        assert seen[0]["late"][3] - min(seen[0]["late"]) > 0.5
    # time begins with the launch, not with the process
    assert seen[0]["times"] == sorted(seen[0]["times"])
    assert seen[0]["everyone"][0] == [3, "raised"] and len(seen[0]["everyone"]) == 4
    assert seen[0]["kept"] == [3]
    for rank in range(4):  # equal shapes, other blocks: every rank is told, although none of them saw it
        assert "rank 3 called all_gather of 'block 1'" in seen[rank]["crossed"]
        assert "ranks 0 to 2 called all_gather of 'block 0'" in seen[rank]["crossed"]
    assert "memory_limit=209715200): hold less" in seen[0]["hungry"]
    assert seen[0]["bytes"] == [6000] * 4 and seen[0]["messages"] == [6] * 4 and seen[0]["matched"]
    assert seen[0]["failed"].startswith("rank 3 raised ValueError: rank three is unwell")
    assert "rank three is unwell" in seen[3]["failed"]
    assert "rank 3" in seen[1]["failed"] and "rank 3" in seen[2]["failed"]  # survivors say whom they lost
