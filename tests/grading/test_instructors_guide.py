"""INSTRUCTORS.md and README.md say what is so: limits, options, variables, files and examples."""

import re
import shlex
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.cost.units import MB, MiB
from labkit.grading.gradebook.overrides import read_overrides
from labkit.grading.gradebook.policy import read_policy
from labkit.grading.grader.door import TOGETHER, Pace
from labkit.grading.grader.pristine import Pristine

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "INSTRUCTORS.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8").split("## For instructors")[1].split("\n## ")[0]


def block(language, containing):
    (found,) = [b for b in re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL) if containing in b]
    return found


def test_the_limits_are_those_of_the_grader():
    limits = Pace().limits()
    said = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", GUIDE.split("## Limits of a submission")[1], flags=re.MULTILINE))
    assert said["one run on all ranks"] == f"{limits.seconds:g} s"
    assert said["the longest single wait for another rank"] == f"{limits.wait:g} s"
    assert said["all runs of one exercise"] == f"{TOGETHER:g} s"
    assert said["memory of a rank, above what it was born with"] == f"{limits.memory // MiB} MiB"
    assert said["threads of a rank"] == f"{limits.threads}"
    assert said["files of a rank, in memory"] == f"{limits.disk // MB} MB"
    assert said["printed output of all ranks"] == f"{limits.output // MB} MB"
    assert said["what one rank returns"] == f"{limits.result // MiB} MiB"
    assert said["messages; their payload"] == f"{limits.messages}; {limits.traffic / 1e9:g} GB"
    assert Pace(2.0).limits().seconds == 2 * limits.seconds and Pace(2.0).together == 2 * TOGETHER


def test_the_examples_of_files_are_read(tmp_path):
    (tmp_path / "class.toml").write_text(block("toml", "[deadlines]"))
    policy = read_policy(tmp_path / "class.toml")
    assert sorted(policy.accommodations) == ["ada", "bob", "cem"] and policy.late.percent_per_day == 10
    (tmp_path / "overrides.toml").write_text(block("toml", "[[override]]"))
    assert read_overrides(tmp_path / "overrides.toml")[0].points == 2


def test_the_example_of_a_private_check_is_one_more_check(tmp_path):
    (tmp_path / "03_collectives.py").write_text(block("python", "exercises.check"))
    source = ROOT / "solutions" / "03_collectives.ipynb"
    with_it, without = (Pristine(source, folder).checks("") for folder in (tmp_path, None))
    more = {c.name for c in with_it.checks("reduce-scatter")} - {c.name for c in without.checks("reduce-scatter")}
    assert more == {"adds_up_on_nine_ranks"}


@pytest.mark.parametrize("command", ["grade", "release"])
def test_every_option_that_is_named_exists(capsys, command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    lines = re.findall(rf"labkit {command} [^`\n#]+", GUIDE + README)
    named = {word for line in lines for word in shlex.split(line, comments=True) if word.startswith("--")}
    assert named and named <= known


def test_options_named_by_themselves_exist(capsys):
    with pytest.raises(SystemExit):
        main(["grade", "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) | {"--check", "--bundle", "--wheels", "--nbval"}
    assert set(re.findall(r"`(--[a-z-]+)", GUIDE + README)) <= known | {"--nbval-lax"}


def test_variables_and_files_that_are_named_exist():
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "labkit").rglob("*.py"))
    for variable in set(re.findall(r"LABKIT_[A-Z_]+", GUIDE)):
        assert f'"{variable}"' in code, variable
    for name in re.findall(r"`((?:labkit|notebooks|tests|exercises|solutions)/[\w./-]*)`", GUIDE + README):
        assert (ROOT / name).exists(), name
