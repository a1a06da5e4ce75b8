"""The same function under torchrun: two agents on this machine, two ranks each."""

import json
import socket
import subprocess
import sys
import textwrap

import pytest

SCRIPT = textwrap.dedent(
    """
    import json, os, sys
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

    transport, folder = sys.argv[1:]
    run = labkit.launch(good, 4, transport=transport, timeout=20)
    seen = {"results": run.results}
    if os.environ["RANK"] == "0":
        seen["bytes"] = run.trace.bytes_sent()
        seen["messages"] = run.trace.messages()
        seen["matched"] = all(m.arrived == m.arrived for m in run.trace.sends)
    try:
        labkit.launch(bad, 4, transport=transport, timeout=5)
    except labkit.RankFailed as error:
        seen["failed"] = str(error)
    with open(f"{folder}/{os.environ['RANK']}.json", "w") as f:
        json.dump(seen, f)
    """
)


@pytest.mark.parametrize("transport", ["local", "gloo"])
def test_two_agents_run_one_world(transport, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=2",
             "--master-addr=127.0.0.1", f"--master-port={port}", str(script), transport, str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for node in (0, 1)
    ]  # fmt: skip
    output = [agent.communicate(timeout=120)[0] for agent in agents]
    seen = (
        [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
        if not any(agent.returncode for agent in agents)
        else pytest.fail("\n".join(output))
    )
    assert seen[0]["results"] == [[6.0, 2]] * 4
    assert seen[0]["bytes"] == [6000] * 4 and seen[0]["messages"] == [6] * 4 and seen[0]["matched"]
    assert seen[0]["failed"].startswith("rank 3 raised ValueError: rank three is unwell")
    assert "rank three is unwell" in seen[3]["failed"]
    assert "rank 3" in seen[1]["failed"] and "rank 3" in seen[2]["failed"]  # survivors say whom they lost
