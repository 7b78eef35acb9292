"""Measures what capsules promise, on rendered toys: `python benchmarks/promises.py`.

Does routing by agreement generalise to novel viewpoints, and resist attacks, better than pooling? The protocol was
written before the first run that counts; `results/promises/README.md` has it too, with the outcome.

- **Networks** are the paper's for smallNORB with half its parts and channels: 32 parts, 32 channels, 48x48 pixels.
  The trunk is followed by routing by agreement, or by attention pooling or mean pooling of
  `capsroute/lab/variants.py`, with as many parameters within 1%.
- **Views**: all; a third of the azimuths, 300 to 40 degrees; a third of the elevations, 30 to 40 degrees. The thirds
  are those of Hinton, Sabour and Frosst (2018) on smallNORB. Other views are novel; no training and no choice sees
  them.
- **Training** is that of the experiment `toys`: 972 steps of 10 pairs, two epochs over 4,860 training pairs, whatever
  the views. Four toys of each category train, the fifth validates, five test. Seeds 0, 1 and 2, in all cases.
- **Auxiliary loss**: routing has that of the experiment. Without it class scores depend on the images through
  agreement alone, and a pilot had 57% of validation pairs right after 973 of 1,296 steps, where with it there were
  83%, and pooling had 97%. Pooling has none: an auxiliary readout is a linear layer on what the inner routing layer
  sums up, and pooling reads its classes by just that, a linear layer on what it has pooled. The readout is discarded
  after training.
- **Matched accuracy**: weights are kept every 81 steps. The target of a set of views is the largest multiple of 5%
  that each of its runs with routing and with attention pooling reaches on 400 validation pairs at familiar views. Of
  each run the moment nearest to the target counts, of equally near ones the first. Results with final weights stand
  beside those.
- **Viewpoints**: accuracy on 4,050 test pairs, every toy from every view under one of the lightings in turn.
- **Robustness**, of networks trained on a third of the azimuths, at these: Gaussian noise, a grey square at a random
  place, and shifts, on 250 test pairs; attacks with a bound on the change of a pixel, on 50 test pairs, by foolbox:
  FGSM, and PGD with 10 steps from a random start. A pair counts as right if the network is right before and after.
- **Masked gradients**: at matched accuracy, pairs that survive FGSM and PGD are attacked further: PGD with 50 steps,
  with 3 more random starts, with scores standardised so that a saturated softmax cannot hide gradients, and the
  images that PGD made against the other networks of the same seed. `worst` counts pairs that survive everything. The
  share of pairs without any gradient is recorded.
- **Choices** are made on validation toys; a pilot with seed 7 and all views chose sizes, and strengths on validation
  toys. Test toys are read once.
- **Cut for lack of machine time**, before the first run: half of the paper's parts and channels; half of the training
  steps of the experiment; one lighting per view; routing without the auxiliary loss. While runs were under way,
  before any test data were read: robustness was to be measured with networks trained on all views, with 100 pairs for
  attacks and 500 for the rest, and the target to follow from all three networks; routing and attention pooling on a
  third of the views are trained first now, mean pooling next and all views last. After the first seed had been
  tested, before its numbers were read, attacks after FGSM and PGD were restricted to a bound of 0.02, and all tests
  of final weights but those by view to the strengths of the tables.

What would hold the promises up: at matched familiar accuracy routing has fewer errors at novel views, or is right on
more pairs under an attack or a corruption, than both poolings, by two standard errors of the difference over seeds.

Runs that are in `results/promises` are not trained again, nor tested; an interrupted one goes on. `--views`,
`--networks` and `--seeds` name what one of several processes does; networks are tested together. `--report` makes
tables and pictures from the files there alone. Toys are rendered into the folder `CAPSROUTE_DATA`.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from capsroute.lab.atomic_files import write_atomically
from capsroute.lab.data import Pairs
from capsroute.lab.data.viewpoints import match_views
from capsroute.lab.training.config import change_settings
from capsroute.lab.training.environment import Environment, package_version
from capsroute.lab.training.experiments import make_config
from capsroute.lab.training.runs import RunFolder
from capsroute.lab.training.trainer import Trainer
from capsroute.lab.training.vision import Vision, VisionConfig
from promises_report import ATTACK, FOLDER, ROBUST, SHOWN, SHOWN_ATTACK, Row, read_rows, write_report, write_rows
from promises_tests import CORRUPTIONS, STRENGTHS, attack, find_classes, measure_attacks
from records import describe_run, write_json

WORK = Path("runs/promises")
MOMENTS = 6  # of each epoch, at which weights are kept
COMMON = ["n_parts=32", "n_channels=32", "train_on=4860", "epochs=2", "validate_on=400"]
COMMON += [f"validate_every={1 / MOMENTS}"]
VIEWS = {"azimuths": ["azimuths=third"], "elevations": ["elevations=third"], "all": []}
SETTINGS = {
    "routing": [],
    "attention": ["routing=attention", "auxiliary_weight=0"],
    "mean": ["routing=mean", "auxiliary_weight=0"],
}
MATCHED = ("routing", "attention")  # of which the target follows
SEEDS, TARGETS = range(3), range(95, 20, -5)
N_LIGHTINGS, PER_TOY_ATTACKED, PER_TOY_CORRUPTED = 6, 2, 10
SAMPLE_EVERY = 6  # of the test toys is in the picture


class Run(NamedTuple):
    """One training run."""

    views: str
    network: str
    seed: int

    @property
    def name(self) -> str:
        return "-".join(map(str, self))

    @property
    def weights(self) -> Path:
        return WORK / self.name / "moments"

    def config(self) -> VisionConfig:
        settings = [*COMMON, *VIEWS[self.views], *SETTINGS[self.network], f"seed={self.seed}"]
        config = change_settings(make_config("toys"), settings)
        assert isinstance(config, VisionConfig)
        return config


def list_runs() -> Iterator[Run]:
    """Yield all runs, in the order in which they are trained."""
    rest = [name for name in SETTINGS if name not in MATCHED]
    thirds = [views for views in VIEWS if views != "all"]
    for networks, views in (*product((MATCHED, rest), thirds), (SETTINGS, "all")):
        for seed, network in product(SEEDS, networks):
            yield Run(views, network, seed)


def train(run: Run) -> None:
    """Train a run or go on with it; keep weights of all its moments, and its accuracies on validation."""
    folder, environment = RunFolder(WORK / run.name), Environment(accelerator="cpu")
    trainer = Trainer(Vision(run.config()), folder, environment, environment.launch())
    every = trainer.per_epoch // MOMENTS
    run.weights.mkdir(parents=True, exist_ok=True)

    def keep_weights(step: int) -> None:
        if step % every == 0:
            save_file(trainer.network.state_dict(), run.weights / f"{step}.safetensors")

    trainer.train(resume=folder.started, on_step=keep_weights)


def train_all(options: argparse.Namespace) -> None:
    """Train what is asked for and is neither in the stored table nor here."""
    stored = {find_key(row) for row in read_rows("runs")}
    for run in list_runs():
        wanted = run.views in options.views and run.network in options.networks and run.seed in options.seeds
        if wanted and run not in stored and not RunFolder(WORK / run.name).finished:
            train(run)
            _, right = list(read_validation(run))[-1]
            print(run.name, f"{right:.4f}", flush=True)


def find_key(row: Row) -> Run:
    """Return the run of a row."""
    return Run(row["views"], row["network"], row["seed"])


def read_validation(run: Run) -> Iterator[tuple[int, float]]:
    """Yield step and accuracy on validation toys at familiar views, of moments whose weights were kept."""
    log = RunFolder(WORK / run.name).validation.read()
    assert log is not None
    for step, accuracy in zip(log["step"].tolist(), log["accuracy"].tolist(), strict=True):
        if (run.weights / f"{int(step)}.safetensors").exists():
            yield int(step), round(accuracy, 5)  # logged in single precision


def collect_validation() -> list[Row]:
    """Return accuracies on validation of all moments of all runs, those stored and those trained here."""
    rows = read_rows("validation")
    stored = {find_key(row) for row in rows}
    for run in list_runs():
        if run not in stored and RunFolder(WORK / run.name).finished:
            rows += [run._asdict() | {"step": step, "accuracy": right} for step, right in read_validation(run)]
    return rows


def choose_target(validation: list[Row], views: str) -> float:
    """Return the largest multiple of 5% that routing and attention pooling reach with all seeds."""
    best: dict[Run, float] = {}
    for row in validation:
        if row["views"] == views and row["network"] in MATCHED:
            best[find_key(row)] = max(best.get(find_key(row), 0.0), row["accuracy"])
    return next(target / 100 for target in TARGETS if target / 100 <= min(best.values()))


def choose_moments(validation: list[Row], run: Run) -> dict[str, tuple[int, float]]:
    """Return step and validation accuracy of the moment nearest to the target, and of the last."""
    moments = [(row["step"], row["accuracy"]) for row in validation if find_key(row) == run]
    target = choose_target(validation, run.views)
    return {"matched": min(moments, key=lambda m: (round(abs(m[1] - target), 5), m[0])), "final": max(moments)}


def load_network(run: Run, step: int) -> nn.Module:
    """Return a trained network as it was after a step, for evaluation alone."""
    network = Vision(run.config()).network()
    network.load_state_dict(load_file(run.weights / f"{step}.safetensors"))
    return network.requires_grad_(False).eval()


def to_tensors(pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images in 0..1 and categories."""
    return torch.from_numpy(np.ascontiguousarray(pairs.images)).float() / 255, torch.from_numpy(pairs.category)


def take_one_lighting(pairs: Pairs) -> Pairs:
    """Return every view of every toy under one lighting, which differs between neighbouring views."""
    turn = (pairs.elevation + pairs.azimuth // 2 + pairs.instance) % N_LIGHTINGS
    return pairs.take(pairs.lighting == turn)


def take_per_toy(pairs: Pairs, n: int, seed: int = 0) -> Pairs:
    """Return at most n random views of each toy, the same ones each time."""
    order = np.random.default_rng(seed).permutation(len(pairs.category))
    toys = 10 * pairs.category + pairs.instance
    return pairs.take(np.sort(np.concatenate([order[toys[order] == toy][:n] for toy in np.unique(toys)])))


def measure_viewpoints(run: Run, network: nn.Module, pairs: Pairs) -> tuple[Row, list[Row]]:
    """Return accuracy at familiar and at novel views, and by viewing angle."""
    images, classes = to_tensors(pairs)
    right = (find_classes(network, images) == classes).numpy()
    config = run.config()
    familiar = match_views(pairs, config.azimuths, config.elevations)
    row: Row = {"familiar": float(right[familiar].mean())}
    if not familiar.all():
        row["novel"] = float(right[~familiar].mean())
    angles = {"azimuth": 10 * pairs.azimuth, "elevation": 30 + 5 * pairs.elevation}
    curves = [
        {"test": name, "strength": int(value), "accuracy": float(right[degrees == value].mean())}
        for name, degrees in angles.items()
        for value in np.unique(degrees)
    ]
    return row, curves


def measure_corruptions(network: nn.Module, pairs: Pairs, *, shown: bool = False) -> Iterator[Row]:
    """Yield accuracy under each corruption, at all strengths or at those of the tables; for all networks the same."""
    images, classes = to_tensors(pairs)
    for test, (change, strengths) in CORRUPTIONS.items():
        for strength in (0, SHOWN[test]) if shown else strengths:
            changed = change(images, strength, torch.Generator().manual_seed(0))
            right = float((find_classes(network, changed) == classes).double().mean())
            yield {"test": test, "strength": strength, "accuracy": right}


def save_samples(networks: dict[str, nn.Module], pairs: Pairs) -> None:
    """Store some pairs, undisturbed and disturbed, with the classes that networks find, for the picture."""
    images, classes = to_tensors(pairs)
    versions = {"undisturbed": images}
    for test, strength in SHOWN.items():
        versions[test] = CORRUPTIONS[test][0](images, strength, torch.Generator().manual_seed(0))
    for name in MATCHED:
        versions[f"against {name}"] = attack(networks[name], images, classes, SHOWN_ATTACK, "pgd")
    stored = {"images": torch.stack([x[:, 0] for x in versions.values()]).mul(255).round().byte()}
    for name in MATCHED:
        stored[name] = torch.stack([find_classes(networks[name], x) for x in versions.values()])
    FOLDER.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        FOLDER / "samples.npz",
        allow_pickle=False,
        names=np.array(list(versions)),
        classes=pairs.category,
        **{name: x.numpy() for name, x in stored.items()},
    )


def test_seed(runs: list[Run], left: list[Run], validation: list[Row], pairs: Pairs) -> None:
    """Test runs of which nothing is stored, with others of the same views and seed, for attacks on these are tried too.

    Args:
        runs: All that are trained here.
        left: Those to be tested.
        validation: Accuracies on validation toys.
        pairs: Test toys.
    """
    config = runs[0].config()
    one_light = take_one_lighting(pairs)
    familiar = one_light.take(match_views(one_light, config.azimuths, config.elevations))
    corrupted, attacked = (take_per_toy(familiar, n) for n in (PER_TOY_CORRUPTED, PER_TOY_ATTACKED))
    found: dict[Run, tuple[Row, list[Row]]] = {}
    for run in left:
        record = RunFolder(WORK / run.name).read_record()
        row = run._asdict() | {name: record[name] for name in ("parameters", "steps", "seconds")}
        found[run] = row | {"target": choose_target(validation, run.views)}, []
    for moment in ("matched", "final"):
        moments = {run: choose_moments(validation, run)[moment] for run in runs}
        networks = {run.network: load_network(run, step) for run, (step, _) in moments.items()}
        for run, (row, curves) in found.items():
            accuracies, lines = measure_viewpoints(run, networks[run.network], one_light)
            row |= dict(zip((f"{moment}_step", f"{moment}_validation"), moments[run], strict=True))
            row |= {f"{moment}_{name}": value for name, value in accuracies.items()}
            if run.views == ROBUST:
                lines += measure_corruptions(networks[run.network], corrupted, shown=moment == "final")
            curves += [{"moment": moment} | line for line in lines]
        if runs[0].views == ROBUST:
            strengths, further = (STRENGTHS, (ATTACK,)) if moment == "matched" else ((ATTACK,), ())
            attacks = measure_attacks(networks, *to_tensors(attacked), strengths, further)
            if moment == "matched" and runs[0].seed == 0:
                save_samples(networks, take_per_toy(attacked, 1).take(slice(0, None, SAMPLE_EVERY)))
            for run, (_, curves) in found.items():
                curves += [{"moment": moment} | line for line in attacks[run.network]]
    for run, (row, curves) in found.items():
        lines = [run._asdict() | line for line in curves]
        write_atomically(locate_test(run), json.dumps({"row": row, "curves": lines}).encode())
        print("tested", run.name, flush=True)


def test_all(options: argparse.Namespace) -> None:
    """Read the test toys with runs of which nothing is stored, where the target of their views is known."""
    (WORK / "tests").mkdir(parents=True, exist_ok=True)
    validation, stored = collect_validation(), {find_key(row) for row in read_rows("runs")}
    trained = {find_key(row) for row in validation}
    for views, seed in product(options.views, options.seeds):
        runs = [
            Run(views, network, seed) for network in SETTINGS if RunFolder(WORK / f"{views}-{network}-{seed}").finished
        ]
        left = [run for run in runs if run not in stored and not locate_test(run).exists()]
        if left and trained >= {Run(views, *others) for others in product(MATCHED, SEEDS)}:
            test_seed(runs, left, validation, Vision(runs[0].config()).pairs("test"))
    collect(validation)


def locate_test(run: Run) -> Path:
    """Return the file of what the test of a run has found."""
    return WORK / "tests" / f"{run.name}.json"


def collect(validation: list[Row]) -> None:
    """Write the rows of all runs, their curves, and their accuracies on validation, a file each."""
    rows, curves = read_rows("runs"), read_rows("curves")
    stored, order = {find_key(row) for row in rows}, {run: k for k, run in enumerate(list_runs())}
    for run in (run for run in order if run not in stored and locate_test(run).exists()):
        fresh = json.loads(locate_test(run).read_text())
        rows.append(fresh["row"])
        curves += fresh["curves"]
    tested = {find_key(row) for row in rows}
    validation = [row for row in validation if find_key(row) in tested]  # others may be trained again
    for name, lines in (("runs", rows), ("curves", curves), ("validation", validation)):
        write_rows(sorted(lines, key=lambda line: order[find_key(line)]), name)
    record = describe_run("cpu", 0, None)
    record["versions"] |= {name: package_version(name) for name in ("lightning", "foolbox")}
    write_json(record, FOLDER / "record.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, values in {"views": list(VIEWS), "networks": list(SETTINGS)}.items():
        parser.add_argument(f"--{name}", nargs="+", default=values, choices=values)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), choices=SEEDS)
    for stage, words in STAGES.items():
        parser.add_argument(f"--{stage}", action="store_true", help=f"{words}, and only what else is asked for")
    options = parser.parse_args()
    wanted = [stage for stage in STAGES if getattr(options, stage)] or [stage for stage in STAGES if stage != "check"]
    torch.set_num_threads(1)
    if "train" in wanted:
        train_all(options)
    if "test" in wanted:
        test_all(options)
    if "report" in wanted or "check" in wanted:
        messages = write_report(check="check" in wanted)
        if messages and "check" in wanted:
            sys.exit("\n".join(messages))
        print("\n".join(messages))


STAGES = {
    "train": "train what is missing",
    "test": "read the test toys",
    "report": "write tables and pictures",
    "check": "compare the tables with the runs",
}

if __name__ == "__main__":
    main()
