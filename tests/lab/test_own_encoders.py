"""Texts and images read by encoders and backbones of others: by folder, and by name from a hub on this machine."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

import capsroute
from capsroute.lab.training.experiments import complete_config, make_task
from own_data import draw_shapes, write_letters
from test_encoders import save
from test_own_backbones import save_vit
from test_own_training import SHORT, run

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Answers as a hub does, with the repositories `owner/name` below a folder, at one commit."""

    def __init__(self, *args: Any, folder: Path, asked: list[str]):
        self.folder, self.asked = folder, asked
        super().__init__(*args)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        _, owner, name, verb, *rest = [*self.path.partition("?")[0].replace("/api/models", "").split("/"), *4 * [""]]
        files = {path.name: path.read_bytes() for path in sorted((self.folder / owner / name).glob("*"))}
        body, headers = b"", {}
        if verb == "resolve" and rest[1] in files:
            body, headers = files[rest[1]], {"X-Repo-Commit": COMMIT, "ETag": f'"{rest[1]}"'}
        elif verb == "tree":
            entries = [{"type": "file", "path": path, "size": len(body), "oid": "0"} for path, body in files.items()]
            body = json.dumps([] if rest[1] else entries).encode()
        elif self.path.startswith("/api/models/"):
            facts = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]}
            body = json.dumps(facts).encode()
        else:
            headers = {"X-Error-Code": "EntryNotFound"}
        self.send_response(404 if "X-Error-Code" in headers else 200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tiny text encoder and a tiny vision model in it."""
    folder = tmp_path_factory.mktemp("models")
    save(folder / "we" / "words", "bert")
    save_vit(folder / "we" / "pixels")
    return folder


@pytest.fixture
def hub(models: Path, tmp_path: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield the environment in which programs ask a local server for models, and the paths they asked for."""
    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, folder=models, asked=asked)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        names = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "hub")}
        unset = {"http_proxy", "https_proxy", "all_proxy", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}
        kept = {name: value for name, value in os.environ.items() if name not in unset and name.lower() not in unset}
        yield kept | names | {"CAPSROUTE_DATA": str(tmp_path / "data"), "NO_PROXY": "127.0.0.1"}, asked
        server.shutdown()


def call(environment: dict[str, str], folder: Path, *words: object) -> str:
    """Run a command in a folder, and return what it prints."""
    command = [sys.executable, "-m", "capsroute", *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["texts", "images"])
def test_models_by_name_come_from_the_hub(
    kind: str, models: Path, hub: tuple[dict[str, str], list[str]], tmp_path: Path
) -> None:
    """The trained folder names model and commit, works where both were not downloaded before, and loads from a hub."""
    environment, asked = hub
    if kind == "texts":
        data, option, item = write_letters(tmp_path / "mail.csv", 4), ("--encoder", "we/words"), "where is the parcel?"
    else:
        data = draw_shapes(tmp_path / "shapes", 4, size=16)
        option, item = ("--backbone", "we/pixels"), data / "circle" / "000.png"
    call(environment, tmp_path, "train", kind, data, *option, *SHORT, "--set", "n_parts=4", "--out", "run")
    assert any("model.safetensors" in path for path in asked)
    preprocessing = capsroute.load(tmp_path / "run").config["preprocessing"]
    assert option[1] in preprocessing.values()
    assert preprocessing["revision"] == COMMIT
    moved = shutil.copytree(tmp_path / "run" / "model", tmp_path / "elsewhere" / "model")
    shutil.copytree(moved, models / "we" / f"trained-{kind}")  # as if it had been uploaded
    program = f"from capsroute.nets import Classifier; print(Classifier.from_pretrained('we/trained-{kind}').classes)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(capsroute.load(moved).classes)
    asked.clear()
    environment["HF_HOME"] = str(tmp_path / "other machine")
    answer = json.loads(call(environment, moved.parent, "predict", "model", item, "--json"))
    assert abs(sum(answer["probabilities"].values()) - 1) < 1e-5
    assert any(COMMIT in path for path in asked if "/resolve/" in path)


def test_texts_read_by_an_encoder(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "data"))
    data, encoder = write_letters(tmp_path / "mail.csv", 6), shutil.copytree(models / "we" / "words", tmp_path / "enc")
    small = ("--set", "n_parts=4", "--report")
    run("train", "texts", data, "--encoder", encoder, *SHORT, *small, "--out", tmp_path / "run")
    assert json.loads(run("eval", tmp_path / "run", data, "--json").stdout)["total"] == 24
    run("explain", tmp_path / "run", "I love this", "-o", tmp_path / "why.html")
    run("export", tmp_path / "run", "--pt2", "-o", tmp_path / "x.pt2")
    shutil.move(encoder, tmp_path / "moved")
    moved = run("predict", tmp_path / "run" / "model", "I love this", "--encoder", tmp_path / "moved", "--json")
    assert json.loads(moved.stdout)["label"]


def test_texts_read_at_one_depth(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "data"))
    data, words = write_letters(tmp_path / "mail.csv", 6), ("--encoder", models / "we" / "words", *SHORT)
    run("train", "texts", data, *words, "--set", "depths=1", "--out", tmp_path / "run")
    saved = json.loads((tmp_path / "run/model/config.json").read_text())
    assert saved["preprocessing"]["depths"] == [1]
    assert saved["trunk"]["n_kinds"] == 1
    assert json.loads(run("predict", tmp_path / "run", "I love this", "--json").stdout)["label"]
    for wrong in (["encoder=x", "depths=one"], ["depths=1"]):
        with pytest.raises(ValueError, match="depths: expected n"):
            complete_config("texts", [f"data={data}", *wrong])


def test_factors_of_features_are_those_of_all_tokens(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "data"))
    data = write_letters(tmp_path / "mail.csv", 4)
    settings = [f"data={data}", f"encoder={models / 'we' / 'words'}"]
    source, plain = (
        make_task(complete_config("texts", [*settings, *more])).source("train", torch.device("cpu"))
        for more in (["noise=0.5"], ["noise=0"])
    )
    assert source is not None
    assert plain is not None
    rows = torch.arange(3)
    (states, mask), (same, _) = plain.batch(rows), plain.augmented_batch(rows, torch.rand(3, 0))
    assert torch.equal(states, same)
    changed, kept = source.augmented_batch(rows, torch.full((3, 1), 0.4))
    again, _ = source.augmented_batch(rows, torch.full((3, 1), 0.4))
    assert torch.equal(changed, again)
    assert torch.equal(kept, mask)
    factors = changed / states  # [b, depth, n, d]
    torch.testing.assert_close(factors[:, :, 1], factors[:, :, 0], rtol=1e-3, atol=1e-3)
    assert 0.3 < float((factors[:, :, 0] - 1).std()) < 0.7
