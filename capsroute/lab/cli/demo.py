"""The command that serves the page."""

import threading
from typing import Annotated

import typer

from .app import app, console


@app.command(epilog="Example: capsroute demo --port 8000 --no-open")
def demo(
    host: Annotated[str, typer.Option(help="Address to listen on; by default only this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")] = 7860,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Serve a page that shows what is routed where: toys, sentences, and the algorithm itself."""
    from ..demo.page import serve_page

    with serve_page(host, port, open_page=open_page) as address:
        console.print(f"{address}  (stop with Ctrl-C)")
        threading.Event().wait()
