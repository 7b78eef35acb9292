"""A tab for one's own network: an image or a text, the probabilities of its classes, and what the answer rests on."""

from typing import Any

import torch

from ..errors import UserError
from ..explain import Explanation, ImageExplanation, TextExplanation, explain
from ..html import Html, encode_png, figure, image, tinted_words
from ..inference import Predictor
from .handlers import explain_errors
from .pictures import show_answer

MAX_BARS = 12  # classes that are shown, the likeliest
MAX_CHARACTERS = 5000
MAX_BYTES = 16 << 20  # of an uploaded file
IMAGES = [".png", ".jpg", ".jpeg", ".webp", ".bmp"]


class OwnNetwork:
    """A network and the handler of its tab."""

    def __init__(self, name: str, device: str):
        self.predictor = Predictor(name, device=device)
        if self.predictor.kind == "arrays":
            raise UserError(f"{name}: expected a network for images or texts, this one takes sets; try capsroute serve")

    def show(self, value: str | None) -> str:
        """Show how an image's file or a text is classified, and what the answer rests on."""
        return explain_errors(self._show)(value)

    def _show(self, value: str | None) -> str:
        if not value or not value.strip():
            raise UserError("Choose an image." if self.predictor.kind == "images" else "Type a text.")
        if self.predictor.kind == "texts" and len(value) > MAX_CHARACTERS:
            raise UserError(f"text: expected at most {MAX_CHARACTERS:,} characters, got {len(value):,}")
        found = explain(self.predictor, value, name="image" if self.predictor.kind == "images" else value)
        ranked = sorted(found.prediction.probabilities.items(), key=lambda pair: -pair[1])[:MAX_BARS]
        names, probabilities = zip(*ranked, strict=True)
        return f'<div class="shown">{show_answer(names, torch.tensor(probabilities))}{show_explanation(found)}</div>'

    def fill(self, gr: Any) -> tuple[Any, Any]:
        """Add the tab's components to the page; returns the input and where the answer goes."""
        gr.Markdown(f"This network tells {', '.join(self.predictor.classes[:MAX_BARS])} apart.")
        if self.predictor.kind == "images":
            given = gr.File(file_types=IMAGES, label="Image", elem_id="upload")
        else:
            given = gr.Textbox(label="Text", lines=3, max_length=MAX_CHARACTERS, elem_id="sentence")
        return given, gr.HTML(elem_id="own")


def show_explanation(found: Explanation) -> Html:
    """Show the image under its credit, or coloured words."""
    content, title = Html(""), "What the answer rests on"
    if isinstance(found, ImageExplanation):
        views = image(encode_png(found.image), "Your image") + image(encode_png(found.overlay()), "Net credit")
        content = Html(f'<div class="views">{views}</div>')
    elif isinstance(found, TextExplanation):
        content = tinted_words(found.pieces, found.credit.tolist())
    return figure(content, found.caption, title=title, kind="seen")
