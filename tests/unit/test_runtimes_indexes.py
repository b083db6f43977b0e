"""pip's configuration, told to uv: precedence and translation."""

from pathlib import Path

import pytest

from trainshed.runtimes.indexes import index_environment, names_indexes


def _told(tmp_path: Path, text: str = "", **environ: str) -> dict[str, str]:
    file = tmp_path / "pip.conf"
    file.write_text(text)
    return index_environment({"HOME": str(tmp_path), **environ}, [file])


def test_files_are_translated(tmp_path: Path) -> None:
    environ = _told(
        tmp_path,
        "[global]\n"
        "index-url = https://mirror.test/simple\n"
        "find-links = /wheels /more\n"
        "extra-index-url =\n"
        "    https://a.test/simple\n"
        "    https://b.test/simple\n"
        "trusted-host = mirror.test\n",
    )
    assert environ == {
        "UV_DEFAULT_INDEX": "https://mirror.test/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX": "https://a.test/simple https://b.test/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_INSECURE_HOST": "mirror.test",
    }


def test_where_uv_is_configured_pip_is_left_alone(tmp_path: Path) -> None:
    mirror = "[global]\nindex-url = https://mirror.test\n"
    assert _told(tmp_path, mirror, UV_DEFAULT_INDEX="https://uv.test") == {}
    settings = tmp_path / ".config" / "uv"
    settings.mkdir(parents=True)
    (settings / "uv.toml").write_text('[[index]]\nurl = "https://uv.test"\n')
    assert _told(tmp_path, mirror) == {}


@pytest.mark.parametrize(
    ("text", "environ", "named"),
    [
        ("", {}, False),
        ("[global]\ncert = /ca.pem\ntimeout = 60\n", {}, False),
        ("[global]\nindex-url = https://mirror.test/simple\n", {}, True),
        ("[install]\nfind-links = /wheels\n", {}, True),
        ("", {"PIP_EXTRA_INDEX_URL": "https://a.test"}, True),
        ("", {"UV_DEFAULT_INDEX": "https://a.test"}, True),
        ("", {"UV_TORCH_BACKEND": "cu130"}, True),
    ],
)
def test_whether_somebody_said_where_packages_come_from(
    tmp_path: Path, text: str, environ: dict[str, str], named: bool
) -> None:
    """Builds for CPUs are asked for where nobody did (`Release.first`)."""
    file = tmp_path / "pip.conf"
    file.write_text(text)
    assert names_indexes({"HOME": str(tmp_path), **environ}, [file]) is named
