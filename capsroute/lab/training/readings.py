"""The record of test readings: which recipe was tested when, so that none is tested twice by accident.

Who tests several recipes and takes the best has chosen by test data. The record makes that visible.
"""

import csv
import sys
from datetime import UTC, datetime
from pathlib import Path

from ..errors import UserError
from .comparison import write_rows
from .config import Config, changed_settings, hash_settings
from .environment import git_commit

NOT_LEARNED = ("seed", "held_out", "fold", "folder", "log_every", "validate_every", "validate_on", "save_every")
COLUMNS = ("read", "recipe", "experiment", "settings", "seeds", "folder", "commit", "command", "note")


class Readings:
    """A CSV file with a row for each reading of a test set.

    Args:
        path: The file, made when the first row is written.
    """

    def __init__(self, path: Path):
        self.path = path

    def rows(self) -> list[dict[str, str]]:
        """Return all readings, the oldest first."""
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise UserError(f"{self.path}: expected the columns {', '.join(COLUMNS)}; was it edited?")
            return list(reader)

    def check(self, config: Config, seeds: int, folder: Path, *, again: bool = False) -> bool:
        """Return whether this reading is new; one of the same runs is not.

        Raises:
            UserError: If the recipe was tested before, unless `again` is true.
        """
        recipe = recipe_hash(config)
        before = [row for row in self.rows() if row["recipe"] == recipe]
        if any((row["seeds"], row["folder"]) == (str(seeds), str(folder)) for row in before):
            return False
        if before and not again:
            last = before[-1]
            raise UserError(
                f"{self.path}: this recipe was tested on {last['read']}, {last['seeds']} seeds in {last['folder']}; "
                "--again tests it once more and writes that down too"
            )
        return True

    def add(self, config: Config, seeds: int, folder: Path, note: str = "") -> None:
        """Write down that the test set is read now."""
        row = {
            "read": datetime.now(UTC).isoformat(timespec="seconds"),
            "recipe": recipe_hash(config),
            "experiment": config.experiment,
            "settings": " ".join(f"{name}={value}" for name, value in learned_settings(config).items()),
            "seeds": seeds,
            "folder": folder,
            "commit": git_commit(),
            "command": " ".join(["capsroute", *sys.argv[1:]]),
            "note": note,
        }
        write_rows(self.path, [*self.rows(), row])


def learned_settings(config: Config) -> dict[str, object]:
    """Return the settings other than the defaults that change what is learned, whatever the seed."""
    return {name: value for name, value in changed_settings(config).items() if name not in NOT_LEARNED}


def recipe_hash(config: Config) -> str:
    """Return a hash that all seeds of a recipe have in common."""
    return hash_settings(learned_settings(config))
