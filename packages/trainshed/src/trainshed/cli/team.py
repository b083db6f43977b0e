"""`trainshed tokens` makes tokens of people and machines; `trainshed iam` gives and takes roles. `trainshed
list` lists tokens, grants, projects and the audit record, and `trainshed delete tokens` revokes."""

import click

from trainshed.cli.commands import Group
from trainshed.cli.connection import Endpoint, project_of, takes_endpoint, takes_project
from trainshed.wire.trainshed_v1.access import Grant, IssuedToken
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
    "--days", type=click.FloatRange(0), default=0, help="Days it is valid. Default: until revoked."
)
@click.option("--note", metavar="TEXT", default="", help="What it is for.")
@takes_endpoint
def create(
    endpoint: Endpoint,
    *,
    email: str,
    role: str,
    days: float,
    note: str,
) -> None:
    """Make a token for EMAIL, a person or a service account, and print it. It is stored hashed: nobody can
    read it again.

    To replace one without a gap, make the new one, put it where the old one is, and revoke that.
    """
    body = {
        "email": email,
        "role": role,
        "days": days,
        "note": note,
        "project": project_of(endpoint),
    }
    answer = endpoint.client().post("/trainshed/v1/tokens", body)
    issued = read(answer, IssuedToken)
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
def iam(
    endpoint: Endpoint,
    *,
    member: str,
    role: str,
    remove: bool,
) -> None:
    """Give MEMBER (user:EMAIL, serviceAccount:EMAIL or group:NAME) the role ROLE, such as
    roles/aiplatform.user, in a project. Who has which: trainshed list grants.

    The same as gcloud projects add-iam-policy-binding, and --remove as remove-iam-policy-binding.
    """
    body = {
        "member": member,
        "role": role,
        "remove": remove,
        "project": project_of(endpoint),
    }
    answer = endpoint.client().post("/trainshed/v1/access:change", body)
    grant = read(answer, Grant)
    where = "all projects" if grant.project == "-" else grant.project
    verb = "does not have" if remove else "has"
    click.echo(f"{member}  {verb} the role {role} in {where}")
