"""The frame of a static page: all in one file, nothing from the network, readable on paper and telephones."""

from html import escape

# Colours: contrast of text at least 4.5 on its background, in both schemes.
STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1b1b1b; --soft: #595959; --line: #d0d0d0; --code: #f5f5f5;
  --link: #0550ae; --jp-content-font-color1: var(--ink); --jp-content-font-color2: var(--soft) }
@media (prefers-color-scheme: dark) { :root { --page: #161616; --ink: #e6e6e6; --soft: #ababab; --line: #444;
  --code: #222; --link: #7ab8ff } }
* { box-sizing: border-box }
html { background: var(--page); color: var(--ink); font: 1.05rem/1.6 system-ui, "Liberation Sans", Arial, sans-serif }
body { margin: 0 auto; max-width: 56rem; padding: 0 1rem 4rem; overflow-wrap: break-word }
a { color: var(--link) }
a:focus-visible, [tabindex]:focus-visible { outline: 3px solid var(--link); outline-offset: 2px }
.skip { position: absolute; left: -999rem } .skip:focus { position: static }
nav { padding: 1rem 0; border-bottom: 1px solid var(--line) } footer { border-top: 1px solid var(--line) }
h1, h2, h3, h4 { line-height: 1.25; margin: 2em 0 .5em } h1 { margin-top: 1em }
pre { background: var(--code); padding: .75rem 1rem; overflow-x: auto; font-size: .85rem; line-height: 1.45 }
code, pre { font-family: ui-monospace, "Liberation Mono", monospace } :not(pre) > code { background: var(--code) }
.output { border-left: 4px solid var(--line); padding-left: 1rem; margin: 1rem 0 }
.output pre { background: none; padding: 0 } .wide { overflow-x: auto }
img, svg { max-width: 100%; height: auto } figure { margin: 1rem 0 } figcaption { color: var(--soft); font-size: .9rem }
table { border-collapse: collapse; font-size: .9rem } caption { text-align: left; color: var(--soft) }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .75rem .25rem 0; text-align: left; vertical-align: top }
blockquote { border-left: 4px solid var(--link); margin-left: 0; padding-left: 1rem }
math { font-size: 1.05em } math[display=block] { overflow-x: auto; max-width: 100%; padding: .25rem 0 }
@media print { html { font-size: 10pt } .skip, nav { display: none } pre, figure, .output { break-inside: avoid }
  pre { white-space: pre-wrap } a { color: inherit } }
"""


def page(title: str, body: str, style: str = "", lang: str = "en", navigation: str = "", head: str = "") -> str:
    """A whole page. `body` holds the one h1; `navigation` is what stands before it; `head` is more for the head."""
    nav = f'<nav aria-label="Book">{navigation}</nav>\n' if navigation else ""
    return (
        f'<!DOCTYPE html>\n<html lang="{escape(lang)}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{head}<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#content">Skip to the text</a>\n{nav}<main id="content" tabindex="-1">\n{body}\n'
        "</main>\n</body>\n</html>\n"
    )
