"""A tab for one's own network: an image or a text, the probabilities of its classes, and what the answer rests on."""

from typing import Any

import torch

from ..data.own.images import SUFFIXES
from ..errors import UserError
from ..explain import explain
from ..html import figure
from ..inference import Predictor
from .handlers import explain_errors, show_grid
from .pictures import show_answer

MAX_BARS = 12  # classes that are shown, the likeliest
MAX_CHARACTERS = 5000
MAX_BYTES = 16 << 20  # of an uploaded file


class OwnNetwork:
    """A network and the handler of its tab."""

    def __init__(self, name: str, device: str):
        self.predictor = Predictor(name, device=device)
        if self.predictor.kind == "arrays":
            raise UserError(f"{name}: expected a network for images or texts, this one takes sets; try capsroute serve")

    @explain_errors
    def show(self, value: str | None) -> str:
        """Show how an image's file or a text is classified, and what the answer rests on."""
        if not value or not value.strip():
            raise UserError("Choose an image." if self.predictor.kind == "images" else "Type a text.")
        if self.predictor.kind == "texts" and len(value) > MAX_CHARACTERS:
            raise UserError(f"text: expected at most {MAX_CHARACTERS:,} characters, got {len(value):,}")
        found = explain(self.predictor, value, name="image" if self.predictor.kind == "images" else value)
        names, probabilities = zip(*found.prediction.ranked()[:MAX_BARS], strict=True)
        answer = show_answer(names, torch.tensor(probabilities))
        return show_grid(answer, figure(found.figure(), title="What the answer rests on", kind="seen"))

    def fill(self, gr: Any) -> tuple[Any, Any]:
        """Add the tab's components to the page; returns the input and where the answer goes."""
        gr.Markdown(f"This network tells {', '.join(self.predictor.classes[:MAX_BARS])} apart.")
        if self.predictor.kind == "images":
            given = gr.File(file_types=list(SUFFIXES), label="Image", elem_id="upload")
        else:
            given = gr.Textbox(label="Text", lines=3, max_length=MAX_CHARACTERS, elem_id="sentence")
        return given, gr.HTML(elem_id="own")
