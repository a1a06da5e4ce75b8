"""What README.md and INSTRUCTORS.md tell a newcomer to type works, on a fresh clone and in the archive of a class.

The commands are taken from the pages. `WAYS` says how each is run: as it stands, or in a shorter form that says why.
"""

from __future__ import annotations

import ast
import csv
import json
import re
import signal
import socket
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions

import nbformat
import pytest

from newcomer.place import ROOT, Place

pytestmark = pytest.mark.ranks

PROGRAMS = (
    "labkit ",
    "make ",
    "pytest ",
    "torchrun ",
    "pip ",
    "python3 ",
    "unzip ",
    "cd ",
    "for ",
    ".venv/bin/",
    "source ",
)
PAGES = ("README.md", "INSTRUCTORS.md")


def documented() -> set[str]:
    """Every command of the pages: lines of indented blocks and of fenced shell blocks, and inline code.

    An indented block may also list files: its lines are in `FILES`.
    """
    found: set[str] = set()
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for language, body in re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
            found |= set(body.splitlines()) if language in ("sh", "bash", "console") else set()
        text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        found |= set(re.findall(r"^ {4}(\S.*)$", text, flags=re.MULTILINE))
        spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text))
        found |= {span for span in spans if span.startswith(PROGRAMS)}
    return {re.sub(r"\s+# .*", "", line).strip() for line in found}


@dataclass(frozen=True)
class Way:
    """How a documented command is run, with a limit in seconds."""

    does: Callable[[Place], object]
    seconds: int


def typed(command: str, says: str = "", seconds: int = 300) -> Way:
    """Type it in the clone. says: what must be read in its output."""
    return Way(lambda place: place.run(command, place.clone, seconds, says), seconds)


def page_of(command: str, where: str = "clone") -> Way:
    """A server, whose page answers."""

    def does(place: Place) -> None:
        assert "jupyter" in place.served(command, getattr(place, where), 180).lower()

    return Way(does, 240)


def unchanged(command: str, seconds: int, *, of: str) -> Way:
    """A command that writes what is already in the repository."""

    def does(place: Place) -> None:
        place.run(command, place.clone, seconds)
        assert place.run(f"git status --porcelain --untracked-files=no -- {of}", place.clone, 60) == ""

    return Way(does, seconds)


def nbval(where: str, *notebooks: str) -> Way:
    def does(place: Place) -> None:
        folder = getattr(place, where)
        program = "pytest" if where == "clone" else ".venv/bin/pytest"
        place.run(f"{program} --nbval-lax --nbval-cell-timeout=120 {' '.join(notebooks)}", folder, 600, " passed")

    return Way(does, 600)


def nbval_on_homework(place: Place) -> None:
    """In the class archive: a chapter as it was handed out, and an exercise that the student has solved."""
    nbformat.write(place.solved("02_ranks_and_messages.ipynb"), place.unpacked / "exercises" / "02_mine.ipynb")
    nbval("unpacked", "notebooks/00_start_here.ipynb", "exercises/02_mine.ipynb").does(place)


def lint_and_nbval(place: Place) -> None:
    """What `make test` installs and does first; the tests themselves are those that stand beside this one."""
    place.run("make lint", place.clone, 1200)
    nbval("clone", "notebooks/00_start_here.ipynb").does(place)


def graded(place: Place) -> None:
    """Right answers get all points that a check gives, and a stub none."""
    assert place.submissions.is_dir()
    place.run("labkit grade submissions/ --out grades/", place.clone, 2400)
    with (place.clone / "grades" / "grades.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    results = [json.loads(path.read_text("utf-8")) for path in (place.clone / "grades" / "results").glob("ada/*.json")]
    lost = [each for result in results for each in result["exercises"] if each["state"] not in ("right", "to mark")]
    assert float(rows["ada"]["score"]) == float(rows["ada"]["max_score"]) > 100, lost
    assert float(rows["bob"]["score"]) == 0 < float(rows["bob"]["max_score"]), rows["bob"]


def handed_in(student: str) -> Way:
    """A listing: the file is there, under the name that it had."""
    return Way(lambda place: (place.submissions / student / "03_collectives.ipynb").stat(), 60)


def graded_again(command: str) -> Way:
    def does(place: Place) -> None:
        if not (place.clone / "grades" / "grades.csv").exists():
            graded(place)
        place.run(command, place.clone, 1200)

    return Way(does, 3600)


def handed_back(place: Place) -> None:
    graded_again(COPY).does(place)
    assert {path.parent.name for path in place.submissions.glob("*/*.html")} == {"ada", "bob"}


def trial(place: Place) -> None:
    """`exercises/03_collectives.ipynb` is copied and handed in as it is."""
    place.run("mkdir -p trial/me && cp exercises/03_collectives.ipynb trial/me/", place.clone, 20)
    place.run(
        "labkit grade trial --out trial-grades && grep -q attempted trial-grades/feedback/me.html", place.clone, 600
    )


SCRIPT = """
import os, torch, labkit
from labkit.collectives import all_reduce

def hello(group):
    return float(all_reduce(torch.full((4,), float(group.rank)), group)[0])

run = labkit.launch(hello, world_size=8)
if os.environ["RANK"] == "0":
    print("every rank has", set(run.results))
"""


def two_agents(place: Place) -> None:
    """The same line on two hosts, which are this one; HOST:29500 is a free port of it."""
    (place.clone / "my_script.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    line = TORCHRUN.replace("HOST:29500", address)
    place.run(f"{line} & {line}; code=$?; wait $! && exit $code", place.clone, 300, "every rank has {28.0}")


NBGRADER = "make nbgrader"
TORCHRUN = "torchrun --nnodes 2 --nproc-per-node 4 --rdzv-endpoint HOST:29500 --rdzv-backend c10d my_script.py"
ALL = "labkit grade submissions/ --out grades/"
COPY = 'for d in submissions/*/; do cp "grades/feedback/$(basename "$d").html" "$d"; done'
ARCHIVE = Way(lambda place: place.unpacked, 2400)
QUICK = "--pairs 1"
WAYS = {
    "make install": Way(lambda place: place.clone, 1900),
    "source .venv/bin/activate": typed("PATH=/usr/bin:/bin && source .venv/bin/activate && labkit --version"),
    ".venv/bin/labkit doctor": typed(".venv/bin/labkit doctor"),
    "labkit doctor": typed("labkit doctor"),
    "make lab": page_of("make lab"),
    "labkit lab 3 --folder DIR": page_of("labkit lab 3 --folder my-copies"),
    "labkit lab": page_of("labkit lab"),
    "labkit sync": typed("labkit sync"),
    "labkit progress": typed("labkit progress"),
    "pytest --nbval-lax": nbval("clone", "notebooks/00_start_here.ipynb", "notebooks/02_ranks_and_messages.ipynb"),
    "labkit run 3 -p world_size=4 -p transport=gloo --out results": typed(
        "labkit run 3 -p world_size=4 -p transport=gloo --out results && test -f results/*.ipynb"
    ),
    "labkit sweep 3 -p world_size=2,4,8 -p transport=local,gloo": typed(  # two of the six runs
        "labkit sweep 3 -p world_size=2,4 -p transport=local --out swept && ls swept/*.csv swept/*.svg", seconds=600
    ),
    "labkit html --out site": typed("labkit html --out site && ls site/*.html", "03_collectives", 600),
    "make course": unchanged("make course", 120, of="."),
    "labkit release": unchanged("labkit release", 1800, of="exercises"),
    "labkit release --bundle class.zip": typed("labkit release --no-run --bundle class.zip", "class.zip: ", 600),
    "pip wheel . -c constraints.txt -w wheels": Way(lambda place: place.wheels, 900),
    "labkit release --bundle class.zip --wheels wheels": Way(lambda place: place.bundle, 1500),
    "unzip class.zip": ARCHIVE,
    "cd class": ARCHIVE,
    "python3 install.py": ARCHIVE,
    ".venv/bin/labkit lab": page_of(".venv/bin/labkit lab", "unpacked"),
    "pytest --nbval-lax NOTEBOOK": Way(nbval_on_homework, 3000),
    "labkit grade trial --out trial-grades": Way(trial, 700),
    "submissions/ada/03_collectives.ipynb": handed_in("ada"),
    "submissions/bob/03_collectives.ipynb": handed_in("bob"),
    ALL: Way(graded, 2500),
    "labkit grade": typed("labkit grade --help"),  # the line above
    "labkit grade submissions --out grades --only reduce-scatter": graded_again(
        "labkit grade submissions --out grades --only reduce-scatter"
    ),
    COPY: Way(handed_back, 3600),
    TORCHRUN: Way(two_agents, 400),
    "labkit bench launch": typed(f"labkit bench launch {QUICK}"),
    "labkit bench workbench": typed("labkit bench workbench --pairs 3"),
    "labkit bench collectives": typed(f"labkit bench collectives --ranks 2 --mib 1 {QUICK}"),
    "labkit bench trace": typed("labkit bench trace --pairs 2"),
    "labkit bench data-parallel": typed(f"labkit bench data-parallel --ranks 2 --batches 1 {QUICK}", seconds=600),
    "labkit bench model-parallel": typed(
        f"labkit bench model-parallel --ranks 2 --batches 1 --microbatch 1 --unit 0.02 {QUICK}", seconds=900
    ),
    "labkit bench hybrid": typed(
        "labkit bench hybrid --ranks 2 --positions 64 --pairs 2 --gpus 64 --plans 10", seconds=900
    ),
    "labkit bench loose": typed(
        "labkit bench loose --seeds 1 --clocks 4 --steps 3 --workers 1 --updates 10 --pairs 2 --rows 1000", seconds=900
    ),
    "labkit bench precision": typed("labkit bench precision --ranks 2 --steps 3 --seeds 1", seconds=600),
    "labkit bench align": typed(
        "labkit bench align --longest 128 --pairs 2 --ranks 4 --steps 2 --seeds 1", seconds=900
    ),
    "labkit bench failures": typed(
        "labkit bench failures --pairs 1 --ftar-ranks 2 --ftar-mib 4 --checkpoint-mib 8 --checkpoint-repeats 3 "
        "--quorum-members 100 --quorum-replicas 3 --quorum-rounds 2 --stall-runs 1 --stall-steps 10",
        seconds=900,
    ),
    "labkit bench ntp": typed("labkit bench ntp --width 2 --lost 1 --ratios 0.03"),
    "labkit bench grade": typed("labkit bench grade --every 10", seconds=900),
    "make test-gpu": typed("make test-gpu", seconds=600),
    "make test": Way(lint_and_nbval, 1800),
    NBGRADER: typed(NBGRADER, " passed", 3600),
}  # fmt: skip


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("newcomer"))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside, we still clear up
    yield made
    made.end()
    signal.signal(signal.SIGTERM, before)


def test_every_command_of_the_pages_is_run_and_no_other() -> None:
    assert documented() == set(WAYS)


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    # The first command that needs an archive, or an installation, also pays for making it.
    [pytest.param(command, marks=pytest.mark.timeout(way.seconds + 3600)) for command, way in WAYS.items()],
)
def test_what_the_pages_say_can_be_typed(command: str, place: Place) -> None:
    WAYS[command].does(place)


def test_what_labkit_imports_is_declared() -> None:
    """And so what its installation brings is not luck: another package may let go of what it needs."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[><=~!\[ ;]", each)[0].lower().replace("_", "-") for each in declared}
    homes = packages_distributions()
    missing = set()
    for path in (ROOT / "labkit").rglob("*.py"):
        for module in imported(ast.parse(path.read_text(encoding="utf-8"))) - {"labkit", *sys.stdlib_module_names}:
            here = {home.lower().replace("_", "-") for home in homes.get(module, [module])}
            missing |= {f"{module} in {path.relative_to(ROOT)}"} if not here & names else set()
    assert missing == set()


def imported(tree: ast.AST) -> set[str]:
    """The top-level packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found
