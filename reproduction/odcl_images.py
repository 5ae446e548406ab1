"""ODCL, Table 2: two classes of images whose names half the sites exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.study import Check, Claim, Promise, Results, Size, Study, cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MNIST, CIFAR, NOISY = "MNIST", "CIFAR-10", "noisy CIFAR-10"


def load_mnist() -> Any:
    """The loader, imported when it is needed."""
    from fedkin.datasets import load_mnist

    return load_mnist()


def load_cifar() -> Any:
    """Airplanes and automobiles of CIFAR-10."""
    from fedkin.datasets import load_cifar10_two_classes

    return load_cifar10_two_classes()


def one(seed: int, task: str) -> list[dict[str, Any]]:
    """Test accuracy of every method on one draw of sites."""
    from sklearn.cluster import kmeans_plusplus

    from fedkin import ODCL, ClusterOracle, LocalERM, OracleAveraging
    from fedkin.clustering import lloyd
    from fedkin.datasets import make_flipped_images
    from reproduction.odcl_protocol import IMAGE_FIT, ifca_accuracy

    stored, classes, per_class = (
        (load_mnist(), (1, 2), 2) if task == MNIST else (load_cifar(), (0, 1), 20)
    )
    sites = make_flipped_images(
        (stored.X_train, stored.y_train),
        (stored.X_test, stored.y_test),
        classes,
        per_class,
        flipped=0.2 if task == NOISY else 0.0,
        random_state=[seed, 2],
    )
    models = {
        "Cluster oracle": ClusterOracle(sites.labels, **IMAGE_FIT),
        "Local": LocalERM(**IMAGE_FIT),
        "ODCL-KM++": ODCL(2, aggregate="mean", random_state=seed, **IMAGE_FIT),
        "ODCL-KM++, one refining round": ODCL(
            2, aggregate="mean", refine_rounds=1, random_state=seed, **IMAGE_FIT
        ),
        "Oracle averaging": OracleAveraging(sites.labels, **IMAGE_FIT),
    }
    found: dict[str, float] = {}
    for name, model in models.items():
        model.fit(sites.federation)
        found[name] = sites.accuracy(model.coef_)
    local = models["Local"].coef_
    alone = lloyd(local, kmeans_plusplus(local, 2, random_state=seed, n_local_trials=1)[0])
    found[PLAIN_START] = sites.accuracy(alone.centers[alone.labels])
    pooled = models["Cluster oracle"].cluster_coef_
    noise = np.random.default_rng([seed, 3]).normal(size=pooled.shape)
    for name in STARTS if task == MNIST else FEW_STARTS:
        around, deviation, divide_by = STARTS[name]
        start = around * pooled + deviation * noise
        found[name] = ifca_accuracy(sites, start, divide_by)
    return [{"method": name, "accuracy": value} for name, value in found.items()]


PLAIN_START = "ODCL-KM++, one plain start"
# Where IFCA starts: weight of the cluster oracle's models, deviation of the noise, and what a
# cluster's summed gradients are divided by. The paper writes N(0, 4) and does not say the last.
STARTS = {
    "IFCA-1": (1.0, 1.0, "all"),
    "IFCA-1, mean over the cluster": (1.0, 1.0, "cluster"),
    "IFCA-2, deviation 2": (1.0, 2.0, "all"),
    "IFCA-2, deviation 4, mean over the cluster": (1.0, 4.0, "cluster"),
    "IFCA-R, deviation 1": (0.0, 1.0, "all"),
    "IFCA-R, deviation 4": (0.0, 4.0, "all"),
    "IFCA-R, deviation 4, mean over the cluster": (0.0, 4.0, "cluster"),
}
FEW_STARTS = ("IFCA-1", "IFCA-2, deviation 2", "IFCA-R, deviation 1")

# ------------------------------------------------------------------ claims

PAPER = {
    "Cluster oracle": ("0.98 ± 0.003", "0.76 ± 0.006", "*"),
    "Local": ("0.83 ± 0.06", "0.70 ± 0.006", "0.62 ± 0.012"),
    "IFCA-1": ("0.94 ± 0.03", "0.70 ± 0.12", "0.58 ± 0.07"),
    "IFCA-2": ("0.83 ± 0.13", "0.66 ± 0.12", "0.54 ± 0.05"),
    "IFCA-R": ("0.65 ± 0.06", "0.51 ± 0.01", "0.52 ± 0.012"),
    "ODCL-KM++": ("0.91 ± 0.007", "0.76 ± 0.008", "0.66 ± 0.06"),
}
TASKS = (MNIST, CIFAR, NOISY)
WHY_IFCA = "start and averaging are not said in full, and the variants differ"
WHY = {
    (NOISY, "ODCL-KM++"): "ten starts; the paper's is consistent with one plain start, below",
    (NOISY, "Cluster oracle"): "the paper leaves it out: labels of training and test differ",
    (CIFAR, PLAIN_START): "one start finds the two kinds or does not: .5 or .76",
    (NOISY, PLAIN_START): "one start finds the two kinds or does not: .5 or .76",
}
FIT_CHOSEN = "pixels / 255, no intercept, C = 1e-5, balanced classes: chosen for agreement"


def claims(results: Results) -> list[Claim]:
    """Every entry of the table, the variants of an entry one after the other."""
    found = []
    for column, task in enumerate(TASKS):
        here = results.where(task=task)
        for method in here.distinct("method"):
            entry = method if method in PAPER else method.split(",")[0]
            variant = method != entry and not method.startswith("IFCA")
            ifca = entry in IFCAS
            found.append(
                Claim(
                    f"{task}, {method}",
                    "not in it" if variant or entry not in PAPER else PAPER[entry][column],
                    here.estimate("accuracy", method=method),
                    "update rule and spread of the start are ours" if ifca else FIT_CHOSEN,
                    WHY.get((task, method), WHY_IFCA if ifca else ""),
                )
            )
    return found


IFCAS = ("IFCA-1", "IFCA-2", "IFCA-R")


def checks(results: Results) -> list[Check]:
    """Who is ahead on each task, and how IFCA depends on its start."""
    accuracy = {
        task: {m: here.estimate("accuracy", method=m).mean for m in here.distinct("method")}
        for task in results.distinct("task")
        for here in [results.where(task=task)]
    }
    told = "; ".join(
        f"{task}: " + ", ".join(f"{m} {found[m]:.3f}" for m in ("ODCL-KM++", "Local", "IFCA-1"))
        for task, found in accuracy.items()
    )
    starts = ("IFCA-1", "IFCA-2, deviation 2", "IFCA-R, deviation 4")
    mnist = accuracy[MNIST]
    return [
        Check(
            "ODCL is ahead of Local everywhere, and of IFCA on CIFAR-10",
            all(f["ODCL-KM++"] > f["Local"] for f in accuracy.values())
            and all(f["ODCL-KM++"] > f["IFCA-1"] for t, f in accuracy.items() if t != MNIST),
            told,
        ),
        Check(
            "IFCA is the worse the farther it starts (MNIST)",
            mnist[starts[0]] > mnist[starts[1]] > mnist[starts[2]],
            ", ".join(f"{name} {mnist[name]:.3f}" for name in starts),
        ),
    ]


# Bounds by task and method.
PROMISED = {
    (MNIST, "Local"): (0.81, 0.84),
    (MNIST, "ODCL-KM++"): (0.90, 1.0),
    (MNIST, "Cluster oracle"): (0.98, 1.0),
    (CIFAR, "Local"): (0.69, 0.71),
    (CIFAR, "ODCL-KM++"): (0.75, 1.0),
    (NOISY, "ODCL-KM++"): (0.74, 1.0),
    (NOISY, "ODCL-KM++, one refining round"): (0.75, 1.0),
}


def promises(results: Results) -> list[Promise]:
    """Accuracies on images."""
    return [
        Promise(
            f"accuracy, {task}, {method}",
            results.estimate("accuracy", task=task, method=method).mean,
            least,
            most,
        )
        for (task, method), (least, most) in PROMISED.items()
    ]


def draw(results: Results) -> Figure:
    """Accuracies as bars, the paper's as marks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    tasks = results.distinct("task")
    for axes, task in zip(np.atleast_1d(figure.subplots(1, len(tasks), sharex=True)), tasks):
        here = results.where(task=task)
        methods = here.distinct("method")[::-1]
        estimates = [here.estimate("accuracy", method=name) for name in methods]
        places = np.arange(len(methods))
        axes.barh(places, [e.mean for e in estimates], xerr=[e.se for e in estimates], color="0.75")
        for place, name in zip(places, methods):
            entry = name.split(",")[0] if name.startswith("IFCA") else name
            said = PAPER.get(entry, ("",) * 3)[TASKS.index(task)].split(" ")[0]
            if said not in ("", "*"):
                axes.plot(float(said), place, "rd", ms=6, label="paper" if place else None)
        axes.set_yticks(places, methods, fontsize=7)
        axes.set(xlim=(0.45, 1.0), xlabel="test accuracy", title=task)
    paper = figure.axes[-1].plot([], [], "rd", label="paper")
    figure.axes[-1].legend(handles=paper, fontsize=8, loc="lower right")
    return figure


STUDIES = (
    Study(
        name="odcl-table-2",
        paper="ODCL",
        shows="Table 2",
        title="accuracy on images",
        protocol=(
            "100 sites with two images a class (MNIST, digits 1 and 2) or twenty (CIFAR-10, "
            "airplanes and automobiles; noisy: 20 % of a site's labels flipped), half of the sites "
            "exchange the names; logistic regression on pixels / 255 without intercept, C = 1e-5, "
            "accuracy on the official test images averaged over sites. IFCA: gradient averaging, "
            "step .1, 200 rounds, started at the cluster oracle's models plus noise (1, 2) or at "
            "noise (R); gradients summed over the cluster and divided by all sites unless said."
        ),
        one=one,
        figure=draw,
        claims=claims,
        checks=checks,
        promises=promises,
        why=(
            "noisy CIFAR-10: one plain K-means start gives what the paper has, ten give more; "
            "IFCA's start and averaging are not said in full"
        ),
        by=("task", "method"),
        measures=("accuracy",),
        full=Size(cells(task=TASKS), 10),
        quick=Size(cells(task=TASKS[:2]), 1),
        toy=Size(cells(task=(MNIST,)), 1),
        needs=(load_mnist, load_cifar),
    ),
)
