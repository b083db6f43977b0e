"""Versions of installed packages, found without the library for them."""

from importlib import metadata
from pathlib import Path

import pytest

from trainshed.loading.versions import installed


@pytest.mark.parametrize("package", ["trainshed", "uv", "msgspec"])
def test_they_are_what_the_packages_say_of_themselves(package: str) -> None:
    assert installed(package) == metadata.version(package)


def test_what_another_installer_keeps_elsewhere_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "oldfashioned.egg-info").mkdir()
    (tmp_path / "oldfashioned.egg-info" / "PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: oldfashioned\nVersion: 3.4\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed("oldfashioned") == "3.4"


def test_what_is_not_installed_is_an_error() -> None:
    with pytest.raises(metadata.PackageNotFoundError):
        installed("no-such-package-anywhere")
