"""Formulas of a static page: LaTeX as MathML, which browsers draw and screen readers read without any script."""

import xml.etree.ElementTree as ET
from html import escape

SPACE = "http://www.w3.org/1998/Math/MathML"
# What a formula may consist of, and how many parts those with a fixed number have.
PARTS = {"mfrac": 2, "msup": 2, "msub": 2, "msubsup": 3, "munder": 2, "mover": 2, "munderover": 3, "mroot": 2}
PLAIN = {"math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "msqrt", "mtable", "mtr", "mtd", "mstyle", "mpadded",
         "mphantom", "menclose", "mfenced"}  # fmt: skip


def formula(latex: str, block: bool = False) -> str:
    """The formula `latex`, without its dollar signs, as MathML; what cannot be converted stays as written."""
    from latex2mathml.converter import convert

    try:
        tree = ET.fromstring(convert(latex, display="block" if block else "inline"))
    except Exception:  # the converter has no common error, and leaves text unescaped
        return _as_written(latex, block)
    for element in tree.iter():
        name = element.tag.removeprefix(f"{{{SPACE}}}")
        wrong = name not in PARTS and name not in PLAIN or len(element) != PARTS.get(name, len(element))
        if wrong or "\\" in (element.text or ""):
            return _as_written(latex, block)
    if block:
        tree.set("tabindex", "0")  # a long one scrolls, also from the keyboard
    ET.register_namespace("", SPACE)
    return ET.tostring(tree, encoding="unicode")


def _as_written(latex: str, block: bool) -> str:
    text = f'<code class="tex">{escape(latex.strip(), quote=False)}</code>'
    return f"<p>{text}</p>" if block else text
