"""A server on this machine that misbehaves as told."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves `files`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges: list[tuple[str, str | None]] = []  # what was asked for
        self.statuses: list[int] = []  # answers to give before any other
        self.knows_ranges = True
        self.most: int | None = None  # bytes in an answer to a range
        self.shift = 0  # answers to ranges begin this much early
        self.cuts: list[int] = []  # bytes of the next answers after which the connection ends
        self.hold: threading.Event | None = None  # answers stop halfway until this is set
        self.headers: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data"

    def handle_error(self, request, client_address) -> None:
        """A client that goes away is what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args) -> None:
        pass

    def do_GET(self) -> None:
        server, name, asked = self.server, self.path.removeprefix("/data/"), self.headers["Range"]
        server.ranges.append((name, asked))
        if server.statuses or name not in server.files:
            self.send_response(server.statuses.pop(0) if server.statuses else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body, status, first = server.files[name], 200, 0
        if asked and server.knows_ranges:
            first = int(asked.removeprefix("bytes=").removesuffix("-")) - server.shift
            status = 206 if first < len(body) else 416
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        if status == 416:
            self.send_header("Content-Range", f"bytes */{len(body)}")
        body = b"" if status == 416 else body[first:][: server.most if status == 206 else None]
        for key, value in {"Content-Length": str(len(body)), **server.headers}.items():
            self.send_header(key, value)
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else len(body)
        if server.hold:
            self.wfile.write(body[: cut // 2])
            server.hold.wait(20)
            self.wfile.write(body[cut // 2 : cut])
        else:
            self.wfile.write(body[:cut])


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        if server.hold:
            server.hold.set()
        server.shutdown()
        thread.join()
