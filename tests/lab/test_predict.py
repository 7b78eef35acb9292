"""`capsroute predict`: one plain line for any text, one plain message for anything missing."""

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from capsroute.lab.baselines import AttentionPooling
from capsroute.lab.cli import app
from capsroute.lab.data.trees import POLARITIES, SENTIMENTS
from capsroute.lab.inference import Predictor
from capsroute.lab.inputs import LINE_BYTES
from capsroute.nets import SST
from conftest import ROOT
from test_encoders import STRANGE, save
from test_language import TREES, run

FINE, DULL = "a fine film", "the plot is thin , dull"
TRAINING_ONLY = ("lightning", "matplotlib", "sklearn", "pooch", "tensorboard")
runner = CliRunner()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder, and a run that used it."""
    home = tmp_path_factory.mktemp("predict")
    save(home / "bert", "bert")
    for name, lines in TREES.items():
        (home / name).write_text("".join(f"{line}\n" for line in lines))
    settings = {"experiment": "sst5", "data": "sst", "encoder": str(home / "bert"), "folder": str(home)}
    fast = {"epochs": 4, "batch_size": 5, "lr_max": 1e-2, "beta1_max": 0.9, "beta1_min": 0.8, "beta2": 0.99}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPSROUTE_DATA", str(home))
        run(home / "run", settings | fast | {"mixup": 0.0, "auxiliary_weight": 1.0})
    return home


@pytest.fixture(scope="module")
def classifier(home: Path) -> Predictor:
    return Predictor(str(home / "run"))


@pytest.fixture
def warm(classifier: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command use the network that is already loaded."""
    monkeypatch.setattr("capsroute.lab.inference.Predictor", lambda *_, **__: classifier)


def predict_lines(*words: str, stdin: bytes = b"") -> list[str]:
    """Run the command and return the lines it prints."""
    result = runner.invoke(app, ["predict", *words], input=stdin)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("\n")
    assert is_safe(result.stdout)
    return result.stdout[:-1].split("\n")


def predict_json(*words: str, stdin: bytes = b"") -> list[dict[str, Any]]:
    return [json.loads(line) for line in predict_lines("--json", *words, stdin=stdin)]


def refuse(*words: str) -> str:
    """Run a command that must fail, and return its one-line message."""
    result = runner.invoke(app, ["predict", *words])
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)  # a message, not a traceback
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr.rstrip("\n")


def is_safe(output: str) -> bool:
    """Return whether nothing moves a terminal's cursor, turns its direction, or cannot be encoded."""
    output.encode()
    return all(c == "\n" or c in "\u200c\u200d" or c.isprintable() for c in output)


def test_sentences_as_arguments(home: Path, classifier: Predictor) -> None:
    lines = predict_lines(str(home / "run"), FINE, DULL)
    assert len(lines) == 2
    for line, answer in zip(lines, classifier([FINE, DULL]), strict=True):
        assert line.startswith(answer.label)
        assert f"{100 * answer.probability:.0f}%" in line
        assert line.endswith(answer.input)


def test_probabilities_are_the_networks(classifier: Predictor) -> None:
    texts = [FINE, DULL, "a joy", "film " * 100]
    mask, embs = classifier.preprocessing.model.encode(classifier.preprocessing.model.tokenize(texts))
    with torch.no_grad():
        expected = classifier.network(mask, embs).a.softmax(1)
    assert expected.std(0).max() > 1e-3  # texts differ
    for row, answer in zip(expected, classifier(texts), strict=True):
        assert tuple(answer.probabilities) == SENTIMENTS
        assert list(answer.probabilities.values()) == pytest.approx(row.tolist(), abs=1e-5)
        assert answer.label == SENTIMENTS[int(row.argmax())]
        assert sum(answer.probabilities.values()) == pytest.approx(1)
    alone = classifier([FINE])[0]
    assert list(alone.probabilities.values()) == pytest.approx(expected[0].tolist(), abs=1e-5)


def test_each_text_is_tokenized_once(classifier: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, calls = type(classifier.preprocessing.model.tokenizer), []
    call = kind.__call__
    monkeypatch.setattr(
        kind, "__call__", lambda self, texts, **options: (calls.append(texts), call(self, texts, **options))[1]
    )
    classifier([FINE, "", DULL])
    assert calls == [[FINE], [DULL]]


@pytest.mark.usefixtures("warm")
def test_standard_input_gives_one_line_each() -> None:
    stdin = f"{FINE}\n\n{DULL}\r\n   \t \n{FINE}".encode()  # the last line without an end
    lines = predict_lines("run", stdin=stdin)
    assert [line.split("  ")[-1].strip() for line in lines] == [FINE, "(empty)", DULL, "(empty)", FINE]
    assert [line.startswith("no text") for line in lines] == [False, True, False, True, False]
    assert predict_lines("run", FINE) == lines[:1]
    many = b"".join(f"{FINE} {k}\n".encode() for k in range(70))  # more than a batch
    assert [line.rsplit(" ", 1)[1] for line in predict_lines("run", stdin=many)] == [str(k) for k in range(70)]


@pytest.mark.usefixtures("warm")
def test_json_has_all_fields(classifier: Predictor) -> None:
    found = predict_json("run", stdin=f"{FINE}\n\nx\n".encode())
    assert [answer["input"] for answer in found] == [FINE, "", "x"]
    alone = classifier([FINE])[0]._asdict()
    assert found[0].pop("probabilities") == pytest.approx(alone.pop("probabilities"), abs=1e-6)  # sums have no order
    assert found[0] == alone
    assert found[0]["truncated"] is False
    assert found[0]["n_tokens"] == 5  # three words, and the tokens that begin and end a text
    assert found[1] == classifier([""])[0]._asdict()
    assert found[1]["label"] == found[1]["error"] == ""


@pytest.mark.usefixtures("warm")
def test_byte_order_mark_changes_nothing() -> None:
    marked = "\ufeff".encode() + FINE.encode()
    assert predict_lines("run", stdin=marked) == predict_lines("run", FINE)
    one, other = predict_json("run", "\ufeff" + FINE, FINE)
    assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-6)
    assert predict_json("run", "\ufeff")[0]["label"] == ""


@pytest.mark.usefixtures("warm")
def test_long_line_is_cut_before_it_is_tokenized() -> None:
    """A line of 30 MB took 4 GB."""
    line, short = b"film " * 6_000_000, "film " * 10_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (answer, last) = predict_json("run", stdin=line + b"\n" + FINE.encode())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB; the runner holds copies
    assert answer["truncated"]
    assert len(answer["input"]) == LINE_BYTES
    assert answer["probabilities"] == predict_json("run", short)[0]["probabilities"]
    assert last["input"] == FINE


@pytest.mark.usefixtures("warm")
def test_no_input_prints_nothing() -> None:
    result = runner.invoke(app, ["predict", "run"], input=b"")
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.usefixtures("warm")
def test_truncated_text_says_what_was_read() -> None:
    long = "film " * 10_000
    (line,) = predict_lines("run", long)
    assert line.endswith("… [only its first 40 tokens were read]")
    assert len(line) < 500
    (answer,) = predict_json("run", stdin=long.encode())
    assert (answer["truncated"], answer["n_tokens"], answer["input"]) == (True, 40, long)
    assert "tokens were read" not in predict_lines("run", FINE)[0]


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("case", STRANGE)
def test_strange_texts_are_classified(case: str) -> None:
    (line,) = predict_lines("run", "--", STRANGE[case])
    blank = not STRANGE[case].strip()
    assert line.startswith("no text" if blank else SENTIMENTS)
    (answer,) = predict_json("run", "--", STRANGE[case])
    assert answer["input"] == STRANGE[case].encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a \x1b[31mred\x1b[0m film", "a �[31mred�[0m film"),
        ("a \x1b]0;title\x07 film", "a �]0;title� film"),
        ("a \x9b2J film", "a �2J film"),
        ("never\x08\x08\x7f", "never���"),
        ("fine\rdull", "fine dull"),
        ("fine\u2028dull\x0b\x0cfilm", "fine dull film"),
        ("\u202emlif", "�mlif"),
        ("a 😀 film", "a 😀 film"),
        ("Привет 日本語 مرحبا नमस्ते", "Привет 日本語 مرحبا नमस्ते"),
        ("[bold]fine[/bold] [red]", "[bold]fine[/bold] [red]"),
    ],
)
def test_control_characters_are_replaced(text: str, shown: str) -> None:
    for lines in (predict_lines("run", text), predict_lines("run", stdin=text.encode())):
        assert len(lines) == 1
        assert lines[0].endswith(f"%  {shown}")


@pytest.mark.usefixtures("warm")
def test_bytes_that_are_not_utf8_are_replaced() -> None:
    lines = predict_lines("run", stdin=b"a \xff\xfe film\n\x80\n" + FINE.encode() + b"\nfine \xf0\x9f\n")
    assert [line.split("%  ")[1] for line in lines] == ["a �� film", "�", FINE, "fine �"]
    assert predict_json("run", stdin=b"caf\xe9\n")[0]["input"] == "caf�"


def test_two_classes_have_their_names(home: Path, tmp_path: Path) -> None:
    SST(depth=4, d_emb=32, n_classes=2, encoder=str(home / "bert")).save_pretrained(tmp_path)
    (answer,) = predict_json(str(tmp_path), FINE)
    assert tuple(answer["probabilities"]) == POLARITIES


def test_encoder_beside_weights_comes_first(home: Path, tmp_path: Path) -> None:
    SST(depth=4, d_emb=32, encoder="nobody/nothing").save_pretrained(tmp_path)
    shutil.copytree(home / "bert", tmp_path / "encoder")
    assert len(predict_lines(str(tmp_path), FINE)) == 1
    shutil.rmtree(tmp_path / "encoder")
    assert predict_lines(str(tmp_path), FINE, "--encoder", str(home / "bert"))


def test_unknown_names_and_folders_are_refused(home: Path, tmp_path: Path) -> None:
    names = "the folder of a run, a folder of weights, or one of smallnorb, toys, sst5-minilm, sst2-minilm, treebank"
    assert refuse("nonsense", FINE) == f"name: expected {names}, sst5, sst2, got 'nonsense'"
    assert refuse(str(tmp_path), FINE).endswith(f"got '{tmp_path}'")
    assert refuse("\x1b[31m\udcff", FINE).endswith("got '\\x1b[31m\\udcff'")  # messages are safe to print too
    assert refuse("smallnorb", FINE).startswith(f"{FINE}: expected an image (PNG, ")
    assert len(refuse("smallnorb", "film" * 1000)) < 500  # longer than any file's name
    missing = refuse(str(home / "run"), FINE, "--encoder", str(tmp_path / "gone"))
    assert missing == f"encoder: expected the folder of a model, found none at {tmp_path / 'gone'}"


def test_missing_devices_are_refused(home: Path) -> None:
    for device in ("toaster", "cuda:99", "", "meta"):
        assert refuse(str(home / "run"), FINE, "--device", device).startswith("device: expected cpu")


def test_encoder_of_other_sizes_is_refused(home: Path, tmp_path: Path) -> None:
    SST(depth=7, d_emb=384, encoder=str(home / "bert")).save_pretrained(tmp_path)
    message = (
        f"{home / 'bert'}: expected 7 hidden states of width 384, as {tmp_path} needs, got 4 hidden states of width 32"
    )
    assert refuse(str(tmp_path), FINE) == message


def test_weights_without_encoder_are_refused(tmp_path: Path) -> None:
    SST(depth=4, d_emb=32).save_pretrained(tmp_path)
    expected = f"{tmp_path}: does not say which encoder it was trained with; name it with --encoder"
    assert refuse(str(tmp_path), FINE) == expected


def test_baselines_and_other_classes_are_refused(home: Path, tmp_path: Path) -> None:
    AttentionPooling(4, 32, encoder=str(home / "bert")).save_pretrained(tmp_path / "attention")
    message = refuse(str(tmp_path / "attention"), FINE)
    assert f"{tmp_path / 'attention'}: expected the weights of a network" in message
    assert "got 'AttentionPooling'" in message
    SST(depth=4, d_emb=32, n_classes=3, encoder=str(home / "bert")).save_pretrained(tmp_path / "three")
    message = refuse(str(tmp_path / "three"), FINE)
    assert "expected a network with 5 classes (very negative, " in message
    assert message.endswith(" or 2 classes (negative, positive), got one with 3")


@pytest.mark.parametrize("damage", ["cut", "fewer", "config", "nan"])
def test_damaged_weights_are_refused(home: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(home / "run/model", tmp_path, dirs_exist_ok=True)
    weights, expected = tmp_path / "model.safetensors", f"{tmp_path}: expected weights for text-classification"
    match damage:
        case "cut":
            weights.write_bytes(weights.read_bytes()[:1000])
        case "fewer":
            save_file({name: w for name, w in load_file(weights).items() if name != "depth_emb"}, weights)
        case "nan":
            save_file({name: w * torch.nan for name, w in load_file(weights).items()}, weights)
            expected = f"{tmp_path}: expected finite weights, "
        case "config":
            (tmp_path / "config.json").write_text("{")
            expected = f"{tmp_path / 'config.json'}: expected the settings of a network"
    assert refuse(str(tmp_path), FINE).startswith(expected)


def test_unfinished_run_says_how_to_resume(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run", tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "model")
    assert refuse(str(tmp_path), FINE).endswith(f"go on with `capsroute train --resume {tmp_path}`")


@pytest.mark.slow
def test_closed_pipe_and_imports(home: Path) -> None:
    """Run the real command: `| head -1` leaves no traceback, and packages for training are not imported."""
    command = f'"{sys.executable}" -X importtime -m capsroute predict "{home / "run"}"'
    lines = "".join(f"{FINE} {k}\n" for k in range(1000))
    result = subprocess.run(
        ["sh", "-c", f"{{ {command}; echo status $? >&2; }} | head -1"],
        input=lines,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.count("\n") == 1
    assert result.stdout.endswith(f"%  {FINE} 0\n")
    reported, others = [], []
    for line in result.stderr.splitlines():
        (reported if line.startswith("import time:") else others).append(line)
    assert others == ["status 1"]  # 0 would mean that the pipe was not closed
    imported = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in reported}
    assert {"torch", "transformers", "capsroute"} <= imported
    assert not imported & set(TRAINING_ONLY)
