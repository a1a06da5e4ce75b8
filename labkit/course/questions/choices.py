"""One right choice, or several: every wrong one has the reason of somebody who would pick it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from labkit.course.questions.base import Feedback, Question, common, letter, positions, refused, shuffled
from labkit.course.wording import Words


@dataclass(frozen=True)
class Choice:
    """why: what is wrong with a wrong one. missed: what is told to a reader who left out a right one."""

    text: str
    right: bool
    why: str
    missed: str


@dataclass(frozen=True, repr=False)
class Choices(Question):
    """kind "choice" (one is right) or "several" (each is right or wrong). choices: as shown."""

    choices: tuple[Choice, ...]

    @classmethod
    def ask(cls, entry: Mapping[str, Any], words: Words, seed: str) -> Self:
        choices = [
            Choice(
                words.fill(c["text"]),
                c.get("right", False),
                words.fill(c.get("why", "")),
                words.fill(c.get("missed", "")),
            )
            for c in entry["choices"]
        ]
        return cls(
            **common(entry, words), choices=tuple(choices if entry.get("keep_order") else shuffled(choices, seed))
        )

    def mark(self, value: object) -> Feedback:
        picked = self._picked(value)
        several = self.kind == "several"
        if picked is None or (not several and len(picked) != 1):
            letters = f"{letter(0)} to {letter(len(self.choices) - 1)}"
            return refused(f"Pick {'the ones that are right' if several else 'one'}: {letters}.")
        if not picked:
            return refused("Nothing is picked, and there is at least one.")
        wrong = [self.choices[i] for i in picked if not self.choices[i].right]
        missing = [c for i, c in enumerate(self.choices) if c.right and i not in picked]
        if not wrong and not missing:
            return self.right()
        if not several:
            return Feedback(False, wrong[0].why)
        return Feedback(False, self._told(len(picked) - len(wrong), wrong, missing))

    def _told(self, hits: int, wrong: list[Choice], missing: list[Choice]) -> str:
        """Reasons for the wrong ticks. Of those left out the number is told, with a hint for the first that has one."""
        total = sum(c.right for c in self.choices)
        parts = [f"{hits} of {total} found." if hits else "None of them found yet."]
        parts += [f"“{c.text}”: {c.why}" for c in wrong]
        if missing:
            one, hints = len(missing) == 1, list(dict.fromkeys(c.missed for c in missing if c.missed))
            told = "A hint for it:" if one else "A hint for one of them:"
            parts.append(f"{len(missing)} more {'is' if one else 'are'} to be found." + (f" {told}" if hints else ""))
            parts += hints[:1]  # the next one, once this is found
        return "\n\n".join(parts)

    def _picked(self, value: object) -> list[int] | None:
        texts = [c.text for c in self.choices]
        named = [value] if isinstance(value, str) else value
        if isinstance(named, (list, tuple)) and named and all(isinstance(n, str) and n in texts for n in named):
            return sorted({texts.index(n) for n in named})
        found = positions(value, len(self.choices))
        return None if found is None else sorted(set(found))

    def shown(self) -> dict[str, Any]:
        return {"choices": [c.text for c in self.choices]}

    def lines(self) -> list[str]:
        return [f"{letter(i)}) {c.text}" for i, c in enumerate(self.choices)]

    def key(self) -> str:
        return "\n".join(f"- {letter(i)}) {c.text}" for i, c in enumerate(self.choices) if c.right)

    def stored(self, value: Any) -> list[str]:
        return [self.choices[i].text for i in self._picked(value) or []]

    def restored(self, stored: Any) -> Any:
        texts = [c.text for c in self.choices]
        if not isinstance(stored, list) or not stored or not all(s in texts for s in stored):
            return None
        picked = sorted(texts.index(s) for s in stored)
        return picked if self.kind == "several" else picked[0]
