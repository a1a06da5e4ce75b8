"""Put things in order. The first pair that stands the wrong way round is named, with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from labkit.course.questions.base import Feedback, Question, common, letter, positions, refused, shuffled
from labkit.course.wording import Words


@dataclass(frozen=True)
class Swap:
    """before: an item that the reader put before `after`, though it comes later."""

    before: str
    after: str
    why: str


@dataclass(frozen=True, repr=False)
class Order(Question):
    """items: in the right order. shown_items: as shown."""

    items: tuple[str, ...]
    shown_items: tuple[str, ...]
    slips: tuple[Swap, ...]

    @classmethod
    def ask(cls, entry: Mapping[str, Any], words: Words, seed: str) -> Self:
        items = [words.fill(item) for item in entry["items"]]
        mixed, nth = shuffled(items, seed), 0
        while mixed == items:  # an order that is right already asks nothing
            mixed, nth = shuffled(items, f"{seed} {nth}"), nth + 1
        slips = tuple(Swap(*(words.fill(s[k]) for k in ("before", "after", "why"))) for s in entry.get("slips", []))
        return cls(**common(entry, words), items=tuple(items), shown_items=tuple(mixed), slips=slips)

    def mark(self, value: object) -> Feedback:
        given = self._ordered(value)
        if given is None:
            letters = " ".join(letter(i) for i in range(len(self.items)))
            return refused(f"Name every item once, the first one first: the letters {letters} in your order.")
        if given == list(self.items):
            return self.right()
        for i, first in enumerate(given):
            for second in given[i + 1 :]:
                if self.items.index(first) > self.items.index(second):
                    return Feedback(False, self._told(given, first, second))
        raise AssertionError("an order with no pair the wrong way round is the right one")

    def _told(self, given: list[str], first: str, second: str) -> str:
        """Reasons known for any violated pair come first; else the first violated pair is named."""
        for slip in self.slips:
            if given.index(slip.before) < given.index(slip.after):
                return slip.why
        start = next(i for i, (a, b) in enumerate(zip(given, self.items, strict=True)) if a != b)
        kept = f"The first {start} {'is' if start == 1 else 'are'} right. " if start else ""
        return f"{kept}“{first}” cannot come before “{second}”."

    def _ordered(self, value: object) -> list[str] | None:
        if (
            isinstance(value, (list, tuple))
            and all(isinstance(v, str) for v in value)
            and len(value) == len(self.items)
        ):
            if sorted(value) == sorted(self.items):
                return list(value)
        found = positions(value, len(self.items))
        if found is None or sorted(found) != list(range(len(self.items))):
            return None
        return [self.shown_items[i] for i in found]

    def shown(self) -> dict[str, Any]:
        return {"items": list(self.shown_items)}

    def lines(self) -> list[str]:
        return [f"{letter(i)}) {item}" for i, item in enumerate(self.shown_items)]

    def key(self) -> str:
        return "\n".join(f"{nth}. {item}" for nth, item in enumerate(self.items, start=1))

    def stored(self, value: Any) -> list[str]:
        return self._ordered(value) or []

    def restored(self, stored: Any) -> Any:
        if not isinstance(stored, list) or sorted(map(str, stored)) != sorted(self.items):
            return None
        return [self.shown_items.index(item) for item in stored]
