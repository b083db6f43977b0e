"""python -m trainshed_reduction.native: builds the C library into the installed package, as for images."""

import sys

from trainshed_reduction.native import compilation, library


def main() -> int:
    path, why = compilation.build(library.DIRECTORY)
    if path is None:
        sys.stderr.write(f"the part in C of trainshed_reduction was not built: {why}\n")
        return 1
    loaded = library.load()
    if loaded is None:
        sys.stderr.write(f"{path} was built and cannot be used: {library.reason()}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
