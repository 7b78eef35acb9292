"""Commands that start servers: for programs, and the page."""

import threading
from typing import Annotated

import typer

from .app import WEIGHTS, WeightsName, app, console
from .infer import Device, EncoderName

Host = Annotated[str, typer.Option(help="Address to listen at; by default only this machine.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="Another name that clients may use; repeatable."),
]


@app.command(epilog="Example: capsroute serve treebank --port 8000")
def serve(
    name: WeightsName,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any free one.")] = 8000,
    allow_host: AllowHost = None,
    max_mb: Annotated[int, typer.Option(min=1, max=1024, help="Megabytes that a request may have.")] = 8,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request that waits is refused.")] = 30.0,
    encoder: EncoderName = None,
    device: Device = "cpu",
) -> None:
    """Serve a network over HTTP: POST /predict and /explain, GET /health and /openapi.json.

    Requests that come at the same time are computed together.
    """
    from ..inference import Predictor
    from ..serve.app import make_app
    from ..serve.guard import Limits
    from ..serve.server import format_address, is_loopback, listen, make_server

    limits = Limits(body_bytes=max_mb << 20, buffered_bytes=8 * max_mb << 20, answer_seconds=timeout)
    application = make_app(Predictor(name, encoder=encoder, device=device), host, allow_host or (), limits)
    sock = listen(host, port)
    address = f"http://{format_address(host, sock.getsockname()[1])}"
    console.print(f"{address}  (stop with Ctrl-C)", soft_wrap=True)
    if not is_loopback(host):
        console.print("open to other machines: nobody is asked for a password")
    with sock:
        make_server(application).run(sockets=[sock])  # until SIGINT or SIGTERM, which it raises again


@app.command(epilog="Example: capsroute demo --port 8000 --no-open")
def demo(
    name: Annotated[str | None, typer.Argument(metavar="[RUN]", help=f"Your own network. {WEIGHTS}")] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any free one.")] = 7860,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    allow_host: AllowHost = None,
    device: Device = "cpu",
) -> None:
    """Serve a page that shows what is routed where: toys, sentences, the algorithm itself, or your own network."""
    from ..demo.page import serve_page

    with serve_page(host, port, open_page=open_page, network=name, names=allow_host or (), device=device) as address:
        console.print(f"{address}  (stop with Ctrl-C)", soft_wrap=True)
        threading.Event().wait()
