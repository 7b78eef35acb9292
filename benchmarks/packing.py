"""Texts padded to the longest of a batch against texts packed: `python benchmarks/packing.py SST_FOLDER --help`.

A network reads batches of real lengths, with random hidden states; both ways take turns on the same batch.
"""

import random
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import typer
from rich.table import Table
from torch import Tensor

from capsroute.lab.data import sst
from capsroute.nets import SST
from capsroute.nets.sst import WORTH_PACKING, Worth
from jobs import console
from records import write_table
from rivals import SEED

SPLITS = {"phrases to train on": "train", "sentences": "validation"}
WAYS = {"padded": Worth(2.0, 2**62), "packed": Worth(-1.0, 0)}
"""The least padding that has texts packed: more than there can be, and none."""


def some_texts(lengths: list[int], depth: int, d_emb: int, device: str) -> tuple[Tensor, Tensor]:
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).float().to(device)
    return mask, torch.randn(*mask.shape, depth, d_emb, device=device)


def take_turns(calls: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Median milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for number in range(repeats + 1):
        for name in random.sample(list(calls), len(calls)):
            wait()
            start = time.perf_counter()
            calls[name]()
            wait()
            if number:  # the first warms up
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: float(np.median(taken)) for name, taken in times.items()}


def call_of(network: SST, way: str, mask: Tensor, embs: Tensor, backward: bool) -> Callable[[], object]:
    def call() -> None:
        WORTH_PACKING[mask.device.type] = WAYS[way]
        with torch.set_grad_enabled(backward):
            scores = network(mask, embs).a
        if backward:
            torch.autograd.grad(scores.logsumexp(1).sum(), list(network.parameters()))

    return call


def main(
    folder: Annotated[Path, typer.Argument(help="Where the Stanford Sentiment Treebank lies.")],
    device: Literal["cpu", "cuda"] = "cpu",
    depth: Annotated[int, typer.Option(help="Hidden states of a token; MiniLM-L6 has 7.")] = 7,
    d_emb: Annotated[int, typer.Option(help="Their size; MiniLM-L6 has 384.")] = 384,
    texts: Annotated[str, typer.Option(help="Numbers of texts in a batch, with commas.")] = "4,20",
    batches: Annotated[int, typer.Option(min=1, help="Of each kind and number of texts.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls on each batch.")] = 7,
    out: Annotated[Path | None, typer.Option(help="CSV to write.")] = None,
) -> None:
    """Print, by batch, the share of padding and how much faster packed texts are."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    network = SST(depth=depth, d_emb=d_emb).to(device)
    table, rows = Table("batch", "texts", "longest", "padding", "forward", "forward+backward", box=None), []
    sizes = [int(size) for size in texts.split(",")]
    for (name, split), size in product(SPLITS.items(), sizes):
        lengths = [len(text.split()) for text in sst.load(folder, split).text]
        for _ in range(batches):
            mask, embs = some_texts(random.sample(lengths, size), depth, d_emb, device)
            padding = float((mask == 0).float().mean())
            row = {"batch": name, "texts": size, "longest": mask.shape[1], "padding": round(padding, 3)}
            for mode, backward in (("forward", False), ("forward+backward", True)):
                calls = {way: call_of(network, way, mask, embs, backward) for way in WAYS}
                taken = take_turns(calls, repeats, device)
                row |= {f"{mode} {way} ms": round(ms, 3) for way, ms in taken.items()}
            gains = [row[f"{mode} padded ms"] / row[f"{mode} packed ms"] for mode in ("forward", "forward+backward")]
            table.add_row(name, str(size), str(row["longest"]), f"{padding:.0%}", *(f"{gain:.2f}x" for gain in gains))
            rows.append(row)
            console.print(f"{len(rows)} of {len(SPLITS) * len(sizes) * batches} batches")
            if out is not None:
                write_table(rows, out)  # after each, for one cut short keeps what there is
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
