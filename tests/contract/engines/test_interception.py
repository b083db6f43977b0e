"""Programs that call Google's hosts by name or address reach their replica's own endpoint
(docs/buckets.md)."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.contract.engines.conftest import House
from trainshed.engines.port import ServiceAccess
from trainshed.replica.protocol import LEVEL_SESSION


async def test_the_metadata_server_is_found_by_name_and_by_address(
    house: House, tmp_path: Path
) -> None:
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
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + path)
        writer.close()

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
