"""The `trainshed` command: what builds services, and everything else from the cli room."""

import click

from trainshed.cli.commands import register
from trainshed.serve import clock, doctor, runtimes, up
from trainshed.serve.local_run import command as local_run


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='A first look: trainshed demo. Then: trainshed up, eval "$(trainshed env)", gcloud ai custom-jobs list.',
)
@click.version_option(package_name="trainshed", prog_name="trainshed")
def group() -> None:
    """Trainshed runs training jobs sent by the clients of AI Platform Training and Vertex AI."""


group.add_command(up.command)
group.add_command(runtimes.command, "runtimes")
group.add_command(doctor.command)
group.add_command(local_run.command)
register(group, clock.now)


def main() -> None:
    """Run the command line."""
    group(prog_name="trainshed")
