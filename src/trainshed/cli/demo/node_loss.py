"""The demo on a cluster: the primary's node is lost during the training, and its replicas go on elsewhere.

Unless a command really switches off the node, the loss is simulated: the service's agents on the node are
ended with all their programs, and the node is drained so that the service does not use it again.
"""

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast

import click

from trainshed.cli.client import Client
from trainshed.cli.jobs.follow import Update
from trainshed.cli.jobs.references import job_path
from trainshed.cli.jobs.views import JobView, LogLine, TimelineView
from trainshed.cli.text.moments import duration
from trainshed.core.units import Nanos

SLURM: Final = "slurm"
KUBERNETES: Final = "kubernetes"
_PRIMARY: Final = "workerpool0-0"
_DONE: Final = 12
"""Epochs before the loss; the program saves a checkpoint every five epochs."""
_EPOCH: Final = re.compile(r"epoch (\d{1,9})/")
_RESUMED: Final = re.compile(r"resuming from the checkpoint after epoch (\d{1,9})")
_REASON: Final = "lost, as far as trainshed demo goes"
_GONE: Final = ("replica_lost", "replica_exited")
"""Kinds of timeline entries that say that a replica has ended. A replica that was asked to end may have
reported its exit before it was lost."""
_NAMES: Final = r'jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{"\n"}{end}'
_SECONDS: Final = 60
"""Seconds that a command may take."""


class Cluster(Protocol):
    """A cluster on which the agents of a job can be ended."""

    def end_agents(self, node: str, uid: str) -> None:
        """End the agents of the job with that number on that node, with all their programs. Raises
        click.ClickException if there are none, or if a command fails."""
        ...


@dataclass(frozen=True, slots=True)
class SlurmCluster:
    """A cluster that Slurm's commands reach."""

    #: Directory of Slurm's commands; "" = they are on the PATH.
    commands: str = ""
    #: Slurm's configuration file; "" = the commands' default.
    conf: str = ""

    def end_agents(self, node: str, uid: str) -> None:
        """Send SIGKILL to the agents' steps."""
        for step in self._steps(node, uid):
            self._told("scancel", "--signal=KILL", step)

    def _steps(self, node: str, uid: str) -> list[str]:
        found: list[str] = []
        for line in self._told("squeue", "-h", "-s", "-w", node, "-o", "%i %j").splitlines():
            step, _, name = line.strip().partition(" ")
            words = name.split("-")
            if words[0] == "trainshed" and uid in words:
                found.append(step)
        if not found:
            raise click.ClickException(f"squeue shows no step of the job on {node}.")
        return found

    def _told(self, *command: str) -> str:
        variables = {"SLURM_CONF": self.conf} if self.conf else {}
        return _run([_command(command[0], self.commands), *command[1:]], variables)


@dataclass(frozen=True, slots=True)
class KubernetesCluster:
    """A cluster that kubectl reaches."""

    #: The kubeconfig file; "" = kubectl's default.
    kubeconfig: str = ""
    #: A context in it; "" = its current one.
    context: str = ""

    def end_agents(self, node: str, uid: str) -> None:
        """Delete the agents' Pods. Kubernetes sends SIGTERM first, so programs have one second to end."""
        kubectl = [_command("kubectl")]
        for option, value in (("--kubeconfig", self.kubeconfig), ("--context", self.context)):
            kubectl += [option, value] if value else []
        mine = ["--all-namespaces", "-l", f"trainshed/job={uid}", "--field-selector"]
        pods = _run([*kubectl, "get", "pods", *mine, f"spec.nodeName={node}", "-o", _NAMES])
        if not pods.split():
            raise click.ClickException(f"kubectl shows no Pod of the job on {node}.")
        for line in pods.splitlines():
            namespace, _, name = line.partition("/")
            ending = ["--grace-period=1", "--wait=false"]
            _run([*kubectl, "delete", "pod", "-n", namespace, name, *ending])


@dataclass(frozen=True, slots=True)
class Site:
    """What the demo needs to know of the service's configuration."""

    #: The service's file of settings; None = none.
    config: Path | None = None
    #: Its data directory; None = the file does not say.
    data: Path | None = None
    #: SLURM or KUBERNETES.
    engine: str = SLURM
    #: The only cluster, or the settings that several have in common.
    common: Cluster = SlurmCluster()
    #: Several clusters by their names; {} = there is only one.
    clusters: Mapping[str, Cluster] = field(default_factory=dict[str, Cluster])

    @staticmethod
    def read(engine: str, config: Path | None) -> "Site":
        """Read a file of settings. It is not checked here, because the service does that. Raises
        click.ClickException if it cannot be read."""
        if config is None:
            return Site(engine=engine, common=_cluster(engine, {}))
        try:
            document: dict[str, Any] = tomllib.loads(config.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise click.ClickException(f"{config} cannot be read: {error}") from None
        own = _table(_table(document, "engines"), engine)
        several = _table(own, "clusters")
        clusters = {name: _cluster(engine, {**own, **_table(several, name)}) for name in several}
        data = document.get("data")
        place = Path(str(data)) if data else None
        return Site(config, place, engine, _cluster(engine, own), clusters)

    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of `trainshed up` for the service."""
        config = ("--config", str(self.config)) if self.config else ()
        return ("--engine", self.engine, *config)

    def locate(self, node: str) -> tuple[Cluster, str]:
        """Return the cluster of a node, and the node's name there. `node`: its name in the service, which is
        CLUSTER.NAME if there are several clusters."""
        name, _, own = node.partition(".")
        return (self.clusters[name], own) if name in self.clusters else (self.common, node)


def _cluster(engine: str, settings: Mapping[str, Any]) -> Cluster:
    def said(name: str) -> str:
        return str(settings.get(name, ""))

    if engine == KUBERNETES:
        return KubernetesCluster(said("kubeconfig"), said("context"))
    return SlurmCluster(said("commands"), said("conf"))


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table of a TOML document; {} if there is none of this name."""
    found = document.get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


@dataclass(slots=True)
class NodeLoss:
    """Loses the primary's node once the primary has done 12 epochs, and observes what follows. `power_off`: a
    command that switches off the node whose name in the cluster it is given; "" = end the node's agents."""

    site: Site
    power_off: str
    client: Client
    #: The node that was lost; "" = none yet.
    node: str = ""
    #: When the primary was lost, and when it was started again, by the timeline; 0 = not yet.
    lost_at: Nanos = 0
    again_at: Nanos = 0
    #: The node on which it was started again.
    elsewhere: str = ""
    #: Epochs that it had done before it resumed.
    done: int = 0
    #: The epoch of the checkpoint from which it resumed; None = it has not resumed.
    resumed: int | None = field(default=None)

    def over(self, job: JobView, updates: Iterator[Update]) -> Iterator[Update]:
        """Yield the updates of the job, and lose the node at the right one."""
        for update in updates:
            yield update
            match update:
                case LogLine(replica=replica, message=message) if replica == _PRIMARY:
                    self._hear(job, message)
                case TimelineView() if self.node:
                    self._note(job, update)
                case _:
                    pass

    def take_back(self) -> None:
        """Let the service use the node again, unless it was switched off."""
        if self.node and not self.power_off:
            self.client.post(f"/trainshed/v1/nodes/{self.node}:undrain", {})

    def tell(self) -> bool:
        """Print what came of the loss; whether the job resumed from its checkpoint."""
        click.echo()
        if not self.node:
            click.echo("The job was over before its node could be lost.", err=True)
            return False
        if not self.again_at:
            click.echo(f"The loss of {self.node} was not noticed.", err=True)
            return False
        where = f"on {self.elsewhere}" if self.elsewhere != self.node else "on the same node"
        click.echo(
            f"Node      {self.node} was lost after epoch {self.done}; {_PRIMARY} ran {where} "
            f"{duration(self.again_at - self.lost_at)} after the service knew"
        )
        if self.resumed is None:
            click.echo("It should have gone on from its checkpoint, and began anew.", err=True)
            return False
        click.echo(f"Resumed   from the checkpoint after epoch {self.resumed}: {self._twice()}")
        return True

    def _twice(self) -> str:
        """Return a text that says how many epochs were trained twice."""
        epochs = self.done - (self.resumed or 0)
        if epochs <= 0:
            return "no epoch was trained twice"
        return f"{epochs} epoch{'s were' if epochs > 1 else ' was'} trained twice"

    def _hear(self, job: JobView, message: str) -> None:
        """Note what a line of the primary says of its epochs, and lose the node when it is time."""
        if self.node and (found := _RESUMED.search(message)):
            self.resumed = int(found[1])
        elif self.resumed is None and (found := _EPOCH.match(message)):
            # Counted after the loss as well, because the primary trains on until the loss has reached it.
            self.done = int(found[1])
            if not self.node and self.done >= _DONE:
                self._lose(job)

    def _lose(self, job: JobView) -> None:
        view = JobView.parse(self.client.get(job_path(job.uid)))
        self.node = next((each.node for each in view.replicas if each.id == _PRIMARY), "")
        here = ", ".join(each.task for each in view.replicas if each.node == self.node)
        click.echo(click.style(f"Losing {self.node} now, on which are {here}.", bold=True))
        cluster, node = self.site.locate(self.node)
        if self.power_off:
            _run([*shlex.split(self.power_off), node])
            return
        cluster.end_agents(node, job.uid)
        # Without this the replicas would be started on the same node, since nothing is wrong with it.
        self.client.post(f"/trainshed/v1/nodes/{self.node}:drain", {"reason": _REASON})

    def _note(self, job: JobView, entry: TimelineView) -> None:
        if entry.kind in _GONE and not self.lost_at and _PRIMARY in entry.message:
            self.lost_at = entry.at
        elif entry.kind == "replica_started" and self.lost_at and _PRIMARY in entry.message:
            self.again_at = entry.at
            view = JobView.parse(self.client.get(job_path(job.uid)))
            self.elsewhere = next(each.node for each in view.replicas if each.id == _PRIMARY)


def _command(name: str, directory: str = "") -> str:
    """Return the path of a command. `directory`: where it is; "" = on the PATH. Raises click.ClickException
    if there is none."""
    found = shutil.which(name, path=directory or None)
    if found is None:
        raise click.ClickException(f"There is no command {name} to lose a node with.")
    return found


def _run(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output. `environment`: variables that are added to ours. Raises
    click.ClickException if it fails."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise click.ClickException(f"{shlex.join(command)}: {error}") from None
    if done.returncode:
        told = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise click.ClickException(f"{shlex.join(command)}: {told}")
    return done.stdout
