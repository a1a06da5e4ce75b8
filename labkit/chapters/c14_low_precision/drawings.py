"""Two processes of chapter 14, drawn: a step of a layer in three precisions, and a sum that travels in 8 bits."""

from __future__ import annotations

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import GREEN, PURPLE, YELLOW
from labkit.book.drawing.svg import Svg

WIDE, NARROW = (PURPLE, "/"), (GREEN, "")  # 32 bits, and 8
BOX, TALL = 96.0, 40.0

# A box of the layer: where it stands, what it is called, and whether it has 32 bits.
PLACES = {
    "master": (20.0, 0, "W, master", True), "w": (190.0, 0, "W, E4M3", False),
    "x": (20.0, 1, "x", True), "x8": (190.0, 1, "x, E4M3", False),
    "y": (560.0, 0, "y", True), "dy": (560.0, 2, "dy", True), "dy8": (390.0, 2, "dy, E5M2", False),
    "dx": (390.0, 1, "dx", True), "dw": (390.0, 3, "dW", True),
}  # fmt: skip
STEPS = (  # what is there, arrows, and what is said
    (("master", "x"), (), "The optimizer keeps the weights W in 32 bits. The input x comes from the layer before."),
    (("master", "x", "w", "x8"), (("master", "w"), ("x", "x8")),
     "Both are multiplied by their scales and cast to E4M3. x is kept like this for the backward pass, in a quarter of "
     "the bytes."),
    (("master", "w", "x8", "y"), (("w", "y"), ("x8", "y")),
     "Forward: the product of two tensors of 8 bits is added up in 32 bits, and divided by both scales."),
    (("master", "w", "x8", "dy", "dy8"), (("dy", "dy8"),),
     "Backward: the gradient dy comes from the layer behind. It is scaled and cast to E5M2, which reaches further."),
    (("master", "w", "x8", "dy8", "dx"), (("dy8", "dx"), ("w", "dx")),
     "dy times W gives dx, the gradient for the layer before, added up in 32 bits."),
    (("master", "x8", "dy8", "dw"), (("dy8", "dw"), ("x8", "dw")),
     "dy times x gives dW, the gradient of the weights, also in 32 bits."),
    (("master", "dw"), (("dw", "master"),),
     "The optimizer adds its update to the master weights, in 32 bits. The next step casts them anew."),
    (tuple(PLACES), (("master", "w"), ("x", "x8"), ("dy", "dy8"),
                     ("w", "y"), ("x8", "y"), ("dy8", "dx"), ("w", "dx"), ("dy8", "dw"), ("x8", "dw")),
     "All three products together: each has two factors of 8 bits, and its result has 32."),
)  # fmt: skip


def layer() -> book.Player:
    """A step of a linear layer: which tensors have eight bits, and which have 32."""
    frames = [(_layer(here, arrows, said), said) for here, arrows, said in STEPS]
    rows = [{"step": n + 1, "what happens": said} for n, (_, _, said) in enumerate(STEPS)]
    return book.play(frames, title="A step of a linear layer", badge="simulated", rows=rows, still=2)


def _layer(here: tuple[str, ...], arrows: tuple[tuple[str, str], ...], said: str) -> str:
    svg = Svg(WIDTH, "A step of a linear layer", said)
    top = heading(svg, "simulated", said) + 22

    def place(name: str) -> tuple[float, float]:
        x, row, *_ = PLACES[name]
        return x, top + row * 62

    for name in here:
        x, y = place(name)
        _, _, called, wide = PLACES[name]
        colour, hatch = WIDE if wide else NARROW
        svg.rect(x, y, BOX, TALL, colour, hatch, "#111")
        svg.rect(x + 8, y + 10, BOX - 16, 20, "#fff", "", "none")
        svg.text(x + BOX / 2, y + 24, called, 12, "middle", on_colour=True)
    for start, end in arrows:
        (x1, y1), (x2, y2) = place(start), place(end)
        if x1 == x2:  # one above the other
            a = b = x1 + BOX / 2
            c, d = (y1 + TALL, y2) if y2 > y1 else (y1, y2 + TALL)
        else:
            a, b = (x1 + BOX, x2) if x2 > x1 else (x1, x2 + BOX)
            c, d = y1 + TALL / 2, y2 + TALL / 2
        svg.line(a, c, b, d, width=1.6)
        svg.arrow_head(b, d, b - a, d - c, 8)
    bottom = top + 4 * 62
    for n, ((colour, hatch), what) in enumerate(((WIDE, "32 bits"), (NARROW, "8 bits"))):
        svg.rect(20 + 110 * n, bottom, 18, 11, colour, hatch, "#111")
        svg.text(44 + 110 * n, bottom + 10, what, 11.5)
    return svg.render(bottom + 24)


RANKS, COLOURS = 3, (YELLOW, GREEN, PURPLE)
HATCH = ("/", "x", ".")
SAID = (
    "Three ranks have a gradient each. All numbers have 32 bits, and every gradient is cut into three parts.",
    "Each rank packs its parts, with a byte for each number and a scale for each part: a quarter of the width.",
    "An all-to-all: part 0 of everyone is on rank 0, part 1 on rank 1, and part 2 on rank 2.",
    "Each rank unpacks what it has and adds it up, in 32 bits. Only here is anything added.",
    "Each rank packs its part of the sum, and an all-gather brings all three to everyone: the same bytes on all ranks.",
)


def sum_by_parts() -> book.Player:
    """How a sum travels in eight bits and is added up in 32."""
    frames = [(_parts(n, said), said) for n, said in enumerate(SAID)]
    rows = [{"step": n + 1, "what happens": said} for n, said in enumerate(SAID)]
    return book.play(frames, title="A sum in eight bits", badge="simulated", rows=rows, still=2)


def _parts(step: int, said: str) -> str:
    svg = Svg(WIDTH, "A sum in eight bits", said)
    top = heading(svg, "simulated", said) + 14
    for rank in range(RANKS):
        y = top + rank * 62
        svg.text(14, y + 26, f"rank {rank}", 12)
        for slot in range(RANKS):
            owners: tuple[int, ...] = (rank,)  # whose numbers a box has
            part = slot
            if step == 2:
                owners, part = (slot,), rank
            if step == 3:
                if slot:
                    continue
                owners, part = tuple(range(RANKS)), rank
            if step == 4:
                owners = tuple(range(RANKS))
            wide = step in (0, 3)
            _box(svg, 90 + slot * 200, y, owners, part, wide)
    return svg.render(top + RANKS * 62 + 8)


def _box(svg: Svg, x: float, y: float, owners: tuple[int, ...], part: int, wide: bool) -> None:
    """A part: one stripe for each rank whose numbers are in it, 160 wide in 32 bits and 40 in eight."""
    long = 160.0 if wide else 40.0
    tall = 38.0 / len(owners)
    for n, owner in enumerate(owners):
        svg.rect(x, y + n * tall, long, tall, COLOURS[owner], HATCH[owner], "#111")
    name = f"part {part}" if len(owners) == 1 else f"sum of part {part}"
    svg.text(x + long + 6, y + 24, name if not wide else "", 11)
    if wide:
        svg.rect(x + 30, y + 10, 100, 18, "#fff", "", "none")
        svg.text(x + long / 2, y + 23, name, 11, "middle", on_colour=True)
