"""Google's own libraries in a program: through a replica's relay and a real bucket process
(spec/program#storage; spec/clients#metadata)."""

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.contract.buckets_service import Service
from tests.people import owned
from trainshed.access.job_tokens import KEY_FILE, JobClaims, JobTokens
from trainshed.access.principals import Principal, Rights
from trainshed.access.roles import PROGRAM
from trainshed.access.tokens import TokenAuthority
from trainshed.buckets.setup import BucketRules
from trainshed.replica.endpoint import relay
from trainshed.serve import certificates

EMAIL = "trainer@p1.iam.gserviceaccount.com"
PATIENCE = 30
HOST = "storage.googleapis.com"


@dataclass
class Replica:
    """The endpoint of a replica of project p1, and what its program trusts."""

    place: str
    secure_port: int
    trust: Path
    authority: TokenAuthority

    def program(self, code: str, **environ: str) -> list[str]:
        """The lines that a program with default credentials prints."""
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ":".join(sys.path),
            "HOME": "/nonexistent",
            "GCE_METADATA_HOST": self.place,
            "GCE_METADATA_IP": self.place,
            "GCE_METADATA_ROOT": self.place,
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=variables | environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    data = tmp_path_factory.mktemp("service")
    service = Service(data, BucketRules("p1"))
    files = certificates.prepare_interception(data, time.time(), {})
    identity = {
        "job_uid": "17",
        "attempt": 1,
        "replica": "workerpool0-0",
        "project": "p1",
        "service_account": EMAIL,
    }
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from trainshed.replica.endpoint import relay\n"
        "doors = relay.listen('127.0.0.1', 0), relay.listen('127.0.0.1', 0)\n"
        "print(*(door.getsockname()[1] for door in doors), flush=True)\n"
        "relay.Relay(doors[0], sys.argv[2], sys.argv[3].encode() + b'\\n', doors[1], sys.argv[4]).run()"
    )
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", code, str(Path(relay.__file__).parents[3])),
            *(str(service.replicas), json.dumps(identity), str(files.certificate)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        plain, secure = map(int, process.stdout.readline().split())
        jobs = JobTokens.open(data / KEY_FILE, time.time_ns)
        authority, _ = owned(time.time_ns, jobs)
        yield Replica(f"127.0.0.1:{plain}", secure, files.trust, authority)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)
        service.stop()


ASKS = """
import google.auth, google.auth.transport.requests as transport
credentials, project = google.auth.default()
request = transport.Request()
credentials.refresh(request)
print(project)
print(credentials.service_account_email)
print(credentials.token)
from google.oauth2 import id_token
from google.auth import jwt
claims = jwt.decode(id_token.fetch_id_token(request, "https://audience"), verify=False)
print(claims["aud"], claims["email"])
"""


def test_a_program_has_default_credentials_that_the_service_knows(replica: Replica) -> None:
    project, email, token, identity = replica.program(ASKS)
    assert (project, email, identity) == ("p1", EMAIL, f"https://audience {EMAIL}")
    program = JobClaims(17, 1, "workerpool0-0", "p1", EMAIL)
    known = Principal(EMAIL, Rights(projects={"p1": PROGRAM}), program=program)
    assert replica.authority.authenticate(f"Bearer {token}") == known


STORES = """
import os
from google.cloud import storage
endpoint = os.environ["ENDPOINT"]
client = storage.Client(client_options={"api_endpoint": endpoint})
bucket = client.create_bucket(os.environ["BUCKET"])
bucket.blob("a/b").upload_from_string("content")
print(client.project, type(client._credentials).__name__, bucket.blob("a/b").download_as_text())
"""


def test_the_storage_client_goes_by_the_default_credentials(replica: Replica) -> None:
    """Without STORAGE_EMULATOR_HOST, by which it would send none."""
    (line,) = replica.program(STORES, ENDPOINT=f"http://{replica.place}", BUCKET="with-credentials")
    assert line == "p1 Credentials content"


class Intercepted(HTTPConnection):
    """To Google's storage host, as far as a client can see."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(HOST, timeout=PATIENCE)
        self._replica = replica

    def connect(self) -> None:
        raw = socket.create_connection(("127.0.0.1", self._replica.secure_port), timeout=PATIENCE)
        trust = ssl.create_default_context(cafile=str(self._replica.trust))
        self.sock = trust.wrap_socket(raw, server_hostname=HOST)

    def ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers by name as it came, and body."""
        self.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers.items():
            self.putheader(name, value)
        self.endheaders(body)
        answer = self.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def test_an_upload_by_googles_own_name_as_tensorflow_makes_it(replica: Replica) -> None:
    """spec/clients#tensorflow: `Transfer-Encoding: identity` beside a length, a chunked body with a length,
    `Location` in capitals."""
    connection = Intercepted(replica)
    made = json.dumps({"name": "intercepted"}).encode()
    length = {"Content-Length": str(len(made))}
    assert connection.ask("POST", "/storage/v1/b?project=p1", made, length)[0] == 200
    path = "/upload/storage/v1/b/intercepted/o?uploadType=resumable&name=x"
    nothing = {"Content-Length": "0", "Transfer-Encoding": "identity"}
    status, headers, _ = connection.ask("POST", path, b"", nothing)
    assert status == 200
    assert headers["Location"].startswith(f"https://{HOST}/")
    twice = {"Content-Length": "5", "Transfer-Encoding": "chunked", "Content-Range": "bytes 0-4/5"}
    location = headers["Location"].removeprefix(f"https://{HOST}")
    assert connection.ask("PUT", location, b"5\r\nhello\r\n0\r\n\r\n", twice)[0] == 200
    assert connection.ask("GET", "/intercepted/x", b"", {})[2] == b"hello"
    connection.close()
