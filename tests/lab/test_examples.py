"""The examples run as printed in the docs, learn, and print what the docs say."""

import re
import runpy
import sys
from pathlib import Path

import pytest

import capsroute
from conftest import ROOT

EXAMPLES = ROOT / "examples"
CHANCE = 1 / 3  # the example has three classes
ENCODER = Path(capsroute.__file__).parent / "weights/treebank/encoder"


def run(name: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    """Run an example and return the numbers that it prints by the words before them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    found = re.findall(r"^(.+?):.*?([-+]?\d+\.\d+)", capsys.readouterr().out, flags=re.MULTILINE)
    return {words: float(number) for words, number in found}


def learned(printed: dict[str, float]) -> bool:
    """Tell whether accuracy rose from chance to four in five, which no sample this large reaches by luck."""
    return abs(printed["accuracy before"] - CHANCE) < 0.1 and printed["accuracy after"] > 0.8


def test_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run("own_model.py", capsys)
    assert learned(printed)
    shares = [printed[f"iteration {k}"] for k in (1, 2, 3)]
    assert shares[0] == pytest.approx(1 / 8, abs=0.01)  # all capsules have equal shares
    assert shares == sorted(shares)  # parts concentrate on one capsule
    assert printed["credit of a part"] > 0.2
    assert printed["credit of a stray part"] < printed["credit of a part"] / 2


@pytest.mark.parametrize("name", ["audio", "images", "points", "text"])
def test_heads(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = f"head_{name}.py"
    printed = run(example, capsys)
    assert printed["accuracy before"] < 0.6 < 0.8 < printed["accuracy after"]
    telling, other = (value for words, value in printed.items() if words.startswith("credit of"))
    assert telling > max(0, other)
    assert len((EXAMPLES / example).read_text().splitlines()) <= 40


def test_texts_as_in_docs(capsys: pytest.CaptureFixture[str]) -> None:
    """With the encoder that is installed in place of one from the hub."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/your_texts.md").read_text(), flags=re.DOTALL)
    (texts,) = (block for block in blocks if "Encoder(" in block)
    shown = '"sentence-transformers/all-MiniLM-L6-v2"'
    assert shown in texts
    exec(texts.replace(shown, repr(str(ENCODER))), {})
    rows = re.findall(r"\[(\d\.\d+(?:e-?\d+)?), +(\d\.\d+(?:e-?\d+)?)\]", capsys.readouterr().out)
    assert [float(b) > 0.5 for _, b in rows] == [True, False, True, False]


@pytest.mark.parametrize(("name", "page"), [("own_model.py", "own_model.md"), ("own_data.py", "your_images.md")])
def test_docs_show_the_short_example(name: str, page: str) -> None:
    assert f'--8<-- "examples/{name}"' in (ROOT / "docs" / page).read_text()
    assert len((EXAMPLES / name).read_text().splitlines()) < 90
