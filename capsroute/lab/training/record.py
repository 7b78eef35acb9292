"""The record of the runs of a study that have ended: a journal of Optuna's, which its dashboard shows too."""

from pathlib import Path
from typing import Any

from ..errors import import_extra


class StudyRecord:
    """Results of runs by a key, in a file."""

    def __init__(self, file: Path):
        optuna = import_extra("optuna")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        file.parent.mkdir(parents=True, exist_ok=True)
        journal = import_extra("optuna.storages.journal")
        backend = journal.JournalFileBackend(str(file), journal.JournalFileOpenLock(str(file)))
        storage = optuna.storages.JournalStorage(backend)
        self.study = optuna.create_study(storage=storage, study_name="runs", direction="maximize", load_if_exists=True)

    def results(self) -> dict[str, dict[str, Any]]:
        """Return the result of each run by its key."""
        return {trial.user_attrs["key"]: trial.user_attrs["result"] for trial in self.study.trials}

    def add(self, key: str, params: dict[str, Any], result: dict[str, Any]) -> None:
        """Add a run; one without an accuracy has failed."""
        from optuna import create_trial
        from optuna.distributions import CategoricalDistribution
        from optuna.trial import TrialState

        failed: dict[str, Any] = {"state": TrialState.FAIL}
        self.study.add_trial(
            create_trial(
                **({"value": result["accuracy"]} if "accuracy" in result else failed),
                params=params,
                distributions={name: CategoricalDistribution([value]) for name, value in params.items()},
                user_attrs={"key": key, "result": result},
            )
        )
