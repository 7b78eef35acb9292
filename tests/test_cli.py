"""The command line."""

import pytest
from typer.testing import CliRunner

from capsroute.cli import app
from capsroute.testing import SHAPES

runner = CliRunner()


def test_info_names_every_shape_and_why_an_implementation_cannot_run_it() -> None:
    result = runner.invoke(app, ["info"])
    assert result.exit_code == 0
    assert all(name in result.output for name in SHAPES)
    assert "torch" in result.output
    assert "(1) parameters differ between inputs" in result.output


def test_info_for_a_device_without_float64() -> None:
    result = runner.invoke(app, ["info", "--device", "mps"])
    assert result.exit_code == 0
    assert "the device has no float64" in result.output


@pytest.mark.parametrize("bad", [["--agreement", "cauchy"], ["--device", "toaster"]])
def test_info_refuses_what_it_does_not_know(bad: list[str]) -> None:
    result = runner.invoke(app, ["info", *bad])
    assert result.exit_code == 2
    assert bad[1] in result.output
    assert "Traceback" not in result.output


def test_no_command_shows_the_help() -> None:
    assert "info" in runner.invoke(app, []).output
