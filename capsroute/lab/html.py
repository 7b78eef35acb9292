"""HTML that reports and the demo share: escaped text, images, figures, tables, and a page in a single file."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any, NamedTuple, NewType

import numpy as np

Html = NewType("Html", str)
"""Markup; any other string is text, which the functions here escape."""
BLUE, ORANGE, GREEN = (47, 143, 208), (224, 116, 43), (30, 163, 124)
"""Distinct for colour-blind readers, and visible on white and on black."""


class Section(NamedTuple):
    title: str
    parts: Sequence[Html]


def text(value: object) -> Html:
    return Html(escape(str(value)))


def join(parts: Iterable[str]) -> Html:
    return Html("\n".join(parts))


def paragraph(sentence: str, kind: str = "") -> Html:
    return Html(f'<p class="{kind}">{text(sentence)}</p>' if kind else f"<p>{text(sentence)}</p>")


def encode_png(pixels: np.ndarray) -> bytes:
    """Encode bytes `[m, n]`, or `[m, n, 3]` or `[m, n, 4]` in colour, as a PNG file."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def image(png: bytes, alt: str, kind: str = "photo") -> Html:
    """Embed a PNG; a `chart` is drawn on white and may be inverted on a dark page, a `photo` may not."""
    data = base64.b64encode(png).decode()
    return Html(f'<img class="{kind}" alt="{text(alt)}" src="data:image/png;base64,{data}">')


def figure(content: str, caption: str = "", *, title: str = "", kind: str = "") -> Html:
    heading = f"<h3>{text(title)}</h3>" if title else ""
    below = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return Html(f'<figure class="{text(kind)}">{heading}{content}{below}</figure>')


def panels(caption: str, *pictures: Html) -> Html:
    """Place pictures side by side, as many as fit."""
    return figure(f'<div class="panels">{"".join(pictures)}</div>', caption)


def facts(values: Mapping[str, Any]) -> Html:
    items = (f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in values.items())
    return Html(f'<dl class="facts">{"".join(items)}</dl>')


def cards(items: Iterable[Html]) -> Html:
    return Html(f'<ul class="cards">{"".join(f"<li>{item}</li>" for item in items)}</ul>')


def folded(summary: str, *content: Html) -> Html:
    return Html(f"<details><summary>{text(summary)}</summary>{join(content)}</details>")


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "numbers") -> Html:
    """Lay out rows, the first cell of each as its heading; `kind` is `numbers`, `settings` or `texts`."""
    head = "".join(f'<th scope="col">{text(header)}</th>' for header in headers)
    # on a phone the cells of a text stand below it, each with its column's name
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


def tint(strength: float) -> str:
    """Return a background from orange at -1 through none at 0 to blue at 1, for light and dark pages."""
    red, green, blue = BLUE if strength > 0 else ORANGE
    return f"background:rgba({red},{green},{blue},{0.6 * min(1.0, abs(strength)):.2f})"


def number_table(values: np.ndarray, form: str, scale: float, kind: str, tokens: Sequence[str] = ()) -> Html:
    """Show numbers `[rows, columns]`, coloured from orange at `-scale` to blue at `scale`; with tokens, by depth."""
    head, names = "", [""] * len(values)
    if tokens:
        columns = "".join(f'<th scope="col">{k if k else "word"}</th>' for k in range(values.shape[1]))
        head = f'<thead><tr><th scope="col">layer</th>{columns}</tr></thead>'
        names = [f'<th scope="row" dir="auto">{text(token)}</th>' for token in tokens]
    body = ""
    for name, row in zip(names, values.tolist(), strict=True):
        cells = (f'<td style="{tint(value / max(scale, 1e-12))}">{value:{form}}</td>' for value in row)
        body += f"<tr>{name}{''.join(cells)}</tr>"
    return Html(f'<div class="{kind}"><table>{head}<tbody>{body}</tbody></table></div>')


def tinted_words(pieces: Sequence[tuple[str, str]], values: Sequence[float]) -> Html:
    """Colour the pieces of a text, each with the space before it, by their values; the largest is the deepest."""
    largest = max(map(abs, values)) or 1.0
    spans = (
        f'{space}<span style="{tint(value / largest)}" title="{value:+.2f}">{text(piece)}</span>'
        for (space, piece), value in zip(pieces, values, strict=True)
    )
    return Html(f'<p class="tinted" dir="auto">{"".join(spans)}</p>')


def page(title: str, sections: Sequence[Section], footer: str) -> str:
    """Assemble the file; the table of contents follows the first section."""
    anchors = [re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") for section in sections]
    first, *others = (
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">\n'
        f'<h2 id="{anchor}-title">{text(section.title)}</h2>\n{join(section.parts)}\n</section>'
        for anchor, section in zip(anchors, sections, strict=True)
    )
    links = [f'<li><a href="#{a}">{text(s.title)}</a></li>' for a, s in zip(anchors, sections, strict=True)]
    fields = {"title": text(title), "first": first, "contents": join(links[1:]), "others": join(others)}
    template, style = (Path(__file__).with_name(name).read_text("utf-8") for name in ("page.html", "page.css"))
    return Template(template).substitute(fields, style=style, footer=text(footer))
