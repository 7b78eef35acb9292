"""A local HTTP server with faults that tests can switch on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Server(ThreadingHTTPServer):
    """Serves `files`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []  # names asked for
        self.statuses: list[int] = []  # of the next answers, which have no body
        self.cuts: list[int] = []  # bytes after which the connection of the next answers ends
        self.hold: threading.Event | None = None  # answers stop halfway until it is set
        self.headers: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data"

    def handle_error(self, request, client_address) -> None:
        """Ignore clients that go away."""


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args) -> None:
        pass

    def do_GET(self) -> None:
        server, name = self.server, self.path.removeprefix("/data/")
        server.requests.append(name)
        if server.statuses or name not in server.files:
            self.send_response(server.statuses.pop(0) if server.statuses else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = server.files[name]
        self.send_response(200)
        for key, value in {"Content-Length": str(len(body)), **server.headers}.items():
            self.send_header(key, value)
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else len(body)
        self.wfile.write(body[: cut // 2])
        if server.hold:
            server.hold.wait(20)
        self.wfile.write(body[cut // 2 : cut])


@contextmanager
def serve(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> Iterator[Server]:
    """Run a server in a thread, reached without a proxy."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    with Server() as server:
        server.files = dict(files)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        if server.hold:
            server.hold.set()
        server.shutdown()
        thread.join()
