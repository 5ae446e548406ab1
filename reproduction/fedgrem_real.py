"""FedGrEM, Tables 1 to 3 (test errors) and 6 to 8 (seconds): digits and clothes without labels.

Pen digits come by writer. MNIST and Fashion-MNIST are dealt to 100 sites at random and brought to
ten dimensions: by PCA, and on a subsample by exact t-SNE, which is what the paper used on all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.datasets import load_fashion_mnist, load_mnist
from reproduction.fedgrem_printed import METHODS, printed
from reproduction.study import Check, Claim, Promise, Results, Size, Study, agreed, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ADAPTIVE = "FedGrEM, adaptive"
# How rows are scaled before the fit: within groups over all sites, or every column by itself.
WHITENED, Z_SCORES = "whitened", "z-scores"


def models(n_classes: int, seed: int) -> dict[str, Any]:
    """The paper's methods by its names, and ours."""
    from fedkin import TGMM, FedEM, FedGrEM, LocalEM, PooledEM

    plain: dict[str, Any] = {"random_state": seed}
    ward: dict[str, Any] = {"init": "ward", "random_state": seed}
    return {
        "Local-EM": LocalEM(n_classes, **ward),
        "Local-GrEM": LocalEM(n_classes, step="gradient", max_rounds=2, **ward),
        "FedEM": FedEM(n_classes, **ward),
        "FedGrEM": FedGrEM(n_classes, shrinkage="paper", max_rounds=500, **ward),
        "TGMM": TGMM(n_classes, **ward),
        "Pooled-EM": PooledEM(n_classes, n_restarts=3, **plain),
        "Pooled-GrEM": PooledEM(n_classes, step="gradient", n_restarts=3, **plain),
        ADAPTIVE: FedGrEM(n_classes, **plain),
    }


def compare(
    X: Any, label: Any, site: Any, n_bad: int, seed: int, scaling: str | None = WHITENED
) -> list[dict[str, Any]]:
    """Test error and seconds of every method with `n_bad` contaminated sites."""
    import time

    from fedkin import Standardizer
    from reproduction.mixture_protocol import contaminate, matched_errors, split_sites

    n_classes = int(label.max()) + 1
    train, test = split_sites(site, seed)
    X, bad = contaminate(X, site, n_bad, seed)
    test &= ~bad
    rows = X
    if scaling is not None:
        how = {"whiten": True, "n_groups": n_classes} if scaling == WHITENED else {}
        scaler = Standardizer(robust=n_bad > 0, **how)
        rows = scaler.fit(X[train], groups=site[train]).transform(X)
    found = []
    for name, model in models(n_classes, seed).items():
        begin = time.process_time()
        model.fit(rows[train], groups=site[train])
        seconds = time.process_time() - begin
        groups = model.predict(rows[test], groups=site[test])
        each, once = matched_errors(groups, label[test], site[test])
        found.append({"method": name, "error": each, "one_matching": once, "seconds": seconds})
    return found


# ------------------------------------------------------------------ pen digits

# How many of the 44 writers a share printed in the paper makes.
PEN_BAD = {"0%": 0, "6.8%": 3, "13.6%": 6, "20.5%": 9}


def pen_digits(seed: int, share: str, scaling: str) -> list[dict[str, Any]]:
    """44 writers, 3, 6 or 9 of them contaminated."""
    from fedkin.datasets import load_pendigits

    data = load_pendigits()
    X = data.X.astype(float)
    return compare(X, data.digit, data.writer_names, PEN_BAD[share], seed, scaling)


# ------------------------------------------------------------------ pictures


def pictures(
    seed: int, data: str, features: str, n_sites: int, n_rows: int
) -> list[dict[str, Any]]:
    """Pictures dealt to sites, in ten dimensions, at every share of contaminated sites."""
    from sklearn.decomposition import PCA

    loaded = load_mnist() if data == "mnist" else load_fashion_mnist()
    X = np.concatenate([loaded.X_train, loaded.X_test])
    label = np.concatenate([loaded.y_train, loaded.y_test])
    chosen = np.random.default_rng([9, seed]).permutation(len(X))[: n_sites * n_rows]
    pixels = X[chosen].reshape(len(chosen), -1).astype(np.float32) / 255
    reduced = PCA(50, svd_solver="covariance_eigh").fit_transform(pixels).astype(float)
    if features == "t-SNE":
        from sklearn.manifold import TSNE

        exact = TSNE(10, method="exact", init="pca", max_iter=500, random_state=seed)
        reduced = exact.fit_transform(reduced).astype(float)
    site = np.array([f"site-{k:03d}" for k in np.arange(len(chosen)) % n_sites])
    rows = []
    for share in ("0%", "8%", "16%", "24%"):
        n_bad = round(float(share[:-1]) / 100 * n_sites)
        scaling = None if features == "t-SNE" else WHITENED
        found = compare(reduced[:, :10], label[chosen], site, n_bad, seed, scaling)
        rows += [{"share": share, "bad": n_bad, **row} for row in found]
    return rows


# ------------------------------------------------------------------ figure


def draw(results: Results, errors: int, panel: str) -> Figure:
    """Test errors against the share of contaminated sites: as printed, and ours by `panel`."""
    from matplotlib.figure import Figure

    kinds = results.distinct(panel)
    figure = Figure(figsize=(4.2 * (1 + len(kinds)), 3.8), layout="constrained")
    panels = figure.subplots(1, 1 + len(kinds))
    table = printed(errors)
    shares = list(dict.fromkeys(share for share, _ in table))
    x = [float(share[:-1]) for share in shares]
    marks = dict(zip((*METHODS, ADAPTIVE), "osDo^PX*"))
    for k, method in enumerate((*METHODS, ADAPTIVE)):
        color = "black" if method == ADAPTIVE else f"C{k}"
        look: dict[str, Any] = {"marker": marks[method], "ms": 5, "color": color, "lw": 1}
        if method == "Pooled-GrEM":  # on top of Pooled-EM
            look |= {"fillstyle": "none", "ls": ":", "ms": 8}
        if method != ADAPTIVE:
            values = [float(table[share, method].split()[0]) for share in shares]
            panels[0].plot(x, values, label=method, **look)
        for axes, kind in zip(panels[1:], kinds):
            where = {"method": method, panel: kind}
            values = [results.estimate("error", share=share, **where).mean for share in shares]
            axes.plot(x, values, label=method, **look)
    top = 1.05 * max(axes.get_ylim()[1] for axes in panels)
    for axes, title in zip(panels, ["as printed", *(f"ours, {kind}" for kind in kinds)]):
        axes.set(xlabel="contaminated sites (%)", ylabel="test error (%)", title=title)
        axes.set(ylim=(0, top), xlim=(-1, max(x) + 1))
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


# ------------------------------------------------------------------ claims

PEN_SAME = "scaling, contamination and number of groups are not stated; columns permuted, 10 groups"
SAME = {
    "PCA": "no: PCA in place of t-SNE; contamination not stated",
    "t-SNE": "subsample; contamination not stated",
}
SECONDS = "process time of the fit on one core of another machine; NumPy batched over sites, not R"


def claims(results: Results, *others: Results, errors: int, seconds: int) -> list[Claim]:
    """Every entry of the table of errors and of the table of seconds."""
    pen, found = errors == 1, []
    methods = [*printed(errors).items()]
    methods += [((share, ADAPTIVE), OWN) for share in dict.fromkeys(s for s, _ in printed(errors))]
    for features in [None] if pen else results.distinct("features"):
        kind = {"scaling": Z_SCORES} if pen else {"features": features}
        words = "" if pen else f", {features}"
        for (share, method), value in methods:
            where = {"share": share, "method": method}
            other = results.estimate("error", **where, scaling=WHITENED) if pen else None
            once = results.estimate("one_matching", **where, **kind)
            found.append(
                Claim(
                    f"Table {errors}, {share}, {method}{words}",
                    value,
                    results.estimate("error", **where, **kind),
                    PEN_SAME if pen else SAME[str(features)],
                    f"one matching for all sites: {once}",
                    second=other if other and other.n else None,
                )
            )
    main = {"scaling": Z_SCORES} if pen else {"features": results.distinct("features")[0]}
    for (share, method), value in printed(seconds).items():
        spent = results.estimate("seconds", share=share, method=method, **main)
        entry = f"Table {seconds}, {share}, {method} (s)"
        found.append(Claim(entry, value, spent, SECONDS, _rows(results), compared=False))
    return found


OWN = "not in the paper"


def _rows(results: Results) -> str:
    sizes = [(r["n_sites"], r["n_rows"]) for r in results.rows if r.get("features") == "PCA"]
    return f"{sizes[0][0]} sites of {sizes[0][1]} pictures" if sizes else ""


# ------------------------------------------------------------------ what the paper says


def checks(results: Results, *others: Results, errors: int) -> list[Check]:
    """Who has the least error, at every share of contaminated sites that was run."""
    kinds = [("scaling", k) for k in (Z_SCORES, WHITENED) if results.where(scaling=k).rows]
    kinds = kinds or [("features", k) for k in results.distinct("features")]
    first, holds = [], []
    for column, kind in kinds:
        here = results.where(**{column: kind})
        ahead = []
        for share in here.distinct("share"):
            found = {m: here.estimate("error", share=share, method=m).mean for m in METHODS}
            ahead.append(min(found, key=found.__getitem__))
        first.append(f"{kind}: {', '.join(dict.fromkeys(ahead))}")
        rows = printed(errors)
        said = {share: _least(rows, share) for share, _ in rows}
        holds.append(ahead == [said[share] for share in here.distinct("share")])
    least = dict.fromkeys(said.values())
    words = " or ".join(least)
    return [
        Check(
            f"least error at every share of contaminated sites: {words}",
            agreed(holds),
            "least in ours, " + "; ".join(first),
        )
    ]


def _least(rows: dict[tuple[str, str], str], share: str) -> str:
    """The method with the least printed error."""
    return min(METHODS, key=lambda method: float(rows[share, method].split()[0]))


# The default, on whitened rows.
PROMISED = {"error": (6.0, "a matching per writer"), "one_matching": (20.0, "one matching")}


def promises(results: Results, few: Results) -> list[Promise]:
    """What a user gets on pen digits."""
    return [
        Promise(
            f"pen digits wrong (%), {ADAPTIVE}, whitened, {share} contaminated, {words}",
            results.estimate(measure, share=share, method=ADAPTIVE, scaling=WHITENED).mean,
            most=most,
        )
        for share in ("0%", "20.5%")
        for measure, (most, words) in PROMISED.items()
    ]


def known(results: Results, few: Results) -> list[str]:
    """That scaling, not the start, makes the difference on pen digits."""
    told = []
    for method in ("FedGrEM", "Pooled-EM", "Local-EM"):
        here = results.where(share="0%", method=method)
        z, white = (here.estimate("error", scaling=s) for s in (Z_SCORES, WHITENED))
        if not z.n or not white.n:
            return []
        told.append(
            f"{method} {printed(1)['0%', method].split()[0]} in print, {z.mean:.1f} with z-scores, "
            f"{white.mean:.1f} whitened"
        )
    return [
        "FedGrEM, Table 1: how pen digits are scaled is not stated, and decides: "
        f"{'; '.join(told)} (% wrong).{_starts(few)} Local-EM's number we cannot explain."
    ]


def _starts(few: Results) -> str:
    """What the start does to our rule, beside what scaling does; all digits of a writer."""
    settings = ("FedGrEM, Ward, z-scores", "FedGrEM, Ward, whitened", "FedGrEM, default, whitened")
    found = [few.estimate("error", digits=0, setting=setting) for setting in settings]
    if not all(estimate.n for estimate in found):
        return ""
    z, ward, seeded = (f"{estimate.mean:.2f}" for estimate in found)
    return (
        f" The start does not: our rule has {z} with z-scores from Ward's clusters, whitened "
        f"{ward} from them and {seeded} from k-means++ ([five "
        "splits](studies/fedgrem-few-digits.md))."
    )


# ------------------------------------------------------------------ studies

ROWS = (
    "80 % of a site's rows to fit, 20 % to test; groups matched to classes on the test rows of "
    "each clean site. Contaminated sites have their columns in an order of their own. {scaling} "
    "(medians over sites where some are contaminated), 10 groups, Ward starts, except pooled "
    "methods and *adaptive* (k-means++); Local-GrEM takes at most 2,000 steps."
)
TSNE = "Principal components are whitened within groups over all sites"


def _pictures_study(data: str, words: str, errors: int, seconds: int, load: Any) -> Study:
    def cell(features: str, n_sites: int, n_rows: int) -> dict[str, Any]:
        return {"data": data, "features": features, "n_sites": n_sites, "n_rows": n_rows}

    return Study(
        name=f"fedgrem-tables-{errors}-{seconds}",
        paper="FedGrEM",
        shows=f"Tables {errors} and {seconds}",
        title=f"{words} without labels",
        protocol=(
            f"{words} dealt to sites at random, in 10 dimensions: principal components in place of "
            "t-SNE, whose fast versions stop at three dimensions, and beside it exact t-SNE (from "
            "50 principal components) on as many pictures as it can take (n_sites sites of n_rows "
            f"pictures, see the rows), its coordinates as they are. {ROWS.format(scaling=TSNE)}"
        ),
        one=pictures,
        figure=partial(draw, errors=errors, panel="features"),
        claims=partial(claims, errors=errors, seconds=seconds),
        checks=partial(checks, errors=errors),
        why="not the paper's features: we do not know what its own would give",
        by=("features", "share", "method"),
        measures=("error", "one_matching", "seconds"),
        full=Size([cell("PCA", 100, 700), cell("t-SNE", 25, 160)], 5),
        quick=Size([cell("PCA", 100, 140), cell("t-SNE", 12, 80)], 1),
        toy=Size([cell("PCA", 8, 50)], 1),
        needs=(load,),
    )


STUDIES = (
    Study(
        name="fedgrem-tables-1-6",
        paper="FedGrEM",
        shows="Tables 1 and 6",
        title="pen digits by writer, without labels",
        protocol=(
            "44 writers of about 250 digits, 16 coordinates. "
            + ROWS.format(scaling="Rows as z-scores, or whitened within groups over all sites")
        ),
        one=pen_digits,
        figure=partial(draw, errors=1, panel="scaling"),
        claims=partial(claims, errors=1, seconds=6),
        checks=partial(checks, errors=1),
        promises=promises,
        known=known,
        why=(
            "scaling, which is not stated, decides: with z-scores FedGrEM and the pooled methods "
            "are near the print, whitened they err half as often; why Local-EM errs twice as often "
            "in print we do not know"
        ),
        second="ours, whitened",
        beside=("fedgrem-few-digits",),
        by=("scaling", "share", "method"),
        measures=("error", "one_matching", "seconds"),
        full=Size(cells(scaling=(Z_SCORES, WHITENED), share=tuple(PEN_BAD)), 20),
        quick=Size(cells(scaling=(Z_SCORES, WHITENED), share=tuple(PEN_BAD)), 1),
        toy=Size(cells(scaling=(WHITENED,), share=("20.5%",)), 1),
    ),
    _pictures_study("mnist", "MNIST", 2, 7, load_mnist),
    _pictures_study("fashion", "Fashion-MNIST", 3, 8, load_fashion_mnist),
)
