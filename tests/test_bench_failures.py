"""`labkit bench failures`: parts are found, run in their order, and saved."""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from labkit.bench import failures
from labkit.cli import main


@pytest.fixture
def parts(monkeypatch):
    """Two made-up parts, of which one has an option, and a third that does not exist."""
    ran = []
    for name in ("one", "two"):
        whole = f"labkit.bench.failures_{name}"
        module = ModuleType(whole)
        module.__spec__ = ModuleSpec(whole, None)
        module.report = lambda options, name=name: ran.append((name, options)) or {"rows": [{"part": name}]}
        monkeypatch.setitem(sys.modules, whole, module)
    module.arguments = lambda parser: parser.add_argument("--sizes", type=failures.numbers, default=[4])
    monkeypatch.setattr(failures, "PARTS", ("one", "missing", "two"))
    return ran


def test_all_parts_that_are_there_run_and_are_saved(parts, tmp_path):
    assert main(["bench", "failures", "--pairs", "3", "--sizes", "1, 2", "--json", str(tmp_path / "out.json")]) == 0
    assert [name for name, _ in parts] == ["one", "two"]
    assert all((o.pairs, o.sizes, o.transport) == (3, [1, 2], "local") for _, o in parts)
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "one": {"rows": [{"part": "one"}]}, "two": {"rows": [{"part": "two"}]},
    }  # fmt: skip


def test_some_parts(parts):
    assert main(["bench", "failures", "--parts", "two"]) == 0
    assert [name for name, _ in parts] == ["two"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--parts", "missing"], "missing: choose from one, two"),
        (["--pairs", "0"], "--pairs 0"),
        (["--sizes", "x"], "x"),
    ],
)
def test_what_cannot_be_is_refused(parts, words, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "failures", *words])
    assert stop.value.code == 2 and said in capsys.readouterr().err
    assert not parts


def test_the_parts_of_this_version_have_what_a_part_needs():
    from importlib import import_module
    from importlib.util import find_spec

    there = [part for part in failures.PARTS if find_spec(f"labkit.bench.failures_{part}")]
    for part in there:
        module = import_module(f"labkit.bench.failures_{part}")
        assert callable(module.rows) and callable(module.report)
