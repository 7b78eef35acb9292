"""Time a text network on padded and on packed batches: `python benchmarks/packing.py --help`.

The measurements decide from how much padding on `capsroute.nets.sst` packs texts (`PACKING_THRESHOLDS`).
"""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import typer

from capsroute.nets import SST
from capsroute.nets.sst import PACKING_THRESHOLDS, PackingThreshold
from measure import Call, time_calls
from records import describe_run, write_json

THRESHOLDS = {"padded": PackingThreshold(2.0, 2**62), "packed": PackingThreshold(-1.0, 0)}
"""Never pack, and always."""


def make_call(network: SST, layout: str, mask: torch.Tensor, embs: torch.Tensor) -> Call:
    parameters = list(network.parameters())

    def call() -> tuple[torch.Tensor, ...]:
        PACKING_THRESHOLDS[mask.device.type] = THRESHOLDS[layout]
        return torch.autograd.grad(network(mask, embs).a.logsumexp(1).sum(), parameters)

    return call


def main(
    device: Literal["cpu", "cuda"] = "cpu",
    depth: Annotated[int, typer.Option(help="Hidden states of a token; MiniLM-L6 has 7.")] = 7,
    d_emb: Annotated[int, typer.Option(help="Their size; MiniLM-L6 has 384.")] = 384,
    texts: Annotated[int, typer.Option(help="Texts in a batch.")] = 20,
    longest: Annotated[int, typer.Option(help="Tokens of the longest text; lengths are uniform below.")] = 40,
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls of each layout on each batch.")] = 7,
    batches: Annotated[int, typer.Option(min=1)] = 5,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Print padding and the time of forward and backward passes for random batches."""
    generator = torch.Generator().manual_seed(0)
    network, rows = SST(depth=depth, d_emb=d_emb).to(device), []
    for _ in range(batches):
        lengths = torch.randint(1, longest + 1, (texts, 1), generator=generator)
        mask = (torch.arange(int(lengths.max())) < lengths).float().to(device)
        embs = torch.randn(*mask.shape, depth, d_emb, device=device)
        calls = {layout: make_call(network, layout, mask, embs) for layout in THRESHOLDS}
        times = [[time_calls(call, device, 1)[0] for call in calls.values()] for _ in range(repeats + 1)][1:]
        padded, packed = np.median(times, 0).tolist()
        rows.append({"padding": round(1 - float(mask.mean()), 3), "padded ms": padded, "packed ms": packed})
        print(f"padding {rows[-1]['padding']:.0%}  padded {padded:.3f} ms  packed {packed:.3f} ms")
    if out:
        write_json(describe_run(device, 0, None) | {"rows": rows}, out)


if __name__ == "__main__":
    typer.run(main)
