"""Finds the module of each command, which is imported only when the command is run."""

import importlib

from trainshed_gsutil.errors import CommandFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from trainshed_gsutil.commands.context import Context

_MODULES = {
    "acl": "access",
    "cat": "cat",
    "compose": "compose",
    "copy": "cp",
    "cp": "cp",
    "defacl": "access",
    "del": "rm",
    "delete": "rm",
    "dir": "ls",
    "du": "du",
    "hash": "hash",
    "help": "help",
    "iam": "access",
    "list": "ls",
    "ls": "ls",
    "makebucket": "mb",
    "mb": "mb",
    "move": "mv",
    "mv": "mv",
    "rb": "rb",
    "remove": "rm",
    "ren": "mv",
    "rename": "mv",
    "rm": "rm",
    "rsync": "rsync",
    "setmeta": "setmeta",
    "stat": "stat",
    "version": "version",
    "ver": "version",
}
NOT_SERVED = frozenset(
    (
        "autoclass",
        "bucketpolicyonly",
        "config",
        "cors",
        "creds",
        "defstorageclass",
        "hmac",
        "kms",
        "label",
        "lifecycle",
        "logging",
        "notification",
        "pap",
        "perfdiag",
        "requesterpays",
        "retention",
        "rewrite",
        "rpo",
        "signurl",
        "test",
        "ubla",
        "update",
        "versioning",
        "web",
    )
)
"""Commands of gsutil for properties that buckets do not have here."""


def names() -> "list[str]":
    """The names of all commands, without aliases."""
    return sorted({name for name, module in _MODULES.items() if name == module} | {"acl", "iam"})


def find(name: str) -> "Callable[[Context], int]":
    """Returns the function that runs a command. Raises CommandFailure."""
    if name in NOT_SERVED:
        raise CommandFailure(
            'Command "%s" is not served: buckets here have nothing that it is about. Commands: %s.'
            % (name, ", ".join(names()))
        )
    if name not in _MODULES:
        raise CommandFailure('Invalid command "%s". Commands: %s.' % (name, ", ".join(names())))
    module = importlib.import_module("trainshed_gsutil.commands." + _MODULES[name])
    return module.run
