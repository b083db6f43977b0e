"""The tiny environment that a replica's Python is started from, so that a program's own installs go nowhere else.

It is a virtual environment in Python's eyes, whose "system" is a prefix of ours (`prefix` module): base packages are
visible and cannot be uninstalled or overwritten. Shown read-only, it makes `pip install` and `pip install --upgrade
pip` do what `pip install --user` does: install into PYTHONUSERBASE, which is the replica's. Where nothing can be
shown read-only a copy does the same, and takes installs itself; so no file in it says where it lies.
"""

from trainshed.runtimes.prefix import Prefix

_PIP = """#!/bin/sh
'''exec' "${0%/*}/python" "$0" "$@"
' '''
import sys

from pip._internal.cli.main import main

sys.exit(main())
"""
"""A shell line that Python reads as a string: starts the interpreter that lies beside the script."""


def write_template(prefix: Prefix, final: Prefix) -> None:
    """Write the template of the prefix that is being built at `prefix` and will lie at `final`.

    Layout: `pyvenv.cfg`; `bin/` with `python`, `python3`, `python3.X` (links to the prefix's binary), `pip`,
    `pip3`, `pip3.X`; `lib/python3.X/site-packages/`, empty. About ten entries, some hundred bytes.
    """
    template = prefix.template
    binaries = template / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(final.executable)
    for name in ("python3", f"python{prefix.python}"):
        (binaries / name).symlink_to("python")
    for name in ("pip", "pip3", f"pip{prefix.python}"):
        script = binaries / name
        script.write_text(_PIP)
        script.chmod(0o755)
    (template / "lib" / f"python{prefix.python}" / "site-packages").mkdir(parents=True)
    if (prefix.root / "lib64").is_symlink():
        (template / "lib64").symlink_to("lib")
    (template / "pyvenv.cfg").write_text(
        f"home = {final.executable.parent}\n"
        # "System" is our prefix: this shows the base packages and lets pip do user installs.
        "include-system-site-packages = true\n"
        f"version = {prefix.python}\n"
    )
