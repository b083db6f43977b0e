"""`trainshed tokens` makes tokens of people and machines, `iam` gives and takes roles, and `secrets` sets the
secrets that jobs name as `$(secret:NAME)`. `trainshed list` and `delete` do the rest."""

import os
import sys
from pathlib import Path

import click

from trainshed.cli.commands import Group
from trainshed.cli.connection import Endpoint, project_of, takes_endpoint, takes_project
from trainshed.wire.trainshed_v1.access import Grant, IssuedToken, StoredSecret
from trainshed.wire.trainshed_v1.record import read

_takes_project = takes_project("Project of the role; - means all projects.")


@click.group(cls=Group)
def tokens() -> None:
    """Make tokens for people and machines. Without a command: list them.

    Who has a token may do what the roles of its e-mail address say: trainshed iam. Revoke one with
    trainshed tokens delete ID, all of a person with trainshed tokens delete EMAIL.
    """


@tokens.command(short_help="Make a token, and show it once.")
@click.argument("email")
@click.option("--role", metavar="ROLE", default="", help="Give EMAIL this role as well.")
@_takes_project
@click.option(
    "--days", type=click.FloatRange(0), default=0, help="Days it is valid. Default: until deleted."
)
@click.option("--note", metavar="TEXT", default="", help="What it is for.")
@takes_endpoint
def create(endpoint: Endpoint, *, email: str, role: str, days: float, note: str) -> None:
    """Make a token for EMAIL, a person or a service account, and print it. It is stored hashed: nobody can
    read it again.

    To replace a token without a gap, create the new one, use it in place of the old one, then delete that.
    """
    body = {
        "email": email,
        "role": role,
        "days": days,
        "note": note,
        "project": project_of(endpoint),
    }
    issued = read(endpoint.client().post("/trainshed/v1/tokens", body), IssuedToken)
    click.echo(
        f"{issued.id}  is a token of {email}. It is shown this once; trainshed login URL --token - takes it, "
        "or TRAINSHED_TOKEN.",
        err=True,
    )
    click.echo(issued.token)


@click.command()
@click.argument("member")
@click.argument("role")
@_takes_project
@click.option("--remove", is_flag=True, help="Take the role away.")
@takes_endpoint
def iam(endpoint: Endpoint, *, member: str, role: str, remove: bool) -> None:
    """Give MEMBER (user:EMAIL, serviceAccount:EMAIL or group:NAME) the role ROLE, such as
    roles/aiplatform.user, in a project. Who has which: trainshed list grants.

    The same as gcloud projects add-iam-policy-binding, and --remove as remove-iam-policy-binding.
    """
    body = {"member": member, "role": role, "remove": remove, "project": project_of(endpoint)}
    grant = read(endpoint.client().post("/trainshed/v1/access:change", body), Grant)
    where = "all projects" if grant.project == "-" else grant.project
    verb = "does not have" if remove else "has"
    click.echo(f"{member}  {verb} the role {role} in {where}")


@click.group(cls=Group)
def secrets() -> None:
    """Store secrets that jobs name in their environment. Without a command: list them.

    A variable with the value $(secret:NAME) holds the secret when the program starts; the job itself, its
    description and its log never show it.
    """


@secrets.command("set", short_help="Store a new version of a secret.")
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
    endpoint: Endpoint, *, name: str, rest: tuple[str, ...], file: Path | None, variable: str | None
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
    value = _value(name, file, variable)
    # `echo` and editors add a line end that is not meant. Several lines are a file's content and stay.
    line = value.removesuffix("\n").removesuffix("\r")
    value = value if "\n" in line else line
    body = {"name": name, "value": value, "project": project_of(endpoint)}
    stored = read(endpoint.client().post("/trainshed/v1/secrets", body), StoredSecret)
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
