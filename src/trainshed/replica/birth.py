"""How a replica's guardian comes to be: forked, told what to do, its view made, its program at hand.

It can be forked before anybody knows for what, so that a start need not wait for that. Runs on Python 3.6.
"""

import json
import os
import signal
import socket

from trainshed.replica import (
    cgroups,
    guardian,
    handover,
    program,
    protocol,
    sandbox,
    stall,
    system,
)


class Ward:
    """A forked guardian from its shim's side. It waits until it is told a plan, and ends if the shim does.

    `guardian`: its process id. `control`: our end of the pair that it speaks over (`guardian` module). `output`,
    `errors`: the read ends of the pipes that its program will write to.
    """

    __slots__ = ("control", "errors", "guardian", "output")

    def __init__(self, level: str) -> None:
        """Fork it into its process namespace. Raises OSError: the namespace cannot be made."""
        self.output, output = os.pipe()
        self.errors, errors = os.pipe()
        self.control, control = socket.socketpair()
        if level == protocol.LEVEL_SESSION:
            system.adopt_orphans()
        sandbox.detach(level)
        self.guardian = os.fork()
        if self.guardian == 0:
            try:
                kept = {0, 1, 2, control.fileno(), output, errors}
                system.close_all(handle for handle in system.open_handles() if handle not in kept)
                _guard(control, output, errors)
            except (
                Exception
            ) as error:  # The shim records it; this process has no other way to speak.
                control.sendall(("failed %r\n" % error).encode("utf-8", "replace"))
            finally:
                os._exit(0)
        for theirs in (control.detach(), output, errors):
            os.close(theirs)

    def tell(self, order: bytes, lock: int) -> None:
        """Let it make the sandbox for `order`, the line that the shim itself was given. From here on it holds the
        slot's lock as well. Raises OSError: it is dead."""
        handover.send(self.control, order + b"\n", lock)

    def give_up(self) -> None:
        """End it: there is nothing for it to do."""
        os.kill(self.guardian, signal.SIGKILL)
        os.waitpid(self.guardian, 0)


def _guard(control: socket.socket, output: int, errors: int) -> None:
    system.name_process("ts-guardian")
    receiver = handover.Receiver(control)
    received = receiver.receive()
    if not received:
        return
    # The handle is the lock, held until this process ends.
    message = json.loads(received[0][0].decode("utf-8"))
    plan = protocol.LaunchDocument(**message["plan"])
    files = os.path.join(message["slot"], protocol.FILES)
    namespaced = plan.level != protocol.LEVEL_SESSION

    def prepare() -> None:
        program.make_directories(files)
        if namespaced:
            _view(plan, message["slot"], files).enter()

    if plan.stall_after > 0:
        plan.environ.setdefault(*stall.ENVIRONMENT)
    main = program.Program(
        argv=plan.argv,
        environ=plan.environ,
        directory=os.path.join(files, program.WORK),
        output=output,
        errors=errors,
        groups=cgroups.Groups(plan.memory_base, plan.cpu_base, plan.cgroup_name),
    )
    guardian.Guardian(
        control, namespaced, prepare, main, [output, errors], heard=receiver.rest
    ).run()


def _view(plan: protocol.LaunchDocument, slot: str, files: str) -> sandbox.View:
    binds = [(os.path.join(files, program.HYPERTUNE), sandbox.HYPERTUNE)]
    if plan.gcs_root:
        binds.append((plan.gcs_root, sandbox.GCS))
    if not program.lies_in_tmp(files):
        binds.append((os.path.join(files, program.TEMPORARY), "/tmp"))
    return sandbox.View(
        hostname=plan.hostname,
        hosts_file=plan.hosts,
        files=files,
        scratch=os.path.join(slot, "view"),
        binds=binds,
        hidden=plan.hidden,
        read_only=plan.read_only,
    )
