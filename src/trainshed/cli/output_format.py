"""The form of what is printed: a table, or text, or JSON; and how wide it may be."""

import shutil
import sys
from collections.abc import Callable
from typing import Any

import click


def output_format(first: str, help_text: str) -> Callable[[Any], Any]:
    """The option --format of a command that takes `form`: "json" or `first`, which is the default."""
    return click.option(
        "--format",
        "form",
        type=click.Choice([first, "json"]),
        default=first,
        show_default=True,
        help=help_text,
    )


takes_form = output_format("table", "Output as a table, or JSON for programs.")
"""Of a command that takes `form`: "table" or "json"."""


def terminal_width() -> int | None:
    """Characters of a line; None where no terminal shows it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
