"""Commands that take a trained network and inputs: predict, explain, export."""

import csv
import gc
import itertools
import json
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..errors import UserError
from ..formatting import readable
from .app import AsJson, WeightsName, app, console

if TYPE_CHECKING:
    from ..inference import Prediction

Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Texts, image files, folders of images, tables (.csv, .tsv, .jsonl, .txt), sets (.npz); - for the lines "
        "of standard input, which is also the default."
    ),
]
EncoderName = Annotated[
    str | None, typer.Option("--encoder", help="Another place of the frozen model below a network.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Format = Literal["text", "json", "csv"]
BATCH = 32


@app.command(epilog='Example: capsroute predict sst5 "A film that is never less than charming."')
def predict(
    name: WeightsName,
    inputs: Inputs = None,
    form: Annotated[Format, typer.Option("--format", help="How to print predictions.")] = "text",
    as_json: AsJson = False,
    column: Annotated[str, typer.Option("--text", metavar="COLUMN", help="Column of texts in a table.")] = "",
    encoder: EncoderName = None,
    device: Device = "cpu",
) -> None:
    """Print the class of images, texts or sets of vectors, with probabilities.

    The exit status is 1 if an input could not be read.
    """
    from ..inference import Predictor
    from ..inputs import STDIN, read_inputs

    predictor = Predictor(name, encoder=encoder, device=device)
    if "triton" not in sys.modules:  # which would report frozen objects as leaked
        gc.freeze()  # what was loaded stays to the end: collections need not visit it
    stdin = sys.stdin.buffer if sys.stdin else None
    form = "json" if as_json else form
    if form == "csv":
        typer.echo(_csv_row(["input", "label", *predictor.classes, "error"]))
    is_typed = not inputs and sys.stdin is not None and sys.stdin.isatty()
    found, failed = read_inputs(predictor.kind, inputs or [STDIN], stdin, column, views=predictor.views), False
    while batch := list(itertools.islice(found, 1 if is_typed else BATCH)):
        names, values = zip(*batch, strict=True)
        for prediction in predictor(values, names):
            failed |= bool(prediction.error)
            print_prediction(prediction, form, predictor.classes)
    if failed:
        raise typer.Exit(1)


def print_prediction(prediction: "Prediction", form: Format, classes: Sequence[str]) -> None:
    """Print a prediction as one line."""
    if form == "json":
        typer.echo(json.dumps(prediction._asdict(), allow_nan=False))
    elif form == "csv":
        p = prediction.probabilities
        shares = [f"{p[name]:.6f}" if p else "" for name in classes]
        typer.echo(_csv_row([prediction.input, prediction.label, *shares, prediction.error]))
    elif prediction.error:
        typer.echo(readable(prediction.problem, 2000), err=True)
    elif not prediction.label:
        typer.echo(f"{'no text':16}       {readable(prediction.input)}")
    else:
        answer = f"{readable(prediction.label):16} {100 * prediction.probability:4.0f}%  {readable(prediction.input)}"
        note = f" [only its first {prediction.n_tokens:,} tokens were read]" if prediction.truncated else ""
        typer.echo(f"{answer}{note}")


def _csv_row(cells: Sequence[str]) -> str:
    line = StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()[:-1].encode("utf-8", "replace").decode()


@app.command(epilog='Example: capsroute explain treebank "it is not a bad film" -o words.html')
def explain(
    name: WeightsName,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT", help="A text, an image file or the two of a stereo pair, or a file of one set."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Picture (.png) or page (.html) to write.")] = Path(
        "explanation.png"
    ),
    encoder: EncoderName = None,
    device: Device = "cpu",
) -> None:
    """Show what an answer rests on: the net credit of pixels, words or vectors for the predicted class."""
    from ..explain import explain as explain_input
    from ..inference import Predictor
    from ..inputs import read_inputs

    predictor = Predictor(name, encoder=encoder, device=device)
    stdin = sys.stdin.buffer if sys.stdin else None
    found = read_inputs(predictor.kind, inputs, stdin, views=predictor.views)
    first = next(found, None)
    if first is None:
        raise UserError(f"{inputs[0]}: expected an input, found none")
    if len(inputs) > 1 and next(found, None):
        raise UserError(f"{inputs[1]}: expected one input alone, or NAME-left and NAME-right for a stereo network")
    explanation = explain_input(predictor, first.value, name=first.name)
    explanation.save(out)
    console.print(f"{explanation.caption}\n{out}", markup=False)


@app.command(epilog="Example: capsroute export toys --onnx -o toys.onnx")
def export(
    name: WeightsName,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write ONNX, which many programs run.")] = False,
    pt2: Annotated[bool, typer.Option("--pt2", help="Write a pt2 file, which torch.export.load reads.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; by default named like RUN.")] = None,
    encoder: EncoderName = None,
) -> None:
    """Write a network to one file with named inputs and outputs, for batches and lengths of any size.

    The file is compared with torch at several sizes before it is written. What encodes texts is not part of it.
    """
    from ..export import FORMATS, export_network
    from ..inference import Predictor

    if onnx == pt2:
        raise UserError("export: expected one of --onnx and --pt2")
    form = "onnx" if onnx else "pt2"
    predictor = Predictor(name, encoder=encoder)
    out = out or Path(f"{Path(name).resolve().name}{FORMATS[form]}")
    facts = export_network(predictor, form, out)
    inputs = ", ".join(f"{name} [{', '.join(map(str, spec['shape']))}]" for name, spec in facts["inputs"].items())
    console.print(f"inputs: {inputs}\noutputs: {', '.join(facts['outputs'])}", markup=False)
    console.print(f"largest difference from torch: {facts['largest difference from torch']:.1e}")
    console.print(f"{out}\n{out}.json: classes and preprocessing", markup=False)
