"""The authorities that programs on nodes believe, as a file that those see (docs/adr/0083)."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from trainshed.engines.registry import EngineContext
from trainshed_cluster.remote.surroundings import SharedTrust

_LONG_AGO = 1_600_000_000


def trust_of(cache: Path, source: Path | None) -> SharedTrust:
    context = SimpleNamespace(cache=cache, access=SimpleNamespace(trust=source))
    return SharedTrust(cast(EngineContext, context))


def test_services_of_the_same_authorities_share_a_file(tmp_path: Path) -> None:
    source = tmp_path / "roots.pem"
    source.write_text("an authority")
    path = Path(trust_of(tmp_path, source).path())
    assert path.read_text() == "an authority"
    assert path.stat().st_mode & 0o777 == 0o644, "other users' programs read it"
    before = path.stat().st_ino
    assert trust_of(tmp_path, source).path() == str(path)
    assert path.stat().st_ino == before
    source.write_text("another")
    assert trust_of(tmp_path, source).path() != str(path)


def test_a_file_that_is_removed_comes_back(tmp_path: Path) -> None:
    source = tmp_path / "roots.pem"
    source.write_text("an authority")
    trust = trust_of(tmp_path, source)
    path = Path(trust.path())
    path.unlink()
    assert trust.path() == str(path)
    assert path.read_text() == "an authority"


def test_what_nobody_used_for_a_month_goes(tmp_path: Path) -> None:
    source = tmp_path / "roots.pem"
    source.write_text("an authority")
    old, used = (tmp_path / f"trust-{name}.pem" for name in ("old", "used"))
    for path in old, used:
        path.touch()
    os.utime(old, (_LONG_AGO, _LONG_AGO))
    trust_of(tmp_path, source).path()
    assert not old.exists()
    assert used.exists()


def test_without_authorities_there_is_no_file(tmp_path: Path) -> None:
    assert trust_of(tmp_path, None).path() == ""
    assert list(tmp_path.iterdir()) == []
