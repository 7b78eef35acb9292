"""Listening for HTTP, with sockets that may not be slow for long."""

import asyncio
import ipaddress
import logging
import math
import socket
import sys
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import UserError

IDLE_SECONDS = 10.0  # between two requests, and to send the headers of one
REQUEST_SECONDS = 120.0  # for a request and its answer, more than all other limits together
CHECK_SECONDS = 1.0
SHUTDOWN_SECONDS = 3


class TimedProtocol(H11Protocol):
    """Closes connections whose clients send or read too slowly."""

    request_seconds = REQUEST_SECONDS

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = self.loop.time()
        self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def _check(self) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if self.loop.time() - self._since > (IDLE_SECONDS if is_idle else self.request_seconds):
            self.transport.abort()
        else:
            self._timer: asyncio.TimerHandle = self.loop.call_later(CHECK_SECONDS, self._check)


class PageProtocol(TimedProtocol):
    """The protocol of the page, which keeps answers open: a browser reads one stream for as long as it shows it."""

    request_seconds = math.inf


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address, with any free port for 0."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=256)
    except (OSError, OverflowError) as error:
        place = f"{format_address(host, port)} cannot be had ({getattr(error, 'strerror', None) or error})"
        raise UserError(f"port: expected one to listen at, {place}; try --port 0") from None


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_server(app: Any) -> uvicorn.Server:
    """Return a server that logs one line for each refused request, and no others."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for name in ("capsroute.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        proxy_headers=False,
    )
    return uvicorn.Server(config)
