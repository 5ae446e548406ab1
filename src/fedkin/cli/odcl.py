"""`fedkin odcl`: a whole federation by exchanging files, one a site, no network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.cli.json_text import json_text

app = typer.Typer(
    help="Group sites in one round by exchanging files: `local` at each site, `combine` once.",
    no_args_is_help=True,
)

NEEDS_ATTENTION = 1


@app.command("local")
def local(
    data: Annotated[Path, typer.Argument(help="This site's CSV, Parquet or npz file.")],
    target: Annotated[str, typer.Option("--target", help="Column with the target.")] = "y",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The file to write.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The site's name (the file's).")
    ] = None,
    loss: Annotated[str, typer.Option(help="squared, or logistic for a target 0/1.")] = "squared",
    send: Annotated[
        str | None,
        typer.Option(
            help="model; rows: also how many rows; covariance: also the model's covariance; "
            "statistics: sums of products (squared loss). Of the last two the number of groups is "
            "chosen; without it model, rows and sums leave (logistic loss: the covariance)."
        ),
    ] = None,
    alpha: Annotated[
        str | None, typer.Option(help="Strength of the L2 penalty; auto finds it.")
    ] = None,
    intercept: Annotated[bool, typer.Option(help="Fit an intercept.")] = True,
    least_rows: Annotated[int, typer.Option(help="Write nothing from fewer rows.")] = 0,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Folder for this site's record of what left.")
    ] = None,
) -> None:
    """At a site: fit the site's own model and write the reply file that may leave it."""
    from fedkin.algorithms.odcl import ODCL, question
    from fedkin.algorithms.odcl_settings import OdclSettings
    from fedkin.engines.files import write_reply
    from fedkin.federation import Federation

    strength = _strength(alpha)
    settings = OdclSettings.from_mapping(
        {"loss": loss, "alpha": strength, "fit_intercept": intercept, "send": send}
    )
    clients = Federation.from_files({name or data.stem: data}, target)
    path, ask = out or data.with_suffix(".reply.npz"), question(settings.sent)
    written = write_reply(path, ODCL, ask, clients, settings, 0, least_rows, ledger)
    declared = ODCL.step(ask.step).replies(ask.fields)
    typer.echo(f"wrote {path}: all that leaves site {written.site!r} is")
    for field, array in written.arrays.items():
        typer.echo(f"  {field}: {array[0].size} numbers, {declared[field].meaning}")


def _strength(alpha: str | None) -> float | str | None:
    """The penalty as a number, if it is one."""
    try:
        return None if alpha is None else float(alpha)
    except ValueError:
        return alpha


@app.command("combine")
def combine(
    files: Annotated[list[Path], typer.Argument(help="The sites' reply files.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for results.")] = Path("odcl"),
    clusters: Annotated[
        int | None, typer.Option("--clusters", "-k", help="Number of groups; chosen if open.")
    ] = None,
    clustering: Annotated[str, typer.Option(help="kmeans, spectral, gradient, convex.")] = "kmeans",
    aggregate: Annotated[
        str | None, typer.Option(help="auto, mean, size, precision, statistics or median.")
    ] = None,
    robust: Annotated[bool, typer.Option("--robust", help="Set odd sites aside.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the restarts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not tables.")] = False,
) -> None:
    """At the coordinator: group the sites and write each site's model to a file of its own.

    What all files hold is used: where neither sums nor covariances are among it, the silhouette
    chooses the number of groups.
    """
    import numpy as np

    from fedkin.algorithms.odcl_settings import SUMS, OdclSettings
    from fedkin.cli.odcl_files import check_enough, held_back, shared
    from fedkin.engines.files import ReplyFiles
    from fedkin.estimators import ODCL

    engine = ReplyFiles.read(files)
    first = engine.files[0]
    how = aggregate or "auto"
    needed = OdclSettings.from_mapping(
        {
            "n_clusters": clusters,
            "clustering": clustering,
            "aggregate": how,
            "loss": first.settings["loss"],
        }
    ).sent
    send = shared(engine.files, needed)
    check_enough(engine.files, how, send)
    model = ODCL(
        clusters,
        loss=first.settings["loss"],
        alpha=first.settings["alpha"],
        fit_intercept=first.settings["fit_intercept"],
        clustering=clustering,
        aggregate=how,
        send=None if send == SUMS else send,
        robust=robust,
        random_state=seed,
        engine=engine,
    )
    complaints = [*held_back(engine.files, needed, send), *_fit(model, send)]
    model.feature_names_in_ = np.array(first.feature_names, dtype=object)
    written = write_models(model, first.feature_names, out)
    summary = model.summary()
    if as_json:
        typer.echo(json_text({name: table.records() for name, table in summary.tables.items()}))
    else:
        typer.echo(str(summary))
    for complaint in complaints:
        typer.echo(f"warning: {complaint}", err=True)
    typer.echo(f"wrote {len(written)} models to {out}", err=True)
    if _not_heard(model):
        raise typer.Exit(NEEDS_ATTENTION)


def _fit(model: Any, send: str) -> list[str]:
    """Fit, and say what there is to complain about, with remedies."""
    import warnings

    from fedkin.algorithms.odcl_settings import SUMS
    from fedkin.protocol import QuorumLost, Reason

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit()
        except QuorumLost as error:
            raise ValueError(str(error)) from None
    complaints = [str(warning.message) for warning in caught]
    for refusal in model.refusals_:
        remedy = "let the site check its data and write the file again"
        if refusal.reason is Reason.MISSING:
            again = "without --send" if send == SUMS else f"with --send {send}"
            remedy = f"let the site write again {again}"
        complaints.append(
            f"site {refusal.site!r}: its reply file was not used: {refusal.fault}; {remedy}"
        )
    return complaints


def _not_heard(model: Any) -> set[str]:
    """Sites whose files did not count; they have the mean over all others' models."""
    return {refusal.site for refusal in model.refusals_} | set(model.implausible_sites_)


def write_models(model: Any, features: tuple[str, ...], folder: Path) -> list[Path]:
    """One JSON file a site: its group, and the model to use."""
    from fedkin.names import file_name

    folder.mkdir(parents=True, exist_ok=True)
    written, odd, silent = [], set(model.odd_sites_), _not_heard(model)
    for k, site in enumerate(model.client_names_):
        content = {
            "site": site,
            "loss": model.loss,
            "group": int(model.labels_[k]),
            "groups": model.n_clusters_,
            "heard": site not in silent,
            "set_aside": site in odd,
            "intercept": float(model.intercept_[k]),
            "coefficients": dict(zip(features, map(float, model.coef_[k]))),
        }
        path = folder / f"{file_name(site)}.model.json"
        path.write_text(json_text(content, indent=1) + "\n", encoding="utf-8")
        written.append(path)
    return written
