"""A reader at the dashboard of a fault-tolerant run, who presses its buttons at random instants. The run ends right.

Each run is drawn from its seed, which is its name: `pytest tests/chaos -k "buttons and [17]"` runs one again. `make
test-all` runs all of them; the ordinary tests two.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from leftovers import alive, eventually

import labkit
from labkit import book
from labkit.book.fault_tolerant.watching import ReplicaDashboard
from labkit.resilience import Deadlines, FtConfig, start_ft_hsdp
from labkit.resilience.ft_hsdp.replaying import Step, replay
from labkit.resilience.storm.models import MODELS, Paced
from labkit.resilience.supervising.run import RunFailed

pytestmark = pytest.mark.ranks

RUNS, STEPS = 36, 60
OURS = ("labkit-dashboard", "labkit-supervisor", "labkit-quorum-watch", "labkit-stop")
ACTIONS = ("kill", "hang", "slow", "flip")


class Reader:
    """Presses the buttons of one dashboard. `pressed` is what was pressed, and when."""

    def __init__(self, board: ReplicaDashboard, dice: random.Random):
        self.board, self.dice, self.pressed = board, dice, list[tuple[float, str, int]]()
        self.config = board.run.config
        self.began = time.monotonic()

    @property
    def over(self) -> bool:
        return self.board.job.over

    def press(self, action: str, rank: int) -> None:
        self.pressed.append((round(time.monotonic() - self.began, 2), action, rank))
        self.board.widget._handle_custom_msg({"action": action, "rank": rank}, [])

    def some(self, replica: int) -> int:
        """A rank of the replica."""
        return replica * self.config.ranks + self.dice.randrange(self.config.ranks)

    def until(self, true: Callable[[], bool], seconds: float = 60.0) -> bool:
        end = time.monotonic() + seconds
        while not true():
            if self.over or time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def steps(self, count: int) -> None:
        """Wait until so many more steps are committed."""
        now = len(self.board.story.steps)
        self.until(lambda: len(self.board.story.steps) >= now + count)

    def a_while(self, most: float = 0.6) -> None:
        time.sleep(self.dice.uniform(0, most))


def here_and_there(reader: Reader) -> None:
    """Anything, of anybody, at any moment."""
    for _ in range(reader.dice.randint(4, 8)):
        reader.press(reader.dice.choice(ACTIONS), reader.some(reader.dice.randrange(reader.config.replicas)))
        reader.a_while(1.5)


def several_in_a_row(reader: Reader) -> None:
    """As fast as one can press; the last replica is spared."""
    for _ in range(2):
        for _ in range(4):
            reader.press(reader.dice.choice(("kill", "hang", "flip")),
                         reader.some(reader.dice.randrange(reader.config.replicas - 1)))  # fmt: skip
        reader.steps(reader.dice.randint(3, 12))


def one_that_recovers(reader: Reader) -> None:
    """A replica is lost, and struck again while it is started, waits, or catches up."""
    victim = reader.dice.randrange(reader.config.replicas)
    for action in ("kill", reader.dice.choice(("kill", "hang")), "kill"):
        reader.press(action, reader.some(victim))
        reader.until(lambda: reader.board.states()[victim] != "trains")
        reader.a_while(1.2)


def while_another_recovers(reader: Reader) -> None:
    """The one that may be giving its state away is lost."""
    first, second = reader.dice.sample(range(reader.config.replicas), 2)
    reader.press("kill", reader.some(first))
    reader.until(lambda: reader.board.states()[first] != "trains")
    reader.until(lambda: reader.board.run.supervisor.units[first].state == "up")
    reader.a_while(1.0)
    reader.press(reader.dice.choice(("kill", "hang")), reader.some(second))


def all_but_one(reader: Reader) -> None:
    """One replica is left; when the others are back, another one is left."""
    for last in reader.dice.sample(range(reader.config.replicas), 2):
        for victim in range(reader.config.replicas):
            if victim != last:
                reader.press(reader.dice.choice(("kill", "kill", "hang")), reader.some(victim))
        reader.steps(reader.dice.randint(8, 20))


def all_of_them(reader: Reader) -> None:
    """Nobody is left who has the state: the run begins anew."""
    action = reader.dice.choice(("kill", "hang"))
    for victim in range(reader.config.replicas):
        reader.press(action, reader.some(victim))


SCENES = (here_and_there, several_in_a_row, one_that_recovers, while_another_recovers, all_but_one, all_of_them)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert eventually(lambda: not [t for t in set(threading.enumerate()) - before if t.name in OURS])


def begin(seed: int, ranks: int, dice: random.Random, **options: object) -> tuple[Reader, str]:
    inside = "plain" if ranks == 1 else dice.choice(("fsdp", "tp"))
    limits = Deadlines.for_step(0.15, least=0.6)
    config = FtConfig(dice.randint(2, 4), ranks, batch=4, seed=seed, deadlines=limits, join_wait=1.0, beat=0.1)
    job = start_ft_hsdp(config, Paced(inside, 0.08), STEPS, birth=20.0, **options)  # type: ignore[arg-type]
    return Reader(book.dashboard(job, controls=True), dice), inside  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(RUNS))
def test_buttons(seed: int, request: pytest.FixtureRequest) -> None:
    dice = random.Random(seed)
    scene, ranks = SCENES[seed % len(SCENES)], 1 + (seed // len(SCENES) + seed) % 2
    reader, inside = begin(seed, ranks, dice)
    with reader.board.run as job:
        assert reader.until(lambda: len(reader.board.story.steps) >= 3)
        reader.a_while(1.0)
        scene(reader)
        run = job.wait(120)
    said = f"{scene.__name__} {job.config.replicas} x {ranks} {inside}: {reader.pressed}; {run}"
    request.node.user_properties.append(("buttons", said))
    run.require()
    assert not run.errors, said
    assert len(run.audit.lineage) == STEPS and len({x.state for each in run.finished.values() for x in each}) <= ranks
    view = reader.board.widget
    assert eventually(lambda: view.over) and f"came to the end of its {STEPS} steps" in view.headline, said
    assert eventually(lambda: not any(alive(p) for p in run.pids))
    if not any(action == "flip" for _, action, _ in reader.pressed):
        steps = [Step(u.step, u.members, u.contributors) for u in run.audit.lineage]
        again = labkit.launch(replay, ranks, run.config, MODELS[inside], steps, transport="local").results
        assert [x.state for x in next(iter(run.finished.values()))] == [x.state for x in again], said


def test_a_run_that_nobody_can_go_on_with_says_why_and_leaves_nothing() -> None:
    dice = random.Random(0)
    reader, _ = begin(0, 1, dice, restarts=0)
    with reader.board.run as job:
        assert reader.until(lambda: len(reader.board.story.steps) >= 3)
        for victim in range(job.config.replicas):
            reader.press("kill", victim)
        run = job.wait(60)
    with pytest.raises(RunFailed, match=r"no replica came to the end of the run:(.|\n)*given up after 0 restarts"):
        run.require()
    assert "was killed by SIGKILL" in reader.board.headline and "came to the end" not in reader.board.headline
    assert eventually(lambda: reader.board.widget.over and not any(alive(p) for p in run.pids))


def test_a_run_that_is_stopped_says_so_and_leaves_nothing() -> None:
    reader, _ = begin(1, 1, random.Random(1))
    with reader.board.run as job:
        assert reader.until(lambda: len(reader.board.story.steps) >= 3)
        reader.board.widget._handle_custom_msg({"action": "stop"}, [])
        run = job.wait(60)
    with pytest.raises(RunFailed, match="no replica came to the end of the run:(.|\n)*stopped"):
        run.require()
    assert "was stopped" in reader.board.headline and len(reader.board.story.steps) >= 3
    assert eventually(lambda: reader.board.widget.over and not any(alive(p) for p in run.pids))
