"""The demo page: its layout, and a local server that removes its files when it stops."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import torch

from ..data.own.images import SUFFIXES
from ..data.pairs import CATEGORIES
from ..environment_variables import set_environment
from ..errors import UserError, import_extra
from ..explain import explain
from ..html import figure
from ..inference import Predictor
from ..serve.guard import Guard, Limits, RefusedError
from . import algorithm, handlers, vision
from .handlers import explain_errors
from .pictures import ANSWERS, show_answer

CSS = Path(__file__).with_name("page.css")
DELETE_UPLOADS = (60, 600)  # seconds: how often to look for old uploads, and their age
N_THREADS = 2  # requests at a time: more would wait for the cores, and each thread keeps freed memory to itself
MAX_QUEUE = 200  # waiting requests, before others are refused
MAX_BARS = 12  # classes of one's own network that are shown, the likeliest
MAX_CHARACTERS, MAX_BYTES = 5000, 16 << 20  # of a text for it, of an uploaded file
MAX_UPLOADS = 64 << 20  # bytes of all files that are kept


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
        return ANSWERS.grid(answer, figure(found.figure(), title="What the answer rests on", kind="seen"))

    def fill(self, gr: Any) -> tuple[Any, Any]:
        """Add the tab's components to the page; returns the input and where the answer goes."""
        gr.Markdown(f"This network tells {', '.join(self.predictor.classes[:MAX_BARS])} apart.")
        if self.predictor.kind == "images":
            given = gr.File(file_types=list(SUFFIXES), label="Image", elem_id="upload")
        else:
            given = gr.Textbox(label="Text", lines=3, max_length=MAX_CHARACTERS, elem_id="sentence")
        return given, gr.HTML(elem_id="own")


@contextmanager
def serve_page(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    open_page: bool = False,
    network: str | None = None,
    names: Sequence[str] = (),
    device: str = "cpu",
) -> Iterator[str]:
    """Serve the page, yield its address, and remove all its files at the end.

    Args:
        host: Address to listen at.
        port: Port to listen at, or 0 for any free one.
        open_page: Open it in the browser.
        network: Your own network, by any name that commands take; by default the page shows ours.
        names: Other names that browsers may call the server by.
        device: Device of your network.
    """
    n_threads = torch.get_num_threads()
    with (
        tempfile.TemporaryDirectory(prefix="capsroute-") as folder,
        # Gradio keeps uploads there, Matplotlib, which it imports, a list of fonts, and PyTorch makes an empty folder
        set_environment(GRADIO_TEMP_DIR=folder, MPLCONFIGDIR=folder, TORCHINDUCTOR_CACHE_DIR=folder),
    ):
        gr = import_extra("gradio")
        from starlette.middleware import Middleware

        from ..serve.server import PageProtocol, format_address, listen

        with listen(host, port) as probe:  # the port, or a free one for 0, if it can be had
            number = probe.getsockname()[1]
        own = OwnNetwork(network, device) if network else None
        page = _build_page(gr, own)
        largest = MAX_BYTES if own else vision.MAX_BYTES
        limits = Limits(body_bytes=2 * largest + (1 << 20), buffered_bytes=MAX_UPLOADS)
        check_body = partial(_limit_uploads, Path(folder))
        guard = Middleware(Guard, host=host, names=names, limits=limits, check_body=check_body)  # pyright: ignore[reportArgumentType]
        torch.set_num_threads(1)  # requests share the cores
        try:
            fonts = ["system-ui", "sans-serif"]  # these need no download
            theme = gr.themes.Default(primary_hue="blue", font=fonts, font_mono=["ui-monospace", "monospace"])
            switched_off = ("share", "ssr_mode", "pwa", "mcp_server", "enable_monitoring", "run_history")
            page.launch(
                server_name=f"[{host}]" if ":" in host else host,
                server_port=number,
                inbrowser=open_page,
                quiet=True,
                prevent_thread_lock=True,
                max_file_size=largest,
                footer_links=[],
                css_paths=CSS,
                state_session_capacity=20,
                max_threads=N_THREADS,
                theme=theme,
                app_kwargs={"middleware": [guard]},
                **dict.fromkeys(switched_off, False),
            )
            page.server.config.http_protocol_class = PageProtocol
            yield f"http://{format_address(host, number)}"
        finally:
            page.close(verbose=False)
            torch.set_num_threads(n_threads)


def _build_page(gr: Any, own: OwnNetwork | None) -> Any:
    """Build the page of one's own network, or ours, after loading all that its first answers need."""
    with gr.Blocks(title="capsroute", analytics_enabled=False, delete_cache=DELETE_UPLOADS) as page:
        if own:
            gr.Markdown("# capsroute")
            given, shown = own.fill(gr)
            _answer(
                gr, [given.upload if own.predictor.kind == "images" else given.change], own.show, [given], shown, "own"
            )
        else:
            for load in (vision.load_toy_network, vision.load_turns, handlers.load_predictor):
                load()
            gr.Markdown("# capsroute\nWatch routing by agreement at work.")
            for name, fill in (("Vision", _add_vision), ("Language", _add_language), ("Algorithm", _add_algorithm)):
                with gr.Tab(name):
                    fill(gr, page)
    return page.queue(default_concurrency_limit=N_THREADS, max_size=MAX_QUEUE)


def _add_vision(gr: Any, page: Any) -> None:
    gr.Markdown(
        "Turn a toy that the network has never seen, and watch how it classifies the toy, where its evidence is, and "
        "how the pose moves."
    )
    with gr.Row():
        with gr.Column(scale=1, min_width=260):
            category = gr.Dropdown(list(CATEGORIES), value="car", label="Toy", filterable=False)
            numbers = [(f"number {k + 1}", instance) for k, instance in enumerate(vision.INSTANCES)]
            instance = gr.Dropdown(numbers, value=vision.INSTANCES[0], label="Which one", filterable=False)
            azimuth = gr.Slider(0, 350, value=40, step=10, label="Azimuth (degrees around it)")
            elevation = gr.Slider(30, 70, value=40, step=5, label="Elevation (degrees above it)")
            light = gr.Slider(1, vision.LIGHTS[-1], value=1, step=1, label="Light")
            with gr.Accordion("Your own image", open=False):
                gr.Markdown(
                    "One image for both eyes, or two, left first, or both side by side in one that is at least twice "
                    f"as wide as high: PNG or JPEG, up to {vision.MAX_BYTES >> 20} MB and "
                    f"{vision.MAX_PIXELS // 1_000_000} million pixels. They become grey squares of 96 pixels. The "
                    "network knows toys on a light ground, and little else."
                )
                kinds = [".png", ".jpg", ".jpeg"]
                uploaded = gr.File(file_count="multiple", file_types=kinds, label="Images", elem_id="upload")
        with gr.Column(scale=3, min_width=300):
            shown = gr.HTML(elem_id="vision")
    chosen = [category, instance, azimuth, elevation, light]
    _answer(gr, [page.load, *(c.change for c in chosen), uploaded.clear], handlers.show_toy, chosen, shown, "toy")
    _answer(gr, [uploaded.upload], handlers.show_files, [uploaded], shown, "files")


def _add_language(gr: Any, page: Any) -> None:
    gr.Markdown("Type a sentence about a film, and watch which words, at which layers, decide the answer.")
    text = gr.Textbox(handlers.EXAMPLES[0], label="Sentence", max_length=handlers.MAX_CHARACTERS, elem_id="sentence")
    with gr.Row():
        for example in handlers.EXAMPLES:
            button = gr.Button(example, size="sm", min_width=220)
            button.click(lambda e=example: e, outputs=text, show_progress="hidden", api_visibility="private")
    names = [handlers.WINNER, *handlers.load_predictor().classes]
    which = gr.Dropdown(names, value=names[0], label="Show what was used by", filterable=False)
    shown = gr.HTML(elem_id="language")
    _answer(gr, [page.load, text.change, which.change], handlers.show_sentence, [text, which], shown, "sentence")


def _add_algorithm(gr: Any, page: Any) -> None:
    gr.Markdown(
        "Points vote for three capsules. Votes of points near a capsule's home agree, others scatter: step through the "
        "iterations and watch each capsule keep the votes that agree."
    )
    with gr.Row():
        with gr.Column(scale=1, min_width=260):
            example = gr.Dropdown(list(algorithm.GROUPS), value="Two groups", label="Example", filterable=False)
            seed = gr.Slider(0, algorithm.MAX_SEED, value=0, step=1, label="Seed")
            n_iters = gr.Slider(1, algorithm.MAX_ITERS, value=5, step=1, label="Iterations (n_iters)")
            beta = {"minimum": 0, "maximum": algorithm.MAX_BETA, "step": 0.05}
            use = gr.Slider(**beta, value=0.2, label="Benefit of using a point (beta_use)")
            ign = gr.Slider(**beta, value=0.05, label="Cost of ignoring a point (beta_ign)")
        with gr.Column(scale=3, min_width=300):
            iteration = gr.Slider(1, algorithm.MAX_ITERS, value=1, step=1, label="Show iteration", elem_id="iteration")
            shown = gr.HTML(elem_id="algorithm")
    chosen = [example, seed, n_iters, use, ign, iteration]
    _answer(gr, [page.load, *(c.change for c in chosen)], handlers.show_points, chosen, shown, "points")


def _answer(
    gr: Any, triggers: Sequence[Any], show: Callable[..., str], inputs: Sequence[Any], shown: Any, name: str
) -> None:
    """Update the HTML whenever an input changes; of changes in quick succession only the last one counts."""
    gr.on(triggers, show, inputs, shown, show_progress="hidden", trigger_mode="always_last", api_name=name)


def _limit_uploads(folder: Path, path: str, size: int) -> None:
    """Refuse an upload when the files kept would take too much space."""
    if path.endswith("/upload") and size + sum(f.stat().st_size for f in folder.rglob("*")) > MAX_UPLOADS:
        later = f"try again in {DELETE_UPLOADS[1] // 60} minutes"
        reason = f"uploads: expected at most {MAX_UPLOADS >> 20} MB together; {later}"
        raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
