"""What an item of a form must bring, and in which form its value comes back."""

from __future__ import annotations

import json
from typing import Any

Item = dict[str, Any]

STATES = ("open", "right", "wrong", "done")
NEEDS: dict[str, tuple[str, ...]] = {  # kind -> the keys it cannot do without
    "number": (), "text": (), "choice": ("choices",), "several": ("choices",), "order": ("items",),
    "sketch": ("x", "y"), "slider": ("min", "max"), "button": (),
}  # fmt: skip
NEVER = ("answer", "answers", "accept", "slips", "right", "explanation", "tolerance")  # nothing to find in the page


def checked(item: Item) -> Item:
    """A copy of `item` with its defaults filled in; ValueError for what a form cannot show, or must not hold."""
    name = item.get("id")
    if not isinstance(name, str) or not name:
        raise ValueError(f"an item of a form needs an id (a string): got {name!r}")
    kind = item.get("kind")
    if kind not in NEEDS:
        raise ValueError(f"item {name!r}: kind {kind!r} does not exist, use one of {', '.join(NEEDS)}")
    missing = [key for key in NEEDS[kind] if item.get(key) is None or item[key] == []]
    if missing:
        raise ValueError(f"item {name!r}: kind {kind!r} needs {' and '.join(missing)}")
    told = [key for key in NEVER if key in item]
    told += [
        f"choices: {k}" for c in item.get("choices") or () if isinstance(c, dict) for k in c if k in (*NEVER, "why")
    ]
    if told:
        raise ValueError(f"item {name!r}: {', '.join(told)} would show the answer in the page, leave it out")
    if kind == "sketch" and len(item["y"]) < 2:
        raise ValueError(f"item {name!r}: a sketch needs at least two levels in y, got {item['y']!r}")
    full = {"html": "", "value": None, "state": "open", "feedback": "", **item}
    if full["state"] not in STATES:
        raise ValueError(f"item {name!r}: state {full['state']!r} does not exist, use one of {', '.join(STATES)}")
    try:
        return json.loads(json.dumps(full, allow_nan=False))
    except (TypeError, ValueError) as why:
        raise ValueError(f"item {name!r} is not plain JSON: {why}") from None


def value_text(item: Item) -> str:
    """The value of an item in words; empty where there is none."""
    kind, value = item["kind"], item["value"]
    if value is None:
        return ""
    if kind == "choice":
        return labels(item)[int(value)]
    if kind in ("several", "order"):
        names = labels(item)
        return ", ".join(names[int(i)] for i in value) or "none of them"
    if kind == "sketch":
        return ", ".join(f"{x}: {v}" for x, v in zip(item["x"], value, strict=False))
    if kind == "number" and item.get("boxes"):
        units = [box.get("unit", "") for box in item["boxes"]]
        return ", ".join(f"{v} {'' if str(v).endswith(u) else u}".strip() for v, u in zip(value, units, strict=False))
    return str(value)


def labels(item: Item) -> list[str]:
    """The texts of choices or of things to order, as plain words."""
    from labkit.book.forms.markdown import to_words

    given = item["items"] if item["kind"] == "order" else item["choices"]
    return [to_words(str(one["html"]) if isinstance(one, dict) else str(one)) for one in given]
