"""The option by which people choose between a table and JSON."""

import click

takes_form = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output as a table, or JSON for programs.",
)
"""Of a command that takes `form`: "table" or "json"."""
