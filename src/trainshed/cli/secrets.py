"""`trainshed secrets`: sets, lists and deletes the secrets that jobs name as `$(secret:NAME)`, and changes
the key with which they are sealed. It never shows a value."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import click

from trainshed.cli.actions import Actions, takes_actions
from trainshed.cli.connection import Endpoint, answering, takes_endpoint
from trainshed.cli.groups import ListGroup
from trainshed.cli.jobs.references import completing
from trainshed.cli.output_format import print_data, takes_form
from trainshed.cli.text.moments import local_moment, parse_moment
from trainshed.cli.text.tables import Column, titled
from trainshed.wire.trainshed_v1.record import read
from trainshed.wire.trainshed_v1.secrets import KeyRotation, Secret, SecretList, StoredSecret

_SECRETS = "/trainshed/v1/secrets"

_project = click.option(
    "--project", metavar="PROJECT", help="Project of the secrets. Default: the service's."
)


@click.group(cls=ListGroup)
def command() -> None:
    """Store secrets that jobs name in their environment. Without a command: list them.

    A variable with the value $(secret:NAME) holds the secret when the program starts; the job itself, its
    description and its log never show it.
    """


@command.command("list")
@_project
@takes_form
@takes_endpoint
def list_(endpoint: Endpoint, *, project: str | None, form: str) -> None:
    """List secrets and their versions, never values."""
    answer = endpoint.client(raw=form == "json").get(_SECRETS, project=_whose(endpoint, project))
    if form == "json":
        print_data(answer["secrets"])
        return
    secrets = read(answer, SecretList)
    if not secrets.secrets:
        click.echo(
            f"The project {secrets.project} has no secret. Store one: trainshed secrets set NAME",
            err=True,
        )
        return
    for line in secret_table(secrets.secrets):
        click.echo(line)


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
@_project
@takes_actions
@takes_endpoint
def set_(
    endpoint: Endpoint,
    *,
    actions: Actions,
    name: str,
    rest: tuple[str, ...],
    file: Path | None,
    variable: str | None,
    project: str | None,
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
    asked = {
        "name": name,
        "value": _without_line_end(_value(name, file, variable)),
        "project": _whose(endpoint, project),
    }
    answer = endpoint.client(raw=actions.as_data).post(_SECRETS, asked)
    stored = read(answer, StoredSecret)
    told = (
        f"{name}  version {stored.version} is stored for {stored.project}. A job gets it by a "
        f"variable with the value $(secret:{name})"
    )
    actions.did("secret", name, "stored", told, record=answer)


@command.command(short_help="Delete a secret, or one version of it.")
@click.argument("name", shell_complete=completing("secrets"))
@click.option("--version", type=click.IntRange(1), metavar="N", help="Delete this version only.")
@_project
@takes_actions
@takes_endpoint
def delete(
    endpoint: Endpoint, *, actions: Actions, name: str, version: int | None, project: str | None
) -> None:
    """Delete the secret NAME with all its versions, or one of them.

    Programs that run keep what they were given. Jobs that name it fail when they start.
    """
    path = f"{_SECRETS}/{quote(name, safe='')}"
    endpoint.client().delete(path, project=_whose(endpoint, project), version=version)
    which = f"version {version} of {name}" if version else name
    named = f"{name}@{version}" if version else name
    actions.did("secret", named, "deleted", f"{which}  is deleted")


@command.command("rotate-key", short_help="Seal all secrets with a new key.")
@takes_actions
@takes_endpoint
def rotate_key(endpoint: Endpoint, actions: Actions) -> None:
    """Seal the secrets of all projects with a new key, and forget the former one.

    Jobs notice nothing. If it breaks off, no secret is lost: call it again. A value that somebody may have
    read is not safe by that: set it anew as well.
    """
    answer = endpoint.client(raw=actions.as_data).post(f"{_SECRETS}:rotateKey", {})
    rotation = read(answer, KeyRotation)
    values = "value is" if rotation.sealed == 1 else "values are"
    told = f"{rotation.sealed} {values} sealed with the new key {rotation.key}"
    actions.did("key", rotation.key, "rotated", told, record=answer)
    if rotation.left:
        named = ", ".join(f"{left.name}@{left.version} of {left.project}" for left in rotation.left)
        click.echo(
            f"Not opened by any key that is here, and left as they were: {named}. Set or delete them.",
            err=True,
        )


def secret_table(secrets: Iterable[Secret]) -> list[str]:
    """Return the lines of a table of secrets, one line per version."""
    columns = (
        Column("SECRET"),
        Column("VERSION", right=True),
        Column("CREATED"),
        Column("LAST USED"),
    )
    rows = [
        (
            "" if number else secret.name,
            str(version.version),
            local_moment(parse_moment(version.created)),
            local_moment(parse_moment(version.last_used)),
        )
        for secret in secrets
        for number, version in enumerate(secret.versions)
    ]
    return titled(columns, rows)


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


def _whose(endpoint: Endpoint, project: str | None) -> str:
    return project or endpoint.project or answering(endpoint).project
