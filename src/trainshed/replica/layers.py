"""A container image as a root file system: unchanged below, what the program changes in a layer of its own above.

Runs on Python 3.6.
"""

import os
import stat

from trainshed.replica import system, users


def show(image: str, layer: str, scratch: str, owners: "users.Users | None") -> str:
    """Mount it; returns where. `layer`: a directory that keeps the changes, made if needed; the same one again shows
    them again. Raises OSError."""
    upper, work = os.path.join(layer, "upper"), os.path.join(layer, "work")
    lower, root = os.path.join(scratch, "image"), os.path.join(scratch, "root")
    for path in (upper, work, lower, root):
        os.makedirs(path, exist_ok=True)
    # What "/" is to its users is what the upper layer's directory is.
    os.chmod(upper, stat.S_IMODE(os.stat(image).st_mode) | 0o755)
    if owners is None:
        lower = image
    else:
        owners.show(image, lower)
        # The upper layer is written as the program's own users (its mount cannot be mapped).
        owners.give(upper)
    options = "lowerdir=%s,upperdir=%s,workdir=%s" % (
        _escaped(lower),
        _escaped(upper),
        _escaped(work),
    )
    if owners is None and os.geteuid() != 0:
        options += ",userxattr"
    system.mount("overlay", root, "overlay", system.MS_NOSUID, options)
    return root


def make_directory(path: str, mode: int, owners: "users.Users | None") -> None:
    """A directory of the image that is the root by now, and those above it, if they are not there: the program's own."""
    way = ""
    for part in path.strip("/").split("/"):
        way += "/" + part
        if not os.path.isdir(way):
            os.mkdir(way)
            os.chmod(way, mode)
            if owners is not None:
                owners.give(way)


def user_of(text: str, root: str) -> "tuple[int, int, str]":
    """(user, group, home directory) of `USER[:GROUP]`, names and numbers as in the image at `root`; "" is root. Raises
    OSError: it knows no such name."""
    name, _, group = text.partition(":")
    name = name or "0"
    found = _entry(inside(root, "/etc/passwd"), name, 7)
    if found is None and not name.isdigit():
        raise OSError("the image has no user %s in its /etc/passwd; give its number" % name)
    user = int(found[2]) if found else int(name)
    number = int(found[3]) if found else 0
    if group:
        entry = _entry(inside(root, "/etc/group"), group, 4)
        if entry is None and not group.isdigit():
            raise OSError("the image has no group %s in its /etc/group; give its number" % group)
        number = int(entry[2]) if entry else int(group)
    home = found[5] if found and found[5] else "/root" if user == 0 else "/"
    return user, number, home


def _entry(path: str, wanted: str, width: int) -> "list[str] | None":
    """The line of a name or number in a file of the kind of /etc/passwd."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":") for line in file]
    except OSError:
        return None
    whole = [line for line in lines if len(line) >= width]
    named = [line for line in whole if line[0] == wanted]
    return (named or [line for line in whole if line[2] == wanted] or [None])[0]


def inside(root: str, path: str) -> str:
    """Where `path` of an image lies below `root`, with the image's own links followed as they will be once it is the root:
    none of them leads out."""
    place = root
    parts = path.strip("/").split("/")[::-1]
    for _ in range(255):
        if not parts:
            return place
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            place = os.path.dirname(place) if place != root else root
            continue
        step = os.path.join(place, part)
        if os.path.islink(step):
            link = os.readlink(step)
            if link.startswith("/"):
                place = root
            parts += link.strip("/").split("/")[::-1]
        else:
            place = step
    raise OSError("%s: too many links in the image on the way" % path)


def _escaped(path: str) -> str:
    """A path within the options of a mount."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
