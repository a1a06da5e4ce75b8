"""A little LaTeX as HTML: signs of Unicode, <sup> and <sub>, fractions on one line.

The typesetter of JupyterLab is out of reach for a widget, and a form must work without a network. Formulas in
questions are short; those that need more than this belong in the text of the chapter, which JupyterLab typesets.
"""

from __future__ import annotations

import re
from html import escape

SIGNS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eta": "η", "lambda": "λ", "mu": "μ",
    "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "theta": "θ", "phi": "φ", "omega": "ω", "Delta": "Δ",
    "Sigma": "Σ", "Omega": "Ω", "Phi": "Φ", "Theta": "Θ", "times": " × ", "cdot": " · ", "pm": " ± ", "le": " ≤ ",
    "leq": " ≤ ", "ge": " ≥ ", "geq": " ≥ ", "ne": " ≠ ", "neq": " ≠ ", "approx": " ≈ ", "ll": " ≪ ", "gg": " ≫ ",
    "sum": "Σ", "prod": "Π", "infty": "∞", "to": " → ", "rightarrow": " → ", "in": " ∈ ", "ldots": "…", "dots": "…",
    "cdots": "…", "lceil": "⌈", "rceil": "⌉", "lfloor": "⌊", "rfloor": "⌋", "log": "log", "ln": "ln", "max": "max",
    "min": "min", "exp": "exp", "sin": "sin", "cos": "cos", "tan": "tan", "mod": " mod ", "bmod": " mod ",
    "quad": "  ", "left": "", "right": "", "propto": " ∝ ",
    "partial": "∂", "nabla": "∇", "ell": "ℓ", "sim": " ~ ", "div": " ÷ ", "mid": " | ",
}  # fmt: skip
ACCENTS = {"bar": "\u0304", "overline": "\u0304", "hat": "\u0302", "tilde": "\u0303", "dot": "\u0307", "vec": "\u20d7"}
WORDS = ("text", "mathrm", "mathbf", "operatorname", "textbf", "mathit", "mathsf", "texttt")
_TOKEN = re.compile(r"\\([A-Za-z]+|.)|([{}^_])|(\s+)|([A-Za-z])|(\d[\d.,]*)|(.)", re.DOTALL)
OPEN, CLOSE = "\ue000", "\ue001"  # around a fraction, until its neighbours are known
_SPACED = {"=": " = ", "<": " &lt; ", ">": " &gt; ", "+": " + ", ",": ", "}


def math_html(latex: str) -> str:
    """The formula `latex` (without its dollar signs) as HTML; what is not known is shown as it was written."""
    braced = re.sub(r"\\([dt]?frac)\s*(\d)\s*(\d)", r"\\\1{\2}{\3}", latex)  # \frac13 is a third
    parts, _ = _read(list(_TOKEN.finditer(braced)), 0, False)
    return _bracketed(re.sub(" +", " ", "".join(parts)).strip())


def _bracketed(html: str) -> str:
    """Fractions that touch something else get brackets: 2(b / N), but not b / N + 1."""
    while found := re.search(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}", html):
        before, after = html[: found.start()], html[found.end() :]
        free = before[-1:] in ("", " ", "(", "⌈", "⌊", OPEN) and after[:1] in ("", " ", ")", ",", "⌉", "⌋", CLOSE)
        html = before + (found[1] if free else f"({found[1]})") + after
    return html


def _read(tokens: list[re.Match[str]], at: int, inside: bool) -> tuple[list[str], int]:
    """Everything up to the closing brace (if `inside`) or the end, piece by piece."""
    parts: list[str] = []
    while at < len(tokens):
        if inside and tokens[at].group(2) == "}":
            return parts, at + 1
        piece, at = _piece(tokens, at, bool(parts) and parts[-1].strip() not in ("", "(", "=", "&lt;", "&gt;"))
        if piece:
            parts.append(piece)
    return parts, at


def _argument(tokens: list[re.Match[str]], at: int) -> tuple[str, int]:
    """What follows a command or a sign: the contents of braces, or the one next piece."""
    while at < len(tokens) and tokens[at].group(3):
        at += 1
    return _piece(tokens, at, False) if at < len(tokens) else ("", at)


def _piece(tokens: list[re.Match[str]], at: int, after: bool) -> tuple[str, int]:
    """One piece as HTML, and the place behind it. after: something stands to the left (a minus is then a sum's)."""
    command, sign, space, letter, digits, other = tokens[at].groups()
    at += 1
    if command:
        return _command(command, tokens, at)
    if sign == "{":
        parts, at = _read(tokens, at, True)
        return "".join(parts), at
    if sign in ("^", "_"):
        inner, at = _argument(tokens, at)
        tag = "sup" if sign == "^" else "sub"
        return f"<{tag}>{inner.strip()}</{tag}>", at
    if letter:
        return f"<i>{letter}</i>", at
    if other == "-":
        return (" − " if after else "−"), at
    if space or sign:
        return "", at
    return digits or _SPACED.get(other, escape(other)), at


def _command(name: str, tokens: list[re.Match[str]], at: int) -> tuple[str, int]:
    if name in ("frac", "dfrac", "tfrac"):
        above, at = _argument(tokens, at)
        below, at = _argument(tokens, at)
        return f"{OPEN}{_grouped(above)} / {_grouped(below)}{CLOSE}", at
    if name == "sqrt":
        inner, at = _argument(tokens, at)
        return f"√{_grouped(inner)}", at
    if name in ACCENTS:
        inner, at = _argument(tokens, at)
        return re.sub(r"(</i>|$)", rf"{ACCENTS[name]}\1", inner.strip(), count=1), at
    if name in WORDS:
        words, depth = "", 0
        while at < len(tokens):
            raw = tokens[at].group(0)
            at += 1
            depth += (raw == "{") - (raw == "}")
            words += raw if raw not in "{}" else ""
            if depth <= 0:
                break
        return escape(words), at
    if name in SIGNS:
        after = next((t for t in tokens[at:] if not t.group(3)), None)
        apart = SIGNS[name] == name and after is not None and (after.group(4) or after.group(5))  # ln 10, log x
        return SIGNS[name] + " " * bool(apart), at
    if len(name) == 1 and not name.isalpha():  # \, \; \% \{ and the like
        return (" " if name in ",;: !" else escape(name)), at
    return escape("\\" + name), at


def _grouped(html: str) -> str:
    """Brackets around a sum or a product, so that it stays one thing on one line."""
    return f"({html.strip()})" if re.search(r" [−+×·/=±] ", html) else html.strip()
