"""`trainshed completion`, and the completion of names: jobs, nodes and others of the service that the command
would talk to.

The user waits for it at every key press, so a service that does not answer at once offers no names.
"""

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from trainshed.cli.client import Client
from trainshed.cli.connection import Endpoint, find
from trainshed.cli.jobs.references import LAST, list_jobs
from trainshed.core.catalog.accelerators import accelerator_types
from trainshed.core.catalog.images import listed_images, prebuilt_uri, short_names
from trainshed.core.catalog.machines import machine_types
from trainshed.core.catalog.regions import regions
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api

_VALUES: dict[str, Callable[[], Iterable[str]]] = {
    "--accelerator": lambda: _of_both(accelerator_types),
    "--image": lambda: (*short_names(), *map(prebuilt_uri, listed_images())),
    "--machine-type": machine_types,
    "--region": lambda: _of_both(regions),
}
"""Options whose values are the same for every service."""

_PATIENCE = 0.5
"""Seconds that the service may take to answer."""
_OFFERED = 100
"""Maximum things whose names are offered."""


@click.command(
    epilog='Put this into ~/.bashrc: eval "$(trainshed completion bash)"; for zsh into ~/.zshrc alike; for'
    " fish: trainshed completion fish > ~/.config/fish/completions/trainshed.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete commands, options, names, states, images and machine types."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None, shell
    root = context.find_root()
    name = root.info_name or "trainshed"
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
    click.echo(complete(root.command, {}, name, variable).source())


def jobs(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete a job: the newest ones by id and by name, and the word for the newest one."""
    answer = _asked(
        context, lambda client, at: list_jobs(client, at.project or "-", limit=_OFFERED)
    )
    items = [CompletionItem(LAST, help="the newest job")]
    names: set[str] = set()
    for job in answer:
        about = f"{job.get('displayName', '')} {job.get('state', '')}"
        items.append(CompletionItem(str(job.get("jobId", "")), help=about))
        name = str(job.get("displayName", ""))
        if name and name not in names:
            items.append(CompletionItem(name, help=str(job.get("state", ""))))
        names.add(name)
    return [item for item in items if str(item.value).startswith(typed)]


def states(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete a state of jobs."""
    words = [state.value for state in JobState]
    return [CompletionItem(word) for word in words if word.startswith(typed.upper())]


def values(_: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete an image, a machine type, an accelerator or a region, by the option's name."""
    known = _VALUES[parameter.opts[-1]]()
    return [CompletionItem(value) for value in known if value.startswith(typed)]


def _of_both(names: Callable[[Api], tuple[str, ...]]) -> list[str]:
    """Return the names of both APIs, each once."""
    return sorted({name for api in Api for name in names(api)})


def nodes(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete a node."""
    known = _asked(context, lambda client, _: client.get("/trainshed/v1/nodes")["nodes"])
    names = (str(node.get("name", "")) for node in known)
    return [CompletionItem(name) for name in names if name.startswith(typed)]


def _asked(
    context: click.Context, ask: Callable[[Client, Endpoint], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    options = context.params
    try:
        endpoint = find(
            options.get("url"), options.get("token"), options.get("data"), options.get("ca")
        )
        return ask(endpoint.client(patience=_PATIENCE), endpoint)[:_OFFERED]
    except (click.ClickException, OSError, ValueError, KeyError, TypeError):
        # An error must not be printed into the line that the user types.
        return []
