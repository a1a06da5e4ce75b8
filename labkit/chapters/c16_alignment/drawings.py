"""A step of PPO among four models, and the advantages of a response, drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit import book
from labkit.align import generalized_advantages
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


# What is better than expected ----------------------------------------------------------------------------------------

EXPECTED, REWARD = (2.0, 2.5, 1.5), 3.0  # by the critic before each token, and what came in the end
LAMBDA = 0.95


def smoothed(lam: float = LAMBDA) -> list[float]:
    """Generalized advantages of the response, whose reward stands at its last token."""
    values_bt = torch.tensor([EXPECTED])
    rewards_bt = torch.zeros_like(values_bt)
    rewards_bt[0, -1] = REWARD
    advantages_bt, _ = generalized_advantages(rewards_bt, values_bt, torch.ones_like(values_bt) > 0, 1.0, lam)
    return [float(a) for a in advantages_bt[0]]


def advantages() -> book.Player:
    """From the critic's guesses and a reward to the advantage of each token."""
    plain, soft = [REWARD - v for v in EXPECTED], smoothed()
    moments = (
        ((), "", "Before each token the critic says which reward it expects in the end: 2.0, 2.5 and 1.5. After the "
         "second token it had become less hopeful."),
        (plain, "came - expected", "The reward is 3. The simplest advantage of a token is what came minus what was "
         f"expected before it: {_listed(plain)}."),
        (soft, f"smoothed, lambda = {LAMBDA}", "PPO does not trust a single guess. It averages over the guesses that "
         f"follow (generalized advantages): {_listed(soft)}. Here all tokens come out as better than expected."),
    )  # fmt: skip
    frames = [(_advantages(bars, name, said), said) for bars, name, said in moments]
    rows = [
        {"token": t + 1, "expected before it": v, "came - expected": plain[t], "smoothed": soft[t]}
        for t, v in enumerate(EXPECTED)
    ]
    return book.play(frames, title="Better than expected", badge="simulated", rows=rows, still=-1)


def _listed(numbers: list[float]) -> str:
    *most, last = (f"{x:+.2f}" for x in numbers)
    return f"{', '.join(most)} and {last}"


def _advantages(bars: Sequence[float], name: str, said: str) -> str:
    svg = Svg(WIDTH, "Better than expected", said)
    items = [("what the critic expects", BLUE, "", ""), ("advantage", ORANGE, "/", "")]
    top = legend(svg, heading(svg, "simulated", said), items) + 16
    floor, unit = top + 150, 42.0
    svg.line(60, floor, 720, floor)
    for level in range(4):
        svg.text(50, floor - level * unit + 4, str(level), 11, "end")
    if bars:
        svg.line(60, floor - REWARD * unit, 720, floor - REWARD * unit, dash="6 4", width=1.6)
        svg.text(716, floor - REWARD * unit - 6, f"the reward: {REWARD:g}", 12, "end")
    for t, value in enumerate(EXPECTED):
        x = 100 + t * 200
        svg.rect(x, floor - value * unit, 60, value * unit, BLUE, "", ON_COLOUR)
        svg.text(x + 30, floor - value * unit + 18, f"{value:.1f}", 12, "middle", on_colour=True)
        if bars:
            svg.rect(x + 66, floor - bars[t] * unit, 60, bars[t] * unit, ORANGE, "/", ON_COLOUR)
            svg.text(x + 96, floor - bars[t] * unit - 6, f"{bars[t]:+.2f}", 12, "middle", bold=True)
        svg.text(x + 63, floor + 18, f"token {t + 1}", 12, "middle")
    svg.text(60, floor + 38, name, 12)
    return svg.render(floor + 48)
