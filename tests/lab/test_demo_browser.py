"""The page in a real browser and under load, started as a user does, with its temporary files in a known place."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from capsroute.lab.cli import app
from capsroute.lab.data import toys
from capsroute.lab.data.pairs import CATEGORIES
from capsroute.lab.demo import algorithm, handlers, vision
from conftest import ROOT

pytest.importorskip("gradio", reason="gradio is missing: pip install 'capsroute[demo]'")
pytest.importorskip("playwright", reason="playwright is missing: pip install playwright")
CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip(f"no {CHROMIUM}", allow_module_level=True)

pytestmark = pytest.mark.slow
SCREENS = ROOT / "runs" / "screens"
SHOWN = "name => document.querySelector(`#${name} .shown, #${name} .message`).outerHTML"
TABS = ("Vision", "Language", "Algorithm")
HANDLERS = {"/toy": handlers.show_toy, "/sentence": handlers.show_sentence, "/points": handlers.show_points}


class Server(NamedTuple):
    address: str
    process: subprocess.Popen
    home: Path  # its working folder
    temporary: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`capsroute demo`, which must leave nothing behind."""
    home, temporary = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("temporary")
    command = [sys.executable, "-m", "capsroute", "demo", "--port", "0", "--no-open"]
    environment = os.environ | {"TMPDIR": str(temporary), "HOME": str(home), "PYTHONPATH": str(ROOT)}
    # a background process may ignore Ctrl-C, and its children inherit that
    restore_interrupt = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=home, env=environment, preexec_fn=restore_interrupt
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split(" ")[0].strip()
        assert address.startswith("http://127.0.0.1:")
        yield Server(address, process, home, temporary)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130  # after Ctrl-C
    assert not list(home.rglob("*"))
    assert not list(temporary.rglob("*"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Any]:
    """Opens the page; at the end nothing may have complained, or have been asked of another machine."""
    wrong, pages = [], []

    def check(request: Any) -> None:
        if not request.url.startswith((server.address, "data:", "blob:")):
            wrong.append(f"asked for {request.url}")

    def opened(theme: str = "light", width: int = 1280) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("request", check)
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{server.address}/?__theme={theme}")
        page.wait_for_selector("#vision .shown", timeout=60_000)
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert not wrong


def content(page: Any, tab: str) -> str:
    """What a tab shows, without what Gradio wraps it in, which changes by itself."""
    page.wait_for_selector(
        f"#{tab.lower()} :is(.shown, .message)", state="attached"
    )  # the first answer may be on its way
    return page.evaluate(SHOWN, tab.lower())


def changed(page: Any, tab: str, before: str) -> str:
    """What a tab shows once that is something new."""
    page.wait_for_function(f"([name, before]) => ({SHOWN})(name) !== before", arg=[tab.lower(), before])
    return content(page, tab)


def move(page: Any, label: str, key: str = "ArrowRight") -> None:
    page.get_by_role("slider", name=re.compile(re.escape(label))).press(key)


def choose(page: Any, label: str, option: str) -> None:
    page.get_by_label(label, exact=True).click()
    page.get_by_role("option", name=option, exact=True).click()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_tabs_fit_width_and_theme(visit: Any, theme: str, width: int) -> None:
    page = visit(theme, width)
    SCREENS.mkdir(parents=True, exist_ok=True)
    for tab in TABS:
        page.get_by_role("tab", name=tab).click()
        page.wait_for_selector(f"#{tab.lower()} .shown", state="visible")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=SCREENS / f"{tab.lower()}-{theme}-{width}.png", full_page=True)
        with Image.open(SCREENS / f"{tab.lower()}-{theme}-{width}.png") as picture:
            paper = int(np.asarray(picture.convert("L"))[2, 2])
        ink = page.locator(f"#{tab.lower()} h3").first.evaluate("element => getComputedStyle(element).color")
        bright = sum(map(float, re.findall(r"[\d.]+", ink)[:3])) / 3
        assert (paper < 60 and bright > 180) if theme == "dark" else (paper > 200 and bright < 80)


def test_sliders_turn_the_toy(visit: Any) -> None:
    page = visit()
    shown = content(page, "Vision")
    for label in ("Azimuth", "Elevation", "Light"):
        move(page, label)
        before, shown = shown, changed(page, "Vision", shown)
        pictures, places, poses = (
            [re.findall(pattern, html, re.DOTALL) for html in (before, shown)]
            for pattern in (r'src="(data:[^"]+)"', r'class="here" cx="[\d.]+" cy="[\d.]+"', r'class="pose">.*?</table>')
        )
        assert all(old != new for old, new in zip(*pictures, strict=True) if len(old) > 2000)
        assert pictures[0][:3] != pictures[1][:3]
        assert len(places[1]) == len(poses[1]) == 1
        assert places[0] != places[1]
        assert poses[0] != poses[1]
    choose(page, "Toy", "airplane")
    shown = changed(page, "Vision", shown)
    choose(page, "Which one", "number 2")
    assert "Pose of the airplane capsule" in changed(page, "Vision", shown)


def test_uploads_are_recognised_or_refused(visit: Any, tmp_path: Path) -> None:
    views = toys.render("truck", 1, 40, 30, 0)[0]
    good = [tmp_path / "left.png", tmp_path / "right.png"]
    for path, view in zip(good, views, strict=True):
        Image.fromarray(view.numpy()).save(path)
    bad, large = tmp_path / "bad.png", tmp_path / "large.png"
    bad.write_bytes(b"no image at all")
    large.write_bytes(bytes(vision.MAX_BYTES + 1))
    page = visit()
    page.get_by_text("Your own image").click()
    upload = page.locator("#upload input[type=file]")
    shown = content(page, "Vision")
    upload.set_input_files(bad)
    shown = changed(page, "Vision", shown)
    assert "expected an image (PNG, JPEG)" in shown
    page.locator("#upload").get_by_label("Clear").click()
    shown = changed(page, "Vision", shown)
    page.locator("#upload input[type=file]").set_input_files(good)
    shown = changed(page, "Vision", shown)
    assert "Left view of your image" in shown
    page.locator("#upload").get_by_label("Clear").click()
    shown = changed(page, "Vision", shown)
    assert "Left view of car" in shown
    page.locator("#upload input[type=file]").set_input_files(large)
    page.get_by_text(re.compile("exceed|too large|maximum", re.IGNORECASE)).first.wait_for()


def test_sentences_are_classified_and_escaped(visit: Any) -> None:
    page = visit()
    page.get_by_role("tab", name="Language").click()
    shown = content(page, "Language")
    page.get_by_role("button", name="it is not a bad film").click()
    shown = changed(page, "Language", shown)
    page.locator("#sentence textarea, #sentence input").first.fill("<img src=x onerror=alert(1)> dull")
    shown = changed(page, "Language", shown)
    assert "onerror" in shown
    assert page.locator("#language img").count() == 0
    other = "very negative" if "score of “very positive”" in shown else "very positive"
    choose(page, "Show what was used by", other)
    assert f"score of “{other}”" in changed(page, "Language", shown)


def test_sliders_move_the_points(visit: Any) -> None:
    page = visit()
    page.get_by_role("tab", name="Algorithm").click()
    shown = content(page, "Algorithm")
    for label in ("Show iteration", "Seed", "beta_use", "beta_ign", "n_iters"):
        move(page, label)
        shown = changed(page, "Algorithm", shown)
    assert "Iteration 2 of 6" in shown
    choose(page, "Example", "Noise")
    assert re.findall(r"<b>[^<]+", shown) != re.findall(r"<b>[^<]+", changed(page, "Algorithm", shown))


def requests(kinds: list[str]) -> list[tuple[str, tuple]]:
    """What visitors might ask, always the same, no two alike."""
    draw = random.Random(0)
    lights = range(1, toys.N_LIGHTINGS + 1)
    views = draw.sample([(a, e, n) for a in vision.AZIMUTHS for e in vision.ELEVATIONS for n in lights], len(kinds))
    words = (*handlers.EXAMPLES[1].split(), *handlers.EXAMPLES[3].split())
    found: list[tuple[str, tuple]] = []
    for k, kind in enumerate(kinds):
        if kind == "/toy":
            found.append((kind, (draw.choice(CATEGORIES), draw.choice(vision.INSTANCES), *views[k])))
        elif kind == "/sentence":
            found.append((kind, (f"{k} {' '.join(draw.choices(words, k=12))}", handlers.WINNER)))
        else:
            found.append((kind, (draw.choice(list(algorithm.GROUPS)), k % 100, 5, 0.2, round(0.01 * (k // 100), 2), 3)))
    return found


def ask(address: str, session: str, name: str, arguments: tuple) -> str:
    """One request over plain HTTP: Gradio's own client spends more on asking than the page on answering."""
    connection = HTTPConnection(address.removeprefix("http://"), timeout=60)
    with closing(connection):
        body = json.dumps({"data": arguments, "session_hash": session})
        connection.request("POST", f"/gradio_api/call{name}", body, {"Content-Type": "application/json"})
        event = json.load(connection.getresponse())["event_id"]
        connection.request("GET", f"/gradio_api/call{name}/{event}")
        *_, last = connection.getresponse().read().decode().strip().split("\n\n")  # after signs of life
    state, answer = last.split("\n")
    assert state == "event: complete"
    return json.loads(answer.removeprefix("data: "))[0]


def answers(address: str, asked: list[tuple[str, tuple]], n_visitors: int) -> list[str]:
    """What visitors get who are all there at once and each ask one thing after the other."""

    def visitor(v: int) -> list[str]:
        return [ask(address, f"visitor-{v}", *one) for one in asked[v::n_visitors]]

    with ThreadPoolExecutor(n_visitors) as pool:
        found = list(pool.map(visitor, range(n_visitors)))
    return [found[k % n_visitors][k // n_visitors] for k in range(len(asked))]


def test_concurrent_answers_match_handlers(server: Server) -> None:
    asked = requests(["/toy", "/sentence", "/points", "/sentence", "/points"] * 5)
    found = answers(server.address, asked, 8)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the server does: otherwise the last digit may differ
    try:
        assert found == [HANDLERS[name](*arguments) for name, arguments in asked]
    finally:
        torch.set_num_threads(n_threads)
    assert len(set(found)) == len(found)


def test_memory_does_not_grow(server: Server) -> None:
    """A leak adds to private memory in every hundred requests; caches and allocators fill up and then stay as they are.

    An allocator adds up to a tenth at once when two large requests first meet, so no single round can show a leak.
    """
    psutil = pytest.importorskip("psutil", reason="psutil is missing: pip install psutil")
    asked = requests(["/toy", "/points", *["/sentence", "/points"] * 9] * 30)  # mostly what is answered quickly
    memory = []
    for first in range(0, len(asked), 100):
        found = answers(server.address, asked[first : first + 100], 4)
        assert all(answer.startswith('<div class="shown">') for answer in found)
        memory.append(psutil.Process(server.process.pid).memory_full_info().uss)
        if len(memory) > 1 and memory[-1] < 1.01 * memory[-2]:
            return
    pytest.fail(f"grew in each of {len(memory) - 1} rounds, bytes: {memory}")


def test_requests_of_other_sites_are_refused(server: Server) -> None:
    def status(path: str, body: bytes | None = None, **headers: str) -> int:
        with closing(HTTPConnection(server.address.removeprefix("http://"), timeout=60)) as connection:
            connection.request("POST" if body else "GET", path, body, headers)
            return connection.getresponse().status

    def upload(content: bytes, **headers: str) -> int:
        body = (
            b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
            + content
            + b"\r\n--x--\r\n"
        )
        return status("/gradio_api/upload", body, **{"Content-Type": "multipart/form-data; boundary=x"}, **headers)

    assert (status("/"), status("/", Host="example.org")) == (200, 421)
    assert (upload(b"a"), upload(b"a", Origin="http://example.org")) == (200, 403)
    assert upload(bytes(3 * vision.MAX_BYTES)) == 413
    large = [upload(bytes([k]) * vision.MAX_BYTES) for k in range(20)]  # together more than the page keeps
    assert large[0] == 200
    assert large[-1] == 413


def test_port_in_use_gets_a_message(server: Server) -> None:
    result = CliRunner().invoke(app, ["demo", "--no-open", "--port", server.address.rsplit(":", 1)[1]])
    assert result.exit_code == 1
    assert re.search(r"port: expected one to listen at.*in use.*--port 0", result.stderr)
