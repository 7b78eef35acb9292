"""Load a server on this machine for a bounded number of requests, and check every answer and its memory.

    python benchmarks/server_load.py --requests 1000
    python benchmarks/server_load.py --requests 3000 --slow 50

Starts `capsroute serve treebank` on a free port of 127.0.0.1. Clients each send one request after the other: sentences
that all differ, whose answers are known, and every tenth time one that must be refused. Slow sockets send a byte of a
request each second. The process stops by itself, at the latest after `--seconds`.
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
from http.client import HTTPConnection
from pathlib import Path

import psutil

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
    (b" " * (9 << 20), {}, 413),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--slow", type=int, default=0, help="slow sockets")
    parser.add_argument("--seconds", type=float, default=300, help="stop after this time")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    draw = random.Random(0)
    texts = [f"{k} " + " ".join(draw.choices(WORDS, k=draw.randint(3, 30))) for k in range(args.requests)]
    expected = [list(p.probabilities.values()) for p in Predictor("treebank")(texts)]
    command = [sys.executable, "-m", "capsroute", "serve", "treebank", "--port", "0"]
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


def load(
    port: int, process: psutil.Process, texts: list[str], expected: list[list[float]], args: argparse.Namespace
) -> dict:
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
                kind = ask(connection, texts[k], expected[k], k)
            except OSError as error:
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
        "requests": len(texts), "clients": args.clients, "slow sockets": args.slow,
        "counts": dict(counts), "wrong": counts["wrong"], "lost": len(texts) - answered - counts["wrong"],
        "seconds": round(seconds, 1), "requests per second": round(answered / seconds, 1),
        "memory, MiB, each 100 requests": memory,
    }  # fmt: skip


def ask(connection: HTTPConnection, text: str, expected: list[float], k: int) -> str:
    """Send a request and return whether its answer is right, wrong or a refusal that was expected."""
    if k % EVERY == EVERY - 1:
        body, headers, status = REFUSED[k // EVERY % len(REFUSED)]
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"} | headers)
        response = connection.getresponse()
        response.read()
        return "refused" if response.status == status else "wrong"
    connection.request("POST", "/predict", json.dumps({"texts": [text]}), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        return f"lost: {response.status}"
    (found,) = answer["predictions"]
    close = [abs(a - b) < 1e-4 for a, b in zip(found["probabilities"].values(), expected, strict=True)]
    return "right" if all(close) and found["input"] == text else "wrong"


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
