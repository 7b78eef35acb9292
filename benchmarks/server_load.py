"""Load a server on this machine for a bounded number of requests, and check every answer and its memory.

    python benchmarks/server_load.py --requests 1000
    python benchmarks/server_load.py --requests 3000 --slow 50
    python benchmarks/server_load.py --requests 3000 --slow 50 --page

Starts `capsroute serve treebank`, or the page, on a free port of 127.0.0.1. Clients each send one request after the
other: sentences that all differ, whose answers are known, and every tenth time one that must be refused. Slow sockets
send a byte of a request each second. The process stops by itself, at the latest after `--seconds`.
"""

import argparse
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import psutil
import torch

from capsroute.lab.demo import handlers
from capsroute.lab.inference import Predictor
from records import describe_run, write_json

WORDS = (
    "a",
    "fine",
    "film",
    "with",
    "wonderful",
    "cast",
    "the",
    "plot",
    "is",
    "thin",
    "and",
    "dull",
    "it",
    "not",
    "bad",
)
EVERY = 10  # requests to one that must be refused
REFUSED = [  # body and headers, and the status they get
    (b'{"texts": [3]}', {}, 422),
    (b'{"texts":', {}, 422),
    (b'{"texts": ["a"]}', {"Content-Type": "text/plain"}, 415),
    (b'{"texts": ["a"]}', {"Host": "example.org"}, 421),
    (b'{"texts": ["a"]}', {"Origin": "http://example.org"}, 403),
    (b" " * (10 << 20), {}, 413),
]
JSON = {"Content-Type": "application/json"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--page", action="store_true", help="the page instead of serve")
    parser.add_argument("--slow", type=int, default=0, help="slow sockets")
    parser.add_argument("--seconds", type=float, default=300, help="stop after this time")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    draw = random.Random(0)
    texts = [f"{k} " + " ".join(draw.choices(WORDS, k=draw.randint(3, 30))) for k in range(args.requests)]
    if args.page:
        torch.set_num_threads(1)  # as the page does: otherwise the last digit may differ
        expected: list[Any] = [handlers.show_sentence(text, handlers.WINNER) for text in texts]
    else:
        expected = [list(p.probabilities.values()) for p in Predictor("treebank")(texts)]
    words = ["demo", "--no-open"] if args.page else ["serve", "treebank"]
    command = [sys.executable, "-m", "capsroute", *words, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().split()[0].rpartition(":")[2])
        result = load(port, psutil.Process(server.pid), texts, expected, args)
    finally:
        server.terminate()
        server.wait(30)
    print(json.dumps(result, indent=2))
    if args.out:
        write_json(describe_run("cpu", 0, None) | result, args.out)
    if result["wrong"] or result["lost"]:
        sys.exit(1)


def load(port: int, process: psutil.Process, texts: list[str], expected: list[Any], args: argparse.Namespace) -> dict:
    """Send all requests and return what came of them."""
    begin, counts, memory, lock, done = time.monotonic(), Counter(), [], threading.Lock(), threading.Event()
    slow = [threading.Thread(target=send_slowly, args=(port, done, counts), daemon=True) for _ in range(args.slow)]
    for thread in slow:
        thread.start()

    def client(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        for k in range(number, len(texts), args.clients):
            if time.monotonic() - begin > args.seconds:
                return
            try:
                if k % EVERY == EVERY - 1:
                    kind = ask_refused(connection, k // EVERY, args.page)
                else:
                    kind = compare((ask_page if args.page else ask)(connection, texts[k], number), expected[k])
            except (OSError, HTTPException) as error:
                kind = f"lost: {type(error).__name__}"
                connection.close()
            with lock:
                counts[kind] += 1
                if sum(v for name, v in counts.items() if not name.startswith("slow")) % 100 == 0:
                    memory.append(process.memory_info().rss >> 20)

    with ThreadPoolExecutor(args.clients) as pool:
        list(pool.map(client, range(args.clients)))
    seconds = time.monotonic() - begin
    done.set()
    answered = counts["right"] + counts["refused"]
    return {
        "server": "page" if args.page else "serve",
        "requests": len(texts), "clients": args.clients, "slow sockets": args.slow,
        "counts": dict(counts), "wrong": counts["wrong"], "lost": len(texts) - answered - counts["wrong"],
        "seconds": round(seconds, 1), "requests per second": round(answered / seconds, 1),
        "memory, MiB, each 100 requests": memory,
    }  # fmt: skip


def send(connection: HTTPConnection, path: str, body: Any, headers: dict[str, str] = JSON) -> tuple[int, bytes]:
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    return response.status, response.read()


def ask(connection: HTTPConnection, text: str, _: int) -> tuple[int, Any]:
    """Return the status and the probabilities that `serve` answers for a text."""
    status, body = send(connection, "/predict", json.dumps({"texts": [text]}))
    if status != 200:
        return status, None
    (found,) = json.loads(body)["predictions"]
    return status, list(found["probabilities"].values()) if found["input"] == text else None


def ask_page(connection: HTTPConnection, text: str, client: int) -> tuple[int, Any]:
    """Return the status and the HTML that the page answers for a text; each client has a session, as browsers do."""
    question = {"data": [text, handlers.WINNER], "session_hash": f"client-{client}"}
    status, body = send(connection, "/gradio_api/call/sentence", json.dumps(question))
    if status != 200:
        return status, None
    connection.request("GET", f"/gradio_api/call/sentence/{json.loads(body)['event_id']}")
    response = connection.getresponse()
    *_, last = response.read().decode().strip().split("\n\n")
    state, answer = last.split("\n")
    return response.status, json.loads(answer.removeprefix("data: "))[0] if state == "event: complete" else None


def ask_refused(connection: HTTPConnection, k: int, page: bool) -> str:
    """Send a request that must be refused."""
    refused = [row for row in REFUSED if not page or row[2] in (403, 413, 421)]
    body, headers, expected = refused[k % len(refused)]
    status, _ = send(connection, "/gradio_api/call/sentence" if page else "/predict", body, JSON | headers)
    return "refused" if status == expected else "wrong"


def compare(answer: tuple[int, Any], expected: Any) -> str:
    """Say whether an answer is the one for this text."""
    status, found = answer
    if status != 200:
        return f"lost: {status}"
    if isinstance(expected, str):
        return "right" if found == expected else "wrong"
    close = found and all(abs(a - b) < 1e-4 for a, b in zip(found, expected, strict=True))
    return "right" if close else "wrong"


def send_slowly(port: int, done: threading.Event, counts: Counter) -> None:
    """Send bytes of headers or of a body, one each second, again and again; the server has to close each socket."""
    request = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 500\r\n"
    while not done.is_set():
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
            opened = time.monotonic()
            if random.random() < 0.5:
                sock.sendall(request + b"\r\n")
            try:
                while not done.wait(1):
                    sock.sendall(b"X")
                    sock.setblocking(False)
                    try:
                        if not sock.recv(1000):
                            break
                    except BlockingIOError:
                        pass
                    sock.setblocking(True)
            except OSError:
                pass
            if not done.is_set():
                counts[f"slow sockets closed after about {10 * round((time.monotonic() - opened) / 10)} s"] += 1


if __name__ == "__main__":
    main()
