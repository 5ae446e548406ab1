"""A whole federation by files: nothing but reply files passes between the commands."""

import json
import socket

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkin import ODCL, OracleAveraging
from fedkin.algorithms import algorithm
from fedkin.algorithms.odcl import question
from fedkin.cli import app
from fedkin.datasets import make_logistic_groups, make_sparse_regressions, spoil_sites
from fedkin.engines.files import ReplyFiles, read_reply, write_reply
from fedkin.names import file_name
from fedkin.privacy import Ledger
from fedkin.protocol import ProtocolError, QuorumLost, Reason

GROUPS = make_sparse_regressions(
    60, n_clients=12, intervals=((1.0, 2.0), (-2.0, -1.0)), n_features=4, n_active=3, random_state=1
)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*arguments, **more):
        raise AssertionError("file mode opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def write_sites(groups, folder):
    data = groups.federation
    paths = []
    for k, name in enumerate(data.names):
        X, y = data.client(k)
        path = folder / f"site-{name}.csv"
        header = ",".join([*data.feature_names, "target"])
        np.savetxt(
            path, np.column_stack([X, y]), fmt="%.17g", delimiter=",", header=header, comments=""
        )
        paths.append(path)
    return paths


def replies_of(groups, folder, *options):
    files = []
    for path in write_sites(groups, folder):
        file = path.with_suffix(".npz")
        done = run("odcl", "local", path, "--target", "target", "-o", file, *options)
        assert done.exit_code == 0, done.output
        files.append(file)
    return files


@pytest.mark.parametrize("send", [None, "covariance", "statistics"])
def test_two_commands_do_what_one_process_does(tmp_path, send):
    files = replies_of(GROUPS, tmp_path, *(() if send is None else ("--send", send)))
    done = run("odcl", "combine", *files, "-o", tmp_path / "models")
    assert done.exit_code == 0, done.output
    fitted = ODCL(send=send, random_state=0).fit(GROUPS.federation)
    assert fitted.n_clusters_ == 2 and "12 sites, 2 clusters" in done.output
    for k, name in enumerate(GROUPS.federation.names):
        found = json.loads((tmp_path / "models" / f"site-{name}.model.json").read_text())
        assert found["group"] == fitted.labels_[k] and found["site"] == f"site-{name}"
        coefficients = list(found["coefficients"].values())
        np.testing.assert_allclose(coefficients, fitted.coef_[k], rtol=1e-9)
        np.testing.assert_allclose(found["intercept"], fitted.intercept_[k], rtol=1e-6, atol=1e-12)
    assert list(found["coefficients"]) == ["x0", "x1", "x2", "x3"]


def test_a_reply_file_says_what_leaves_and_holds_no_row(tmp_path):
    path = write_sites(GROUPS, tmp_path)[0]
    done = run("odcl", "local", path, "--target", "target", "--ledger", tmp_path / "ledger")
    assert done.exit_code == 0
    assert "all that leaves site 'site-1' is" in done.output
    assert "model: 5 numbers, coefficients of the site's own fit" in done.output
    written = read_reply(path.with_suffix(".reply.npz"))
    assert set(written.arrays) == {"model", "rows", "statistics"}
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    assert not any(np.isin(array, rows).any() for array in written.arrays.values())
    (line,) = Ledger(tmp_path / "ledger").lines()
    assert set(line["fields"]) == set(written.arrays)


def test_logistic_files_and_json(tmp_path):
    groups = make_logistic_groups(400, n_clients=8, random_state=0)
    files = replies_of(groups, tmp_path, "--loss", "logistic")
    done = run("odcl", "combine", *files, "-o", tmp_path / "models", "--json")
    content = json.loads(done.stdout.splitlines()[0])
    assert groups.recovers([site["cluster"] for site in content["sites"]])


def test_a_site_that_was_refused_is_not_among_the_sites_and_json_has_no_nan(tmp_path):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    files = replies_of(GROUPS, tmp_path)
    with np.load(files[3], allow_pickle=False) as stored:
        arrays = dict(stored)
    arrays["model"] = np.full_like(arrays["model"], np.nan)
    np.savez(files[3], **arrays)
    done = run("odcl", "combine", *files, "-o", tmp_path / "models", "--json")
    assert done.exit_code == 1 and "write the file again" in done.stderr
    content = json.loads(done.stdout.splitlines()[0], parse_constant=refuse)
    assert content["sites"][0]["rows"] == 60
    assert [s["site"] for s in content["sites"]] == [f"site-{k}" for k in (1, 2, 3, *range(5, 13))]


def test_odd_sites_keep_their_own_model(tmp_path):
    groups = spoil_sites(GROUPS, 0.1, "wild", 3)
    files = replies_of(groups, tmp_path)
    done = run("odcl", "combine", *files, "-o", tmp_path / "models", "--robust")
    assert done.exit_code == 0, done.output
    aside = [
        json.loads((tmp_path / "models" / f"site-{name}.model.json").read_text())["set_aside"]
        for name in groups.federation.names
    ]
    assert aside == list(groups.labels < 0)


def groups_of(folder):
    found = [json.loads((folder / f"site-{k}.model.json").read_text()) for k in range(1, 13)]
    return [site["group"] for site in found], [site["heard"] for site in found]


@pytest.mark.parametrize("send", ["model", "rows"])
def test_without_covariances_the_silhouette_chooses_the_number_of_groups(tmp_path, send):
    files = replies_of(GROUPS, tmp_path, "--send", send)
    done = run("odcl", "combine", *files, "-o", tmp_path / "models")
    assert done.exit_code == 0 and "(gap)" in done.output
    groups, heard = groups_of(tmp_path / "models")
    assert GROUPS.recovers(groups) and all(heard)
    assert run("odcl", "combine", *files, "-o", tmp_path / "models", "-k", 2).exit_code == 0


def test_sums_serve_other_averages_than_pooling(tmp_path):
    files = replies_of(GROUPS, tmp_path, "--send", "statistics")
    done = run("odcl", "combine", *files, "-o", tmp_path / "models", "--aggregate", "precision")
    assert done.exit_code == 0 and GROUPS.recovers(groups_of(tmp_path / "models")[0])
    fitted = ODCL(aggregate="precision", random_state=0).fit(GROUPS.federation)
    found = json.loads((tmp_path / "models" / "site-1.model.json").read_text())
    np.testing.assert_allclose(list(found["coefficients"].values()), fitted.coef_[0], rtol=1e-6)


def test_one_file_that_holds_less_bounds_what_is_used_of_all(tmp_path):
    files = replies_of(GROUPS, tmp_path)
    path = tmp_path / "site-2.csv"
    run("odcl", "local", path, "--target", "target", "-o", files[1], "--send", "model")
    done = run("odcl", "combine", *files, "-o", tmp_path / "models")
    assert done.exit_code == 0, done.output
    assert "no more than --send model was used" in done.stderr
    assert "'site-2' hold less than --send statistics; let these sites write again" in done.stderr
    groups, heard = groups_of(tmp_path / "models")
    assert GROUPS.recovers(groups) and all(heard)
    done = run("odcl", "combine", *files, "-o", tmp_path / "models", "--aggregate", "precision")
    assert isinstance(done.exception, ValueError)
    assert "needs reply files written with --send covariance; those of 'site-2'" in str(
        done.exception
    )


def test_a_reply_file_of_another_kind_is_not_used_and_needs_attention(tmp_path):
    files = replies_of(GROUPS, tmp_path, "--send", "covariance")
    path = tmp_path / "site-2.csv"
    run("odcl", "local", path, "--target", "target", "-o", files[1], "--send", "statistics")
    done = run("odcl", "combine", *files, "-o", tmp_path / "models")
    assert done.exit_code == 1
    assert "site 'site-2': its reply file was not used" in done.stderr
    assert "let the site write again with --send covariance" in done.stderr
    groups, heard = groups_of(tmp_path / "models")
    assert groups[1] == -1 and [k for k in range(12) if not heard[k]] == [1]


def test_files_no_rows_can_give_need_attention(tmp_path):
    files = replies_of(GROUPS, tmp_path)
    with np.load(files[5], allow_pickle=False) as stored:
        arrays = dict(stored)
    arrays["statistics"] = -arrays["statistics"]
    np.savez(files[5], **arrays)
    done = run("odcl", "combine", *files, "-o", tmp_path / "models")
    assert done.exit_code == 1 and "warning: left out" in done.stderr and "'site-6'" in done.stderr
    assert not groups_of(tmp_path / "models")[1][5]


def test_too_few_usable_files_are_one_line(tmp_path):
    files = replies_of(GROUPS, tmp_path)
    for path in files:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        arrays["model"] = np.full_like(arrays["model"], np.nan)
        np.savez(path, **arrays)
    done = run("odcl", "combine", *files, "-o", tmp_path / "models")
    assert isinstance(done.exception, ValueError) and "0 of 12" in str(done.exception)


def test_an_engine_of_files_cannot_send_more_than_they_hold(tmp_path):
    files = replies_of(GROUPS, tmp_path, "--send", "model")
    with pytest.raises(QuorumLost, match="a declared field is missing"):
        ODCL(aggregate="size", n_clusters=2, engine=ReplyFiles.read(files)).fit()


def test_files_that_do_not_fit_together_are_named(tmp_path):
    method, data = algorithm("odcl"), GROUPS.federation

    def write(clients, name, **settings):
        chosen = method.settings(**settings)
        return write_reply(tmp_path / name, method, question("model"), clients, chosen)

    write(data.take([0]), "a.npz")
    write(data.take([1]), "b.npz", alpha=0.1)
    with pytest.raises(ValueError, match=r"site '2' fitted with alpha=0.1, not None"):
        ODCL(1, engine=ReplyFiles.read([tmp_path / "a.npz", tmp_path / "b.npz"])).fit()
    with pytest.raises(ValueError, match="two reply files come from site '1'"):
        ReplyFiles.read([tmp_path / "a.npz", tmp_path / "a.npz"])
    with pytest.raises(ValueError, match="fit\\(\\) takes no data"):
        ODCL(1, engine=ReplyFiles.read([tmp_path / "a.npz"])).fit(data)
    with pytest.raises(ProtocolError, match="refine_rounds=0"):
        files = ReplyFiles.read([tmp_path / "a.npz"])
        ODCL(1, send="model", refine_rounds=1, engine=files).fit()
    with pytest.raises(ValueError, match="comes from one site"):
        write(data, "c.npz")
    (tmp_path / "no.npz").write_bytes(b"not a reply file")
    with pytest.raises(ValueError, match=r"no.npz is not a reply file"):
        read_reply(tmp_path / "no.npz")


def test_a_site_with_too_few_rows_writes_nothing(tmp_path):
    path = write_sites(GROUPS, tmp_path)[0]
    file = tmp_path / "out.npz"
    done = run("odcl", "local", path, "--target", "target", "-o", file, "--least-rows", 100)
    assert "nothing was written: too few rows" in str(done.exception) and not file.exists()


def test_a_spoilt_file_is_refused_and_costs_only_its_site(tmp_path):
    files = replies_of(GROUPS, tmp_path)
    with np.load(files[3], allow_pickle=False) as stored:
        arrays = dict(stored)
    arrays["model"] = np.full_like(arrays["model"], np.nan)
    np.savez(files[3], **arrays)
    fitted = ODCL(engine=ReplyFiles.read(files), random_state=0).fit()
    assert [(r.site, r.reason) for r in fitted.refusals_] == [("site-4", Reason.NOT_FINITE)]
    assert fitted.n_clusters_ == 2 and fitted.labels_[3] == -1
    assert np.isfinite(fitted.coef_).all()


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", ".hidden", "Zürich", "a b"])
def test_a_sites_name_cannot_leave_the_folder(name):
    safe = file_name(name)
    assert "/" not in safe and not safe.startswith(".") and safe.isascii()
    assert file_name("a/b") != file_name("a_b") == "a_b"


def test_known_clusters_by_name_need_no_data_here(tmp_path):
    files = replies_of(GROUPS, tmp_path, "--send", "model", "--no-intercept")
    truth = {f"site-{name}": k for name, k in zip(GROUPS.federation.names, GROUPS.labels)}
    plain = {"fit_intercept": False}
    apart = OracleAveraging(truth, engine=ReplyFiles.read(files), **plain).fit()
    together = OracleAveraging(GROUPS.labels, **plain).fit(GROUPS.federation)
    np.testing.assert_allclose(apart.coef_, together.coef_, rtol=1e-12)
    del truth["site-1"]
    with pytest.raises(ValueError, match="true_labels lacks site 'site-1'"):
        OracleAveraging(truth, engine=ReplyFiles.read(files), **plain).fit()
