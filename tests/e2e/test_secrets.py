"""Secrets reach only the program: canary jobs try to leak them in all ways. All files and responses of the
service are then searched for them (spec/invariants#secrets; spec/operations#secrets).
"""

import base64
import hashlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import CUSTOM_JOBS, PROJECT, Service, container_job, running, submit, trainshed

SHOW = """
import base64, hashlib, json, os, sys, urllib.parse
value = os.environ["CANARY"]
def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()
print("digest", digest(value), digest(os.environ["KEY"]), digest(sys.argv[-1]))
print(value)
print(os.environ["MIXED"], sys.argv)
print(json.dumps({"severity": "ERROR", "message": "the secret is " + value, "key": os.environ["KEY"]}))
print(json.dumps(dict(os.environ), ensure_ascii=False), repr(os.environ))
print(os.environ["KEY"])
for end in (value[:9], value[9:], "\\n"):
    sys.stdout.write(end)
    sys.stdout.flush()
for text in (value, "user:" + value, "me:" + value + "@"):
    print(base64.b64encode(text.encode()).decode(), urllib.parse.quote(text, safe=""))
for percent in range(3):
    sys.stderr.write("\\r%d %s" % (percent, value))
sys.stderr.write("\\n")
print(os.environ["ESCAPED"])
"""
FAIL = SHOW + "\nraise RuntimeError('no access with ' + value)\n"
TOGETHER = (
    SHOW
    + """
import errno, socket, time
for room in range(0, 100, 7):
    print("x" * (65536 - room) + value + "y" * 70000)
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(place) as server:
        for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
            server.accept()
else:
    while error := socket.socket().connect_ex(place):
        assert error == errno.ECONNREFUSED, os.strerror(error)
        time.sleep(0.02)
"""
)
"""With lines that are split inside a secret. The primary ends last, because its end ends all others."""


@dataclass
class Canary:
    """A secret's value around a unique random text."""

    before: str
    after: str
    core: str = field(default_factory=lambda: secrets.token_hex(20))

    @property
    def value(self) -> str:
        return self.before + self.core + self.after

    def digest(self) -> str:
        return hashlib.sha256(self.value.encode()).hexdigest()

    def shown_in(self, content: bytes) -> bool:
        """Return whether a large part of it occurs, in plain text or in base64 at any offset."""
        forms = [self.core[:24], self.core[-24:]]
        for offset in range(3):
            encoded = base64.b64encode(b"\0" * offset + self.core[:24].encode()).decode()
            forms.append(encoded[4:-4])
        return any(form.encode() in content for form in forms)


PHRASE = Canary('c4n\'t "be" sh\\own/ü+', " end")
KEY = Canary("-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n", "\n-----END PRIVATE KEY-----\n")
CANARIES = (PHRASE, KEY)


def cli(data: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return trainshed(*arguments, "--data", str(data), data=data, stdin=stdin)


@pytest.fixture(scope="module")
def service_with_secrets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with two secrets, set like a user."""
    with running(tmp_path_factory.mktemp("guarded")) as started:
        for name, canary in (("phrase", PHRASE), ("key", KEY)):
            done = cli(started.data, "secrets", "set", name, "--project", PROJECT, stdin=canary.value)
            assert "version 1" in done.stdout
        yield started


def env() -> list[dict[str, str]]:
    values = {
        "CANARY": "$(secret:phrase)",
        "KEY": "$(secret:key@1)",
        "MIXED": "https://me:$(secret:phrase)@host/$(CANARY)",
        "ESCAPED": "$$(secret:phrase)",
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def secret_printing_job(script: str, *, pools: tuple[int, ...] = (1,)) -> dict[str, Any]:
    """A job whose replicas print their secrets in every possible way."""
    job = container_job(script, pools=pools)
    for pool in job["jobSpec"]["workerPoolSpecs"]:
        pool["containerSpec"] |= {"env": env(), "args": ["--all", "$(CANARY)"]}
    return job


def has_correct_values(lines: list[str]) -> bool:
    """Return whether a program reports the correct values."""
    wanted = f"digest {PHRASE.digest()} {KEY.digest()} {PHRASE.digest()}"
    return wanted in lines


def response_body(service: Service, path: str, body: Any = None) -> bytes:
    """Return a response unchanged, including errors."""
    return service.ask("GET" if body is None else "POST", path, body).body


def collect_responses(service: Service, job_id: str) -> dict[str, bytes]:
    """All responses of the service about a job, by request."""
    ours, name = f"/trainshed/v1/jobs/{job_id}", f"{CUSTOM_JOBS}/{job_id}"
    filtered = f'resource.labels.job_id="{job_id}"'
    texts = {path: response_body(service, path) for path in (name, ours, CUSTOM_JOBS)}
    for part in ("timeline", "logs", "watch", "drills", "resumeReport"):
        texts[part] = response_body(service, f"{ours}/{part}")
    for order in ("timestamp asc", "timestamp desc"):
        bodies = {
            "resourceNames": [f"projects/{PROJECT}"],
            "filter": filtered,
            "orderBy": order,
            "pageSize": 1000,
        }
        texts[order] = response_body(service, "/v2/entries:list", bodies)
    for arguments in (("jobs", "describe", job_id), ("jobs", "logs", job_id), ("secrets", "list")):
        done = cli(service.data, *arguments)
        texts[" ".join(arguments)] = (done.stdout + done.stderr).encode()
    return texts


def assert_nowhere(service: Service, *job_ids: str) -> None:
    """Neither in responses nor in files, including the service's log and database."""
    texts = {
        "jobs": response_body(service, "/trainshed/v1/jobs"),
        "secrets": response_body(service, f"/trainshed/v1/secrets?project={PROJECT}"),
    }
    texts["ml"] = response_body(service, f"/v1/projects/{PROJECT}/jobs")
    for job_id in job_ids:
        texts |= {f"{job_id}: {what}": answer for what, answer in collect_responses(service, job_id).items()}
    # Unlike `rglob` it ignores files that are deleted during the search.
    places = [(Path(place), names) for place, _, names in os.walk(service.data)]
    paths = [place / name for place, names in places for name in names]
    files = {str(path): path for path in paths if path.is_file()}
    assert any(name.endswith("trainshed.db") for name in files)
    assert any(name.endswith("service.log") for name in files)
    for canary in CANARIES:
        assert canary.shown_in(canary.value.encode()), "the test finds what it looks for"
        assert [what for what, answer in texts.items() if canary.shown_in(answer)] == []
        assert [name for name, path in files.items() if canary.shown_in(_content(path))] == []


def _content(path: Path) -> bytes:
    """Return its contents; empty if it has been deleted in the meantime."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def test_leaked_secrets_are_redacted_everywhere(service_with_secrets: Service) -> None:
    """spec/failures#messages: the public message of a failure ends with the last lines of the log."""
    together = submit(service_with_secrets, secret_printing_job(TOGETHER, pools=(1, 1)))
    failing = submit(service_with_secrets, secret_printing_job(FAIL))
    assert service_with_secrets.finish(together)["state"] == "SUCCEEDED"
    for replica in ("workerpool0-0", "workerpool1-0"):
        lines = service_with_secrets.lines(together, replica)
        assert has_correct_values(lines), "\n".join(line[:200] for line in lines)
        assert "***" in lines and "$(secret:phrase)" in lines
    assert service_with_secrets.finish(failing)["state"] == "FAILED"
    message = service_with_secrets.call("GET", f"{CUSTOM_JOBS}/{failing}")["error"]["message"]
    assert "RuntimeError: no access with ***" in message
    assert has_correct_values(service_with_secrets.lines(failing))
    assert_nowhere(service_with_secrets, together, failing)
