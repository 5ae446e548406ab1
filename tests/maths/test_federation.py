import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin import Federation

sizes = st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(lambda s: sum(s) > 0)


def ragged(counts, d=2, seed=0):
    rng = np.random.default_rng(seed)
    rows = {f"s{k}": (rng.normal(size=(n, d)), rng.normal(size=n)) for k, n in enumerate(counts)}
    return Federation.from_clients(rows)


def test_groups_clients_frames_and_files_give_the_same_federation(tmp_path):
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    site = np.array(["b", "a", "c"])[np.arange(30) % 3]
    by_groups = Federation.from_groups(X, site, y)
    by_clients = Federation.from_clients({s: (X[site == s], y[site == s]) for s in "cab"})
    columns = {"site": site, "u": X[:, 0], "v": X[:, 1], "y": y}
    frames = [library.DataFrame(columns) for library in (pandas, polars)]
    made = [by_clients, *(Federation.from_frame(frame, "site", "y") for frame in frames)]
    for s in "abc":
        frame = pandas.DataFrame(columns)
        own = frame[frame.site == s].drop(columns="site")
        own.to_csv(tmp_path / f"{s}.csv", index=False)
    made.append(Federation.from_files(tmp_path, target="y"))
    for other in made:
        assert other.names == by_groups.names == ("a", "b", "c")
        np.testing.assert_array_equal(other.offsets, by_groups.offsets)
        np.testing.assert_array_equal(other.X, by_groups.X)
        np.testing.assert_array_equal(other.y, by_groups.y)
    assert made[1].feature_names == made[2].feature_names == made[3].feature_names == ("u", "v")
    assert made[1].target_name == made[3].target_name == "y"
    np.testing.assert_array_equal(X[by_groups.rows], by_groups.X)


def test_npz_and_parquet_files_per_site(tmp_path):
    import pyarrow
    from pyarrow import parquet

    X = np.arange(6.0).reshape(3, 2)
    np.savez(tmp_path / "one.npz", X=X, y=X[:, 0])
    parquet.write_table(
        pyarrow.table({"x0": X[:, 0], "x1": X[:, 1], "y": X[:, 1]}), tmp_path / "two.parquet"
    )
    made = Federation.from_files([tmp_path / "two.parquet", tmp_path / "one.npz"], target="y")
    assert made.names == ("one", "two")
    np.testing.assert_array_equal(made.y, [0, 2, 4, 1, 3, 5])


def test_names_of_any_kind_sort_as_people_count():
    X = np.zeros((4, 1))
    assert Federation.from_groups(X, [10, 9, 2, 2]).names == ("2", "9", "10")
    assert Federation.from_groups(X, [10.0, 9.0, 2.0, 2.0]).names == ("2", "9", "10")
    assert Federation.from_groups(X, ["s10", "s9", "s2", "s2"]).names == ("s2", "s9", "s10")
    assert Federation.from_groups(X, np.array([True, False, True, True])).names == ("False", "True")
    assert Federation.from_groups(X, [-1, 3, -1, 3]).names == ("3", "-1")
    dates = np.array(["2024-01-02", "2023-01-01"] * 2, dtype="datetime64[D]")
    assert Federation.from_groups(X, dates).names == ("2023-01-01", "2024-01-02")


@settings(max_examples=60, deadline=None)
@given(sizes)
def test_buckets_hold_every_filled_client_once_with_little_padding(counts):
    federation = ragged(counts)
    seen = []
    for bucket in federation.buckets():
        packed = bucket.pack(federation.X)
        assert packed.shape == (len(bucket.clients), 2, bucket.width)
        assert bucket.width <= max(1.25 * bucket.sizes.min(), 1)
        for block, k, n in zip(packed, bucket.clients, bucket.sizes):
            np.testing.assert_array_equal(block[:, :n].T, federation.client(k)[0])
            assert (block[:, n:] == 0).all()
        seen.extend(bucket.clients)
    assert sorted(seen) == list(np.flatnonzero(federation.sizes))


def test_packed_rows_can_be_changed_without_changing_the_data():
    for counts in ([3, 3, 3], [3, 2, 3], [1, 1]):
        federation = ragged(counts)
        before = federation.X.copy(), federation.y.copy()
        for bucket in federation.buckets():
            for rows in (federation.X, federation.X[:, :1], federation.y):
                bucket.pack(rows)[:] = -1.0
        np.testing.assert_array_equal(federation.X, before[0])
        np.testing.assert_array_equal(federation.y, before[1])


@settings(max_examples=60, deadline=None)
@given(sizes, st.floats(0, 1), st.integers(0, 5))
def test_split_within_clients_partitions_the_rows_of_each(counts, share, seed):
    federation = ragged(counts)
    train, test = federation.split(share, random_state=seed)
    np.testing.assert_array_equal(train.sizes + test.sizes, federation.sizes)
    assert (train.sizes[federation.sizes > 0] >= 1).all()
    for k in range(len(federation)):
        both = np.concatenate([train.client(k)[1], test.client(k)[1]])
        np.testing.assert_array_equal(np.sort(both), np.sort(federation.client(k)[1]))


def test_a_split_does_not_depend_on_who_else_is_there():
    federation = ragged([10, 20, 30])
    whole = federation.split(0.3, random_state=2)[1]
    alone = federation.take([1]).split(0.3, random_state=2)[1]
    np.testing.assert_array_equal(whole.client(1)[0], alone.client(0)[0])


def test_leaving_clients_out_leaves_them_out_whole():
    federation = ragged([5] * 10)
    train, test = federation.split(0.3, by="clients", random_state=1)
    assert len(test) == 3 and len(train) == 7
    assert not set(train.names) & set(test.names)
    assert (test.sizes == 5).all()


def test_take_gives_clients_in_the_order_asked_for():
    federation = ragged([2, 0, 3, 4])
    block = federation.take([3, 0])
    assert block.names == ("s3", "s0")
    np.testing.assert_array_equal(block.client(0)[0], federation.client(3)[0])
    np.testing.assert_array_equal(block.client(1)[1], federation.client(0)[1])


def test_ten_thousand_ragged_clients_need_no_loop():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 10_000, size=200_000)
    X = rng.normal(size=(200_000, 3))
    federation = Federation.from_groups(X, groups, X[:, 0])
    totals = np.zeros(len(federation))
    for bucket in federation.buckets():
        totals[bucket.clients] = bucket.pack(federation.y).sum(axis=-1)
    expected = np.bincount(groups, X[:, 0])[np.unique(groups)]
    np.testing.assert_allclose(totals, expected, atol=1e-10)
