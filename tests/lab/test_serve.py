"""The server answers what the network says, and refuses the rest with a clear status."""

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from capsroute.lab.cli import app as command_line
from capsroute.lab.inference import Predictor
from small_classifiers import CLASSES, draw_image, make_classifier, make_inputs

pytest.importorskip("fastapi", reason="fastapi is missing: pip install 'capsroute[serve]'")
from capsroute.lab.serve import server as serving
from capsroute.lab.serve.app import make_app
from capsroute.lab.serve.guard import Guard, Limits

KINDS = tuple(CLASSES)
LIMITS = Limits(body_bytes=200_000, body_seconds=1.0, items=3)
JSON = {"Content-Type": "application/json"}


class Client:
    """Sends requests to a server of a network."""

    def __init__(self, kind: str, limits: Limits = LIMITS, host: str = "127.0.0.1"):
        self.predictor, self.host = Predictor(make_classifier(kind)), host
        self.sock = serving.listen(host, 0)
        self.port = self.sock.getsockname()[1]
        self.server = serving.make_server(make_app(self.predictor, host, limits=limits))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.sock]})

    def __enter__(self) -> "Client":
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.sock.close()

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Send a request and return the status and the JSON of the answer."""
        connection = HTTPConnection(self.host, self.port, timeout=20)
        try:
            if isinstance(body, dict):
                body, headers = json.dumps(body), JSON | (headers or {})
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def upload(self, path: str, field: str, *files: bytes) -> tuple[int, Any]:
        lines = []
        for k, content in enumerate(files):
            name = f'name="{field}"; filename="{k}.png"'
            lines += [b"--x\r\nContent-Disposition: form-data; " + name.encode() + b"\r\n\r\n" + content + b"\r\n"]
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        return self.send("POST", path, b"".join(lines) + b"--x--\r\n", headers)


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Client]]:
    with Client("images") as images, Client("texts") as texts, Client("arrays") as arrays:
        yield {"images": images, "texts": texts, "arrays": arrays}


def ask(client: Client, path: str, values: list[Any]) -> tuple[int, Any]:
    """Send inputs of the network's kind."""
    one = path == "/explain"
    match client.predictor.kind:
        case "images":
            return client.upload(path, "image" if one else "images", *(Path(value).read_bytes() for value in values))
        case "texts":
            return client.send("POST", path, {"text": values[0]} if one else {"texts": values})
    sets = [value.tolist() for value in values]
    return client.send("POST", path, {"vectors": sets[0]} if one else {"sets": sets})


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_predictors(kind: str, clients: dict[str, Client], tmp_path: Path) -> None:
    client, values = clients[kind], make_inputs(kind, tmp_path, 3)
    status, answer = ask(client, "/predict", values)
    assert status == 200
    for found, expected in zip(answer["predictions"], client.predictor(values), strict=True):
        assert found["label"] == expected.label
        assert list(found["probabilities"].values()) == pytest.approx(list(expected.probabilities.values()), abs=1e-5)
    status, answer = ask(client, "/explain", values[:1])
    assert status == 200
    assert answer["prediction"]["label"] == client.predictor(values[:1])[0].label
    assert "net credit" in answer["caption"]
    assert bool(answer["picture"]) == (kind == "images")
    assert len(answer["places"]) == {"images": 0, "texts": 7, "arrays": 2}[kind]
    status, answer = client.send("GET", "/health")
    assert (status, answer["status"], answer["classes"]) == (200, "ok", CLASSES[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_schema_says_what_is_sent(kind: str, clients: dict[str, Client]) -> None:
    schema = clients[kind].send("GET", "/openapi.json")[1]
    body = schema["paths"]["/predict"]["post"]["requestBody"]["content"]
    media = "multipart/form-data" if kind == "images" else "application/json"
    name = body[media]["schema"]["$ref"].rpartition("/")[2]
    (field,) = schema["components"]["schemas"][name]["properties"].values()
    assert (field["type"], field["minItems"], field["maxItems"]) == ("array", 1, LIMITS.items)
    assert {"200", "413", "415", "422", "503"} <= schema["paths"]["/predict"]["post"]["responses"].keys()
    assert clients[kind].send("GET", "/docs")[0] == 404  # that page would load scripts from another host


GOOD = {"texts": ["a text"]}


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (GOOD, {"Host": "example.org"}, 421, "Host: expected"),
        (GOOD, {"Host": "127.0.0.1.example.org"}, 421, "Host: expected"),
        (GOOD, {"Host": "[::1"}, 421, "Host: expected"),
        (GOOD, {"Origin": "http://example.org"}, 403, "Origin: expected"),
        (GOOD, {"Origin": "null"}, 403, "Origin: expected"),
        (GOOD, {"Content-Type": "text/plain"}, 415, "expected application/json, got 'text/plain'"),
        (GOOD, {"Content-Type": "multipart/form-data; boundary=x"}, 415, "expected application/json"),
        ({"texts": []}, {}, 422, "texts: "),
        ({"texts": ["a"] * 4}, {}, 422, "texts: List should have at most 3 items"),
        ({"texts": [1]}, {}, 422, "texts.0: "),
        ({"texts": ["a"], "path": "/etc/passwd"}, {}, 422, "path: Extra inputs are not permitted"),
        ({"texts": ["a" * 100_001]}, {}, 422, "at most 100000 characters"),
        ({"texts": ["a" * 300_000]}, {}, 413, "body: expected at most 200,000 bytes"),
        (b'{"texts": ["a"', JSON, 422, "JSON decode error"),
        (b'{"texts": ["\xff"]}', JSON, 400, "parsing the body"),
        (b"[" * 190_000, JSON, 400, "parsing the body"),
    ],
)
def test_bad_requests_are_refused(
    body: Any, headers: dict[str, str], status: int, words: str, clients: dict[str, Client]
) -> None:
    found, answer = clients["texts"].send("POST", "/predict", body, headers)
    assert found == status, answer
    assert words in answer["detail"]
    assert clients["texts"].send("POST", "/predict", GOOD)[0] == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST:99"])
def test_own_names_and_origin_are_allowed(host: str, clients: dict[str, Client]) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert clients["texts"].send("POST", "/predict", GOOD, headers)[0] == 200


def test_addresses_are_allowed_where_the_server_listens_everywhere() -> None:
    guard = Guard(lambda *_: None, "0.0.0.0", ["box.lan"])  # pyright: ignore
    assert all(map(guard.is_allowed, ("192.168.1.7", "::1", "localhost", "box.lan")))
    assert not any(map(guard.is_allowed, ("example.org", "192.168.1.7.example.org", None)))


def test_bad_images_and_sets_are_named(clients: dict[str, Client]) -> None:
    good = BytesIO()
    draw_image(0).save(good, "PNG")
    status, answer = clients["images"].upload("/predict", "images", good.getvalue(), b"no image")
    assert (status, answer["detail"][:26]) == (422, "1.png: image: expected an ")
    bomb = BytesIO()
    Image.new("1", (60_000, 1000)).save(bomb, "PNG")
    assert "million pixels" in clients["images"].upload("/explain", "image", bomb.getvalue())[1]["detail"]
    for bad in ("[[1, 2]]", "[[NaN, 1, 2]]", "[[1e300, 1, 2]]", "[[1, 2, 3], [1]]"):
        assert clients["arrays"].send("POST", "/predict", f'{{"sets": [{bad}]}}', JSON)[0] == 422
    assert clients["texts"].send("POST", "/explain", {"text": " "})[0] == 422


def test_no_file_can_be_reached(clients: dict[str, Client]) -> None:
    for path in ("/../../etc/passwd", "/%2e%2e/etc/passwd", "//etc/passwd", "/model/config.json"):
        assert clients["texts"].send("GET", path)[0] == 404
    assert clients["texts"].send("PUT", "/predict", GOOD)[0] == 405


def test_concurrent_answers_are_not_mixed(clients: dict[str, Client]) -> None:
    texts = [f"{k} is the number of this text" for k in range(120)]
    expected = [p.probabilities for p in clients["texts"].predictor(texts)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: clients["texts"].send("POST", "/predict", {"texts": [text]}), texts))
    assert len({json.dumps(p) for p in expected}) == len(texts)
    for (status, answer), text, probabilities in zip(found, texts, expected, strict=True):
        assert status == 200
        assert answer["predictions"][0]["input"] == text
        assert answer["predictions"][0]["probabilities"] == pytest.approx(probabilities, abs=1e-5)


HEADERS = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n"


def test_slow_sockets_are_closed(clients: dict[str, Client], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IDLE_SECONDS", 1.0)
    address = ("127.0.0.1", clients["texts"].port)
    with socket.create_connection(address) as headers, socket.create_connection(address) as body:
        headers.sendall(HEADERS)
        body.sendall(HEADERS + b"\r\n{")
        for sock in (headers, body):
            sock.settimeout(10)
        assert body.recv(100).startswith(b"HTTP/1.1 408 ")
        with suppress(ConnectionResetError):
            assert headers.recv(100) == b""


PAGE = """
import sys
from capsroute.lab.serve import server
server.IDLE_SECONDS = 1.0
from capsroute.lab.demo.page import serve_page
with serve_page(network=sys.argv[1]) as address:
    print(address, flush=True)
    input()
"""


def test_page_refuses_other_sites_and_closes_slow_sockets(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="gradio is missing: pip install 'capsroute[demo]'")
    make_classifier("texts").save_pretrained(tmp_path)
    # in a process of its own, for Gradio leaves event loops open
    command = [sys.executable, "-c", PAGE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None
        host, _, port = page.stdout.readline().strip().removeprefix("http://").partition(":")
        address = host, int(port)
        for name, value, status in (("Host", "example.org", 421), ("Origin", "http://example.org", 403)):
            with closing(HTTPConnection(*address, timeout=20)) as connection:
                connection.request("GET", "/config", headers={name: value})
                assert connection.getresponse().status == status
        with closing(HTTPConnection(*address, timeout=20)) as stream, socket.create_connection(address) as headers:
            stream.request("GET", "/gradio_api/heartbeat/session")
            stream.getresponse()
            headers.settimeout(10)
            headers.sendall(HEADERS)
            with suppress(ConnectionResetError):
                assert headers.recv(100) == b""
            stream.sock.settimeout(2)
            with suppress(TimeoutError):  # still open: a browser reads it for as long as it shows the page
                while True:
                    assert stream.sock.recv(100)
        page.communicate("\n", timeout=30)


def test_waiting_requests_are_refused_in_time(tmp_path: Path) -> None:
    """One long answer at a time: others wait until their limit, and too many are refused at once."""
    with Client("texts", Limits(answer_seconds=0.3, waiting=2)) as client:
        answer, go_on = client.predictor.scores, threading.Event()
        client.predictor.scores = lambda samples: (go_on.wait(10), answer(samples))[1]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: client.send("POST", "/predict", GOOD), range(4)))
        go_on.set()
        assert [status for status, _ in found] == [503] * 4
        reasons = {answer["detail"].partition(";")[0] for _, answer in found}
        assert reasons == {"no answer within 0.3 seconds", "too many inputs are waiting"}
        assert client.send("POST", "/predict", GOOD)[0] == 200


def test_refusals_are_one_line_in_the_log(clients: dict[str, Client], caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("capsroute.serve")
    logger.addHandler(caplog.handler)
    try:
        clients["texts"].send("GET", "/a\x1b[31m".replace("\x1b", "%1b"))
        clients["texts"].send("GET", "/health", headers={"Host": "example.org"})
        clients["texts"].send("GET", "/health")
    finally:
        logger.removeHandler(caplog.handler)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" from ")[0] for line in lines] == ["404 GET /a\ufffd[31m", "421 GET /health"]


def test_ipv6(clients: dict[str, Client]) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    with Client("texts", host="::1") as client:
        assert client.send("GET", "/health")[0] == 200


def test_port_in_use_gets_a_message(clients: dict[str, Client], tmp_path: Path) -> None:
    make_classifier("texts").save_pretrained(tmp_path)
    result = CliRunner().invoke(command_line, ["serve", str(tmp_path), "--port", str(clients["texts"].port)])
    assert result.exit_code == 1
    assert "port: expected one to listen at, 127.0.0.1:" in result.stderr


def test_upload_stays_in_memory(clients: dict[str, Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))  # a file there could not be made
    noise = BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)).save(noise, "PNG")
    assert clients["images"].upload("/predict", "images", noise.getvalue())[0] == 200
