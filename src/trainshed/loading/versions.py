"""Finds which versions of packages are installed.

It works as `importlib.metadata.version`, but by the name of the directory that installers keep beside a
package: that library loads those of mail and of archives, 1.3 MB of a service that has no other use for them.
"""

import os
import sys
from functools import cache

_SUFFIX = ".dist-info"


@cache
def installed(package: str) -> str:
    """Returns the installed version of a package. Raises importlib.metadata.PackageNotFoundError."""
    prefix = f"{package}-"
    for directory in sys.path:
        try:
            names = os.listdir(directory or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith(prefix) and name.endswith(_SUFFIX):
                return name[len(prefix) : -len(_SUFFIX)]
    # Other installers keep another kind of directory.
    from importlib.metadata import version

    return version(package)
