"""`trainshed systemd-unit`: prints a unit by which systemd keeps the service running."""

import shlex
import sys
from pathlib import Path

import click

from trainshed.cli.connection import data_directory, takes_data
from trainshed.cli.no_service import refuses_service

_UNIT = """\
[Unit]
Description=Trainshed, a training service
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=2
# Programs outlive the service and are taken over by the next one: only its own process is ended.
KillMode=process
TimeoutStopSec=60
LimitNOFILE=1048576
# Control groups for the memory and processes of programs.
Delegate=yes
{user}
[Install]
WantedBy={target}
"""


@click.command(
    epilog="For this user: trainshed systemd-unit > ~/.config/systemd/user/trainshed.service; systemctl"
    " --user enable --now trainshed; loginctl enable-linger. For the machine: trainshed systemd-unit"
    " --system --user NAME > /etc/systemd/system/trainshed.service"
)
@click.option("--system", is_flag=True, help="Print a unit of the machine, not of this user.")
@click.option("--user", default="", help="With --system: the user that the service runs as.")
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="TOML file of settings."
)
@takes_data
@refuses_service(
    "The unit starts a service on this machine: its address is host and port of --config.",
    *("--url", "--token", "--ca"),
)
def command(*, data: Path | None, system: bool, user: str, config: Path | None) -> None:
    """Print a systemd unit that starts the service with the machine and after a failure."""
    if user and not system:
        raise click.UsageError("--user goes with --system: a unit of this user runs as this user.")
    own = Path(sys.executable).with_name("trainshed")
    words = [str(own)] if own.exists() else [sys.executable, "-P", "-m", "trainshed"]
    words += ["up", "--data", str(data_directory(data))]
    if config:
        words += ["--config", str(config.absolute())]
    click.echo(
        _UNIT.format(
            # systemd reads % as the start of a specifier.
            command=shlex.join(words).replace("%", "%%"),
            user=f"User={user}\n" if user else "",
            target="multi-user.target" if system else "default.target",
        ),
        nl=False,
    )
