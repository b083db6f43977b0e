"""Runs as process 1 of a Pod whose image has the agent's code (`baked`): it loads the agent before it is told
what to do, says which code it has, and becomes the agent, or runs other code if it is sent that.

The Pods' command reads it as a file; the command's last argument is its directory. Standard library only.
"""

import gc
import marshal
import os
import signal
import sys

KNOWN = b"document"
"""What comes before an agent's document where the code is there; otherwise a loader's size is there, of as
many digits."""
CODE = b"code"
"""How the line begins that says which code there is, and then as JSON what else `cluster.ProcessFacts` has;
nothing after it = none."""
MODULES, DIGEST = "agent.modules", "digest"
"""Files of the directory, beside its `code`: `module_bundle`'s, and what the code is called."""


def main(directory: str) -> None:
    """Become the agent."""
    # Modules are never garbage: collections while they load would only cost time.
    gc.disable()
    # The image must stay unchanged for the next job (`scrubbing`).
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.join(directory, "code"))
    try:
        with open(os.path.join(directory, MODULES), "rb") as code:
            if code.readline() == ascii(sys.version).encode() + b"\n":
                finder = marshal.loads(code.read(int(code.readline())))
                exec(finder, {"code": code, "__name__": "bundle_finder"})
    except (OSError, ValueError, EOFError, TypeError):
        pass  # Without the bundle, modules are found one by one.
    from trainshed.engines.remote import start

    start.main(lambda: _receive(directory))


def _receive(directory: str) -> None:
    """Return when an agent's document comes next on standard input; if other code comes, replace this process
    by one that runs it."""
    from json import dumps

    from trainshed.engines.local.hosts_file import MachineHosts
    from trainshed.engines.remote.start import load_until_told

    load_until_told()
    while os.read(0, 1) not in (b"\n", b""):
        pass
    hosts = MachineHosts()
    told = {"address": hosts.address_of(os.uname().nodename), "named": hosts.is_ours}
    with open(os.path.join(directory, DIGEST), "rb") as file:
        os.write(1, b"%s %s %s\n" % (CODE, file.read().strip(), dumps(told).encode()))
    load_until_told()
    kind = _exactly(len(KNOWN))
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if kind != KNOWN:
        _run_other(_exactly(int(kind, 16)))


def _run_other(loader: bytes) -> None:
    """Run a loader in a new interpreter, which has loaded nothing of this code and reads the rest of the
    input."""
    handle = os.memfd_create("loader", 0)
    with open(handle, "wb", closefd=False) as file:
        file.write(loader)
    with open("/proc/self/cmdline", "rb") as file:
        own = file.read().split(b"\0")
    # The same interpreter with its options, also if a dynamic loader is the program that runs it.
    command = own[: own.index(b"-c") + 1]
    command += [b"exec(open(%d, 'rb').read())" % handle, b"trainshed-agent"]
    os.lseek(handle, 0, os.SEEK_SET)
    os.execv("/proc/self/exe", command)


def _exactly(count: int) -> bytes:
    """Read exactly that many bytes from standard input, because what follows is for other readers. Raises
    EOFError."""
    found = b""
    while len(found) < count:
        part = os.read(0, count - len(found))
        if not part:
            raise EOFError("what the process is to do broke off")
        found += part
    return found


if __name__ == "__main__":
    main(sys.argv[-1])
