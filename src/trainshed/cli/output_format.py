"""The form of what is printed: a table or text for people, JSON or YAML for programs; and how wide it may
be."""

import json
import shutil
import sys
from collections.abc import Callable
from typing import Any

import click

_YAML = "trainshed.yaml"


def output_format(first: str, help_text: str, *, default: str = "") -> Callable[[Any], Any]:
    """The option --format of a command that takes `form`: "json", of which `print_data` knows whether YAML
    was meant, or `first`. "text" and "table" are one. `default`: "" = `first`."""

    def chosen(context: click.Context, _: click.Parameter, value: str) -> str:
        context.meta[_YAML] = value == "yaml"
        return "json" if value in ("json", "yaml") else first

    other = "text" if first == "table" else "table"
    return click.option(
        "--format",
        "form",
        type=_Form([first, "json", "yaml", other]),
        metavar=f"[{first}|json|yaml]",
        default=default or first,
        show_default=True,
        callback=chosen,
        help=help_text,
    )


class _Form(click.Choice[str]):
    """The last choice is another word for the first."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Names each form once."""
        *names, _ = self.choices
        return f"{value!r} is not one of {', '.join(names)}."


takes_form = output_format("table", "Output as a table, or as JSON or YAML for programs.")
"""Of a command that takes `form`: "table" or "json"."""


def print_data(value: Any, *, stream: bool = False) -> None:
    """Print a value as the --format of this command says. `stream`: one of many, a line of JSON each or a
    document of YAML."""
    if click.get_current_context().meta.get(_YAML):
        # Few ask for it.
        from trainshed.cli.text.yaml_form import yaml_text

        click.echo(f"---\n{yaml_text(value)}" if stream else yaml_text(value))
        return
    click.echo(json.dumps(value, indent=None if stream else 2))


def terminal_width() -> int | None:
    """Characters of a line; None where no terminal shows it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
