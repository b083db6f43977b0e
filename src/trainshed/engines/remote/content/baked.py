"""Puts the agent's code into an image, so that Pods of it need not be sent any (docs/adr/0115).

    python -m trainshed.engines.remote.content.baked DIRECTORY
    PYTHON -I -S DIRECTORY/code/trainshed/engines/remote/content/baked.py

The first command, run where the service is installed, writes the code; the second, run in the image by its
own Python, compiles it.
"""

import compileall
import shutil
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode


def lay_down(directory: Path) -> None:
    """Write this service's code and the agent's entry point into a directory. Raises OSError."""
    from trainshed.engines.remote.content import resident
    from trainshed.engines.remote.content.bootstrap import AgentCode

    code = directory / "code"
    shutil.rmtree(directory, ignore_errors=True)
    code.mkdir(parents=True)
    collected = AgentCode.collect()
    collected.unpack(code)
    shutil.copy(resident.__file__, directory / "resident.py")
    (directory / resident.DIGEST).write_text(f"{collected.content}\n")


def compile_for(directory: Path) -> None:
    """Compile the code in a directory for the Python that runs this. Raises OSError, CalledProcessError."""
    code = directory / "code"
    sys.path.insert(0, str(code))
    from trainshed.engines.remote.content import resident
    from trainshed.engines.remote.module_bundle import collect

    # Images do not always keep their files' times.
    mode = PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(code, quiet=1, invalidation_mode=mode):
        raise OSError(f"{code} cannot be compiled by {sys.executable}")
    collect(directory / resident.MODULES, [str(code), *sys.path[1:]])


def main() -> int:
    """Run either command of the module."""
    if len(sys.argv) == 2:
        lay_down(Path(sys.argv[1]))
        return 0
    try:
        compile_for(Path(__file__).parents[5])
    except subprocess.CalledProcessError as failure:
        sys.stderr.write(f"agents' modules cannot be collected: {failure.stderr.decode()}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
