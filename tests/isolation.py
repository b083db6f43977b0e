"""The isolation levels that this machine supports. Most containers forbid namespaces even for root."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from trainshed.replica import protocol
from trainshed.replica.sandbox import levels

_PROBE = """
import json, sys
from trainshed.replica.supervisor import isolation_probe
print(json.dumps(isolation_probe.probe(sys.argv[1], sys.argv[2:])))
"""


def probe(scratch: Path, wanted: Sequence[str] = levels.LEVELS) -> tuple[str, dict[str, str]]:
    """Run `isolation_probe.probe` in a separate process, because a fork after the use of gRPC may abort."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, str(scratch), *wanted], stdout=subprocess.PIPE, check=True
    )
    result = json.loads(done.stdout)
    return result["level"], result["refused"]


@cache
def strongest() -> str:
    """Return the strongest isolation level that works on this machine."""
    with tempfile.TemporaryDirectory() as scratch:
        return probe(Path(scratch))[0]


needs_mounts = pytest.mark.skipif(
    strongest() != protocol.LEVEL_OWN or not shutil.which("nsenter"),
    reason="NOT TESTED: what it mounts needs root, namespaces and util-linux (unshare, nsenter)",
)
needs_view = pytest.mark.skipif(
    strongest() == protocol.LEVEL_SESSION,
    reason="NOT TESTED: without namespaces programs have no view of files, such as /gcs, of their own",
)
