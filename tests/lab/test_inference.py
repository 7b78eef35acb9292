"""Predictions of classifiers of one's own data, from Python and on the command line."""

import csv
import json
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from capsroute.lab.cli import app
from capsroute.lab.data.pairs import CATEGORIES
from capsroute.lab.errors import UserError
from capsroute.lab.inference import Predictor
from capsroute.lab.preprocessing import MAX_PIXELS, make_preprocessing
from capsroute.nets import Classifier
from conftest import ROOT
from small_classifiers import CLASSES, draw_image, make_classifier, make_inputs

KINDS = tuple(CLASSES)
runner = CliRunner()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("networks")
    for kind in KINDS:
        make_classifier(kind).save_pretrained(home / kind)
    return home


def run(*words: object, stdin: bytes = b"", code: int = 0) -> str:
    result = runner.invoke(app, list(map(str, words)), input=stdin)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.stdout if code == 0 else result.output


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_the_networks(kind: str, home: Path, tmp_path: Path) -> None:
    network, values = make_classifier(kind), make_inputs(kind, tmp_path, 5)
    preprocessing = make_preprocessing(network.config["preprocessing"])
    predictor = Predictor(home / kind)
    predictions = predictor(values)
    for value, prediction in zip(values, predictions, strict=True):
        inputs, mask = preprocessing.collate([preprocessing.prepare(value)])
        with torch.no_grad():
            expected = (network(inputs) if mask is None else network(inputs, mask)).a[0].softmax(-1).tolist()
        assert list(prediction.probabilities) == CLASSES[kind]
        assert list(prediction.probabilities.values()) == pytest.approx(expected, abs=1e-5)
        assert prediction.label == CLASSES[kind][int(np.argmax(expected))]
    assert len({prediction.probability for prediction in predictions}) == len(values)


def test_shipped_network_takes_one_image_for_both_eyes(tmp_path: Path) -> None:
    draw_image(0).save(tmp_path / "a.png")
    (prediction,) = Predictor("toys")([tmp_path / "a.png"])
    assert tuple(prediction.probabilities) == CATEGORIES


def test_stereo_pairs_are_one_input(home: Path, tmp_path: Path) -> None:
    """Files of a pair may be given in any order; a network that takes single images finds no pairs."""
    (tmp_path / "below").mkdir()
    left, right, alone, other = (
        tmp_path / name for name in ("a-left.png", "a-right.png", "b_left.png", "below/a_RIGHT.png")
    )
    for k, file in enumerate((left, right, alone, other)):
        draw_image(k).save(file)
    pair, *singles = Predictor("toys")([[left, right], alone, other])
    for words in ([tmp_path], [right, alone, other, left]):
        found = [json.loads(line) for line in run("predict", "toys", "--json", *words).splitlines()]
        by_name = {answer["input"]: answer["probabilities"] for answer in found}
        assert by_name[f"{left}, {right}"] == pytest.approx(pair.probabilities, abs=1e-5)
        for single in singles:
            assert by_name.pop(single.input) == pytest.approx(single.probabilities, abs=1e-5)
        assert len(by_name) == 1
    one_eye = run("predict", "toys", "--json", left, left).splitlines()
    assert [json.loads(line)["input"] for line in one_eye] == [str(left)] * 2
    assert json.loads(one_eye[0])["probabilities"] != pytest.approx(pair.probabilities, abs=1e-5)
    assert len(run("predict", "toys", "-", stdin=f"{left}\n{right}\n".encode()).splitlines()) == 2
    assert len(run("predict", "toys", "-", stdin=f"{tmp_path}\n".encode()).splitlines()) == 3
    assert len(run("predict", home / "images", left, right).splitlines()) == 2


def test_inputs_that_cannot_be_read_have_errors(home: Path, tmp_path: Path) -> None:
    good, bad, cut, huge = (tmp_path / f"{name}.png" for name in ("good", "bad", "cut", "huge"))
    draw_image(0).save(good)
    bad.write_text("no image")
    cut.write_bytes(good.read_bytes()[:300])
    Image.new("1", (MAX_PIXELS // 1000 + 1, 1000)).save(huge)
    (tmp_path / "script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    predictions = Predictor(home / "images")(
        [good, bad, cut, huge, tmp_path / "gone.png", tmp_path / "script.png", BytesIO(b"x")]
    )
    assert [bool(p.error) for p in predictions] == [False, *[True] * 6]
    assert "million pixels" in predictions[3].error
    for prediction in predictions[1:6]:
        assert prediction.error.startswith(prediction.input)
        assert not prediction.label
    sets = Predictor(home / "arrays")([np.zeros((2, 3)), np.zeros((0, 3)), np.zeros((2, 4)), np.full((2, 3), np.nan)])
    assert [bool(p.error) for p in sets] == [False, True, True, True]
    assert Predictor(home / "texts")([3])[0].error == "text: expected text, got int"


def test_weights_that_are_not_finite_are_refused(home: Path) -> None:
    network = make_classifier("texts")
    with torch.no_grad():
        network.head.attend.weight[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"expected finite weights, head\.attend\.weight has NaN"):
        Predictor(network)
    with torch.no_grad():
        network.head.attend.weight[0, 0] = 0
        network.trunk.vectors.weight[1:] = 3e38  # finite, and too large
    (prediction,) = Predictor(network)(["a text"])
    assert (prediction.label, prediction.error) == ("", "the network's scores are not finite") or prediction.label


def test_network_without_preprocessing_is_refused() -> None:
    network = Classifier("arrays", ["a", "b"], {"name": "vectors", "d_inp": 3})
    with pytest.raises(UserError, match="does not say how its inputs are made"):
        Predictor(network)


def test_command_reads_files_folders_and_standard_input(home: Path, tmp_path: Path) -> None:
    files = make_inputs("images", tmp_path, 3)
    lines = run("predict", home / "images", *files).splitlines()
    assert run("predict", home / "images", tmp_path).splitlines() == lines
    assert run("predict", home / "images", "-", stdin="\n".join(files).encode()).splitlines() == lines
    for line, file in zip(lines, files, strict=True):
        assert line.split()[0] in CLASSES["images"]
        assert line.endswith(file)
    (tmp_path / "bad.png").write_text("no image")
    output = run("predict", home / "images", tmp_path, "--json", code=1)
    rows = [json.loads(line) for line in output.splitlines()]
    assert [bool(row["error"]) for row in rows] == [False, False, False, True]
    (tmp_path / "empty").mkdir()
    assert "expected images" in run("predict", home / "images", tmp_path / "empty", code=1)


def test_csv_has_a_column_for_each_class(home: Path) -> None:
    output = run("predict", home / "texts", 'say "hi", now', "x\ny", "", "--format", "csv")
    header, *rows = csv.reader(output.splitlines(keepends=True))
    assert header == ["input", "label", *CLASSES["texts"], "error"]
    assert [row[0] for row in rows] == ['say "hi", now', "x\ny", ""]
    assert sum(map(float, rows[0][2:4])) == pytest.approx(1)
    assert rows[2][1:] == ["", "", "", ""]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.txt"])
def test_tables_of_texts(name: str, home: Path, tmp_path: Path) -> None:
    texts = ["buy, now", "see you", "x"]
    with (tmp_path / name).open("w", encoding="utf-8-sig", newline="") as file:
        if name == "a.jsonl":
            file.writelines(json.dumps({"id": 1, "text": text}) + "\n" for text in texts)
        elif name == "a.txt":
            file.writelines(text + "\n" for text in texts)
        else:
            csv.writer(file, delimiter="\t" if name == "a.tsv" else ",").writerows(
                [("id", "text"), *((1, text) for text in texts)]
            )
    output = run("predict", home / "texts", tmp_path / name, "--json")
    assert [json.loads(line)["input"] for line in output.splitlines()] == texts
    if name != "a.txt":
        assert run("predict", home / "texts", tmp_path / name, "--text", "id", "--json").count('"input": "1"') == 3
        assert "'other'" in run("predict", home / "texts", tmp_path / name, "--text", "other", code=1)
    assert "expected a file, found none" in run("predict", home / "texts", tmp_path / f"gone-{name}", code=1)


def test_sets_come_with_a_mask_or_offsets(home: Path, tmp_path: Path) -> None:
    sets = make_inputs("arrays", tmp_path, 3)
    np.savez(tmp_path / "offsets.npz", x=np.concatenate(sets), offsets=np.cumsum([0, *map(len, sets)]))
    padded, mask = np.zeros((3, 4, 3), np.float32), np.zeros((3, 4))
    for k, one in enumerate(sets):
        padded[k, : len(one)], mask[k, : len(one)] = one, 1
    np.savez(tmp_path / "mask.npz", x=padded, mask=mask)
    expected = [list(p.probabilities.values()) for p in Predictor(home / "arrays")(sets)]
    for name in ("offsets.npz", "mask.npz"):
        rows = [json.loads(line) for line in run("predict", home / "arrays", tmp_path / name, "--json").splitlines()]
        assert [row["input"] for row in rows] == [f"{tmp_path / name}[{k}]" for k in range(3)]
        np.testing.assert_allclose([list(row["probabilities"].values()) for row in rows], expected, atol=1e-6)
    (tmp_path / "bad.npz").write_text("no arrays")
    for bad in ("bad.npz", "gone.npz", "a.txt"):
        assert bad in run("predict", home / "arrays", tmp_path / bad, code=1)


@pytest.mark.slow
def test_closed_streams_ascii_and_full_disk_end_in_messages(home: Path) -> None:
    """Each with the real command, for the runner of tests replaces its streams."""
    command = [sys.executable, "-m", "capsroute", "predict", str(home / "texts")]

    def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
        words = ["sh", "-c", f'"$@" {line}', "sh", *command]
        return subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True, check=False)

    closed = shell("<&-")
    assert (closed.returncode, closed.stdout) == (1, "")
    assert closed.stderr.startswith("standard input: expected lines, it is closed")
    ascii_only = shell("'un café à Łódź 日本'", PYTHONIOENCODING="ascii")
    assert (ascii_only.returncode, ascii_only.stderr) == (0, "")
    assert "un caf" in ascii_only.stdout
    full = shell("'a text' > /dev/full")
    assert full.returncode == 1
    assert full.stderr == "standard output: No space left on device\n"
    assert shell("'a text' >&-").returncode == 0
