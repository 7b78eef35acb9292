"""The fused kernels against the float64 reference on random shapes: `python benchmarks/random_shapes.py --help`.

Every case has sizes of its own, and tensors that lie in memory in any way. Nothing may be infinite or not a number
where the float64 reference fits its type. Over the cases of a group, whose sizes are alike, a result's mean distance
from the float64 reference may be that of `capsroute.testing`: twice the mean distance of the reference in the same
precision, plus one rounding of the largest value. How far that one is from it in a single run is luck, so it runs
`ORDERS` times, with inputs, outputs and properties in other orders. A single case of the kernels may be further by
luck: it fails where it is `SINGLE` times beyond both its own budget and the group's mean. Distances count in units of
the result's largest value.
"""

import json
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import typer
from rich.table import Table
from torch import Tensor

from capsroute import route
from capsroute.testing import ORDERS, distance, draw_order, reordered
from draws import AXES, OUT_AXES, Group, Plan, draw_case, draw_group, draw_sizes, draw_weights, laid_out
from jobs import OUT_OF_TIME, Clock, console, together
from origin import origin
from records import RESULTS

SINGLE = 4.0
FEWEST = 12
"""Cases of a group from which its means are held to the budget."""
ALL_AXES = OUT_AXES | {f"d{name}": axes for name, axes in AXES.items()}
"""Of results."""

Result = dict[str, Tensor]


class Errors(NamedTuple):
    """Of one result of one case, in units of its largest value."""

    off: float
    may: float
    finite: bool


class Asked(NamedTuple):
    """Cases of one group."""

    plan: Plan
    number: int
    group: int
    seeds: list[int]
    device: str


def judge_group(asked: Asked) -> list[dict[str, Errors]]:
    """Errors of every case of a group."""
    group = draw_group(asked.plan, asked.number, asked.group)
    return [judge(draw_sizes(group, seed), seed, asked.device) for seed in asked.seeds]


def judge(group: Group, seed: int, device: str) -> dict[str, Errors]:
    """Errors of a case by result."""
    case = [t.to(device) for t in draw_case(group, seed).values()]
    weights = [w.to(device) for w in draw_weights(group, seed)]
    exact = run(group, [t.double() for t in case], weights, "reference")
    orders = [draw_order(group.sizes, order) for order in range(ORDERS)]
    plain = referred(group, case, weights, orders)
    rng = random.Random(f"memory {seed}")
    fused = run(group, [laid_out(t, rng) for t in case], [laid_out(w, rng) for w in weights], "triton")
    found = {}
    for name, t in exact.items():
        largest, kind = distance(t, torch.zeros_like(t)), torch.finfo(fused[name].dtype)
        finite, unit = bool(fused[name].isfinite().all()), largest or 1.0
        far = sum(
            distance(one[name], reordered(t, ALL_AXES[name], order)) for one, order in zip(plain, orders, strict=True)
        )
        off = distance(fused[name], t) / unit if finite else float("inf")
        errors = Errors(off, (2 * far / ORDERS + kind.eps * largest) / unit, finite)
        found[name] = errors if largest <= kind.max else Errors(0.0, 0.0, True)
    return found


def settings(group: Group) -> dict[str, Any]:
    return {"n_iters": group.n_iters, "agreement": group.kind.agreement}


def named(out: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> Result:
    return dict(zip(ALL_AXES, (*out, *gradients), strict=True))


def run(group: Group, case: list[Tensor], weights: list[Tensor], impl: str) -> Result:
    """What an implementation makes of a case."""
    inputs = [t.detach().requires_grad_() for t in case]
    out = route(*inputs, impl=impl, **settings(group))
    gradients = torch.autograd.grad(out, inputs, [w.to(o.dtype) for w, o in zip(weights, out, strict=True)])
    return named(tuple(t.detach() for t in out), gradients)


def referred(group: Group, case: list[Tensor], weights: list[Tensor], orders: list[dict[str, Tensor]]) -> list[Result]:
    """What the reference makes of a case in several orders, all at a time."""

    def one(*tensors: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        vjp: Any = torch.func.vjp
        out, pull = vjp(lambda *t: tuple(route(*t, impl="reference", **settings(group))), *tensors[:6])
        return out, pull(tuple(w.to(o.dtype) for w, o in zip(tensors[6:], out, strict=True)))

    axes = *AXES.values(), *OUT_AXES.values()
    stacked = [
        torch.stack([reordered(t, of, order) for order in orders])
        for t, of in zip((*case, *weights), axes, strict=True)
    ]
    out, gradients = torch.func.vmap(one)(*stacked)
    return [named(tuple(t[n] for t in out), tuple(t[n] for t in gradients)) for n in range(len(orders))]


class Verdict:
    """What all cases together come to."""

    def __init__(self, plan: Plan):
        self.plan, self.cases, self.over = plan, 0, 0
        self.sizes: set[str] = set()
        self.failures: list[dict[str, Any]] = []
        self.late: list[int] = []
        self.worst: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, -1))
        self.means: dict[str, list[float]] = defaultdict(list)

    def add(self, asked: Asked, answer: list[dict[str, Errors]] | str) -> None:
        """Take in a group, or why there is no answer for it."""
        group = draw_group(self.plan, asked.number, asked.group)
        if answer == OUT_OF_TIME:
            return self.late.append(asked.seeds[0])
        if isinstance(answer, str):
            return self._fail(group, asked.seeds, answer)
        self.cases += len(answer)
        means = {name: mean([case[name] for case in answer]) for name in answer[0]} if answer else {}
        for name, (off, may) in means.items():
            self.means[name].append(off / may if may else 0.0)
            if len(answer) >= FEWEST and off > may:
                self._fail(group, asked.seeds[:1], f"{name}: in the mean off by {off:.2e}, may be {may:.2e}")
        for seed, case in zip(asked.seeds, answer, strict=True):
            self.sizes.add(str(draw_sizes(group, seed)))
            self.over += any(errors.off > errors.may for errors in case.values())
            for name, (off, may, finite) in case.items():
                if not finite:
                    self._fail(draw_sizes(group, seed), [seed], f"{name}: not finite")
                elif off > SINGLE * max(may, means[name][1]):
                    self._fail(draw_sizes(group, seed), [seed], f"{name}: off by {off:.2e}, may be {may:.2e}")
                times = off / max(may, means[name][1]) if off else 0.0
                self.worst[name] = max(self.worst[name], (times, seed))

    def _fail(self, group: Group, seeds: list[int], why: str) -> None:
        self.failures.append({"seeds": seeds, "why": why, "case": str(group)})

    def summary(self) -> dict[str, Any]:
        return {
            "cases": self.cases,
            "different sizes": len(self.sizes),
            "groups": self.plan.sets * self.plan.groups,
            "share of cases with a result over its own budget": round(self.over / max(1, self.cases), 4),
            "groups' means over their budget": {name: max(means) for name, means in self.means.items()},
            "worst single case over its budget": {name: list(worst) for name, worst in self.worst.items()},
            "failures": self.failures,
            "first seeds of groups out of time": self.late,
        }


def mean(errors: list[Errors]) -> tuple[float, float]:
    finite = [e for e in errors if e.finite] or [Errors(0.0, 0.0, True)]
    return sum(e.off for e in finite) / len(finite), sum(e.may for e in finite) / len(finite)


def show(case: dict[str, Errors], group: Group) -> None:
    """Print one case."""
    console.print(str(group))
    table = Table("result", "off by", "may be", box=None)
    for name, (off, may, finite) in case.items():
        table.add_row(name, f"{off:.2e}" if finite else "not finite", f"{may:.2e}")
    console.print(table)


def left_over(plan: Plan, earlier: dict[str, Any]) -> set[tuple[int, int]]:
    """Groups that an earlier run leaves to do."""
    failed = [failure["seeds"][0] for failure in earlier["failures"]]
    return {plan.where(seed) for seed in failed + earlier["first seeds of groups out of time"]}


def main(
    cases: Annotated[int, typer.Option(min=1, help="Random cases.")] = 10_000,
    sets: Annotated[int, typer.Option(min=1, help="Sets of sizes that kernels are compiled for.")] = 48,
    groups: Annotated[int, typer.Option(min=1, help="Sizes of each set.")] = 4,
    only: Annotated[int | None, typer.Option(help="Run this seed alone and print its errors.")] = None,
    again: Annotated[
        Path | None, typer.Option(help="Run only the groups that failed, or were out of time, in this earlier file.")
    ] = None,
    device: Literal["cpu", "cuda"] = "cuda",
    most_votes: Annotated[int, typer.Option(min=1, help="Numbers in a case's votes.")] = 2**18,
    many: Annotated[int, typer.Option(min=0, help="Inputs for each output in sets of many, 0 for none.")] = 64,
    budget_s: Annotated[float | None, typer.Option(help="Stop after so many seconds, keeping what there is.")] = None,
    out: Annotated[
        Path, typer.Option(help="File to write.", show_default="benchmarks/results/random_shapes.json")
    ] = RESULTS / "random_shapes.json",
    commit: Annotated[str | None, typer.Option(help="Commit to record, of files that were copied.")] = None,
) -> None:
    """Compare outputs and gradients case by case; write a summary and the seeds of what fails."""
    plan = Plan(cases, sets, groups, most_votes, many)
    if only is not None:
        group = draw_sizes(draw_group(plan, *plan.where(only)), only)
        return show(judge(group, only, device), group)
    seeds: dict[tuple[int, int], list[int]] = defaultdict(list)
    for seed in range(cases):
        seeds[plan.where(seed)].append(seed)
    wanted = set(seeds) if again is None else left_over(plan, json.loads(again.read_text()))
    asked = [Asked(plan, *where, own, device) for where, own in seeds.items() if where in wanted]
    about, verdict = origin(device, 0, commit), Verdict(plan)
    clock = Clock(budget_s)

    def done(item: Asked, answer: list[dict[str, Errors]] | str) -> None:
        verdict.add(item, answer)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(about | verdict.summary(), indent=2) + "\n")

    together(judge_group, asked, clock, "groups of cases", done)
    summary = verdict.summary()
    console.print({name: value for name, value in summary.items() if name != "failures"})
    for failure in verdict.failures[:20]:
        console.print(failure)
    console.print(f"{verdict.cases} cases, {len(verdict.failures)} failures, written to {out.name}")
    sys.exit(bool(verdict.failures))


if __name__ == "__main__":
    typer.run(main)
