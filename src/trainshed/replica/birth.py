"""From the shim's side, how a replica's guardian comes to be: fork, its directories, its view, its program.

Runs on Python 3.6.
"""

import os
import socket

from trainshed.replica import cgroups, guardian, program, protocol, sandbox, system


def fork_guardian(
    plan: protocol.LaunchDocument,
    groups: cgroups.Groups,
    *,
    control: socket.socket,
    output: int,
    errors: int,
    keep: int,
) -> int:
    """Fork the guardian of `plan`'s program; returns its process id. Called in the slot's directory.

    `control`: its end of the pair that it speaks over; `output`, `errors`: write ends of the pipes; `keep`: the slot's
    lock, which it holds as well. Raises OSError: the process namespace cannot be left.
    """
    sandbox.detach(plan.level)
    child = os.fork()
    if child == 0:
        try:
            kept = {0, 1, 2, control.fileno(), output, errors, keep}
            system.close_all(handle for handle in system.open_handles() if handle not in kept)
            _guard(plan, groups, control, output, errors)
        except Exception as error:  # The shim records it; this process has no other way to speak.
            control.sendall(("failed %r\n" % error).encode("utf-8", "replace"))
        finally:
            os._exit(0)
    return child


def _guard(
    plan: protocol.LaunchDocument,
    groups: cgroups.Groups,
    control: socket.socket,
    output: int,
    errors: int,
) -> None:
    files = os.path.abspath(protocol.FILES)
    namespaced = plan.level != protocol.LEVEL_SESSION

    def prepare() -> None:
        program.make_directories(files)
        if namespaced:
            _view(plan, files).enter()

    main = program.Program(
        argv=plan.argv,
        environ=plan.environ,
        directory=os.path.join(files, program.WORK),
        output=output,
        errors=errors,
        groups=groups,
    )
    guardian.Guardian(control, namespaced, prepare, main, [output, errors]).run()


def _view(plan: protocol.LaunchDocument, files: str) -> sandbox.View:
    binds = [(os.path.join(files, program.HYPERTUNE), sandbox.HYPERTUNE)]
    if plan.gcs_root:
        binds.append((plan.gcs_root, sandbox.GCS))
    if not program.lies_in_tmp(files):
        binds.append((os.path.join(files, program.TEMPORARY), "/tmp"))
    return sandbox.View(
        hostname=plan.hostname,
        hosts_file=os.path.abspath(protocol.HOSTS),
        files=files,
        scratch=os.path.abspath("view"),
        binds=binds,
        hidden=plan.hidden,
        read_only=plan.read_only,
    )
