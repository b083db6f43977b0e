"""`trainshed secrets`: sets the secrets that jobs name as `$(secret:NAME)`. It never shows a value;
`trainshed list` and `delete` do the rest."""

import os
import sys
from pathlib import Path

import click

from trainshed.cli.commands import Group
from trainshed.cli.connection import Endpoint, project_of, takes_endpoint, takes_project
from trainshed.wire.trainshed_v1.access import StoredSecret
from trainshed.wire.trainshed_v1.record import read

_SECRETS = "/trainshed/v1/secrets"


@click.group(cls=Group)
def command() -> None:
    """Store secrets that jobs name in their environment. Without a command: list them.

    A variable with the value $(secret:NAME) holds the secret when the program starts; the job itself, its
    description and its log never show it.
    """


@command.command("set", short_help="Store a new version of a secret.")
@click.argument("name")
@click.argument("rest", nargs=-1, metavar="")
@click.option(
    "--from-file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read the value from FILE.",
)
@click.option(
    "--from-env",
    "variable",
    metavar="VAR",
    help="Take the value from the environment variable VAR.",
)
@takes_project("Project of the secrets.")
@takes_endpoint
def set_(
    endpoint: Endpoint,
    *,
    name: str,
    rest: tuple[str, ...],
    file: Path | None,
    variable: str | None,
) -> None:
    """Store a new version of the secret NAME; programs that start from now on get it.

    The value is read from standard input; on a terminal the command asks for it. It is text of at most 64
    KiB; the line end behind a single line is not part of it.
    """
    if rest:
        raise click.UsageError(
            "The value is not given on the command line, where everybody on this machine can read it and "
            "the shell keeps it. Type it when asked, or use --from-file or --from-env. If this was a real "
            "one, it is no secret any more."
        )
    if file is not None and variable is not None:
        raise click.UsageError("Give --from-file or --from-env, not both.")
    body = {
        "name": name,
        "value": _without_line_end(_value(name, file, variable)),
        "project": project_of(endpoint),
    }
    answer = endpoint.client().post(_SECRETS, body)
    stored = read(answer, StoredSecret)
    click.echo(
        f"{name}  version {stored.version} is stored for {stored.project}. A job gets it by a "
        f"variable with the value $(secret:{name})"
    )


def _value(name: str, file: Path | None, variable: str | None) -> str:
    if variable is not None:
        try:
            return os.environ[variable]
        except KeyError:
            raise click.ClickException(f"The variable {variable} is not set.") from None
    if file is None and sys.stdin.isatty():
        return click.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True)
    try:
        content = sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as failure:
        raise click.ClickException(
            f"{file or 'stdin'} cannot be read: {failure.strerror}"
        ) from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise click.ClickException(
            f"{file or 'What comes in'} is no text: a variable can hold text only. Store it as base64, and "
            "have the program decode it."
        ) from None


def _without_line_end(value: str) -> str:
    """Return a value without its line end if it is a single line, since `echo` and editors add one that is
    not meant. Several lines are a file's content and stay as they are."""
    line = value.removesuffix("\n").removesuffix("\r")
    return value if "\n" in line else line
