"""The installer of a job's packages inside an image, run as an image's Python runs it (spec/program,
facts/lifecycle#executor).

pip is played by a module that says what it was asked for.
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
from trainshed.runtimes.images.executor import wrapped

PIP = """
import os, sys
print("pip", " ".join(a for a in sys.argv[1:] if a != "--user"), flush=True)
path = sys.argv[-1]
print("has", open(path).read(), flush=True)
sys.exit(4 if path.endswith("broken.whl") else 0)
"""


class Bucket(BaseHTTPRequestHandler):
    """Has every object whose name does not say that it is missing: its content is its path."""

    def do_GET(self) -> None:
        self.send_response(404 if "missing" in self.path else 200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Nothing: the test's output is its own."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(
    place: Path, endpoint: str, *uris: str, digest: str = ""
) -> subprocess.CompletedProcess[str]:
    """Install the packages, pinned to `digest`, and go on as a program, in a home directory `place`."""
    (place / "pip.py").write_text(PIP)
    show = "import os, sys; print('program', sys.argv[1:], os.environ['PATH'])"
    python, *rest = wrapped(
        tuple((uri, digest) for uri in uris), (sys.executable, "-c", show, "--x")
    )
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


def test_packages_are_fetched_and_installed_in_order_then_the_program_runs(
    tmp_path: Path, endpoint: str
) -> None:
    """spec/program#arguments: packages installed first, in order; facts/lifecycle#executor: each whatever is
    there, then what it needs."""
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


def test_a_package_that_is_not_the_pinned_one_is_not_installed(
    tmp_path: Path, endpoint: str
) -> None:
    """Issue: its digest is checked when it is installed, whoever replaced it after the service has looked."""
    content = b"/storage/v1/b/b/o/one.whl?alt=media"
    digest = hashlib.sha256(content).hexdigest()
    assert run(tmp_path, endpoint, "gs://b/one.whl", digest=digest).returncode == 0
    done = run(tmp_path, endpoint, "gs://b/two.whl", digest=digest)
    assert done.returncode == 1
    assert "gs://b/two.whl has changed since the job was created" in done.stderr
    assert digest in done.stderr
    assert "pip" not in done.stdout and "program" not in done.stdout
