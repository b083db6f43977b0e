"""How this installation's command has to be typed, so that advice can be copied from the terminal as it
is."""

import os
import shlex
import shutil
import sys
from pathlib import Path

_NAME = "trainshed"


def typed() -> str:
    """Return `trainshed` if a shell finds this installation under that name, else the path of its command.

    The path is relative if it lies below the working directory, as after `./dev up`.
    """
    own = Path(sys.executable).with_name(_NAME)
    on_path = shutil.which(_NAME)
    if not own.exists() or (on_path and Path(on_path).samefile(own)):
        return _NAME
    below = os.path.relpath(own)
    return shlex.quote(str(own) if below.startswith(os.pardir) else below)


def data_option(data: Path) -> str:
    """Return what has to follow the command in any shell so that it uses that data directory; "" for
    `~/.trainshed`."""
    if data == Path.home() / ".trainshed":
        return ""
    return f" --data {shlex.quote(str(data))}"
