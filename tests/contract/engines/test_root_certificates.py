"""Trust of programs that know no environment variables: the service's root certificates are at the
system's usual paths (docs/security.md)."""

import os
from pathlib import Path

import pytest

from tests.contract.engines.conftest import EngineHarness
from tests.contract.runtimes.rootfs import image_root
from tests.isolation import needs_mounts
from trainshed.core.launch import Software
from trainshed.engines.local import spawner
from trainshed.engines.port import ServiceAccess
from trainshed.replica.protocol import LEVEL_SESSION
from trainshed.replica.system.roots import PLACE, PLACES

OURS = "-----BEGIN CERTIFICATE-----\nOURS\n-----END CERTIFICATE-----\n"

_WITH_DANGLING_LINK = """
import os
from trainshed.replica.system import kernel
kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
kernel.mount("tmpfs", "/etc/ssl", "tmpfs", 0, "mode=755")
os.mkdir("/etc/ssl/certs")
os.symlink("/var/lib/none/all.pem", "/etc/ssl/certs/ca-certificates.crt")
zygote.run(0)
"""
"""Runs in a zygote: the system's certificate path is a dangling link there."""
_FINDS = f"""
import os
for path in {PLACES!r}:
    if os.path.exists(path): print(open(path).read().count("OURS"))
print(os.environ["CURL_CA_BUNDLE"] == {PLACE!r})
try: open({PLACE!r}, "a")
except OSError: print("read-only")
"""


@pytest.fixture
def interception(tmp_path: Path) -> ServiceAccess:
    """The interception settings of an engine. No test connects, so the certificate needs no valid content."""
    certificate, trust = tmp_path / "relay.pem", tmp_path / "roots.pem"
    for path in (certificate, trust):
        path.write_text(OURS)
    return ServiceAccess(certificate=certificate, trust=trust)


def _roots_of_the_machine() -> dict[str, bytes]:
    return {path: Path(path).read_bytes() for path in PLACES if Path(path).is_file()}


async def test_program_finds_the_root_certificate_of_the_service_at_the_system_paths(
    harness: EngineHarness, interception: ServiceAccess
) -> None:
    """TensorFlow 1.15 and 2.1 support no other way: the path is compiled in."""
    if harness.engine.capabilities().isolation == LEVEL_SESSION:
        pytest.skip("without namespaces there is one /etc")
    await harness.restart(access=interception)
    before = _roots_of_the_machine()
    uid = await harness.python(_FINDS)
    assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
    assert harness.texts(uid) == ["1"] * len({PLACE, *before}) + ["True", "read-only"]
    assert _roots_of_the_machine() == before


async def test_custom_image_keeps_its_root_certificates_and_gets_that_of_the_service(
    harness: EngineHarness, interception: ServiceAccess, tmp_path: Path
) -> None:
    if not harness.engine.capabilities().images:
        pytest.skip("no images can be shown at this level")
    await harness.restart(access=interception)
    theirs = "-----BEGIN CERTIFICATE-----\nTHEIRS\n-----END CERTIFICATE-----"
    for number, files in enumerate(
        ({}, {"etc/ssl/certs/ca-certificates.crt": theirs}, {PLACES[1][1:]: theirs})
    ):
        image = image_root(tmp_path / f"root{number}", files=files)
        uid = await harness.run("cat", *map(str, [PLACE, *files]), software=Software(image=image))
        assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
        words = [text for text in harness.texts(uid) if text in ("OURS", "THEIRS")]
        assert words.count("OURS") == 1 + len(files)
        assert ("THEIRS" in words) == bool(files)


@needs_mounts
async def test_root_certificate_of_the_service_replaces_a_dangling_link_at_the_system_path(
    harness: EngineHarness, interception: ServiceAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is a dangling link on such a machine."""
    begin = spawner._START.replace("; zygote.run(0)", _WITH_DANGLING_LINK)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(spawner, "_START", begin)
    # The engine itself stays on this machine. Its variables may refer to files that the simulated
    # machine lacks.
    for name in [name for name, text in os.environ.items() if text.startswith("/etc/ssl")]:
        monkeypatch.delenv(name)
    await harness.restart(access=interception)
    uid = await harness.python(_FINDS)
    assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
    others = [path for path in _roots_of_the_machine() if not path.startswith("/etc/ssl/")]
    assert harness.texts(uid) == ["1"] * len({PLACE, *others}) + ["True", "read-only"]
