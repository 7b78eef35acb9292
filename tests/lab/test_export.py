"""Exported files compute what torch does, for any batch and length, or are not written."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

from capsroute.lab.cli import app
from capsroute.lab.errors import UserError
from capsroute.lab.export import ScoringNetwork, compare, find_signature, load_pt2
from capsroute.lab.inference import Predictor
from small_classifiers import CLASSES, make_classifier, make_inputs

runner = CliRunner()


def export(kind: str, form: str, folder: Path) -> tuple[Path, dict]:
    make_classifier(kind).save_pretrained(folder / kind)
    out = folder / f"network.{form}"
    result = runner.invoke(app, ["export", str(folder / kind), f"--{form}", "-o", str(out)])
    assert result.exit_code == 0, result.output
    return out, json.loads(out.with_name(f"{out.name}.json").read_text())


@pytest.mark.slow
def test_onnx_has_names_and_takes_any_length(tmp_path: Path) -> None:
    out, facts = export("arrays", "onnx", tmp_path)
    assert facts["classes"] == CLASSES["arrays"]
    assert facts["preprocessing"] == {"name": "sets", "d": 3}
    session = onnxruntime.InferenceSession(out)
    assert [i.name for i in session.get_inputs()] == list(facts["inputs"]) == ["vectors", "mask"]
    assert [o.name for o in session.get_outputs()] == list(facts["outputs"]) == ["scores", "probabilities"]
    sets = make_inputs("arrays", tmp_path, 4)
    expected = [list(p.probabilities.values()) for p in Predictor(tmp_path / "arrays")(sets)]
    for one, row in zip(sets, expected, strict=True):
        inputs = {"vectors": one[None], "mask": np.ones((1, len(one)), np.float32)}
        (found,) = session.run(["probabilities"], inputs)
        np.testing.assert_allclose(np.asarray(found)[0], row, atol=1e-4)


@pytest.mark.slow
def test_pt2_agrees_and_another_network_is_refused(tmp_path: Path) -> None:
    out, facts = export("texts", "pt2", tmp_path)
    assert facts["classes"] == CLASSES["texts"]
    predictor = Predictor(tmp_path / "texts")
    run, signature = load_pt2(out, find_signature(predictor)), find_signature(predictor)

    network = ScoringNetwork(predictor.network)
    assert compare(network, run, signature) <= 1e-4
    with torch.no_grad():
        next(predictor.network.head.parameters()).mul_(2)
    with pytest.raises(UserError, match=r"expected torch's within 0\.0001, got a difference of"):
        compare(network, run, signature)


def test_one_format_is_expected() -> None:
    for options in ([], ["--onnx", "--pt2"]):
        result = runner.invoke(app, ["export", "toys", *options])
        assert (result.exit_code, result.stderr) == (1, "export: expected one of --onnx and --pt2\n")
