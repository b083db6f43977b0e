"""Whom programs believe that know no variables: the service's roots lie where systems keep theirs
(docs/security.md)."""

import os
from pathlib import Path

import pytest

from tests.contract.engines.conftest import House
from tests.contract.runtimes.rootfs import image_root
from tests.isolation import needs_mounts
from trainshed.core.launch import Software
from trainshed.engines.local import spawner
from trainshed.engines.port import ServiceAccess
from trainshed.replica.protocol import LEVEL_SESSION
from trainshed.replica.system.roots import PLACE, PLACES

OURS = "-----BEGIN CERTIFICATE-----\nOURS\n-----END CERTIFICATE-----\n"

_ON_ANOTHER_MACHINE = """
import os
from trainshed.replica.system import kernel
kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
kernel.mount("tmpfs", "/etc/ssl", "tmpfs", 0, "mode=755")
os.mkdir("/etc/ssl/certs")
os.symlink("/var/lib/none/all.pem", "/etc/ssl/certs/ca-certificates.crt")
zygote.run(0)
"""
"""Of a zygote: where systems keep their roots there is a link to nothing."""
_FINDS = f"""
import os
for path in {PLACES!r}:
    if os.path.exists(path): print(open(path).read().count("OURS"))
print(os.environ["CURL_CA_BUNDLE"] == {PLACE!r})
try: open({PLACE!r}, "a")
except OSError: print("read-only")
"""


@pytest.fixture
def lent(tmp_path: Path) -> ServiceAccess:
    """What an engine intercepts by; nobody calls here, so that the certificate need not be one."""
    certificate, trust = tmp_path / "relay.pem", tmp_path / "roots.pem"
    for path in (certificate, trust):
        path.write_text(OURS)
    return ServiceAccess(certificate=certificate, trust=trust)


def _roots_of_the_machine() -> dict[str, bytes]:
    return {path: Path(path).read_bytes() for path in PLACES if Path(path).is_file()}


async def test_the_roots_of_the_service_lie_where_systems_keep_theirs(
    house: House, lent: ServiceAccess
) -> None:
    """TensorFlow 1.15 and 2.1 know no other way: the path is compiled in."""
    if house.engine.capabilities().isolation == LEVEL_SESSION:
        pytest.skip("without namespaces there is one /etc")
    await house.restart(access=lent)
    before = _roots_of_the_machine()
    uid = await house.python(_FINDS)
    assert (await house.exit(uid)).exit.exit_code == 0, house.texts(uid)
    assert house.texts(uid) == ["1"] * len({PLACE, *before}) + ["True", "read-only"]
    assert _roots_of_the_machine() == before


async def test_an_image_keeps_its_own_roots_and_gets_ours(
    house: House, lent: ServiceAccess, tmp_path: Path
) -> None:
    if not house.engine.capabilities().images:
        pytest.skip("no images can be shown at this level")
    await house.restart(access=lent)
    theirs = "-----BEGIN CERTIFICATE-----\nTHEIRS\n-----END CERTIFICATE-----"
    for number, files in enumerate(
        ({}, {"etc/ssl/certs/ca-certificates.crt": theirs}, {PLACES[1][1:]: theirs})
    ):
        image = image_root(tmp_path / f"root{number}", files=files)
        uid = await house.run("cat", *map(str, [PLACE, *files]), software=Software(image=image))
        assert (await house.exit(uid)).exit.exit_code == 0, house.texts(uid)
        words = [text for text in house.texts(uid) if text in ("OURS", "THEIRS")]
        assert words.count("OURS") == 1 + len(files)
        assert ("THEIRS" in words) == bool(files)


@needs_mounts
async def test_so_they_do_where_the_machine_keeps_its_own_elsewhere(
    house: House, lent: ServiceAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a link to nothing."""
    begin = spawner._START.replace("; zygote.run(0)", _ON_ANOTHER_MACHINE)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(spawner, "_START", begin)
    # The engine is still on this machine, whose variables may name files that the other one lacks.
    for name in [name for name, text in os.environ.items() if text.startswith("/etc/ssl")]:
        monkeypatch.delenv(name)
    await house.restart(access=lent)
    uid = await house.python(_FINDS)
    assert (await house.exit(uid)).exit.exit_code == 0, house.texts(uid)
    others = [path for path in _roots_of_the_machine() if not path.startswith("/etc/ssl/")]
    assert house.texts(uid) == ["1"] * len({PLACE, *others}) + ["True", "read-only"]
