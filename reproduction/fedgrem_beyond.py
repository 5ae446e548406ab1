"""FedGrEM beyond its paper: the default on other draws, few digits a writer, one order for all."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from reproduction.alignment_draws import ODD_KINDS, assumption_draw, same_meaning, shuffled
from reproduction.fedgrem_figure_3 import promised_errors
from reproduction.pictures import dots
from reproduction.study import Promise, Results, Size, Study, cells

# ------------------------------------------------------------------ the default on other draws

# The adaptive rule was developed on seeds below.
OTHER_SEEDS = 100


def other_draws(seed: int, h: float) -> list[dict[str, Any]]:
    """The default and staying alone on a draw of Figure 3's that the rule was not made on."""
    from fedkin import FedGrEM, LocalEM
    from fedkin.datasets import make_gaussian_mixtures
    from reproduction.mixture_protocol import errors, known_labels

    sim = make_gaussian_mixtures(heterogeneity=h, random_state=OTHER_SEEDS + seed)
    rows: list[dict[str, Any]] = []
    models = {
        "FedGrEM, adaptive": FedGrEM(5, random_state=OTHER_SEEDS + seed),
        "Local-EM": LocalEM(5, random_state=OTHER_SEEDS + seed),
    }
    for name, model in models.items():
        model.fit(sim.clients)
        rows.append({"method": name, **errors(model.means_, model.weights_, sim)})
    return rows + [{"method": name, **found} for name, found in known_labels(sim, h).items()]


# ------------------------------------------------------------------ few digits a writer

SETTINGS = (
    "FedGrEM, default, whitened",
    "FedGrEM, Ward, whitened",
    "FedGrEM, Ward, z-scores",
    "FedGrEM, tied, Ward, z-scores",
    "LocalEM, Ward, whitened",
    "LocalEM, tied, Ward, z-scores",
    "FedEM, Ward, whitened",
)
DIGITS = 10
# Of 0, all of a writer's training digits.
TRAINED = (10, 20, 40, 80, 160, 0)


def few_digits(seed: int, digits: int, setting: str) -> list[dict[str, Any]]:
    """Test errors of pen digits from few a writer; the rest of the training part is not looked at.

    The test part is the same for all.
    """
    from fedkin import FedEM, FedGrEM, LocalEM, Standardizer
    from fedkin.datasets import load_pendigits
    from reproduction.mixture_protocol import matched_errors, split_sites

    data = load_pendigits()
    writers, X = data.writer_names, data.X.astype(float)
    train, test = split_sites(writers, seed, digits or None)
    method = {"FedGrEM": FedGrEM, "LocalEM": LocalEM, "FedEM": FedEM}[setting.split(",")[0]]
    model: Any = method(DIGITS, random_state=seed)
    if "Ward" in setting:
        model.set_params(init="ward")
    if "tied" in setting:
        model.set_params(covariance_type="tied")
    if "z-scores" in setting and method is FedGrEM:
        model.set_params(max_rounds=500)
    scaler = Standardizer()
    if "whitened" in setting:
        # Groups of less than two digits have no scatter.
        groups = min(DIGITS, digits // 2) if digits else DIGITS
        scaler = Standardizer(whiten=True, n_groups=groups)
    scaler.fit(X[train], None, writers[train])
    model.fit(scaler.transform(X[train]), None, writers[train])
    found = model.predict(scaler.transform(X[test]), groups=writers[test])
    each, once = matched_errors(found, data.digit[test], data.writer[test])
    return [{"error": each, "one_matching": once}]


# ------------------------------------------------------------------ one order for all


def alignment(seed: int, components: int) -> list[dict[str, Any]]:
    """Whether sites' components come into one order under the paper's Assumption C.1."""
    from fedkin.alignment import align

    rng = np.random.default_rng([components, seed])
    kind = ODD_KINDS[seed % len(ODD_KINDS)]
    estimates, n_odd = assumption_draw(rng, components, kind)
    mixed, labels = shuffled(estimates, rng)
    return [{"kind": kind, "right": same_meaning(align(mixed), labels, slice(n_odd, None))}]


def alignment_promises(results: Results) -> list[Promise]:
    """All draws come out right."""
    return [
        Promise(
            f"R = {r}: share of draws in the right order",
            results.estimate("right", components=r).mean,
            1.0,
        )
        for r in range(2, 9)
    ]


ERRORS = ("theta_max", "theta_mean")
TEST = ("error", "one_matching")
STUDIES = (
    Study(
        name="fedgrem-other-draws",
        paper="fedkin",
        shows="the default on other draws",
        title="FedGrEM's default on draws it was not made on",
        protocol=(
            "The Gaussian mixtures of FedGrEM's Figure 3 with seeds from 100 on, and h up to 4. "
            "The adaptive rule was developed on the first thirty; it is asked the same promises."
        ),
        one=other_draws,
        figure=partial(dots, by=("h", "method"), measures=ERRORS),
        promises=promised_errors,
        by=("h", "method"),
        measures=ERRORS,
        full=Size(cells(h=(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)), 150),
        quick=Size(cells(h=(0.0, 2.0, 4.0)), 2),
        toy=Size(cells(h=(0.5,)), 1),
    ),
    Study(
        name="fedgrem-few-digits",
        paper="fedkin",
        shows="learning curve",
        title="FedGrEM on few pen digits a writer",
        protocol=(
            "Test errors (%) from 10 to all training digits of each of 44 writers, a fifth held "
            "out; groups matched to digits per writer (error) or once for all (one_matching). Rows "
            "as z-scores or whitened within groups over all writers (fewer than ten groups where a "
            "writer has fewer than twenty digits); digits = 0 are all."
        ),
        one=few_digits,
        figure=partial(dots, by=("digits", "setting"), measures=TEST),
        by=("digits", "setting"),
        measures=TEST,
        full=Size(cells(digits=TRAINED, setting=SETTINGS), 5),
        quick=Size(cells(digits=(20, 160), setting=SETTINGS), 1),
        toy=Size(cells(digits=(20,), setting=(SETTINGS[0], SETTINGS[4])), 1),
    ),
    Study(
        name="fedgrem-alignment",
        paper="fedkin",
        shows="alignment",
        title="FedGrEM: one order of components for all sites",
        protocol=(
            "Estimates that satisfy Assumption C.1 of the FedGrEM paper by 2 %, with 30 % odd "
            "sites of seven kinds, shuffled at every site. Right: every slot holds the same true "
            "component at all honest sites."
        ),
        one=alignment,
        figure=partial(dots, by=("components", "kind"), measures=("right",)),
        promises=alignment_promises,
        by=("components",),
        measures=("right",),
        full=Size(cells(components=range(2, 9)), 200),
        quick=Size(cells(components=range(2, 9)), 20),
        toy=Size(cells(components=(2, 5)), 7),
    ),
)
