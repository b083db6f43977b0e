"""`trainshed demo`: runs the distributed program of `demo_program` as `trainshed run` runs any."""

from pathlib import Path
from typing import Final

import click

from trainshed.cli.client import Unreachable
from trainshed.cli.connection import data_directory, data_option, find, takes_address
from trainshed.cli.run.command import command as run

_PROGRAM: Final = Path(__file__).with_name("demo_program") / "digits.py"
_IMAGE: Final = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:slim"


@click.command()
@takes_address
@click.pass_context
def command(
    context: click.Context, url: str | None, token: str | None, data: Path | None, ca: str | None
) -> None:
    """Run a small distributed training job from start to end.

    Three replicas learn together to tell handwritten digits apart. If no service runs, one is started, and
    stopped again in the end; jobs, logs and models stay.
    """
    words = [str(_PROGRAM), "--name=trainshed-demo", f"--image={_IMAGE}", "--replicas=3", "--watch"]
    directory = data_directory(data)
    try:
        find(url, token, data, ca)
        options = {"--url": url, "--token": token, "--ca": ca, "--data": data and str(data)}
        words += [word for name, value in options.items() if value for word in (name, value)]
    except Unreachable:
        if url:
            raise
        click.echo(f"No service is running; starting one with its data in {directory}.")
        words += ["--local", "--data", str(directory)]
    click.echo(
        "The first job of its kind builds its runtime; later ones start in well under a second."
    )
    with run.make_context("run", words, parent=context) as running:
        run.invoke(running)
    if "--local" in words:
        click.echo(f"The service was stopped again. Start it: trainshed up{data_option(directory)}")
    click.echo(
        'What next: trainshed jobs describe @last; eval "$(trainshed env)"; gcloud ai custom-jobs list'
    )
