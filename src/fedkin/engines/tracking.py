"""Runs in MLflow and TensorBoard: observers for `InProcess(observers=[...])`.

Both write what `fedkin.engines.observers` tells: settings, sites and bytes of every round, the
server's search and the single numbers of the result. Neither is needed to use fedkin; the extras
`mlflow` and `tensorboard` install them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from fedkin.engines.observers import Beginning, Observer, Round, final_numbers, histories
from fedkin.protocol import Run

# MLflow takes no longer values of parameters; arrays given as starts are longer.
LONGEST_SETTING = 500


def _module(name: str, extra: str) -> Any:
    """An optional library, or an error that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f'{name} is not installed: pip install "fedkin[{extra}]" ({error})', name=name
        ) from error


def _words(beginning: Beginning) -> dict[str, str]:
    """Settings and what else was known before the first round, as short texts."""
    told = {
        "algorithm": beginning.algorithm,
        "n_sites": beginning.n_sites,
        "seed": beginning.seed,
        **{f"setting.{name}": value for name, value in beginning.settings.items()},
    }
    return {name: str(value)[:LONGEST_SETTING] for name, value in told.items()}


class MLflow(Observer):
    """Writes every run as a run of MLflow.

    Parameters
    ----------
    experiment : str
        Experiment that runs belong to; made if it is not there.
    tracking_uri : str or None
        Where MLflow keeps them; None is what `mlflow.set_tracking_uri` said.
    tags : mapping or None
        Tags of the runs.

    Attributes
    ----------
    run_ids : list of str
        Runs that were written, the last one last.
    """

    def __init__(
        self,
        experiment: str = "fedkin",
        tracking_uri: str | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        _module("mlflow", "mlflow")
        self.experiment, self.tracking_uri, self.tags = experiment, tracking_uri, tags
        self.run_ids: list[str] = []

    def _client(self) -> Any:
        return _module("mlflow", "mlflow").MlflowClient(self.tracking_uri)

    def begin(self, beginning: Beginning) -> None:
        """Open a run with the settings as its parameters."""
        client = self._client()
        known = client.get_experiment_by_name(self.experiment)
        place = client.create_experiment(self.experiment) if known is None else known.experiment_id
        run = client.create_run(place, tags=self.tags, run_name=beginning.algorithm)
        self.run_ids.append(run.info.run_id)
        for name, text in _words(beginning).items():
            client.log_param(self.run_ids[-1], name, text)

    def round(self, seen: Round) -> None:
        """Log sites and bytes of a round."""
        self._log({name: [value] for name, value in seen.numbers().items()}, seen.number)

    def end(self, run: Run) -> None:
        """Log the search and the result, and close the run."""
        self._log(histories(run))
        self._log({name: [value] for name, value in final_numbers(run).items()}, run.traffic.rounds)
        self._client().set_terminated(self.run_ids[-1], "FINISHED")

    def fail(self, error: BaseException) -> None:
        """Close the run as failed, with the reason."""
        client = self._client()
        client.set_tag(self.run_ids[-1], "error", f"{type(error).__name__}: {error}")
        client.set_terminated(self.run_ids[-1], "FAILED")

    def _log(self, lines: dict[str, list[float]], first: int = 1) -> None:
        client = self._client()
        for name, values in lines.items():
            for step, value in enumerate(values, first):
                client.log_metric(self.run_ids[-1], name, value, step=step)


class TensorBoard(Observer):
    """Writes every run as a folder that TensorBoard shows.

    Parameters
    ----------
    folder : path
        Where the runs' folders are made; `tensorboard --logdir` takes it.

    Attributes
    ----------
    folders : list of Path
        Folders that were written, the last one last.
    """

    def __init__(self, folder: str | Path) -> None:
        _module("tensorboardX", "tensorboard")
        self.folder = Path(folder)
        self.folders: list[Path] = []
        self._writer: Any = None

    def begin(self, beginning: Beginning) -> None:
        """Open a folder, with the settings as a text."""
        taken = {place.name for place in self.folder.glob(f"{beginning.algorithm}-*")}
        number = next(
            k for k in range(1, len(taken) + 2) if f"{beginning.algorithm}-{k}" not in taken
        )
        self.folders.append(self.folder / f"{beginning.algorithm}-{number}")
        writer = _module("tensorboardX", "tensorboard").SummaryWriter
        self._writer = writer(str(self.folders[-1]))
        rows = [f"| {name} | {text} |" for name, text in _words(beginning).items()]
        self._writer.add_text("settings", "\n".join(["| | |", "|---|---|", *rows]))

    def round(self, seen: Round) -> None:
        """Write sites and bytes of a round."""
        for name, value in seen.numbers().items():
            self._writer.add_scalar(f"rounds/{name}", value, seen.number)

    def end(self, run: Run) -> None:
        """Write the search and the result."""
        for name, line in histories(run).items():
            for step, value in enumerate(line, 1):
                self._writer.add_scalar(f"search/{name}", value, step)
        for name, value in final_numbers(run).items():
            self._writer.add_scalar(f"result/{name}", value, run.traffic.rounds)
        self._close()

    def fail(self, error: BaseException) -> None:
        """Write why there is no result."""
        self._writer.add_text("error", f"{type(error).__name__}: {error}")
        self._close()

    def _close(self) -> None:
        self._writer.close()
        self._writer = None
