"""Checks of every request: Host and Origin, limits of size and time; one line in the log for what is refused.

A page of another site can send requests to a server on its visitor's machine. If its name points to 127.0.0.1 (DNS
rebinding), it could even read the answers. The headers Origin and Host give both away.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..formatting import readable

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ALL_INTERFACES = ("0.0.0.0", "::")
DRAINED = 8  # times the limit of a body that are read and dropped, so that its sender reads the answer

log = logging.getLogger("capsroute.serve")


class Limits(NamedTuple):
    """Limits of a server."""

    body_bytes: int = 8 << 20  # of a request
    buffered_bytes: int = 64 << 20  # of the requests that are being read, together
    body_seconds: float = 20.0  # to send a body
    answer_seconds: float = 30.0  # to wait for an answer
    items: int = 64  # inputs of a request
    waiting: int = 512  # inputs of all requests


class RefusedError(HTTPException):
    """Refuse a request with a status and a reason."""


class Guard:
    """Middleware that checks requests and reads their bodies before the application gets them.

    Args:
        app: The application.
        host: Address that the server listens at.
        names: Other names that clients may call it by.
        limits: Limits of size and time.
        media: The media type that each path takes.
        check_body: Called with the path and the size of each body; raises `RefusedError` for one to refuse.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        names: Sequence[str] = (),
        limits: Limits = Limits(),  # noqa: B008, it cannot be changed
        media: Mapping[str, str] | None = None,
        check_body: Callable[[str, int], None] | None = None,
    ):
        self.app, self.limits, self.media, self.check_body = app, limits, media or {}, check_body
        self.names = {name.lower() for name in (host, *names, *(LOOPBACK if host in LOOPBACK else ()))}
        self.any_address = host in ALL_INTERFACES
        self.buffered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        reason, body = "", b""
        try:
            body = await self._read_body(Request(scope, receive), self._check_headers(scope))
            if self.check_body:
                self.check_body(scope["path"], len(body))
            await self.app(scope, _replay(body, receive), send_noting)
        except RefusedError as error:
            reason = error.detail
            await JSONResponse({"detail": reason}, error.status_code)(scope, receive, send_noting)
        finally:
            self.buffered -= len(body)
            if status >= HTTPStatus.BAD_REQUEST:
                words = f"{scope['method']} {scope['path']} from {(scope.get('client') or ['unknown'])[0]}"
                log.warning("%s", readable(f"{status} {words}{': ' if reason else ''}{reason}", 200))

    def is_allowed(self, name: str | None) -> bool:
        """Say whether clients may call the server by a name; no attacker can make an address point elsewhere."""
        if name is None:
            return False
        if self.any_address:
            try:
                return bool(ipaddress.ip_address(name))
            except ValueError:
                return name in self.names or name == "localhost"
        return name in self.names

    def _check_headers(self, scope: Scope) -> RefusedError | None:
        """Return why to refuse a request, if there is a reason."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        if not self.is_allowed(_split(f"//{host}", "hostname")):
            reason = f"Host: expected a name of this server, got {host!r}; allow another with --allow-host"
            return RefusedError(HTTPStatus.MISDIRECTED_REQUEST, reason)
        if origin and _split(origin, "netloc") != host:
            return RefusedError(HTTPStatus.FORBIDDEN, f"Origin: expected http://{host}, got {origin!r}")
        expected, given = self.media.get(scope["path"]), headers.get("content-type", "").partition(";")[0].strip()
        if expected and scope["method"] == "POST" and given.lower() != expected:
            return RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type: expected {expected}, got {given!r}")
        return None

    async def _read_body(self, request: Request, refusal: RefusedError | None) -> bytes:
        """Return the body. That of a request to refuse is read and dropped, or its sender might miss the answer."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > self.limits.body_bytes:
                        reason = f"body: expected at most {self.limits.body_bytes:,} bytes"
                        refusal = refusal or RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
                    elif self.buffered + len(part) > self.limits.buffered_bytes:
                        reason = "too many large requests at once; try again later"
                        refusal = refusal or RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, reason)
                    if not refusal:
                        parts.append(part)
                        self.buffered += len(part)
                    if size > DRAINED * self.limits.body_bytes:
                        break
            if refusal:
                raise refusal
            return b"".join(parts)
        except BaseException as error:
            self.buffered -= sum(map(len, parts))
            if isinstance(error, TimeoutError):
                reason = f"body: expected all of it within {self.limits.body_seconds:g} seconds"
                raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, reason) from None
            if isinstance(error, ClientDisconnect):
                raise RefusedError(HTTPStatus.BAD_REQUEST, "the client left") from None
            raise


def _split(address: str, part: str) -> str | None:
    """Return a part of an address, or none if it has no such form, as the origin `null`."""
    try:
        return getattr(urlsplit(address), part) or None
    except ValueError:
        return None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that gives a body that was read, and then what comes after it."""
    parts = [body]

    async def receive_again() -> Message:
        return {"type": "http.request", "body": parts.pop(), "more_body": False} if parts else await receive()

    return receive_again
