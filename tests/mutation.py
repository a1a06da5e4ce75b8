"""Would the tests notice? A seeded sample of small slips in labkit, and which of them no test sees.

    python tests/mutation.py plant --sample 200 --seed 1 --into DIR     a copy of the tree with all slips, each asleep
    python tests/mutation.py try --into DIR -- -n 2 -m "not long" tests     wake them, one at a time
    python tests/mutation.py try --into DIR --lane IDS     those of the lane IDS (node ids, one a line) before others

All slips stand in one copy, each behind a switch, so that one run of the lane (the words behind `--`) tells which tests
reach which slip, and how long each takes. Each slip is then tried against the tests that reach it, the shortest first.
DIR/slips.json has the outcome of each: with a lane, also whether only tests outside of it notice.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[1]
SKIPPED = ("bench/", "world/zygote.py", "commands/install_bundle.py")  # speed; run as a script without labkit
FUTURE = "from __future__ import annotations\n"
SWITCH = """
import os
from pathlib import Path
_HERE = Path(__file__).parent
_AWAKE = int((_HERE / "_awake").read_text())
_REACHED = set()
os.register_at_fork(after_in_child=_REACHED.clear)
def slip(number):
    if number not in _REACHED:
        _REACHED.add(number)
        try:
            with open(_HERE / "_reached", "a") as log:
                log.write(f"{number}\\t{os.environ.get('PYTEST_CURRENT_TEST', '')}\\n")
        except OSError:
            pass
    return number == _AWAKE
"""
LISTENING = """

def pytest_runtest_logstart(nodeid: str) -> None:
    from labkit import _slips

    _slips._REACHED.clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(Path(__file__).parents[1] / "labkit" / "_took", "a") as log:
            log.write(f"{report.duration:.3f}\\t{report.outcome}\\t{report.nodeid}\\n")
"""
OTHER = {
    "==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "is": "is not", "is not": "is", "in": "not in",
    "not in": "in", "+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "*", "**": "*", "and": "or", "or": "and",
}  # fmt: skip
SIGN = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
    ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.And: "and", ast.Or: "or",
}  # fmt: skip


def slips_of(path: Path) -> list[tuple[ast.AST, str]]:
    """Every node inside a function of a file that may slip, and what stands there instead."""
    text = path.read_text()
    found: list[tuple[ast.AST, str]] = []

    def said(node: ast.AST) -> str:
        return ast.get_source_segment(text, node) or ""

    def swapped(operands: list[ast.expr], signs: list[type]) -> str:
        words = [OTHER[SIGN[s]] if n == 0 else SIGN[s] for n, s in enumerate(signs)]
        return " ".join(
            [f"({said(operands[0])})", *(f"{w} ({said(o)})" for w, o in zip(words, operands[1:], strict=True))]
        )

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for child in node.body:
                visit(child, True)
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                visit(node.value, inside)
            return
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                visit(child, False)
            return
        if inside:
            if isinstance(node, ast.Compare):
                found.append((node, swapped([node.left, *node.comparators], [type(op) for op in node.ops])))
            elif isinstance(node, ast.BinOp) and type(node.op) in SIGN:
                if not any(isinstance(x, ast.Constant) and isinstance(x.value, str) for x in (node.left, node.right)):
                    found.append((node, swapped([node.left, node.right], [type(node.op)])))
            elif isinstance(node, ast.BoolOp):
                other = OTHER[SIGN[type(node.op)]]
                found.append((node, f" {other} ".join(f"({said(v)})" for v in node.values)))
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                found.append((node, said(node.operand)))
            elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
                found.append((node, repr(not node.value) if isinstance(node.value, bool) else repr(node.value + 1)))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                found.append((node.value, "None"))  # a call that is forgotten
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(text), False)
    return [(n, other) for n, other in found if n.lineno == n.end_lineno]  # type: ignore[attr-defined]


def plant(sample: int, seed: int, into: Path) -> None:
    """A copy of the tree with `sample` slips, chosen by `seed`, all asleep."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, names):
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, into / name)
    package = into / "labkit"
    places = []
    for path in sorted(package.rglob("*.py")):
        if path.relative_to(package).as_posix().startswith(SKIPPED) or FUTURE not in path.read_text():
            continue
        places += [(path, node, other) for node, other in slips_of(path)]
    chosen = random.Random(seed).sample(places, sample)
    slips, by_file = [], defaultdict(list)
    for number, (path, node, other) in enumerate(chosen):
        was = ast.get_source_segment(path.read_text(), node)
        slips.append({"file": path.relative_to(into).as_posix(), "line": node.lineno, "was": was, "is": other})
        by_file[path].append((node, number, other, was))
    for path, those in by_file.items():
        lines = path.read_bytes().split(b"\n")
        taken: list[tuple[int, int, int]] = []
        for node, number, other, was in sorted(those, key=lambda t: (t[0].lineno, -t[0].col_offset), reverse=False):
            at, begin, end = node.lineno - 1, node.col_offset, node.end_col_offset
            if any(a == at and b < end and begin < e for a, b, e in taken):
                slips[number]["outcome"] = "overlaps another"
                continue
            taken.append((at, begin, end))
            line = lines[at]
            lines[at] = line[:begin] + f"({other} if slip_({number}) else {was})".encode() + line[end:]
        text = b"\n".join(lines).decode()
        text = text.replace(FUTURE, FUTURE[:-1] + "; from labkit._slips import slip as slip_\n", 1)
        ast.parse(text)
        path.write_text(text)
    (package / "_slips.py").write_text(SWITCH)
    (package / "_awake").write_text("-1")
    with open(into / "tests" / "conftest.py", "a") as conftest:
        conftest.write(LISTENING)
    (into / "slips.json").write_text(json.dumps(slips, indent=1))
    print(f"{sample} of {len(places)} possible slips in {into}")


def run(where: Path, *words: str, seconds: float) -> int | None:
    """The exit code of pytest there; None if it had to be ended."""
    env = {**os.environ, "PYTHONPATH": str(where)}
    call = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=where, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        return call.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if call.poll() is None:
            os.killpg(call.pid, 9)
            call.wait()


def reached(where: Path) -> tuple[dict[int, list[str]], dict[str, float]]:
    """For each slip the tests that reach it and pass while all are asleep, and how long each test takes."""
    took: dict[str, float] = defaultdict(float)
    red = set()
    for line in (where / "labkit" / "_took").read_text().splitlines():
        seconds, outcome, test = line.split("\t")
        took[test.split("::")[0] if ".ipynb" in test else test] += float(seconds)
        if outcome == "failed":
            red.add(test)
    tests: dict[int, set[str]] = defaultdict(set)
    for line in (where / "labkit" / "_reached").read_text().splitlines():
        number, _, test = line.partition("\t")
        test = test.rsplit(" (", 1)[0]
        test = test.split("::")[0] if ".ipynb" in test else test
        if test in took and test not in red:
            tests[int(number)].add(test)
    return {number: sorted(those, key=lambda t: took[t]) for number, those in tests.items()}, took


def wake(where: Path, words: list[str], lane: set[str] | None, budget: float) -> None:
    """Run the tests once with all asleep, then each slip against the tests that reach it, the shortest first."""
    package, told = where / "labkit", where / "slips.json"
    if not (package / "_took").exists():
        (package / "_reached").write_text("")
        env = {**os.environ, "PYTHONPATH": str(where)}
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-rfE", *words], cwd=where, env=env)
    tests, took = reached(where)
    slips = json.loads(told.read_text())
    for number, slip in enumerate(slips):
        if "outcome" in slip:
            continue
        those = tests.get(number, [])
        inside = [t for t in those if lane is None or t in lane]
        (package / "_awake").write_text(str(number))
        slip["outcome"] = noticed(where, inside, took, budget) if inside else "no test reaches it"
        if slip["outcome"] != "killed" and len(inside) < len(those):
            outside = noticed(where, [t for t in those if t not in inside], took, budget)
            slip["outcome"] = "killed by others only" if outside == "killed" else outside
        slip["reached"] = len(inside), len(those)
        told.write_text(json.dumps(slips, indent=1))
        print(number, slip["outcome"], slip["file"], slip["line"], f"{slip['was']!r} -> {slip['is']!r}", flush=True)
    (package / "_awake").write_text("-1")
    print(dict(Counter(slip["outcome"] for slip in slips)))


def noticed(where: Path, those: list[str], took: dict[str, float], budget: float) -> str:
    """Whether one of these tests fails; no more of them are tried than fit into `budget` seconds."""
    ends = list(accumulate(1 + took[t] for t in those))
    tried = [t for t, end in zip(those, ends, strict=True) if end <= max(budget, ends[0])]
    for begin in range(0, len(tried), 25):
        chunk = tried[begin : begin + 25]
        nbval = ["--nbval-lax", "--nbval-current-env"] if ".ipynb" in str(chunk) else []
        if run(where, "-x", *nbval, *chunk, seconds=120 + 3 * sum(took[t] for t in chunk)) != 0:
            return "killed"
    return "survived" if len(tried) == len(those) else "survived its share"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plant", "try"])
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=300, help="seconds of tests that are tried on a slip")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--lane", type=Path, help="a file of node ids, as `pytest --collect-only -q` prints them")
    parser.add_argument("words", nargs="*", help="of pytest, for the lane (after --)")
    told = parser.parse_args()
    if told.what == "plant":
        plant(told.sample, told.seed, told.into.resolve())
    else:
        lane = None
        if told.lane is not None:
            ids = told.lane.read_text().splitlines()
            lane = {line.split("::")[0] if ".ipynb" in line else line for line in ids}
        wake(told.into.resolve(), told.words, lane, told.budget)


if __name__ == "__main__":
    main()
