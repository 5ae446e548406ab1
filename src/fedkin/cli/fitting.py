"""`fedkin fit METHOD`: from a table to a model, tables and a report in one folder."""

from __future__ import annotations

import inspect
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedkin.cli import asking
from fedkin.cli.asking import TableOptions
from fedkin.cli.guide import command_names, estimator_class, estimator_name, plain, words_of
from fedkin.cli.options import (
    constraints,
    parameters_of,
    read_toml,
    settings_parameters,
    toml_text,
    value_of,
)

NEEDS_ATTENTION = 1
RUNS = Path("fedkin-runs")
# The warning of a fit that ended where it began, by name: its room need not be imported.
NOTHING_LEARNT = "NothingLearntWarning"
# Methods that bring rows together: there is no protocol whose journal could be kept.
WITHOUT_JOURNAL = {"PooledGP", "PooledEM", "CoKriging", "ClusterOracle", "Best"}


@dataclass
class FitOptions:
    """Everything that can be asked of a fit, besides the method's settings."""

    table: TableOptions
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    out: Path | None = None
    predict: Path | None = None
    level: float | None = None
    journal: bool = True
    report: bool = True
    compare: bool = False
    standardize: bool | None = None
    as_json: bool = False
    strict: bool = False


# ------------------------------------------------------------------ the options


def _parameters(family: Any | None) -> list[inspect.Parameter]:
    """Options of `fit METHOD`; without a method, of `fit --config`."""

    def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=default, annotation=annotation)

    config = Annotated[
        Path | None, typer.Option("--config", help="TOML file with the same names as options.")
    ]
    data = Annotated[
        Path | None,
        typer.Argument(help="CSV, TSV or Parquet file (.gz too), one row per observation."),
    ]
    client = Annotated[
        str | None,
        typer.Option("--client", "--site", help="Column with the site's name. (default: site)"),
    ]
    missing = Annotated[
        str | None, typer.Option("--missing", help="Rows that lack a number: error, or drop them.")
    ]
    common = [
        option("data", data, None),
        option("client", client, None),
        option("target", asking.Target, None),
        option("features", asking.Features, None),
        option("drop", asking.Drop, None),
        option("sep", asking.Sep, None),
        option("decimal", asking.Decimal, None),
        option("encoding", asking.FileEncoding, None),
        option("missing", missing, None),
        option("seed", Annotated[int | None, typer.Option(help="Seed. (default: 0)")], None),
        option(
            "out",
            Annotated[
                Path | None,
                typer.Option("--out", help="Folder of the run; a new one in fedkin-runs if open."),
            ],
            None,
        ),
        option(
            "predict",
            Annotated[
                Path | None,
                typer.Option("--predict", help="Table of rows to predict, with the sites."),
            ],
            None,
        ),
        option(
            "level",
            Annotated[
                float | None, typer.Option(help="Also intervals that hold so often, such as .95.")
            ],
            None,
        ),
        option("config", config, None),
        option(
            "journal",
            Annotated[bool | None, typer.Option(help="Keep every message. (default: yes)")],
            None,
        ),
        option(
            "report",
            Annotated[bool | None, typer.Option(help="Write the page. (default: yes)")],
            None,
        ),
        option(
            "compare",
            Annotated[
                bool | None,
                typer.Option(
                    "--compare", help="Also ask what joining gives each site (rows left out)."
                ),
            ],
            None,
        ),
        option(
            "standardize",
            Annotated[
                bool | None,
                typer.Option(
                    help="Columns to common mean 0 and scale 1 first. (default: for groups of rows)"
                ),
            ],
            None,
        ),
        option("as_json", asking.AsJson, False),
        option("strict", asking.Strict, False),
    ]
    taken = {parameter.name for parameter in common}
    return common + ([] if family is None else settings_parameters(family, taken))


def _command(name: str, compare: bool = False) -> Any:
    """The command of one method, with an option for each of its settings."""
    family = estimator_class(name)

    def run(**given: Any) -> None:
        if compare:
            given["compare"] = True
        fit(options_from(name, given))

    parameters = _parameters(family)
    run.__doc__ = words_of(estimator_name(name)).question
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name)(run)
    return typer.main.get_command(alone)


class MethodGroup(TyperGroup):
    """Commands made from the registry, each when it is asked for."""

    _compares = False
    """Whether the commands also compare with staying alone."""
    _listing = False
    """Whether commands are only listed, which must not load them all."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Methods by name."""
        return command_names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of one method; None if there is none of that name."""
        known = {plain(name): name for name in command_names()}
        if plain(cmd_name) not in known:
            return None
        name = known[plain(cmd_name)]
        return _listed(name) if self._listing else _command(name, self._compares)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called; a method that there is not is told with the nearest."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            raise ValueError(_no_such_method(name, ctx.info_name))
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of methods."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


class ComparingGroup(MethodGroup):
    """The same commands, with the comparison."""

    _compares = True


def _no_such_method(name: str, command: str) -> str:
    from difflib import get_close_matches

    if Path(name).suffix:
        return f"name a method before the table: fedkin {command} auto {name}"
    near = get_close_matches(plain(name), [plain(known) for known in command_names()], 1)
    known = {plain(each): each for each in command_names()}
    guess = f"did you mean {known[near[0]]!r}? " if near else ""
    return f"there is no method {name!r}; {guess}fedkin methods lists them"


def _listed(name: str) -> Any:
    """A command as far as a list of commands needs it."""
    question = AUTO_QUESTION if name == "auto" else words_of(estimator_name(name)).question
    app = typer.Typer(add_completion=False)
    app.command(name, help=question)(lambda: None)
    return typer.main.get_command(app)


AUTO_QUESTION = "Which way of sharing fits my sites, and how much does it help each of them?"


# ------------------------------------------------------------------ from options to a fit


def options_from(method: str | None, given: dict[str, Any]) -> FitOptions:
    """What was asked for: options on the line, then the configuration, then defaults."""
    settings = {n[4:]: v for n, v in given.items() if n.startswith("set_") and v is not None}
    line = {n: v for n, v in given.items() if not n.startswith("set_") and v is not None}
    config = line.pop("config", None)
    told = {} if config is None else read_toml(Path(config))
    method = method or told.pop("method", None)
    told.pop("method", None)
    if method is None:
        raise ValueError("name a method, or give --config a file that does")
    settings = {**told.pop("settings", {}), **settings}
    merged = {**told, **line}
    known = {f.name for f in fields(TableOptions)} | {f.name for f in fields(FitOptions)}
    unknown = sorted(set(merged) - known)
    if unknown:
        raise ValueError(f"{config}: there is no option {', '.join(unknown)}")
    if merged.get("data") is None:
        raise ValueError("give the table to fit: fedkin fit METHOD data.csv")
    table = {f.name: merged.pop(f.name) for f in fields(TableOptions) if f.name in merged}
    table["data"] = Path(table["data"])
    for name in ("out", "predict"):
        if merged.get(name) is not None:
            merged[name] = Path(merged[name])
    return FitOptions(TableOptions(**table), method, settings, **merged)


def model_of(options: FitOptions) -> Any:
    """The estimator with its settings, all of them checked before anything is read."""
    family = estimator_class(options.method)
    rules = constraints(family)
    unknown = sorted(set(options.settings) - set(parameters_of(family)))
    if unknown:
        raise ValueError(f"{family.__name__} has no setting {', '.join(unknown)}")
    values = {n: value_of(n, v, rules.get(n)) for n, v in options.settings.items()}
    model = family(**values, random_state=options.seed)
    if hasattr(family, "_settings"):
        model._chosen_settings()
    if options.compare:
        _benefit()
    if options.level is not None and not 0 < options.level < 1:
        raise ValueError(f"--level must be between 0 and 1, such as .95, not {options.level:g}")
    return model


def _is_classifier(model: Any) -> bool:
    return getattr(model, "loss", "") == "logistic" or getattr(model, "family", "") in (
        "binomial",
        "multinomial",
    )


def _with_target(options: FitOptions, model: Any) -> TableOptions:
    """The table with a target, if one is needed: 'y' unless named."""
    from dataclasses import replace

    table = options.table
    if table.target is not None or not model._uses_target():
        return table
    columns = [name for name in table.frame().column_names if name not in table.dropped]
    if "y" not in columns and type(model).__name__ == "Best":
        return table
    if "y" not in columns:
        raise ValueError(
            f"{type(model).__name__} needs a target; name its column with --target: "
            f"{', '.join(columns)}"
        )
    return replace(table, target="y")


def check_counts(model: Any, federation: Any) -> None:
    """Complain about more kinds than there are sites."""
    sites = int((federation.sizes > 0).sum())
    for name in ("n_clusters", "n_priors"):
        wanted = getattr(model, name, None)
        if isinstance(wanted, int) and wanted > sites:
            raise ValueError(f"{name}={wanted}, but there are {sites} sites with rows")


def model_and_rows(options: FitOptions) -> tuple[Any, Any]:
    """The estimator with its settings, and the federation it is to look at."""
    model = model_of(options)
    federation = _federation(_with_target(options, model), model)
    check_counts(model, federation)
    return model, _standardized(federation, model, options.standardize)[0]


def fit(options: FitOptions) -> None:
    """Fit, print, and write the folder of the run."""
    from fedkin.cli.run_folder import CONFIGURATION, RunFolder, record_of
    from fedkin.report.benefits import can_be_compared

    model = model_of(options)
    asked_frame = None
    if options.predict is not None:
        from fedkin.frames import read_frame

        table = options.table
        asked_frame = read_frame(options.predict, table.sep, table.decimal, table.encoding)
        asking.check_rows(asked_frame, options.predict)
    table = _with_target(options, model)
    federation = _federation(table, model)
    check_counts(model, federation)
    federation, scales = _standardized(federation, model, options.standardize)
    folder = RunFolder.new(options.out, options.method)
    if options.journal and type(model).__name__ not in WITHOUT_JOURNAL:
        from fedkin.cli.run_folder import Booked

        model.set_params(engine=Booked(journal=folder.path / "journal"))
    checks = [*_rows_dropped(table, federation), *map(str, federation.findings)]
    with warnings.catch_warnings(record=True) as caught, _told_if_it_fails(checks, folder.path):
        warnings.simplefilter("always")
        model.fit(federation)
    told = list(dict.fromkeys(str(warning.message) for warning in caught))
    checks += [text for text in _surely_wrong(federation) if text not in told]
    missing = list(dict.fromkeys(str(refusal) for refusal in getattr(model, "refusals_", ())))
    record = record_of(model, federation, table, options, told, checks, missing)
    record["scales"] = scales
    benefit = _compared(model, federation, options)
    if benefit is not None:
        record["benefit"] = benefit
    predictions = None
    if asked_frame is not None:
        from fedkin.cli.predicting import predicted

        predictions = predicted(model, asked_frame, record, options.level)
    written = folder.write(model, record, toml_text(_configuration(options, table)))
    if predictions is not None:
        written.append(folder.write_table("predictions", predictions))
    if options.report:
        written.append(folder.write_report(model, record))
    _say(model, record, predictions, written, options)
    if benefit is None and not options.as_json and can_be_compared(model):
        name, place = plain(options.method), shlex.quote(str(folder.path / CONFIGURATION))
        typer.echo(f"\nAre sites better off than alone? fedkin compare {name} --config {place}")
    nothing = any("there is nothing to learn" in check for check in checks)
    nothing |= any(warning.category.__name__ == NOTHING_LEARNT for warning in caught)
    if missing or nothing or (options.strict and (told or checks)):
        raise typer.Exit(NEEDS_ATTENTION)


@contextmanager
def _told_if_it_fails(checks: list[str], folder: Path) -> Iterator[None]:
    """What was found in the data often says why a fit to them fails; no empty folder stays."""
    try:
        yield
    except BaseException as error:
        with suppress(OSError):
            folder.rmdir()
        for text in checks if isinstance(error, Exception) else ():
            typer.echo(f"warning: {text}", err=True)
        raise


def _rows_dropped(table: TableOptions, federation: Any) -> list[str]:
    """How many rows were left out because they lack a number."""
    there = table.frame().num_rows if table.missing == "drop" else len(federation.X)
    gone = there - len(federation.X)
    return [f"{gone} of {there} rows lack a number and were left out"] if gone else []


def _surely_wrong(federation: Any) -> list[str]:
    """What a table brings that explains nothing, or too much: codes, row numbers, the target."""
    from fedkin.checks import CheckWarning, findings_of_table

    return [str(CheckWarning(finding)) for finding in findings_of_table(federation)]


def _federation(table: TableOptions, model: Any) -> Any:
    """The data; a target of words is taken by methods for classes only."""
    any_target = type(model).__name__ == "Best"
    uses = model._uses_target() and table.target is not None
    federation = table.federation(_is_classifier(model) or any_target, uses)
    if any_target and federation.encoding is not None and federation.encoding.classes:
        model.set_params(target="classes")
    return federation


def _standardized(federation: Any, model: Any, wanted: bool | None) -> tuple[Any, Any]:
    """Columns with common mean and scale, where rows are grouped by how near they are; and these.

    Groups share one covariance: without this, the column in the smallest unit would decide alone.
    """
    if wanted is None:
        wanted = not model._uses_target() and hasattr(model, "predict_proba")
    if not wanted:
        return federation, None
    from fedkin.estimators import Standardizer

    scaler = Standardizer().fit(federation)
    scales = {"mean": scaler.mean_.tolist(), "scale": scaler.scale_.tolist()}
    return scaler.transform(federation), scales


def _benefit() -> Any:
    """The function that compares."""
    from fedkin.inference import benefit

    return benefit


def _compared(model: Any, federation: Any, options: FitOptions) -> dict[str, Any] | None:
    """What joining gives each site, by rows left out; `Best` has left them out already."""
    from sklearn.base import clone

    from fedkin.report.benefits import benefit_record

    if type(model).__name__ == "Best":
        found = model.against_alone()
        return None if found is None else benefit_record(found)
    if not options.compare:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fit to all rows gave its own
        way = clone(model).set_params(engine=None)
        return benefit_record(_benefit()(way, federation, random_state=options.seed))


def _configuration(options: FitOptions, table: TableOptions) -> dict[str, Any]:
    content: dict[str, Any] = {"method": plain(options.method), "data": str(table.data.resolve())}
    for one in fields(TableOptions):
        value = getattr(table, one.name)
        if one.name != "data" and value is not None:
            content[one.name] = value
    content["seed"] = options.seed
    if options.predict is not None:
        content["predict"] = str(options.predict.resolve())
    if options.level is not None:
        content["level"] = options.level
    if options.compare:
        content["compare"] = True
    if options.standardize is not None:
        content["standardize"] = options.standardize
    content["settings"] = dict(options.settings)
    return content


def _say(model: Any, record: Any, predictions: Any, written: list[Path], options: Any) -> None:
    from fedkin.cli.json_text import json_text
    from fedkin.report.answers import answer

    summary = model.summary()
    if options.as_json:
        content = {name: table.records() for name, table in summary.tables.items()}
        content |= {"title": summary.title, "notes": list(summary.notes), **record}
        content["answer"] = answer(model, record)
        if predictions is not None:
            content["predictions"] = predictions.to_pylist()
        content["written"] = [str(path) for path in written]
        typer.echo(json_text(content, indent=1))
    else:
        typer.echo(answer(model, record) + "\n")
        typer.echo(str(summary))
    for text in [*record["warnings"], *record["checks"], *record["missing"]]:
        typer.echo(f"warning: {text}", err=True)
    for path in written:
        typer.echo(f"wrote {path}", err=True)
