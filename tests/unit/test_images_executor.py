"""Tests of the program that installs a job's packages inside an image (spec/program,
facts/lifecycle#executor).

It runs with the image's Python. A simulated pip records its arguments.
"""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.commands import execute
from trainshed.runtimes.images.executor import wrap_command

PIP = """
import os, sys
print("pip", " ".join(a for a in sys.argv[1:] if a != "--user"), flush=True)
path = sys.argv[-1]
print("has", open(path).read(), flush=True)
sys.exit(4 if path.endswith("broken.whl") else 0)
"""


class Bucket(BaseHTTPRequestHandler):
    """A server with all objects except those with "missing" in their name. The content of an object is its
    path."""

    def do_GET(self) -> None:
        self.send_response(404 if "missing" in self.path else 200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Do nothing, to keep the test's output clean."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(place: Path, endpoint: str, *uris: str, digest: str = "") -> subprocess.CompletedProcess[str]:
    """Install the packages, pinned to `digest`, and run a program, in the home directory `place`."""
    (place / "pip.py").write_text(PIP)
    show = "import os, sys; print('program', sys.argv[1:], os.environ['PATH'])"
    python, *rest = wrap_command(tuple((uri, digest) for uri in uris), (sys.executable, "-c", show, "--x"))
    assert python == "python3"
    return execute(
        sys.executable,
        *rest,
        env={
            "HOME": str(place),
            "PATH": "/bin",
            "PYTHONPATH": str(place),
            "STORAGE_EMULATOR_HOST": endpoint,
            "TMPDIR": str(place),
        },
        cwd=place,
        timeout=60,
    )


def test_packages_are_installed_in_order_before_the_program(tmp_path: Path, endpoint: str) -> None:
    """spec/program#arguments: Each package is installed in its version, then its requirements
    (facts/lifecycle#executor)."""
    done = run(tmp_path, endpoint, "gs://b/dir:1/one.whl", "gs://b/two.whl")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("Running command")]
    scratch = lines[1].rpartition(" ")[2].rpartition("/0/")[0]
    assert lines == [
        "Installing the package: gs://b/dir:1/one.whl",
        f"pip install --upgrade --force-reinstall --no-deps {scratch}/0/one.whl",
        "has /storage/v1/b/b/o/dir%3A1%2Fone.whl?alt=media",
        f"pip install {scratch}/0/one.whl",
        "has /storage/v1/b/b/o/dir%3A1%2Fone.whl?alt=media",
        "Installing the package: gs://b/two.whl",
        f"pip install --upgrade --force-reinstall --no-deps {scratch}/1/two.whl",
        "has /storage/v1/b/b/o/two.whl?alt=media",
        f"pip install {scratch}/1/two.whl",
        "has /storage/v1/b/b/o/two.whl?alt=media",
        f"program ['--x'] /bin{os.pathsep}{tmp_path}/.local/bin",
    ]
    assert not Path(scratch).exists()


def test_package_whose_digest_differs_from_the_recorded_digest_is_not_installed(
    tmp_path: Path, endpoint: str
) -> None:
    """The digest is checked at the installation, because the object may have been replaced after the
    submission."""
    content = b"/storage/v1/b/b/o/one.whl?alt=media"
    digest = hashlib.sha256(content).hexdigest()
    assert run(tmp_path, endpoint, "gs://b/one.whl", digest=digest).returncode == 0
    done = run(tmp_path, endpoint, "gs://b/two.whl", digest=digest)
    assert done.returncode == 1
    assert "gs://b/two.whl has changed since the job was created" in done.stderr
    assert digest in done.stderr
    assert "pip" not in done.stdout and "program" not in done.stdout
