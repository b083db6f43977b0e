"""`trainshed tokens`, `iam` and `secrets`: create tokens, grant and revoke roles, and store secrets. A job
refers to a secret as `$(secret:NAME)`. `trainshed list` and `delete` also support tokens, grants and secrets.
"""

import os
import sys
from pathlib import Path

import click

from trainshed.cli.commands import Group
from trainshed.cli.connection import Endpoint, endpoint_options, project_of, project_option
from trainshed.wire.trainshed_v1.access import Grant, IssuedToken, StoredSecret
from trainshed.wire.trainshed_v1.record import read

_role_project_option = project_option("Project of the role; - means all projects.")


@click.group(cls=Group)
def tokens() -> None:
    """Create tokens for people and service accounts. Without a command: list them.

    A token has the rights of its e-mail address (see trainshed iam). Revoke one token with trainshed tokens
    delete ID, or all tokens of a user with trainshed tokens delete EMAIL.
    """


@tokens.command(short_help="Create a token, and show it once.")
@click.argument("email")
@click.option(
    "--role",
    metavar="ROLE",
    default="",
    help="Also grant the role ROLE, such as roles/aiplatform.user, to EMAIL.",
)
@_role_project_option
@click.option("--days", type=click.FloatRange(0), default=0, help="Validity in days. Default: until deleted.")
@click.option("--note", metavar="TEXT", default="", help="Description of the token.")
@endpoint_options
def create(endpoint: Endpoint, *, email: str, role: str, days: float, note: str) -> None:
    """Create a token for EMAIL, a user or a service account, and print it. The service stores only its hash,
    so the token cannot be shown again.

    To replace a token without interruption, create the new one, use it in place of the old one, then delete
    the old one.
    """
    body = {"email": email, "role": role, "days": days, "note": note, "project": project_of(endpoint)}
    issued = read(endpoint.client().post("/trainshed/v1/tokens", body), IssuedToken)
    click.echo(
        f"{issued.id}  is a token of {email}. It is not shown again. Use it with trainshed login URL "
        "--token -, or as TRAINSHED_TOKEN.",
        err=True,
    )
    click.echo(issued.token)


@click.command()
@click.argument("member")
@click.argument("role")
@_role_project_option
@click.option("--remove", is_flag=True, help="Revoke the role instead of granting it.")
@endpoint_options
def iam(endpoint: Endpoint, *, member: str, role: str, remove: bool) -> None:
    """Grant the role ROLE, such as roles/aiplatform.user, to MEMBER in a project. MEMBER is user:EMAIL,
    serviceAccount:EMAIL or group:NAME. List all grants with trainshed list grants.

    Same as gcloud projects add-iam-policy-binding; with --remove, as remove-iam-policy-binding.
    """
    body = {"member": member, "role": role, "remove": remove, "project": project_of(endpoint)}
    grant = read(endpoint.client().post("/trainshed/v1/access:change", body), Grant)
    where = "all projects" if grant.project == "-" else grant.project
    verb = "does not have" if remove else "has"
    click.echo(f"{member}  {verb} the role {role} in {where}")


@click.group(cls=Group)
def secrets() -> None:
    """Store secrets for the environment of jobs. Without a command: list them.

    A variable with the value $(secret:NAME) contains the secret when the program starts. The job, its
    description and its log never show the secret.
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
    "--from-env", "variable", metavar="VAR", help="Read the value from the environment variable VAR."
)
@project_option("Project of the secrets.")
@endpoint_options
def set_(
    endpoint: Endpoint, *, name: str, rest: tuple[str, ...], file: Path | None, variable: str | None
) -> None:
    """Store a new version of the secret NAME. Programs that start from now on receive it.

    The command reads the value from standard input and prompts for it on a terminal. The value is text of at
    most 64 KiB. If the value is a single line, its line end is removed.
    """
    if rest:
        raise click.UsageError(
            "A secret cannot be given on the command line: other users of this machine can read it there, "
            "and the shell's history keeps it. Type it at the prompt, or use --from-file or --from-env. "
            "If this was a real secret, replace it."
        )
    if file is not None and variable is not None:
        raise click.UsageError("--from-file and --from-env exclude each other. Use one of them.")
    value = _value(name, file, variable)
    # Remove the line end of a single line, because `echo` and editors add one. Text of several lines stays
    # unchanged.
    line = value.removesuffix("\n").removesuffix("\r")
    value = value if "\n" in line else line
    body = {"name": name, "value": value, "project": project_of(endpoint)}
    stored = read(endpoint.client().post("/trainshed/v1/secrets", body), StoredSecret)
    click.echo(
        f"{name}  version {stored.version} is stored for {stored.project}. To use it in a job, set a "
        f"variable to $(secret:{name})"
    )


def _value(name: str, file: Path | None, variable: str | None) -> str:
    if variable is not None:
        try:
            return os.environ[variable]
        except KeyError:
            raise click.ClickException(
                f"The environment variable {variable} is not set. Set it, or use --from-file."
            ) from None
    if file is None and sys.stdin.isatty():
        return click.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True)
    try:
        content = sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as failure:
        raise click.ClickException(
            f"{file or 'Standard input'} cannot be read: {failure.strerror}. Make it readable, or type the "
            "secret at the prompt."
        ) from None
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise click.ClickException(
            f"{file or 'Standard input'} is not UTF-8 text, and a variable can contain only text. Encode "
            "the value as base64, and decode it in the program."
        ) from None
