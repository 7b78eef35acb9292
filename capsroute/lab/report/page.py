"""The frame of a report: a page in one file, with its pictures inside, made of sections that know nothing of it."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, NewType

Html = NewType("Html", str)
"""Markup. All other strings are text, which the functions here escape."""

# the page loads nothing and runs nothing, whatever stands in it
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Section(NamedTuple):
    title: str
    parts: Sequence[Html]


class Album:
    """Puts pictures into a folder of their own and gives them back as markup with the picture inside."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.png"):  # of an earlier report, which may have had more
            old.unlink()
        self.folder = folder

    def add(self, name: str, png: bytes, alt: str, kind: str = "photo") -> Html:
        """Keep a picture; a `chart` is drawn on white and may be turned dark, a `photo` stays as it is."""
        (self.folder / f"{name}.png").write_bytes(png)
        inside = base64.b64encode(png).decode()
        return Html(f'<img class="{kind}" alt="{escape(alt)}" src="data:image/png;base64,{inside}">')


def text(value: object) -> Html:
    return Html(escape(str(value)))


def join(parts: Iterable[Html]) -> Html:
    return Html("\n".join(parts))


def paragraph(sentence: str) -> Html:
    return Html(f"<p>{escape(sentence)}</p>")


def big(value: str) -> Html:
    return Html(f'<p class="big">{escape(value)}</p>')


def facts(values: Mapping[str, Any]) -> Html:
    """Short values, each under its name."""
    items = (f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in values.items())
    return Html(f'<dl class="facts">{"".join(items)}</dl>')


def figure(pictures: Sequence[Html], caption: str, wide: bool = False) -> Html:
    """Pictures side by side where there is room; a wide one is moved sideways on a phone rather than shrunk."""
    kind = "scroll" if wide else "panels single" if len(pictures) == 1 else "panels"
    # a keyboard can scroll only what it can reach
    focus = ' tabindex="0"' if wide else ""
    panels = f'<div class="{kind}"{focus}>{"".join(pictures)}</div>'
    return Html(f"<figure>{panels}<figcaption>{escape(caption)}</figcaption></figure>")


def cards(items: Iterable[Html]) -> Html:
    return Html(f'<ul class="cards">{"".join(f"<li>{item}</li>" for item in items)}</ul>')


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "numbers") -> Html:
    """The first column names the row; `kind` is `numbers`, `settings` or `texts`."""
    head = "".join(f'<th scope="col">{text(header)}</th>' for header in headers)
    # on a phone a text takes the whole width and its cells stand below it, each with its column's name
    names = [f' data-name="{text(header)}"' if kind == "texts" else "" for header in headers[1:]]
    body = "\n".join(
        f'<tr><th scope="row">{text(first)}</th>'
        f"{''.join(f'<td{name}>{text(cell)}</td>' for name, cell in zip(names, rest, strict=True))}</tr>"
        for first, *rest in rows
    )
    return Html(
        f'<div class="wrap"><table class="{kind}"><caption>{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def folded(summary: str, content: Html) -> Html:
    return Html(f"<details><summary>{text(summary)}</summary>{content}</details>")


def page(title: str, sections: Sequence[Section], footer: str) -> str:
    """The whole file; its first section stands above the list of the others."""
    style = files("capsroute.lab.report").joinpath("page.css").read_text(encoding="utf-8")
    first, *others = sections
    contents = "".join(f'<li><a href="#{_anchor(section.title)}">{text(section.title)}</a></li>' for section in others)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{text(title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{text(title)}</h1></header>
<main>
{_section(first)}
<nav aria-label="Contents"><ul>{contents}</ul></nav>
{join(_section(section) for section in others)}
</main>
<footer>{text(footer)}</footer>
</body>
</html>
"""


def _section(section: Section) -> Html:
    anchor = _anchor(section.title)
    return Html(
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">\n'
        f'<h2 id="{anchor}-title">{text(section.title)}</h2>\n{join(section.parts)}\n</section>'
    )


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
