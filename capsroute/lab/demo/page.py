"""The page itself: its layout, and a server that keeps to this machine and cleans up behind itself."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data import toys
from ..data.pairs import CATEGORIES
from ..errors import UserError
from . import algorithm, language, vision
from . import handlers as shows

if TYPE_CHECKING:
    import gradio as gr

CSS = Path(__file__).with_name("page.css")
FORGET = (60, 600)  # seconds: how often uploads are looked through, and how old they get
AT_ONCE = 2  # requests of one kind; more would only wait for the cores
WAITING = 200  # requests, before others are turned away


def build() -> "gr.Blocks":
    """The page, with everything loaded that its first answers need."""
    gr = _gradio()
    for load in (vision.network, vision.turns, language.judge):
        load()
    with gr.Blocks(title="capsroute", analytics_enabled=False, delete_cache=FORGET) as page:
        gr.Markdown("# capsroute\nWatch routing by agreement at work.")
        with gr.Tab("Vision"):
            _vision(gr, page)
        with gr.Tab("Language"):
            _language(gr, page)
        with gr.Tab("Algorithm"):
            _algorithm(gr, page)
    return page.queue(default_concurrency_limit=AT_ONCE, max_size=WAITING)


@contextmanager
def served(host: str = "127.0.0.1", port: int = 0, *, open_page: bool = False) -> Iterator[str]:
    """The address of a running page, gone with all its files at the end.

    Args:
        host: Where it listens.
        port: A free one, or 0 for any.
        open_page: Show it in the browser.
    """
    number = _free(host, port)
    n_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="capsroute-") as folder, _files_in(folder):
        gr, page = _gradio(), build()
        torch.set_num_threads(1)  # requests share the cores; each one's steps are too short to be split
        try:
            plain = ["system-ui", "sans-serif"]  # fonts that need no download
            page.launch(
                server_name=host, server_port=number, inbrowser=open_page, share=False, quiet=True,
                prevent_thread_lock=True, max_file_size=vision.MAX_BYTES, ssr_mode=False, pwa=False, mcp_server=False,
                enable_monitoring=False, run_history=False, footer_links=[], css_paths=CSS, state_session_capacity=20,
                theme=gr.themes.Default(primary_hue="blue", font=plain, font_mono=["ui-monospace", "monospace"]),
            )  # fmt: skip
            yield f"http://{host}:{number}"
        finally:
            page.close(verbose=False)
            torch.set_num_threads(n_threads)


@contextmanager
def _files_in(folder: str) -> Iterator[None]:
    """Let Gradio keep uploads, and Matplotlib, which it imports, its list of fonts in a folder of ours."""
    before = {name: os.environ.get(name) for name in ("GRADIO_TEMP_DIR", "MPLCONFIGDIR")}
    os.environ.update(dict.fromkeys(before, folder))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _vision(gr: Any, page: "gr.Blocks") -> None:
    gr.Markdown(
        "Turn a toy that the network has never seen, and watch what it takes the toy for, what it looked at, and how "
        "the pose it found moves."
    )
    with gr.Row():
        with gr.Column(scale=1, min_width=260):
            category = gr.Dropdown(list(CATEGORIES), value="car", label="Toy", filterable=False)
            numbers = [(f"number {k + 1}", instance) for k, instance in enumerate(vision.INSTANCES)]
            instance = gr.Dropdown(numbers, value=vision.INSTANCES[0], label="Which one", filterable=False)
            azimuth = gr.Slider(0, 350, value=40, step=10, label="Azimuth (degrees around it)")
            elevation = gr.Slider(30, 70, value=40, step=5, label="Elevation (degrees above it)")
            light = gr.Slider(1, toys.N_LIGHTINGS, value=1, step=1, label="Light")
            with gr.Accordion("Your own stereo pair", open=False):
                gr.Markdown(
                    "Two images, left first, or one with both side by side: PNG or JPEG, up to "
                    f"{vision.MAX_BYTES >> 20} MB and {vision.MAX_PIXELS // 1_000_000} million pixels. They become "
                    "grey squares of 96 pixels. The network knows toys on a light ground, and little else."
                )
                uploaded = gr.File(
                    file_count="multiple", file_types=[".png", ".jpg", ".jpeg"], label="Images", elem_id="upload"
                )
        with gr.Column(scale=3, min_width=300):
            shown = gr.HTML(elem_id="vision")
    chosen = [category, instance, azimuth, elevation, light]
    _answer(gr, [page.load, *(c.change for c in chosen), uploaded.clear], shows.toy, chosen, shown, "toy")
    _answer(gr, [uploaded.upload], shows.files, [uploaded], shown, "files")


def _language(gr: Any, page: "gr.Blocks") -> None:
    gr.Markdown("Type a sentence about a film, and watch which words, at which layers, decide what the network hears.")
    text = gr.Textbox(language.EXAMPLES[0], label="Sentence", max_length=language.MAX_CHARACTERS, elem_id="sentence")
    with gr.Row():
        for example in language.EXAMPLES:
            button = gr.Button(example, size="sm", min_width=220)
            button.click(lambda e=example: e, outputs=text, show_progress="hidden", api_visibility="private")
    names = language.judge().names
    which = gr.Dropdown([shows.WINNER, *names], value=shows.WINNER, label="Show what was used by", filterable=False)
    shown = gr.HTML(elem_id="language")
    _answer(gr, [page.load, text.change, which.change], shows.sentence, [text, which], shown, "sentence")


def _algorithm(gr: Any, page: "gr.Blocks") -> None:
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
    _answer(gr, [page.load, *(c.change for c in chosen)], shows.points, chosen, shown, "points")


def _answer(gr: Any, triggers: list[Any], show: Any, inputs: list[Any], shown: Any, name: str) -> None:
    """Show what comes of the inputs whenever one changes; of changes in quick succession the last one counts."""
    gr.on(triggers, show, inputs, shown, show_progress="hidden", trigger_mode="always_last", api_name=name)


def _free(host: str, port: int) -> int:
    """The port, if it can be listened at."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return probe.getsockname()[1]
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"port: expected one to listen at, {host}:{port} cannot be had ({reason}); try --port 0"
        ) from None


def _gradio() -> Any:
    try:
        import gradio
    except ModuleNotFoundError:
        raise UserError("gradio is missing, which the page is made with: pip install 'capsroute[demo]'") from None
    return gradio
