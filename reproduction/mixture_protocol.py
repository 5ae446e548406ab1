"""What FedGrEM's experiments measure: errors of components, weights and groups, and floors.

Simulations: distances of estimated from true components at the honest sites, under the best
matching per site. Real data: groups matched to classes, per site or once for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.datasets.fedgrem import (
    DATA_ATTACKS,
    MESSAGE_ATTACKS,
    SimulatedMixture,
    far_point_data,
)
from fedkin.federation import Federation
from reproduction.engines import Lying

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


# ------------------------------------------------------------------ simulations


def component_errors(found: Floats, truth: Floats) -> tuple[Floats, Ints]:
    """Distances (k, R) under the best matching per site, and the matching."""
    from scipy.optimize import linear_sum_assignment

    distance = np.linalg.norm(found[:, :, None] - truth[:, None], axis=-1)
    order = np.array([linear_sum_assignment(table.T)[1] for table in distance])
    return np.take_along_axis(distance, order[:, :, None], axis=1).diagonal(0, 1, 2), order


def errors(found: Floats, weights: Floats, sim: SimulatedMixture) -> dict[str, float]:
    """Largest and mean error of components at honest sites, largest of weights.

    Weights are matched by themselves (`w_alone`, as in the paper's script) and by their components
    (`w_joint`).
    """
    who = ~sim.outlier
    distance, order = component_errors(found[who], sim.components[who])
    own, true = weights[who], sim.weights[who]
    joint = np.abs(np.take_along_axis(own, order, axis=1) - true).max()
    # One number a group: sorting both is the best matching.
    alone = np.abs(np.sort(own, axis=1) - np.sort(true, axis=1)).max()
    return {
        "theta_max": float(distance.max()),
        "theta_mean": float(distance.mean()),
        "w_alone": float(alone),
        "w_joint": float(joint),
    }


def known_labels(sim: SimulatedMixture, h: float) -> dict[str, dict[str, float]]:
    """Errors of the means of the true groups, and shrunk with the true between-site variance.

    The true variance of a coordinate between sites is h^2 / d. No method can do better than the
    second on average; the first is the floor for a site alone.
    """
    clients, good = sim.clients, np.flatnonzero(~sim.outlier)
    m, n_components, d = sim.components.shape
    code = clients.owner * n_components + np.maximum(sim.labels, 0)
    counts = np.bincount(code, minlength=m * n_components).reshape(m, n_components)[good]
    sums = np.zeros((m * n_components, d))
    np.add.at(sums, code, clients.X)
    noise = 1.0 / np.maximum(counts, 1)
    local = sums.reshape(m, n_components, d)[good] * noise[..., None]
    weight = 1.0 / (h**2 / d + np.where(counts > 0, noise, np.inf))
    center = (weight[..., None] * local).sum(axis=0) / weight.sum(axis=0)[:, None]
    bayes = center + ((h**2 / d) * weight)[..., None] * (local - center)
    made = {"known labels, alone": local, "floor": bayes}
    away = {name: np.linalg.norm(a - sim.components[good], axis=-1) for name, a in made.items()}
    return {
        name: {"theta_max": float(a.max()), "theta_mean": float(a.mean())}
        for name, a in away.items()
    }


# ------------------------------------------------------------------ bad sites

# The bad sites do not collude here, as they do on one far point.
ONE_EACH = "all rows on a far point each"


def attacked(kind: str, clients: Federation, bad: Ints, seed: int) -> tuple[Federation, Any]:
    """The federation and the engine under an attack by its name; "none" changes nothing."""
    if kind == ONE_EACH:
        return far_point_data(clients, bad, seed, one_each=True), None
    if kind in DATA_ATTACKS:
        return DATA_ATTACKS[kind](clients, bad, seed), None
    if kind in MESSAGE_ATTACKS:
        names = {clients.names[k] for k in bad}
        attack = MESSAGE_ATTACKS[kind]
        return clients, Lying(names, "components", lambda sent, who: attack(sent, who, 0))
    return clients, None


# ------------------------------------------------------------------ groups that should be classes


def matched_error(found: Ints, label: Ints) -> float:
    """Share of rows outside their class when groups are matched to classes as well as can be."""
    from scipy.optimize import linear_sum_assignment

    size = int(max(found.max(), label.max())) + 1
    table = np.zeros((size, size))
    np.add.at(table, (found, label), 1)
    return float(1.0 - table[linear_sum_assignment(-table)].sum() / len(label))


def matched_errors(found: Ints, label: Ints, site: NDArray[Any]) -> tuple[float, float]:
    """In per cent: with a matching of groups to classes per site (mean), and with one for all."""
    each = [matched_error(found[site == s], label[site == s]) for s in np.unique(site)]
    return 100 * float(np.mean(each)), 100 * matched_error(found, label)


def split_sites(
    site: NDArray[Any], seed: int, n_train: int | None = None, share: float = 0.8
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Training and test rows of every site; `n_train` rows to train on in place of the share."""
    rng = np.random.default_rng([7, seed])
    train = np.zeros(len(site), dtype=bool)
    test = train.copy()
    for name in np.unique(site):
        own = rng.permutation(np.flatnonzero(site == name))
        cut = round(share * len(own))
        train[own[: n_train or cut]] = True
        test[own[cut:]] = True
    return train, test


def contaminate(
    X: Floats, site: NDArray[Any], n_bad: int, seed: int
) -> tuple[Floats, NDArray[np.bool_]]:
    """Rows with the columns of `n_bad` sites in an order of their own, and which rows these are.

    Our contamination of real data; the paper does not state its own.
    """
    from fedkin.datasets.fedgrem import permuted_features

    federation = Federation.from_groups(X, site)
    rng = np.random.default_rng([8, seed])
    bad = rng.choice(federation.n_clients, n_bad, replace=False)
    spoilt = permuted_features(federation, bad, seed).X
    made = np.empty_like(X)
    # A federation's rows stand site by site, in the order given within a site.
    for k, name in enumerate(federation.names):
        made[site == name] = spoilt[federation.owner == k]
    return made, np.isin(site, np.array(federation.names)[bad])
