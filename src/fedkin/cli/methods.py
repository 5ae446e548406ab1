"""`fedkin methods`: which method answers which question."""

from __future__ import annotations

from typing import Annotated

import typer

from fedkin.cli.asking import AsJson
from fedkin.cli.guide import command_names, estimator_class, estimator_name, words_of
from fedkin.cli.json_text import json_text
from fedkin.registry import ESTIMATORS

SITES_DIFFER = {
    "any": "in a way that is found out",
    "kinds": "by kind",
    "degrees": "by degrees",
    "curves": "in curves drawn from one prior",
    "groups": "in the shares of groups inside them",
    "rival": "(to compare with)",
    "oracle": "(needs the truth; to compare with)",
    "step": "(a step before others)",
}


def methods(
    name: Annotated[str | None, typer.Argument(help="A method; all of them if open.")] = None,
    as_json: AsJson = False,
) -> None:
    """List methods: the question each answers, what leaves a site, rounds, when it fails."""
    from fedkin.tables import Table

    if name is not None:
        _one(name, as_json)
        return
    commands = [c for c in command_names() if c != "auto" or "Best" in ESTIMATORS]
    rows = [(c, words_of(estimator_name(c))) for c in commands]
    columns = {
        "method": [c for c, _ in rows],
        "question": [w.question for _, w in rows],
        "sites differ": [SITES_DIFFER.get(w.difference, "") for _, w in rows],
        "leaves a site": [w.leaves for _, w in rows],
        "rounds": [w.rounds for _, w in rows],
        "fails": [w.fails for _, w in rows],
    }
    if as_json:
        typer.echo(json_text(Table(columns).records(), indent=1))
        return
    for command, words in rows:
        typer.echo(f"{command:<18} {words.question}")
    typer.echo("\nMore of one: fedkin methods NAME; its options: fedkin fit NAME --help")


def _one(name: str, as_json: bool) -> None:
    from fedkin.cli.options import parameter_words, parameters_of
    from fedkin.tables import Table

    family = estimator_class(name)
    words = words_of(family.__name__)
    told = parameter_words(family.__doc__ or "")
    defaults = parameters_of(family)
    settings = [n for n in defaults if n not in ("engine", "random_state")]
    facts = {
        "method": name,
        "estimator": f"fedkin.{family.__name__}",
        "question": words.question,
        "sites differ": SITES_DIFFER.get(words.difference, ""),
        "leaves a site": words.leaves,
        "rounds": words.rounds,
        "fails": words.fails,
    }
    table = Table(
        {
            "setting": settings,
            "default": [str(defaults[n]) for n in settings],
            "may be": [told.get(n, ("", ""))[0] for n in settings],
            "what it is": [told.get(n, ("", ""))[1] for n in settings],
        },
        "Settings",
    )
    if as_json:
        typer.echo(json_text({**facts, "settings": table.records()}, indent=1))
        return
    for fact, value in facts.items():
        typer.echo(f"{fact:<14} {value}")
    typer.echo(f"\nSettings ({len(settings)}):")
    for row in table.records():
        typer.echo(f"  {row['setting']} = {row['default']}  {row['may be']}")
        typer.echo(f"      {row['what it is']}")
