"""Chaos: kill, repeat, starve and damage a small study, and expect an undisturbed one's bits or a refusal in words.

As a script: `python tests/lab/chaos.py [--rounds N] [--seed N] [--only KIND]`. Every trial ends with the study run in
peace; what it leaves is compared with an undisturbed study, file by file.
"""

import argparse
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
import typer

from capsroute.lab.atomic_files import write_atomically
from capsroute.lab.cli.app import error_messages
from capsroute.lab.data import sst, toys, treebank
from capsroute.lab.encoders import tiny
from capsroute.lab.report.run_report import write_run_report
from capsroute.lab.training.environment import Environment
from capsroute.lab.training.experiments import make_task, read_config
from capsroute.lab.training.language import LanguageConfig
from capsroute.lab.training.runs import RunFolder, read_checkpoint
from capsroute.lab.training.trainer import Trainer

FORK = multiprocessing.get_context("fork")  # children find everything imported
MIB = 2**20
TREES = (12, 8, 8)  # sentences of each split
SETTINGS: dict[str, Any] = {"data": "sst", "epochs": 2, "batch_size": 10, "log_every": 3, "save_every": 0.0}


def study(folder: Path) -> None:
    """Generate sentences, pretrain an encoder, encode, train or resume, and report: what commands do one by one."""
    os.environ["CAPSROUTE_DATA"] = str(folder)
    for (split, name), n in zip(sst.FILES.items(), TREES, strict=True):
        trees = treebank.generate_sentences(0, split, n)
        write_atomically(folder / name, "".join(f"{tree}\n" for tree in trees).encode())
    encoder = tiny.pretrain(folder / "encoder", treebank.generate_reviews(0, 100), n_steps=5, n_layers=2, width=32)
    run, environment = RunFolder(folder / "run"), Environment(accelerator="cpu")
    fabric = environment.launch()
    config = LanguageConfig(experiment="sst5", folder=str(folder), encoder=str(encoder), **SETTINGS)
    if run.started:
        config = read_config(run)
    if not run.finished:
        Trainer(make_task(config), run, environment, fabric).train(resume=run.started)
    write_run_report(run, fabric, progress=False)


def render(folder: Path) -> None:
    toys.load(folder, "test", 8)


def read_products(folder: Path, excused: Path | None = None) -> dict[str, Any]:
    """Return all that must not depend on what happened on the way, and files that nobody should have left."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path == excused:
            continue
        if path.name.endswith(".tmp"):
            found[name] = "left behind"
        elif path.name in ("checkpoint.safetensors", "test.safetensors"):
            tensors, _ = read_checkpoint(path)
            found[name] = {key: t.flatten().view(torch.uint8).tolist() for key, t in tensors.items()}
        elif path.name in ("log.csv", "validation.csv"):  # without the column of seconds
            found[name] = [row.split(",")[:2] + row.split(",")[3:] for row in path.read_text().splitlines()]
        elif path.suffix in (".npy", ".txt") or path.name in ("model.safetensors", "test.json"):
            found[name] = path.read_bytes()
    return found


def attempt(work: Callable[[Path], None], folder: Path, answer: Any, limit: int | None) -> None:
    """Run a study in a child process as the command line would, and send what it says."""
    torch.set_num_threads(1)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            with error_messages():
                work(folder)
        except typer.Exit:
            answer.send(("refused", said.getvalue()))
            return
    answer.send(("finished", ""))


class Child:
    """A study in a process of its own."""

    def __init__(self, work: Callable[[Path], None], folder: Path, limit: int | None = None):
        self.answer, sender = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=attempt, args=(work, folder, sender, limit))
        self.process.start()
        sender.close()

    def wait(self) -> tuple[str, str]:
        """Return how it ended, and its words: finished, refused, or broken with a traceback, which it has printed."""
        try:
            result = self.answer.recv()
        except EOFError:
            result = ("broken", "")
        self.process.join()
        return result

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Chaos:
    """Trials of a study, and counts of how they ended."""

    def __init__(self, work: Callable[[Path], None], home: Path, seed: int):
        self.work, self.home, self.random, self.counts = work, home, random.Random(seed), Counter[str]()
        self.excused: Path | None = None  # a damaged file that nothing reads or writes again: a finished run's
        self.whole = home / "undisturbed" / "place"
        self.whole.mkdir(parents=True)
        start = time.monotonic()
        self.expect(Child(work, self.whole).wait()[0] == "finished", "the undisturbed study fails")
        self.seconds = time.monotonic() - start
        self.products = read_products(self.whole)

    def expect(self, true: bool, problem: str) -> None:
        if not true:
            raise SystemExit(f"chaos: {problem}; see {self.home}")

    @contextmanager
    def trial(self, kind: str, *, copy: bool = False) -> Iterator[Path]:
        """Yield a folder, empty or with a copy of the undisturbed study; then run the study in it and compare.

        Every copy lies under the same path, because settings name files.
        """
        aside, place = self.home / "aside", self.whole
        place.rename(aside)
        if copy:
            shutil.copytree(aside, place)
        else:
            place.mkdir()
        yield place
        how, words = Child(self.work, place).wait()
        self.expect(how == "finished" or (how == "refused" and copy), f"after {kind}: {how}: {words}")
        if how == "finished":
            products, excused = (
                read_products(place, self.excused),
                str(self.excused and self.excused.relative_to(place)),
            )
            names = {*products, *self.products} - {excused}
            wrong = [name for name in names if products.get(name) != self.products.get(name)]
            self.expect(not wrong, f"after {kind}: these files differ: {', '.join(sorted(wrong))}")
        self.excused = None
        self.counts[f"{kind}: {'identical' if how == 'finished' else 'refused in words'}"] += 1
        shutil.rmtree(place)
        aside.rename(place)

    def check_words(self, kind: str, how: str, words: str, place: Path) -> None:
        self.expect(how != "broken", f"{kind} ends in a traceback")
        self.expect(how == "finished" or str(place) in words, f"{kind}: the message names no file: {words}")
        self.counts[f"{kind}, first: {how}"] += 1

    def kills(self) -> None:
        """Kill it at one to four random moments."""
        with self.trial("kills") as place:
            for _ in range(self.random.randint(1, 4)):
                child = Child(self.work, place)
                time.sleep(self.random.uniform(0, self.seconds))
                child.kill()

    def two_at_once(self) -> None:
        with self.trial("two at once") as place:
            one = Child(self.work, place)
            time.sleep(self.random.choice((0, 0, self.random.uniform(0, self.seconds))))
            two = Child(self.work, place)
            for child in (one, two):
                self.check_words("two at once", *child.wait(), place)

    def full_disk(self) -> None:
        """Give it a file system of random size, or where none can be mounted, a limit on the size of files."""
        kibibytes = int(2 ** self.random.uniform(0, 11))
        with self.trial("full disk") as place:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "none", str(place)]
            mounted = os.geteuid() == 0 and not subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode
            try:
                limit = None if mounted else 1024 * kibibytes
                self.check_words("full disk", *Child(self.work, place, limit).wait(), place)
                kept = self.home / "kept"
                shutil.copytree(place, kept)
            finally:
                if mounted:
                    subprocess.run(["umount", str(place)], check=True)
            shutil.rmtree(place)
            kept.rename(place)

    def damage(self) -> None:
        """Cut, empty, delete or flip a bit of a random file: of a finished run, or of what another run starts from."""
        with self.trial("damage", copy=True) as place:
            path = self.random.choice([path for path in sorted(place.rglob("*")) if path.is_file()])
            data = bytearray(path.read_bytes())
            match self.random.choice(("cut", "empty", "delete", "flip", "flip", "flip")):
                case "cut":
                    path.write_bytes(data[: self.random.randrange(len(data) + 1)])
                case "empty":
                    path.write_bytes(b"")
                case "delete":
                    path.unlink()
                case _ if data:
                    data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
                    path.write_bytes(data)
            if not path.is_relative_to(place / "run"):  # or a finished run would not read it again
                shutil.rmtree(place / "run", ignore_errors=True)
            elif self.random.random() < 0.5:  # the run goes on from its checkpoint
                (place / "run/model/model.safetensors").unlink(missing_ok=True)
            elif path.name == "checkpoint.safetensors":
                self.excused = path
            if path.suffix == ".csv":
                self.excused = path


KINDS = {"kills": Chaos.kills, "two": Chaos.two_at_once, "disk": Chaos.full_disk, "damage": Chaos.damage}
WORKS = {"study": study, "render": render}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="trials of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--work", choices=WORKS, default="study")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    chaos = Chaos(WORKS[options.work], home, options.seed)
    for _ in range(options.rounds):
        for name in [options.only] if options.only else KINDS:
            KINDS[name](chaos)
    shutil.rmtree(home)
    print(json.dumps(dict(sorted(chaos.counts.items())), indent=1))


if __name__ == "__main__":
    main()
