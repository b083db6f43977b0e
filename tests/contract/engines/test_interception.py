"""Programs that call Google's hosts by name or address reach their replica's own endpoint
(docs/buckets.md)."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from tests.contract.engines.conftest import House, Run
from trainshed.core.lifecycle.replica_events import ReplicaNoted
from trainshed.engines.port import ServiceAccess
from trainshed.replica.endpoint import storage_failures
from trainshed.replica.protocol import LEVEL_SESSION
from trainshed.serve import certificates


def test_the_metadata_server_is_found_by_name_and_by_address(house: Run, tmp_path: Path) -> None:
    """TensorFlow before 2.5 asks http://metadata/ for a token, whatever the variables say."""
    program = (
        "import urllib.request\n"
        "opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))\n"
        "for host in ('metadata', 'metadata.google.internal', '169.254.169.254'):\n"
        "    print(opener.open('http://%s/computeMetadata/v1/' % host, timeout=9).read().decode())\n"
    )
    callers: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(json.loads(await reader.readline())["job_uid"])
        asked = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + asked)
        writer.close()

    async def test(house: House) -> None:
        if house.engine.capabilities().isolation == LEVEL_SESSION:
            pytest.skip("without namespaces nothing is intercepted")
        place = house.data / "buckets.sock"
        server = await asyncio.start_unix_server(answer, place)
        access = ServiceAccess(place, certificate=tmp_path / "x", trust=tmp_path / "x")
        (tmp_path / "x").touch()
        await house.restart(access=access)
        uid = house.job()
        (slot,) = await house.allocate(uid)
        argv = ("python3", "-c", program)
        plan = house.plan(uid, *argv, address=slot.address)
        await house.engine.launch([plan])
        assert (await house.exit(uid)).exit.exit_code == 0, house.texts(uid)
        assert house.texts(uid) == ["/computeMetadata/v1/"] * 3
        assert callers == [str(uid)] * 3
        server.close()

    house(test)


UNBELIEVING = """
import socket, ssl, time
for _ in range(3):
    try: ssl.create_default_context(cafile=None, cadata=ROOT).wrap_socket(
        socket.create_connection(('storage.googleapis.com', 443)), server_hostname='storage.googleapis.com')
    except ssl.SSLCertVerificationError as error: print(error.reason)
    time.sleep(1.1)
"""
REFUSED = """
import time, urllib.error, urllib.request
for _ in range(3):
    try: urllib.request.urlopen('https://storage.googleapis.com/storage/v1/b/theirs')
    except urllib.error.HTTPError as error: print(error.code)
    time.sleep(1.1)
"""


def test_calls_that_fail_again_and_again_are_told_while_the_program_runs(house: Run) -> None:
    """A certificate that is not believed, and answers that refuse: once each, after seconds."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"error": {"message": "Programs of p1 may not read it."}}'
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async def test(house: House) -> None:
        if house.engine.capabilities().isolation == LEVEL_SESSION:
            pytest.skip("without namespaces nothing is intercepted")
        place = house.data / "buckets.sock"
        files = certificates.prepare_interception(house.data, time.time(), {})
        other = certificates.prepare_interception(house.data / "other", time.time(), {})
        root = (other.certificate.parent / "ca.pem").read_text()
        server = await asyncio.start_unix_server(refuse, place)
        access = ServiceAccess(place, certificate=files.certificate, trust=files.trust)
        await house.restart(access=access)
        uid = house.job()
        (slot,) = await house.allocate(uid)
        argv = ("python3", "-c", f"ROOT = {root!r}\n{UNBELIEVING}{REFUSED}")
        await house.engine.launch([house.plan(uid, *argv, address=slot.address)])
        assert (await house.exit(uid)).exit.exit_code == 0, house.texts(uid)
        assert house.texts(uid) == ["CERTIFICATE_VERIFY_FAILED"] * 3 + ["403"] * 3
        notes = [event for event in house.seen(uid) if isinstance(event, ReplicaNoted)]
        assert [note.name for note in notes] == [
            storage_failures.UNTRUSTED,
            storage_failures.DENIED,
        ]
        assert notes[1].text.endswith("403, Programs of p1 may not read it.")
        server.close()

    house(test)
