"""HTML that reports and the demo share: escaped text, images, and what `macros.html` and `page.html` make of them."""

import base64
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup, escape

from .formatting import percent

Html = Markup
"""Markup; any other string is text, which templates escape."""
BLUE, ORANGE, GREEN = (47, 143, 208), (224, 116, 43), (30, 163, 124)
"""Distinct for colour-blind readers, and visible on white and on black."""


class Section(NamedTuple):
    title: str
    parts: Sequence[Html]

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def encode_png(pixels: np.ndarray) -> bytes:
    """Encode bytes `[m, n]`, or `[m, n, 3]` or `[m, n, 4]` in colour, as a PNG file."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def image(png: bytes, alt: str, kind: str = "photo") -> Html:
    """Embed a PNG; a `chart` is drawn on white and may be inverted on a dark page, a `photo` may not."""
    data = base64.b64encode(png).decode()
    return Html(f'<img class="{kind}" alt="{escape(alt)}" src="data:image/png;base64,{data}">')


def tint(strength: float) -> str:
    """Return a background from orange at -1 through none at 0 to blue at 1, for light and dark pages."""
    red, green, blue = BLUE if strength > 0 else ORANGE
    return f"background:rgba({red},{green},{blue},{0.6 * min(1.0, abs(strength)):.2f})"


def page(title: str, sections: Sequence[Section], footer: str) -> str:
    """Assemble the file; the table of contents follows the first section."""
    style = Path(__file__).with_name("page.css").read_text("utf-8")
    return TEMPLATES.get_template("page.html").render(title=title, sections=sections, footer=footer, style=style)


TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, keep_trailing_newline=True
)
TEMPLATES.globals["tint"], TEMPLATES.filters["percent"] = tint, percent
MACROS: Any = TEMPLATES.get_template("macros.html").module
paragraph, figure, panels = MACROS.paragraph, MACROS.figure, MACROS.panels
table, number_table, tinted_words = MACROS.table, MACROS.number_table, MACROS.tinted_words
