"""Full-size runs behind FGPR's promises; writes fgpr_*.csv beside this file and prints verdicts.

    OMP_NUM_THREADS=1 python -m benchmarks.accept.fgpr [part ...]

Parts: gradients, convergence, fidelity, fidelity_more, priors, poison, turbofan, turbofan_leaky,
turbofan_depths. Speed is measured by benchmarks/gaussian_process.py.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from itertools import product

import numpy as np

from benchmarks.accept.kept import verdict, write
from fedkin.algorithms.fgpr import FGPR as ALGORITHM
from fedkin.datasets.fgpr import (
    FUNCTIONS,
    make_gaussian_sites,
    make_multi_fidelity,
    prior_spec,
    turbofan_noise_floor,
    turbofan_split,
    two_kinds_of_priors,
)
from fedkin.engines import InProcess
from fedkin.estimators import (
    FGPR,
    CoKriging,
    FedAvgNetwork,
    FedAvgPolynomial,
    LocalGP,
    PooledGP,
)
from fedkin.federation import Federation
from fedkin.models.gaussian_process import evaluate
from fedkin.models.gp_rows import prepare
from fedkin.models.kernels import form_of, to_spec

# Defaults (first step of the search, design, mean function, margin of "choose", averaging over own
# hyper-parameters) were settled on other seeds.
FRESH = 20_000


def keep(name: str, rows: list[dict]) -> None:
    """Six digits are enough."""
    short = [{k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    write(f"fgpr_{name}", short)


# ------------------------------------------------------------------ gradients


def fast_kernels(d: int) -> dict:
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    found = {}
    for kind, lengths in (("iso", 0.7), ("ARD", np.linspace(0.5, 1.2, d))):
        for nu in (0.5, 1.5, 2.5, None):
            shape = RBF(lengths) if nu is None else Matern(lengths, nu=nu)
            name = f"{kind} " + ("RBF" if nu is None else f"Matern {nu}")
            found[name] = ConstantKernel(1.3) * shape + WhiteKernel(0.2)
    return found


def composite_kernels(d: int) -> dict:
    from sklearn.gaussian_process.kernels import (
        RBF,
        ConstantKernel,
        DotProduct,
        ExpSineSquared,
        Matern,
        RationalQuadratic,
        WhiteKernel,
    )

    noise, scale = WhiteKernel(0.2), ConstantKernel(1.5)
    made = [
        RBF(0.6) + Matern(1.1, nu=1.5) + noise,
        scale * RationalQuadratic(0.8, alpha=1.3) + noise,
        scale * ExpSineSquared(1.2, periodicity=1.7) + noise,
        RBF(0.9) * ExpSineSquared(1.1, periodicity=2.0) + noise,
        scale * Matern(np.linspace(0.6, 1.1, d), nu=2.5) + DotProduct(0.7) + noise,
        scale * RBF(0.7) * RBF(1.6) + noise,
        DotProduct(0.8) ** 2 + noise,
        scale * RBF(0.8) + ConstantKernel(0.4) + noise,
        scale * Matern(0.9, nu=0.5) + 0.5 * RBF(2.0) + noise,
        RationalQuadratic(1.0, alpha=0.7) * RBF(1.5) + 0.3 * Matern(0.6, nu=1.5) + noise,
    ]
    # The periodic kernel is not positive definite in more than one dimension.
    named = {f"composite {i + 1}": kernel for i, kernel in enumerate(made)}
    return {n: k for n, k in named.items() if d == 1 or "ExpSine" not in str(k)}


def relative_error(data, form, theta: np.ndarray, step: float = 1e-3) -> float:
    """Largest difference to fourth-order finite differences, over the largest entry."""
    gradient = evaluate(data, form, theta).gradient
    numeric = np.empty_like(gradient)
    for j, unit in enumerate(np.eye(len(theta))):
        f = [evaluate(data, form, theta + s * step * unit).value for s in (-2, -1, 1, 2)]
        numeric[:, j] = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * step)
    size = np.abs(gradient).max(axis=1)
    return float((np.abs(gradient - numeric).max(axis=1) / size).max())


def gradients() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor

    rows = []
    for d in (1, 3, 6):
        rng = np.random.default_rng(d)
        sites = [(rng.normal(size=(n, d)), rng.normal(size=n)) for n in (2, 7, 8, 30, 33, 60)]
        federation = Federation.from_clients(sites)
        data = prepare(federation, False)
        for name, kernel in {**fast_kernels(d), **composite_kernels(d)}.items():
            form = form_of(to_spec(kernel), d)
            found = evaluate(data, form, form.start)
            oracle = [
                GaussianProcessRegressor(kernel, alpha=0, optimizer=None)
                .fit(*federation.client(k))
                .log_marginal_likelihood(kernel.theta)
                for k in range(federation.n_clients)
            ]
            rows.append(
                {
                    "features": d,
                    "kernel": name,
                    "fast": form.fast is not None,
                    "gradient_error": relative_error(data, form, form.start),
                    "likelihood_difference": float(np.abs(found.value + oracle).max()),
                }
            )
    keep("gradients", rows)
    worst = max(row["gradient_error"] for row in rows)
    verdict(f"gradients within 1e-6 of finite differences: worst {worst:.1e}", worst <= 1e-6)
    worst = max(row["likelihood_difference"] for row in rows)
    verdict(f"likelihood equals scikit-learn's to 1e-8: worst {worst:.1e}", worst <= 1e-8)


# ------------------------------------------------------------------ convergence


METHODS = {
    "exact": {},
    "sgd cosine": {"optimizer": "sgd", "max_rounds": 60},
    "sgd 10/t": {
        "optimizer": "sgd",
        "max_rounds": 60,
        "schedule": "inverse",
        "learning_rate": 10.0,
    },
    "sgd 10/t theory": {
        "optimizer": "sgd",
        "max_rounds": 60,
        "schedule": "inverse",
        "learning_rate": 10.0,
        "gradient_scaling": "theory",
    },
    "sgd 1/sqrt t": {"optimizer": "sgd", "max_rounds": 60, "schedule": "inverse-sqrt"},
    "sgd cosine 20 %": {"optimizer": "sgd", "max_rounds": 60, "fraction": 0.2},
    "adam restarted": {"optimizer": "adam-restarted", "max_rounds": 60, "learning_rate": 0.1},
}


def convergence(n_seeds: int = 10) -> None:
    rows = []
    for kernel in ("rbf", "matern32"):
        start = prior_spec(2.0, 2.0, 2.0, kernel)
        for seed in range(n_seeds):
            sites = make_gaussian_sites(
                100, 8, prior_spec(0.2, 2.0, 0.5, kernel), random_state=[seed, FRESH]
            )
            data, form = prepare(sites.federation, False), form_of(start, 1)
            base = {"kernel": start, "normalize_y": False, "mean": "zero"}
            base |= {"personalise": "posterior"}
            for method, settings in METHODS.items():
                run = InProcess().run(ALGORITHM, {**base, **settings}, sites.federation, seed)
                theta = run.result["theta"][0]
                found = evaluate(data, form, theta)
                value = found.value.sum() / 800
                if method == "exact":
                    optimum = value
                rows.append(
                    {
                        "kernel": kernel,
                        "seed": seed,
                        "method": method,
                        "rounds": len(run.result["history_value"]),
                        "gradient": float(np.abs(found.gradient.sum(axis=0)).max()) / 800,
                        "excess": float(value - optimum),
                        "noise_error": float((np.exp(theta[2]) - 0.5) ** 2),
                    }
                )
    keep("convergence", rows)
    for kernel in ("rbf", "matern32"):
        for method in METHODS:
            chosen = [r for r in rows if r["method"] == method and r["kernel"] == kernel]
            excess = [r["excess"] for r in chosen]
            noise = float(np.mean([r["noise_error"] for r in chosen]))
            text = f"{kernel} {method}: excess mean {np.mean(excess):.1e} max {max(excess):.1e}, "
            text += f"noise error {noise:.4f}"
            if method == "exact":
                rounds = max(r["rounds"] for r in chosen)
                gradient = max(r["gradient"] for r in chosen)
                text += f", rounds at most {rounds}, gradient at most {gradient:.1e}"
                verdict(text, rounds <= 20 and gradient <= 1e-5)
            elif method == "adam restarted":
                print(f"shown   {text}")
            else:
                limit = 2e-3 if "%" in method else 1e-3
                verdict(text, np.mean(excess) <= limit and noise <= 0.004)


# ------------------------------------------------------------------ multi-fidelity


PROCESSES = {
    "separate": lambda: LocalGP(),
    "FGPR shared": lambda: FGPR(personalise="posterior"),
    "FGPR choose": lambda: FGPR(),
    "FGPR map": lambda: FGPR(personalise="map"),
}
SHARING = {
    "pooled (shares data)": lambda: PooledGP(),
    "co-kriging (shares data)": lambda: CoKriging(),
}


def fidelity(n_seeds: int = 6) -> None:
    """The promised size, on two designs."""
    _fidelity("fidelity", ("latin", "uniform"), {**PROCESSES, **SHARING}, n_seeds)


def fidelity_more(n_seeds: int = 20) -> None:
    """More seeds, because six leave coverage uncertain by .03."""
    _fidelity("fidelity_more", ("latin",), PROCESSES, n_seeds)


def _fidelity(part: str, designs: tuple[str, ...], methods: dict, n_seeds: int) -> None:
    rows = []
    for design, name, seed in product(designs, FUNCTIONS, range(n_seeds)):
        task = make_multi_fidelity(name, FRESH + seed, design=design)
        sites = np.full(len(task.X_test), task.site)
        for method, make in methods.items():
            model = make().fit(task.federation)
            mean, std = model.predict(task.X_test, sites, return_std=True)
            inside = np.abs(task.y_test - mean) <= 1.96 * std
            density = model.log_predictive_density(task.X_test, task.y_test, sites)
            rows.append(
                {
                    "design": design,
                    "function": name,
                    "seed": seed,
                    "method": method,
                    "rmse": task.rmse(mean),
                    "coverage": float(inside.mean()),
                    "log_score": -float(density.mean()) - float(np.log(task.scale)),
                }
            )
        keep(part, rows)
    for design, name, method in product(designs, FUNCTIONS, methods):
        key = {"design": design, "function": name, "method": method}
        _fidelity_verdict([r for r in rows if key.items() <= r.items()], **key)


def _fidelity_verdict(chosen: list[dict], design: str, function: str, method: str) -> None:
    limits = {"currin": 0.16, "park": 0.006, "hartmann": 0.23, "borehole": 0.026}
    rmse, cover, score = ([row[key] for row in chosen] for key in ("rmse", "coverage", "log_score"))
    mean, error = float(np.mean(cover)), float(np.std(cover, ddof=1) / np.sqrt(len(cover)))
    text = f"{design} {function} {method}: mean {np.mean(rmse):.4f} median {np.median(rmse):.4f} "
    text += f"coverage {mean:.3f} (s.e. {error:.3f}) log score {np.mean(score):.2f}"
    if method in ("FGPR shared", "FGPR choose") and function in limits:
        holds = np.mean(rmse) <= limits[function]
        verdict(text, holds and (method == "FGPR choose" or 0.90 <= mean <= 0.98))
    elif method == "FGPR choose":
        verdict(text, np.median(rmse) <= 0.03)
    else:
        print(f"shown   {text}")


# ------------------------------------------------------------------ turbofan


def turbofan(n_splits: int = 5) -> None:
    """The honest axis."""
    _turbofan("turbofan", "cycles", (_processes, _polynomials, _networks), n_splits)


def turbofan_leaky(n_splits: int = 5) -> None:
    """The axis that tells when an engine will fail: there one curve for all does well."""
    _turbofan("turbofan_leaky", "share-of-life-leaky", (_processes, _polynomials), n_splits)


def turbofan_depths(n_splits: int = 3) -> None:
    """Depths 1 to 5 of the network: they hardly differ, and one sweep takes minutes."""
    _turbofan("turbofan_depths", "cycles", (_depths,), n_splits, sensors=(2,))


def _turbofan(name: str, axis: str, plan, n_splits: int, sensors=(2, 7)) -> None:
    """What matters first; the file grows row by row."""
    rows: list[dict] = []
    for scored, sensor, split in product(plan, sensors, range(n_splits)):
        data = turbofan_split(sensor, axis, random_state=FRESH + split)
        label = {"axis": axis, "sensor": sensor, "split": split}
        rows += [{**label, **row} for row in scored(data)]
        keep(name, rows)
    _turbofan_verdicts(rows, axis)


def _processes(data) -> list[dict]:
    # New engines use the shared prior: what training engines choose for themselves is not needed.
    shared = {"personalise": "posterior"}
    models = {
        "FGPR": FGPR(**shared).fit(data.train).adapt(data.given),
        "FGPR Matern-3/2": FGPR(_matern(), **shared).fit(data.train).adapt(data.given),
        "separate": LocalGP().fit(data.given),
    }
    return [_score(name, model, data) for name, model in models.items()]


def _polynomials(data) -> list[dict]:
    return _swept("polynomial", FedAvgPolynomial, "degree", range(1, 21), data)


def _networks(data) -> list[dict]:
    """The depth that did best in the paper."""
    network = FedAvgNetwork(2, normalize_y=False, random_state=0)
    row = _score("FedAvg network, depth 2 (as the paper)", network.fit(data.train), data)
    return [{**row, "size": 2}]


def _depths(data) -> list[dict]:
    return _swept("network", FedAvgNetwork, "depth", range(1, 6), data)


def _matern():
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    return ConstantKernel(1.0, (1e-4, 1e4)) * Matern(1.0, nu=1.5) + WhiteKernel(0.1, (1e-8, 1e2))


def _swept(name: str, family, parameter: str, sizes, data) -> list[dict]:
    """All sizes; chosen on training engines held out, and, as in the paper, on the test.

    Outcomes are standardised by whole series already; units learnt again from the given half would
    only harm a rival that does not learn anything else from it.
    """
    train, held_out = data.train.split(0.25, "clients", 0)
    tests, checks = [], []
    for size in sizes:
        made = {parameter: size, "normalize_y": False, "random_state": 0}
        model = family(**made).fit(train).adapt(held_out)
        checks.append(float(np.mean(model.evaluate(held_out)["rmse"])))
        model = family(**made).fit(data.train).adapt(data.given)
        tests.append({**_score("", model, data), "size": size})
    honest, paper = tests[int(np.argmin(checks))], min(tests, key=lambda row: row["rmse10"])
    return [
        {**honest, "method": f"FedAvg {name}, chosen on training sites"},
        {**paper, "method": f"FedAvg {name}, chosen on the test (as the paper)"},
    ]


def _score(name: str, model, data) -> dict:
    scores = model.evaluate(data.asked)
    return {
        "method": name,
        "rmse10": 10 * float(scores["rmse"].mean()),
        "sd10": 10 * float(scores["rmse"].std()),
        "coverage": float(scores["coverage"].mean()),
        "log_density": float(scores["log density"].mean()),
        "size": 0,
    }


def _turbofan_verdicts(rows: list[dict], axis: str) -> None:
    limits = {2: (6.55, 6.85), 7: (5.35, 5.55)}
    for sensor in (2, 7):
        floor = 10 * float(turbofan_noise_floor(sensor).mean())
        here = [r for r in rows if r["sensor"] == sensor]
        for method in dict.fromkeys(row["method"] for row in here):
            chosen = [r for r in here if r["method"] == method]
            errors = [r["rmse10"] for r in chosen]
            rmse = float(np.mean(errors))
            cover = float(np.mean([r["coverage"] for r in chosen]))
            # Polynomials of high degree explode at an engine that outlives the training engines.
            text = f"sensor {sensor}, {axis}, {method}: RMSE x 10 {rmse:.3f} (median of splits "
            text += f"{np.median(errors):.3f}, floor {floor:.2f}), coverage {cover:.3f}"
            low, high = limits[sensor]
            good = low <= rmse <= high and rmse <= 1.05 * floor and 0.93 <= cover <= 0.965
            if method.startswith("FGPR") and axis == "cycles":
                verdict(text, good)
            else:
                print(f"shown   {text}", flush=True)


# ------------------------------------------------------------------ two kinds of sites


def priors(n_seeds: int = 10) -> None:
    rows = []
    for seed in range(n_seeds):
        known = make_gaussian_sites(
            40, 20, two_kinds_of_priors(), 50, random_state=[seed, FRESH, 1]
        )
        new = make_gaussian_sites(40, 20, two_kinds_of_priors(), 50, random_state=[seed, FRESH, 2])
        models = [
            FGPR(n_priors=n, normalize_y=False, personalise="posterior").fit(known.federation)
            for n in (1, None)
        ]
        losses = []
        for model in models:
            at_known = -model.evaluate(known.held_out)["log density"].mean()
            model.adapt(new.federation)
            losses.append((at_known, -model.evaluate(new.held_out)["log density"].mean()))
        agree = float(np.mean(models[1].labels_ == known.labels))
        same = make_gaussian_sites(40, 20, random_state=[seed, FRESH, 3]).federation
        alike = FGPR(n_priors=None, normalize_y=False, personalise="posterior").fit(same)
        rows.append(
            {
                "seed": seed,
                "n_priors": models[1].n_priors_,
                "label_accuracy": max(agree, 1 - agree),
                "gain_known": float(losses[0][0] - losses[1][0]),
                "gain_new": float(losses[0][1] - losses[1][1]),
                "rounds": models[1].n_rounds_,
                "n_priors_if_all_alike": alike.n_priors_,
            }
        )
    keep("priors", rows)
    mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    right = all(row["n_priors"] == 2 and row["n_priors_if_all_alike"] == 1 for row in rows)
    verdict(f"two kinds are found as 2, one kind as 1 ({n_seeds} seeds)", right)
    least = min(row["label_accuracy"] for row in rows)
    text = f"label accuracy mean {mean['label_accuracy']:.3f}, least {least:.3f}"
    verdict(text, mean["label_accuracy"] >= 0.95)
    text = f"log density gains {mean['gain_known']:.3f} (known), {mean['gain_new']:.3f} (new)"
    verdict(text, min(mean["gain_known"], mean["gain_new"]) >= 0.15)


# ------------------------------------------------------------------ a poisoned site


def poisoned(site: str):
    """FGPR with one site whose gradients, or local hyper-parameters, are 1e6."""

    def spoilt(step):
        def function(clients, *rest):
            reply, memory = step.function(clients, *rest)
            name = "gradient" if "gradient" in reply else "theta"
            if site in clients.names and name in reply:
                reply = {**reply, name: reply[name].copy()}
                reply[name][clients.names.index(site)] = 1e6
            return reply, memory

        return replace(step, function=function)

    return replace(ALGORITHM, steps={n: spoilt(s) for n, s in ALGORITHM.steps.items()})


def poison(n_seeds: int = 10) -> None:
    rows = []
    for seed in range(n_seeds):
        sites = make_gaussian_sites(100, 8, random_state=[seed, FRESH, 7]).federation
        base = {"kernel": prior_spec(2.0, 2.0, 2.0), "normalize_y": False, "mean": "zero"}
        base |= {"personalise": "posterior"}
        clean = InProcess().run(ALGORITHM, base, sites, seed).result["theta"][0]
        for robust in ("trimmed", "median"):
            settings = {**base, "robust": robust}
            alike = InProcess().run(ALGORITHM, settings, sites, seed).result["theta"][0]
            found = InProcess().run(poisoned("site-7"), settings, sites, seed).result["theta"][0]
            rows.append(
                {
                    "seed": seed,
                    "robust": robust,
                    "to_clean_plain": float(np.abs(np.expm1(found - clean)).max()),
                    "to_clean_robust": float(np.abs(np.expm1(found - alike)).max()),
                }
            )
    keep("poison", rows)
    for robust in ("trimmed", "median"):
        chosen = [r for r in rows if r["robust"] == robust]
        plain = [r["to_clean_plain"] for r in chosen]
        alike = [r["to_clean_robust"] for r in chosen]
        text = f"one site of 100 sends 1e6, {robust}: worst change {max(plain):.3f} from the "
        text += f"clean plain fit (mean {np.mean(plain):.3f}), {max(alike):.3f} from the clean "
        text += f"{robust} fit (mean {np.mean(alike):.3f})"
        verdict(text, max(plain if robust == "trimmed" else alike) <= 0.05)


PARTS = {
    part.__name__: part
    for part in (
        gradients,
        convergence,
        fidelity,
        fidelity_more,
        priors,
        poison,
        turbofan,
        turbofan_leaky,
        turbofan_depths,
    )
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
