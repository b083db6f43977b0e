"""Creates and controls the shim's sidecars: endpoint, socket calls, memory limit, metrics, usage, disk,
reduction reports, stall watchdog."""

import contextlib
import errno
import json
import os
from typing import TYPE_CHECKING, Any

from trainshed.replica import protocol
from trainshed.replica.endpoint import peers, relay
from trainshed.replica.observe import (
    disk,
    growing_files,
    masking,
    metrics,
    notes,
    reduction_reports,
    stall,
    usage,
)
from trainshed.replica.sandbox import socket_calls
from trainshed.replica.supervisor import memory_limit, program
from trainshed.replica.system import cgroups, loop

if TYPE_CHECKING:
    from trainshed.replica.supervisor.shim import Shim

_GS_DIRECTORY = os.path.join(protocol.FILES, program.WORK, "gs:")
"""The directory that `os.makedirs("gs://…")` creates by mistake in a program's working directory."""
LOCAL_GS_DIRECTORY = "storage_written_here"
"""Name of a note to users: this directory exists when the program ends."""
_LOCAL_GS_DIRECTORY_TEXT = (
    'its working directory contains a directory named "gs:". Files in it are in no bucket, and are deleted '
    "with the replica. open(), os.makedirs(), joblib.dump() and torch.save() do not support gs:// paths. "
    "Write to /gcs/BUCKET/… instead, or use a library that supports gs://."
)
RANK_CLAIMED = "rank_claimed"
"""Name of a note to users: a second process acts as rank 0."""
_BY_WORKER = (
    "a process of this replica binds port %d (MASTER_PORT) like rank 0, but rank 0 belongs to the primary"
)
_BY_SECOND = "a process of this replica cannot bind port %d (MASTER_PORT), because another process uses it"
_RANK_CLAIMED_TEXT = (
    "%s. If two processes act as rank 0, one fails with EADDRINUSE or all wait forever for other ranks. RANK "
    "and WORLD_SIZE count replicas, not processes. To start several processes in each replica: torchrun "
    "--nnodes=$NNODES --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT, or "
    "accelerate launch --num_machines $NNODES --machine_rank $NODE_RANK. In a program that starts them, use "
    "rank = NODE_RANK * processes per replica + local rank."
)


class Sidecars:
    """The sidecars of one run (incarnation) of a replica. Some exist only if the launch document (`plan`)
    requests them. `retries`: repeats writes that failed on a full disk. `mask`: removes secrets from all
    records. Raises OSError if the endpoint's port is in use."""

    def __init__(
        self,
        plan: protocol.LaunchDocument,
        groups: cgroups.ControlGroups,
        events: loop.Loop,
        shim: "Shim",
        *,
        notes: notes.Notes,
        retries: growing_files.DiskRetries,
        mask: masking.Mask | None,
    ) -> None:
        self._plan = plan
        self._shim = shim
        process = os.getpid()
        self._loop = events
        #: One handler each for the main process with its descendants, a preloader's fork, and each shell.
        self._calls: list[socket_calls.SocketCalls] = []
        self._is_rank_claimed = False
        self.memory = memory_limit.MemoryLimit(groups, plan.limits.memory_limit, events, shim)
        self._notes = notes
        self._mask = mask
        self._storage: relay.Endpoint | None = None
        network, observation = plan.network, plan.observation
        if network.storage_socket:
            environ = plan.program.environ
            self._storage = relay.Endpoint(
                network,
                events,
                peers.Peers(process, plan.isolation.users),
                environ.get("https_proxy") or environ.get("HTTPS_PROXY"),
            )
        self._metrics: metrics.Metrics | None = None
        if observation.watch_metrics:
            self._metrics = metrics.Metrics(
                observation.logs,
                plan.incarnation,
                events,
                log=shim.log,
                notify=lambda: shim.notify({"e": "metrics"}),
                retries=retries,
                mask=mask,
            )
        self._reduction: reduction_reports.Reduction | None = None
        if observation.reducers:
            self._reduction = reduction_reports.Reduction(plan, events, log=shim.log, notes=notes, mask=mask)
        self._disk = disk.Disk(
            protocol.FILES,
            limit=plan.limits.disk_limit,
            every=observation.usage_every,
            events=events,
            note=notes.add,
            end=shim.end_for_disk if plan.limits.disk_enforced else None,
        )
        self._usage = usage.Usage(plan, groups.directories(), process, events, disk=lambda: self._disk.used)

    def program_started(self, at: int) -> None:
        """Start the sidecars that observe the program. `at`: start time of the program, in ns since the
        epoch."""
        self.memory.program_started()
        note_launch(self._plan, at, self._mask)
        self._usage.start(at)
        self._disk.start()
        if self._metrics is not None:
            self._metrics.start(at)
        if self._reduction is not None:
            self._reduction.start()
        if self._plan.limits.stall_after:
            stall.Watchdog(
                self._plan.limits.stall_after,
                self._loop,
                self._shim,
                relay=lambda: self._storage.process if self._storage is not None else None,
            )

    def handle_calls(self, handle: int) -> None:
        """Start to handle the socket calls that arrive on the file descriptor `handle` (`socket_calls`)."""
        network = self._plan.network
        own = network.address, network.storage_port, network.cluster_port
        calls = socket_calls.SocketCalls(
            handle,
            network.address,
            network.cluster_port,
            socket_calls.redirections(*own) if network.certificate else {},
            network.kept_ports,
            on_bind=self._note_bind if network.master_port else None,
        )

        def answer() -> None:
            if not calls.answer():
                self._loop.drop(calls.fileno())
                self._calls.remove(calls)
                calls.close()

        self._calls.append(calls)
        self._loop.add(calls.fileno(), answer)

    def _note_bind(self, port: int, error: int) -> None:
        """Add a note to users when a second process binds MASTER_PORT, like rank 0. Only the first such bind
        gets a note. `error`: the error number of the bind; 0 = success."""
        network = self._plan.network
        if port != network.master_port or self._is_rank_claimed:
            return
        if not network.is_primary or error == errno.EADDRINUSE:
            self._is_rank_claimed = True
            what = (_BY_SECOND if network.is_primary else _BY_WORKER) % port
            self._notes.add(RANK_CLAIMED, notes.WARNING, _RANK_CLAIMED_TEXT % what)

    def announce(self) -> None:
        """Send a newly connected service all notes to users. If metrics exist, report this as well."""
        if self._metrics is not None:
            self._metrics.announce()
        self._notes.announce()

    def on_exit(self, child: int) -> None:
        """Handle the exit of a child of the shim. The child may be a process of a sidecar."""
        for calls in self._calls:
            calls.on_exit(child)
        if self._storage is not None:
            self._storage.on_exit(child)

    def report(self, notice: str) -> None:
        """Report a notice in the metadata that the program can read (`protocol.preamble`)."""
        if self._storage is not None:
            self._storage.report(notice)

    def end_relay(self) -> None:
        """Stop accepting connections, because the program has ended."""
        if self._storage is not None:
            self._storage.stop()

    def stop(self) -> None:
        """Measure the program's resource usage for the last time, and stop all sidecars."""
        self._disk.end()
        if os.path.isdir(_GS_DIRECTORY):
            self._notes.add(LOCAL_GS_DIRECTORY, notes.WARNING, _LOCAL_GS_DIRECTORY_TEXT)
        self._usage.stop()
        self.end_relay()

    def record_usage(self, total: Any) -> None:
        """Record the replica's total resource usage (from `resource.getrusage`). Call this after all
        processes are reaped and before the control groups are removed."""
        self._usage.seal(total)
        for calls in self._calls:
            self._loop.drop(calls.fileno())
            calls.close()
        self.memory.close()

    def seal(self, *, succeeded: bool) -> None:
        """Complete the measurements; `save` makes them durable. May write to the log. `succeeded`: whether
        the program succeeded."""
        if self._metrics is not None:
            self._metrics.seal()
        if self._reduction is not None:
            self._reduction.seal(succeeded=succeeded)

    def save(self) -> bool:
        """Write measurements and notes to users durably. Return False if the disk is full; then call this
        method again.
        """
        is_saved = self._metrics is None or self._metrics.save()
        return self._notes.save() and is_saved

    def close(self) -> None:
        """Close the files. Later events are not recorded."""
        if self._metrics is not None:
            self._metrics.close()


LAUNCHES = "launches.jsonl"
"""Name of a file next to the log. Each JSON line describes the start of one run (incarnation) of the replica.
"""

RECORDED_VARIABLES = (
    *("CLUSTER_SPEC", "TF_CONFIG", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "NODE_RANK"),
    *("CUDA_VISIBLE_DEVICES", "CLOUD_ML_TRIAL_ID", "HOSTNAME", "HOME", "PATH", "TMPDIR"),
    *("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR", "AIP_DATA_FORMAT"),
    *("AIP_TRAINING_DATA_URI", "AIP_VALIDATION_DATA_URI", "AIP_TEST_DATA_URI"),
)
"""Environment variables whose values are recorded. Of all other variables, only the names are recorded."""
_MAX_VALUE = 16 << 10
"""Maximum number of characters of a recorded value or argument."""
_MAX_ARGUMENTS = 200
_CUT = "…"


def note_launch(plan: protocol.LaunchDocument, at: int, mask: masking.Mask | None) -> None:
    """Record the start of one run (incarnation) of a replica in the file `LAUNCHES`. `at`: start time in ns
    since the epoch."""
    environ = plan.program.environ

    def mask_and_cut(text: str) -> str:
        # Mask before shortening the text: the mask would not find a part of a secret.
        masked = mask.text(text) if mask is not None else text
        return masked if len(masked) <= _MAX_VALUE else masked[:_MAX_VALUE] + _CUT

    argv = [mask_and_cut(word) for word in plan.program.argv[:_MAX_ARGUMENTS]]
    entry: dict[str, Any] = {
        "incarnation": plan.incarnation,
        "at": at,
        "argv": argv + [_CUT] * (len(plan.program.argv) > _MAX_ARGUMENTS),
        "directory": plan.program.directory,
        "names": sorted(environ),
        "values": {name: mask_and_cut(environ[name]) for name in RECORDED_VARIABLES if name in environ},
        "hostname": plan.isolation.hostname,
        "address": plan.network.address,
        "level": plan.isolation.level,
        "user": plan.isolation.users[0] if plan.isolation.users else None,
        "memory": plan.limits.memory_limit,
        "disk": plan.limits.disk_limit,
        "processes": plan.limits.pids_limit,
        "gpus": list(plan.observation.gpus),
    }
    # The disk may be full; the record is optional.
    with contextlib.suppress(OSError):
        file, _ = growing_files.reopen(os.path.join(plan.observation.logs, LAUNCHES))
        file.append(json.dumps(entry).encode() + b"\n")
        file.close()
