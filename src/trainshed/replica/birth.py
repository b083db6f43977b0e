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
    layers,
    program,
    protocol,
    sandbox,
    socket_calls,
    stall,
    system,
    users,
    view,
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
        namespace = _namespace(level)
        sandbox.detach(level)
        self.guardian = os.fork()
        if self.guardian == 0:
            try:
                kept = {0, 1, 2, control.fileno(), output, errors}
                if namespace is not None:
                    kept.update(namespace.handles)
                system.close_all(handle for handle in system.open_handles() if handle not in kept)
                _guard(control, output, errors, namespace)
            except (
                Exception
            ) as error:  # The shim records it; this process has no other way to speak.
                control.sendall(("failed %r\n" % error).encode("utf-8", "replace"))
            finally:
                os._exit(0)
        for theirs in (control.detach(), output, errors):
            os.close(theirs)
        if namespace is not None:
            namespace.close()

    def tell(self, order: bytes, lock: int) -> None:
        """Let it make the sandbox for `order`, the line that the shim itself was given. From here on it holds the
        slot's lock as well. Raises OSError: it is dead."""
        handover.send(self.control, order + b"\n", lock)

    def give_up(self) -> None:
        """End it: there is nothing for it to do."""
        os.kill(self.guardian, signal.SIGKILL)
        os.waitpid(self.guardian, 0)


def _namespace(level: str) -> "users.Namespace | None":
    """Of the program's own users: made with the guardian, since it takes a process. None where there is none, or where
    it cannot be made, which is told when it is needed."""
    if level != protocol.LEVEL_OWN:
        return None
    try:
        return users.Namespace()
    except OSError:
        return None


def _guard(
    control: socket.socket, output: int, errors: int, namespace: "users.Namespace | None"
) -> None:
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

    groups = cgroups.Groups(plan.memory_base, plan.cpu_base, plan.cgroup_name, plan.pids_base)
    main = program.Program(
        argv=plan.argv,
        environ=plan.environ,
        directory=plan.directory or os.path.join(files, program.WORK),
        output=output,
        errors=errors,
        groups=groups,
    )
    seen = _view(plan, message["slot"], files, namespace)

    def prepare() -> None:
        # The service keeps what it makes to itself; directories on the way to what is shown are for everybody.
        os.umask(0o022)
        system.leave_keyring()
        program.make_directories(files)
        if namespaced:
            groups.keep_bases()
            seen.enter()
            if not (plan.image and plan.level == protocol.LEVEL_USER):
                system.forbid_inspection()  # There `drop` does, once it needs no more of /proc.
        else:
            system.forbid_new_privileges()
        if plan.image:
            _fit_image(plan, main, seen)
        if plan.cluster_port or plan.certificate:
            _be_asked(control, connect=bool(plan.certificate))

    def settle() -> None:
        groups.hold()
        if namespaced:
            sandbox.drop(plan.level, seen.owners, bool(plan.image))
            if plan.pids_limit and not plan.pids_base:
                program.limit_processes(plan.pids_limit)

    if plan.stall_after > 0:
        plan.environ.setdefault(*stall.ENVIRONMENT)
    guardian.Guardian(
        control,
        main,
        [output, errors],
        namespaced=namespaced,
        prepare=prepare,
        settle=settle,
        heard=receiver.rest,
    ).run()


def _fit_image(plan: protocol.LaunchDocument, main: program.Program, seen: view.View) -> None:
    """What the image's own files say: who its user is, and where that one is at home."""
    user, group, home = seen.user
    plan.environ.setdefault("HOME", home)
    layers.make_directory(plan.directory, 0o755, seen.owners)
    layers.make_directory("/tmp", 0o1777, seen.owners)
    if user or group:
        if plan.level == protocol.LEVEL_USER:
            return  # There is one user only, and it finds itself root.
        main.run_as(user, group)


def _be_asked(control: socket.socket, *, connect: bool) -> None:
    """Let the shim make some calls in the program's place; without it, where the kernel cannot do that."""
    try:
        handle = socket_calls.listen(connect=connect)
    except OSError:
        return
    if handle >= 0:
        handover.send(control, b"asked\n", handle)
        os.close(handle)


def _view(
    plan: protocol.LaunchDocument, slot: str, files: str, namespace: "users.Namespace | None"
) -> view.View:
    binds = [(os.path.join(files, program.HYPERTUNE), view.HYPERTUNE)]
    if not plan.image:
        binds.append((os.path.join(files, program.TEMPORARY), "/tmp"))
        binds.append((os.path.join(files, program.KEPT_TEMPORARY), "/var/tmp"))
    return view.View(
        hostname=plan.hostname,
        hosts_file=plan.hosts,
        files=files,
        scratch=os.path.join(slot, "view"),
        binds=binds,
        hidden=plan.hidden,
        covered=plan.covered,
        read_only=plan.read_only,
        buckets=plan.buckets,
        mounts=plan.mounts,
        roots=plan.roots,
        device_files=plan.devices,
        user_range=plan.users,
        namespace=namespace,
        image=plan.image,
        layer=os.path.join(files, program.LAYER),
        image_user=plan.image_user,
        shm_bytes=plan.shm_bytes,
    )
