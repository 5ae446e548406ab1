"""Who looks on while a fit goes: observers, MLflow, TensorBoard."""

import logging
import sys

import numpy as np
import pytest

from fedkin import FMLR, Federation, InProcess
from fedkin.datasets import make_regression_groups
from fedkin.engines.observers import Observer
from fedkin.engines.tracking import MLflow, TensorBoard

COEF = [[2.0, 0.0, 1.0], [-1.0, 1.0, 0.0]]
SITES = make_regression_groups(8, 20, COEF, random_state=0).federation
NAMES = [f"hospital-{name}" for name in SITES.groups]
DATA = Federation.from_groups(SITES.X, NAMES, SITES.y)


class Notes(Observer):
    def __init__(self):
        self.told = []

    def begin(self, beginning):
        self.told.append(("begin", beginning))

    def round(self, seen):
        self.told.append(("round", seen))

    def end(self, run):
        self.told.append(("end", run))

    def fail(self, error):
        self.told.append(("fail", error))


def fitted(*observers, **settings):
    engine = InProcess(observers=observers)
    return FMLR(2, share="sums", max_rounds=30, random_state=0, engine=engine, **settings).fit(DATA)


def test_observers_hear_of_beginning_rounds_and_end():
    notes = Notes()
    model = fitted(notes)
    kinds = [kind for kind, _ in notes.told]
    assert kinds == ["begin", *["round"] * model.n_rounds_, "end"]
    beginning = notes.told[0][1]
    assert beginning.algorithm == "fmlr" and beginning.n_sites == 8
    rounds = [seen for kind, seen in notes.told if kind == "round"]
    assert [seen.number for seen in rounds] == list(range(1, model.n_rounds_ + 1))
    assert sum(seen.bytes_up for seen in rounds) == model.traffic_.bytes_up
    assert sum(seen.bytes_down for seen in rounds) == model.traffic_.bytes_down
    assert all(seen.asked == seen.answered == 8 for seen in rounds)


def test_looking_on_changes_nothing():
    np.testing.assert_array_equal(fitted(Notes()).coef_, fitted().coef_)


def test_a_run_that_breaks_off_is_told():
    notes = Notes()
    engine = InProcess(observers=[notes], absent=lambda number, names: names)
    with pytest.raises(RuntimeError, match="quorum"):
        FMLR(2, random_state=0, engine=engine).fit(DATA)
    assert [kind for kind, _ in notes.told] == ["begin", "fail"]


def test_an_observer_that_fails_does_not_cost_the_fit(caplog):
    class Broken(Observer):
        def round(self, seen):
            raise OSError("the disk is full")

    notes = Notes()
    with caplog.at_level(logging.WARNING, logger="fedkin"):
        model = fitted(Broken(), notes)
    assert [record.getMessage() for record in caplog.records] == [
        "Broken failed and is not told any more: the disk is full"
    ]
    assert sum(kind == "round" for kind, _ in notes.told) == model.n_rounds_


@pytest.mark.parametrize(
    "make, module, extra",
    [(MLflow, "mlflow", "mlflow"), (lambda: TensorBoard("x"), "tensorboardX", "tensorboard")],
    ids=["mlflow", "tensorboard"],
)
def test_without_the_library_the_error_names_the_extra(monkeypatch, make, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'pip install "fedkin\[{extra}\]"'):
        make()


def scalars(folder):
    """Scalars (tag, step) -> value in the event files of a folder."""
    import struct

    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in folder.glob("events*"):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + length])
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
            at += length + 16
    return found


def test_tensorboard_has_rounds_search_and_result(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs the extra 'tensorboard'")
    board = TensorBoard(tmp_path)
    model = fitted(board)
    fitted(board)
    assert [folder.name for folder in board.folders] == ["fmlr-1", "fmlr-2"]
    seen = scalars(board.folders[0])
    assert seen["rounds/sites_answered", 1] == 8
    assert ("rounds/bytes_up", model.n_rounds_) in seen
    loglik = model.history_["loglik"]
    line = [seen["search/loglik", step] for step in range(1, len(loglik) + 1)]
    np.testing.assert_allclose(line, loglik, rtol=1e-6)
    assert seen["result/rounds", model.n_rounds_] == model.n_rounds_
    text = b"".join(path.read_bytes() for path in board.folders[0].glob("events*"))
    assert b"n_components" in text and not any(name.encode() in text for name in DATA.names)


def test_mlflow_has_parameters_rounds_and_search(tmp_path, monkeypatch):
    # Newer versions keep folders only when told that this is meant, and report on their use.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    pytest.importorskip("mlflow", reason="needs the extra 'mlflow'")
    from mlflow import MlflowClient

    place = (tmp_path / "runs").as_uri()
    tracker = MLflow("kinds", place, tags={"who": "test"})
    model = fitted(tracker)
    client = MlflowClient(place)
    run = client.get_run(tracker.run_ids[0])
    assert run.info.status == "FINISHED" and run.data.tags["who"] == "test"
    assert run.data.params["algorithm"] == "fmlr"
    assert run.data.params["setting.n_components"] == "2"
    rounds = client.get_metric_history(tracker.run_ids[0], "bytes_up")
    assert sum(point.value for point in rounds) == model.traffic_.bytes_up
    line = client.get_metric_history(tracker.run_ids[0], "loglik")
    search = [p.value for p in sorted(line, key=lambda p: p.step)][: len(model.history_["loglik"])]
    np.testing.assert_allclose(search, model.history_["loglik"])
    engine = InProcess(observers=[tracker], absent=lambda number, names: names)
    with pytest.raises(RuntimeError):
        FMLR(2, random_state=0, engine=engine).fit(DATA)
    assert client.get_run(tracker.run_ids[-1]).info.status == "FAILED"
