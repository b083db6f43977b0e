"""Makes the package's directory runnable: `python -I -S …/trainshed_gsutil COMMAND …`."""

import os
import sys

if __name__ == "__main__":
    if sys.version_info < (3, 6):
        sys.exit(
            "gsutil: needs Python 3.6 or newer; the first one on PATH is %d.%d."
            % sys.version_info[:2]
        )
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from trainshed_gsutil import program

    sys.exit(program.main(sys.argv[1:]))
