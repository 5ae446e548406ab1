"""A Standardizer's fit, applied to a site's own file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkin import Standardizer
from fedkin.cli import app
from fedkin.durable import private_folder, save_arrays, write_bytes
from fedkin.federation import Federation
from fedkin.frames import read_frame
from tests.deployment.test_losses import write_csv


@pytest.mark.parametrize("whiten", [False, True])
def test_a_sites_table_is_scaled_as_the_estimator_would(tmp_path, whiten):
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(3.0, 2.0, size=(30, 2)) for name in ("a", "b")}
    model = Standardizer(whiten=whiten).fit(Federation.from_clients(rows))
    folder = private_folder(tmp_path / "records" / "scale-1")
    save_arrays(folder / "model.npz", model._result.for_site(0))
    about = {"algorithm": "standardizer", "features": ["age", "bmi"]}
    write_bytes(folder / "run.json", json.dumps(about).encode())
    words = ["Ann"] * 30
    own = write_csv(tmp_path / "a.csv", bmi=rows["a"][:, 1], name=words, age=rows["a"][:, 0])
    call = ["site", "standardize", str(tmp_path / "records"), "scale-1", "--data", str(own)]
    done = CliRunner().invoke(app, [*call, "--out", str(tmp_path / "scaled.csv")])
    assert done.exit_code == 0, done.output
    table = read_frame(tmp_path / "scaled.csv")
    assert table.column_names == ["bmi", "name", "age"]
    found = np.stack([table[name].to_numpy() for name in ("age", "bmi")], axis=1)
    np.testing.assert_allclose(found, model.transform(rows["a"]), rtol=1e-12, atol=1e-12)
    assert table["name"].to_pylist() == words


def test_what_cannot_be_scaled_is_said(tmp_path):
    folder = private_folder(tmp_path / "fit-1")
    own = str(write_csv(tmp_path / "a.csv", age=[1, 2]))
    call = ["site", "standardize", str(tmp_path), "fit-1", "--data", own, "--out", own + ".csv"]
    assert "has not ended here" in str(CliRunner().invoke(app, call).exception)
    save_arrays(folder / "model.npz", {"shared.mean": np.ones(1)})
    write_bytes(folder / "run.json", b'{"algorithm": "fmlr", "features": ["age"]}')
    assert "not of a Standardizer" in str(CliRunner().invoke(app, call).exception)
