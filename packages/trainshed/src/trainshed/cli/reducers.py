"""`trainshed reducers wheel`: writes the wheel of the reduction for users' own images."""

from pathlib import Path

import click

from trainshed.cli.groups import Group


@click.group(cls=Group)
def command() -> None:
    """What a job's reducers need in images of your own. Needs no service.

    What they are, when they help, and which programs can use them: docs/reduction-server.md.
    """


@command.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIRECTORY",
    help="Directory for the wheel. Default: the current one.",
)
def wheel(output: Path) -> None:
    """Write the wheel for your own container images.

    Jobs in prebuilt images have it by themselves.
    """
    from trainshed.runtimes import (
        reduction_distribution as distribution,  # no other command here needs it
    )

    path = output / distribution.wheel_name()
    try:
        output.mkdir(parents=True, exist_ok=True)
        path.write_bytes(distribution.wheel())
    except OSError as failure:
        raise click.ClickException(f"{path} cannot be written: {failure.strerror}") from None
    click.echo(path)
