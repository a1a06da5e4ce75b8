"""A step of PPO among four models, drawn."""

from __future__ import annotations

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, GREY, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg

BOX, TALL = 150.0, 46.0
PLACES = {
    "prompts": (20.0, 1.0, "prompts"), "policy": (210.0, 1.0, "policy"), "responses": (400.0, 1.0, "responses"),
    "reference": (590.0, 0.0, "reference"), "reward": (590.0, 1.0, "reward model"), "critic": (590.0, 2.0, "critic"),
    "advantages": (400.0, 2.6, "advantages"),
}  # fmt: skip
MODELS = ("policy", "reference", "reward", "critic")
STEPS = (  # which models work, which of these learn, what else is there, arrows, and what is said
    (("policy",), (), ("prompts", "responses"), (("prompts", "policy"), ("policy", "responses")),
     "The policy writes a response to each prompt, one token after the other. The other three models have nothing to "
     "do yet."),
    (("policy", "reference"), (), ("responses",), (("responses", "policy"), ("responses", "reference")),
     "The policy and the reference read the responses. For each token both say how probable it was; the difference is "
     "how far the policy has moved."),
    (("reward",), (), ("responses",), (("responses", "reward"),),
     "The reward model reads them and gives each response one number: how much people would like it."),
    (("critic",), (), ("responses",), (("responses", "critic"),),
     "The critic reads them and says, before each token, which reward it expects in the end."),
    ((), (), ("responses", "advantages"),
     (("reference", "advantages"), ("reward", "advantages"), ("critic", "advantages")),
     "The reward, how far each token is from the reference, and the critic's values become the advantage of each "
     "token: how much better it went on than the critic had expected."),
    (("critic",), ("critic",), ("responses", "advantages"), (("advantages", "critic"),),
     "The critic learns to expect what came: a forward and a backward pass, and an update."),
    (("policy",), ("policy",), ("responses", "advantages"), (("advantages", "policy"),),
     "The policy learns: tokens with a positive advantage become more probable. Then the next step begins."),
)  # fmt: skip


def ppo_step() -> book.Player:
    """What goes from where to where in a step of PPO, and which models work meanwhile."""
    frames = [(_step(*step), step[-1]) for step in STEPS]
    rows = [
        {"part": n + 1, "models at work": ", ".join(PLACES[m][2] for m in step[0]) or "none",
         "learns": ", ".join(PLACES[m][2] for m in step[1]) or "-"}
        for n, step in enumerate(STEPS)
    ]  # fmt: skip
    return book.play(frames, title="A step of PPO", badge="simulated", rows=rows, still=4)


def _step(
    work: tuple[str, ...],
    learn: tuple[str, ...],
    there: tuple[str, ...],
    arrows: tuple[tuple[str, str], ...],
    said: str,
) -> str:
    svg = Svg(WIDTH, "A step of PPO", said)
    items = [("reads or writes", BLUE, "", ""), ("learns", ORANGE, "/", ""), ("waits", "none", "", "3 2")]
    top = legend(svg, heading(svg, "simulated", said), items) + 14

    def place(name: str) -> tuple[float, float]:
        x, row, _ = PLACES[name]
        return x, top + row * 70

    for a, b in arrows:
        (x1, y1), (x2, y2) = place(a), place(b)
        left = x2 > x1
        x1, x2 = (x1 + BOX, x2) if left else (x1, x2 + BOX)
        y1, y2 = y1 + TALL / 2, y2 + TALL / 2
        svg.line(x1, y1, x2, y2, width=1.6)
        svg.arrow_head(x2, y2, x2 - x1, y2 - y1, 9)
    for name, (_, _, called) in PLACES.items():
        x, y = place(name)
        if name in MODELS:
            colour, hatch = (ORANGE, "/") if name in learn else (BLUE, "") if name in work else ("none", "")
            svg.rect(x, y, BOX, TALL, colour, hatch, ON_COLOUR if name in work else None,
                     dash="" if name in work else "3 2", radius=6)  # fmt: skip
            if name in learn:
                svg.rect(x + 12, y + 11, BOX - 24, 24, "#fff", "", "none")
            svg.text(x + BOX / 2, y + 28, called, 13, "middle", bold=True, on_colour=name in work)
        elif name in there:
            svg.rect(x, y + 6, BOX, TALL - 12, GREY, "", ON_COLOUR)
            svg.text(x + BOX / 2, y + 28, called, 12, "middle", on_colour=True)
    return svg.render(top + 2.6 * 70 + TALL + 10)
