"""Whom programs believe that know no variables: the service's roots lie where systems keep theirs
(docs/security.md)."""

import sys
from pathlib import Path

import pytest

from tests.commands import execute
from tests.contract.engines.conftest import House
from tests.contract.runtimes.rootfs import image_root
from trainshed.core.launch import Software
from trainshed.engines.port import ServiceAccess
from trainshed.replica.protocol import LEVEL_SESSION
from trainshed.replica.system.roots import PLACE, PLACES

OURS = "-----BEGIN CERTIFICATE-----\nOURS\n-----END CERTIFICATE-----\n"

_ON_A_HOST = """
import os, sys
from trainshed.replica.sandbox import users
from trainshed.replica.system import kernel
try:
    if os.geteuid() != 0:
        users.map_one(os.geteuid(), os.getegid())
    kernel.unshare(kernel.CLONE_NEWNS)
except OSError as error:
    sys.exit("refused: %s" % error)
kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
os.makedirs("/tmp/ssl", exist_ok=True)
kernel.mount("tmpfs", "/etc/ssl", "tmpfs", 0, "mode=755")
exec(sys.argv[1])
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[2:]])
"""
"""Runs tests where /etc/ssl is empty but for what the first argument puts there."""


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
    program = (
        "import os\n"
        f"for path in {PLACES!r}:\n"
        "    if os.path.exists(path): print(open(path).read().count('OURS'))\n"
        f"print(os.environ['CURL_CA_BUNDLE'] == {PLACE!r})\n"
        f"try: open({PLACE!r}, 'a')\n"
        "except OSError: print('read-only')\n"
    )
    uid = await house.python(program)
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


def test_so_they_do_where_the_machine_keeps_its_own_elsewhere() -> None:
    """Behind a link to nothing."""
    made = (
        "os.mkdir('/etc/ssl/certs'); os.symlink('/var/lib/none/all.pem', "
        "'/etc/ssl/certs/ca-certificates.crt')"
    )
    done = execute(
        *(
            *(sys.executable, "-c", _ON_A_HOST, made),
            *("-p", "no:cacheprovider", __file__, "-k", "roots_of_the_service"),
        )
    )
    if "refused: " in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
