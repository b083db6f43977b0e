"""Reads the Container Device Interface's description of GPUs: what a container gets of the machine for each
GPU.

It reads the specifications of `nvidia.com/gpu` below /etc/cdi and /var/run/cdi, versions 0.3 to 1.x; runs
nothing. Hooks are not run but translated: `update-ldcache` and `create-soname-symlinks` into the names by
which programs look for the driver's libraries, and their directories; `create-symlinks` into one more mount
for each link. `chmod` and `disable-device-node-modification` have nothing to do in a /dev of mounts. Any
other hook is logged, and left out.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

log = logging.getLogger(__name__)

KIND = "nvidia.com/gpu"

_DIRECTORIES = ("etc/cdi", "var/run/cdi")
"""What the second one says of a device counts before what the first one says."""
_VERSION = re.compile(r"v?(0\.[3-9]|1\.\d+)(\.\d+)?")
_BY_NAME = frozenset({"update-ldcache", "create-soname-symlinks"})
_LINKS = "create-symlinks"
_NEEDLESS = frozenset({"chmod", "disable-device-node-modification"})

Mount = tuple[str, str, bool]
"""Source on the machine, target as the program sees it, whether it may only be read."""


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a specification that is used here; other fields are not decoded."""


class _Node(_Struct, frozen=True):
    path: str
    host_path: str = ""


class _Mount(_Struct, frozen=True):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class _Hook(_Struct, frozen=True):
    path: str
    args: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        """The hook's subcommand: `update-ldcache` of `nvidia-cdi-hook update-ldcache` and of
        `nvidia-ctk hook update-ldcache`."""
        words = [word for word in self.args[1:] if word != "hook"]
        return words[0] if words else os.path.basename(self.path)  # noqa: PTH119 - not of this machine

    def values(self, option: str) -> Iterator[str]:
        """Yield the values of an option, written `--option VALUE` or `--option=VALUE`."""
        for word, following in zip(self.args, (*self.args[1:], ""), strict=True):
            if word == f"--{option}":
                yield following
            elif word.startswith(f"--{option}="):
                yield word.partition("=")[2]


class _Edits(_Struct, frozen=True):
    device_nodes: tuple[_Node, ...] = ()
    mounts: tuple[_Mount, ...] = ()
    hooks: tuple[_Hook, ...] = ()
    env: tuple[str, ...] = ()


class _Device(_Struct, frozen=True):
    name: str
    container_edits: _Edits


class _Spec(_Struct, frozen=True):
    cdi_version: str
    kind: str
    devices: tuple[_Device, ...] = ()
    container_edits: _Edits = _Edits()


class Edits(Struct, frozen=True):
    """What a container gets. `devices`: device files, by their usual names. `library_path`: directories of
    the driver's libraries, as the program sees them."""

    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    library_path: tuple[str, ...] = ()


class Specs:
    """The specifications below `root`, by the names of the devices that they describe."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Read them. A file that is not a specification, or cannot be read, is logged and left out."""
        self._root = root
        self._devices: dict[str, tuple[_Edits, _Edits]] = {}
        for directory in _DIRECTORIES:
            found: dict[str, tuple[_Edits, _Edits]] = {}
            ambiguous: set[str] = set()
            for spec in _specs(root / directory):
                for device in spec.devices:
                    if device.name in found:
                        ambiguous.add(device.name)
                    found[device.name] = (spec.container_edits, device.container_edits)
            for name in ambiguous:
                log.warning("CDI: %s=%s is described twice in /%s", KIND, name, directory)
                del found[name]
            self._devices |= found

    def edits(self, wanted: Sequence[Sequence[str]]) -> Edits | None:
        """Return what a container with these devices gets; None if one of them is not described. Each is
        given by all its names. Files that do not exist on the machine now are left out."""
        chosen: list[_Edits] = []
        for names in wanted:
            known = next((self._devices[name] for name in names if name in self._devices), None)
            if known is None:
                return None
            chosen += [edits for edits in known if edits not in chosen]
        nodes = [node for edits in chosen for node in edits.device_nodes]
        mounts = dict.fromkeys(
            (node.host_path, node.path, False)
            for node in nodes
            if node.host_path not in ("", node.path)
        )
        mounts |= dict.fromkeys(
            (mount.host_path, mount.container_path, "ro" in mount.options)
            for edits in chosen
            for mount in edits.mounts
        )
        there = [mount for mount in mounts if self._host(mount[0]).exists()]
        hooks = list(dict.fromkeys(hook for edits in chosen for hook in edits.hooks))
        folders = [f for hook in hooks if hook.verb in _BY_NAME for f in hook.values("folder")]
        there += list(self._by_name(there, folders))
        links = [link for hook in hooks if hook.verb == _LINKS for link in hook.values("link")]
        there += _linked(there, links)
        own = dict.fromkeys(node.path for node in nodes if node.host_path in ("", node.path))
        return Edits(
            devices=tuple(path for path in own if self._host(path).exists()),
            mounts=tuple(dict.fromkeys(there)),
            environ=tuple(_variables(text for edits in chosen for text in edits.env)),
            library_path=tuple(dict.fromkeys(folders)),
        )

    def _host(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _by_name(self, mounts: Sequence[Mount], folders: Iterable[str]) -> Iterator[Mount]:
        """Yield the driver's libraries once more under the names that programs ask for, which are links on
        the machine."""
        listed: dict[Path, dict[Path, list[str]]] = {}
        inside = frozenset(folder.rstrip("/") for folder in folders)
        for source, target, read_only in mounts:
            directory, _, name = target.rpartition("/")
            if directory not in inside or ".so" not in name:
                continue
            host = self._host(source)
            if host.parent not in listed:
                listed[host.parent] = _links(host.parent)
            for link in listed[host.parent].get(host.resolve(), ()):
                yield source, f"{directory}/{link}", read_only


def _links(directory: Path) -> dict[Path, list[str]]:
    """Return the names of the links to each shared library in a directory."""
    found: dict[Path, list[str]] = {}
    for entry in sorted(directory.iterdir()):
        if ".so" in entry.name and entry.is_symlink():
            found.setdefault(entry.resolve(), []).append(entry.name)
    return found


def _linked(mounts: Sequence[Mount], links: Iterable[str]) -> list[Mount]:
    """Turn links, written `TARGET::LINK`, into mounts of their targets; a link may lead to another link."""
    sources = {target: (source, read_only) for source, target, read_only in mounts}
    waiting = [tuple(link.split("::", 1)) for link in links if "::" in link]
    made: list[Mount] = []
    while waiting:
        left: list[tuple[str, ...]] = []
        for target, link in waiting:
            path = (
                os.path.normpath(f"{link.rpartition('/')[0]}/{target}")
                if target[:1] != "/"
                else target
            )
            if path not in sources:
                left.append((target, link))
            elif link not in sources:
                sources[link] = sources[path]
                made.append((sources[path][0], link, sources[path][1]))
        if len(left) == len(waiting):
            break  # The rest lead to files that are not mounted.
        waiting = left
    return made


def _variables(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if equals:
            yield name, value


def _specs(directory: Path) -> Iterator[_Spec]:
    try:
        files = sorted(directory.iterdir())
    except OSError:
        return  # Usual: nobody has made specifications here.
    for file in files:
        if file.suffix not in (".yaml", ".yml", ".json"):
            continue
        try:
            spec = msgspec.convert(_content(file), _Spec)
        except (OSError, ValueError, msgspec.ValidationError) as error:
            log.warning("CDI: %s cannot be read and is left out: %s", file, error)
            continue
        if spec.kind != KIND:
            continue
        if not _VERSION.fullmatch(spec.cdi_version):
            log.warning(
                "CDI: %s is of version %s and left out; 0.3 to 1.x are understood",
                file,
                spec.cdi_version,
            )
            continue
        for verb in _unknown_hooks(spec):
            log.info("CDI: the hook %s of %s is not run", verb, file)
        yield spec


def _content(file: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return json.loads(text)
    import yaml  # Imported late: only machines with such files need it.

    try:
        # Everything as text: a device's name may look like a number.
        return yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _unknown_hooks(spec: _Spec) -> list[str]:
    edits = [spec.container_edits, *(device.container_edits for device in spec.devices)]
    verbs = {hook.verb for each in edits for hook in each.hooks}
    return sorted(verbs - _BY_NAME - _NEEDLESS - {_LINKS})
