"""The known truth: how good a response is, as a plain function of its bytes.

In practice nobody knows it; people compare responses, and a reward model learns from that. Here it is known, so one can
see whether a higher reward is a better response.
"""

from __future__ import annotations

from collections.abc import Iterable

VOWELS = b"aeiou"


def truth(response: Iterable[int], room: int) -> float:
    """The different vowels of each word, added up and divided by `room`, the most bytes that a response may have.

    Words end at a space. "a quiet queue": 1 + 3 + 2. So a longer response can have more, and repeating a vowel in a
    word gains nothing: "eeeeee" has 1.
    """
    words = bytes(response).split(b" ")
    return sum(len(set(word) & set(VOWELS)) for word in words) / room
