"""python -m trainshed_reduction.native: build the library into the installed package, for images and the
like."""

import sys

from trainshed_reduction.native import compilation, library


def main() -> int:
    path, why = compilation.build(library.DIRECTORY)
    if path is None:
        sys.stderr.write("the part in C of trainshed_reduction was not built: {}\n".format(why))
        return 1
    loaded = library.load()
    if loaded is None:
        sys.stderr.write("{} was built and cannot be used: {}\n".format(path, library.reason()))
        return 1
    sys.stdout.write("{}\n".format(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
