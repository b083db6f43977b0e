"""Settings of gRPC: ports, and a certificate that goes with its key."""

from pathlib import Path

import pytest

from trainshed.serve.settings import SettingsError, load


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GRPC", "GRPC_PORT", "GRPC_TLS_PORT", "TLS_CERT", "TLS_KEY"):
        monkeypatch.delenv(f"TRAINSHED_{name}", raising=False)
    monkeypatch.setenv("TRAINSHED_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("there", ["tls_cert", "tls_key"])
def test_a_half_is_named_with_its_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: str
) -> None:
    other = {"tls_cert": "tls_key", "tls_key": "tls_cert"}[there]
    monkeypatch.setenv(f"TRAINSHED_{there.upper()}", "x.pem")
    expected = f"TRAINSHED_{there.upper()}: given without {other}; give both, or neither"
    with pytest.raises(SettingsError) as refused:
        load(None, {})
    assert expected in str(refused.value)
    # The halves may come from two places; an empty one is none.
    monkeypatch.setenv(f"TRAINSHED_{other.upper()}", "")
    with pytest.raises(SettingsError):
        load(None, {})
    (tmp_path / "c.toml").write_text(f'{other} = "y.pem"')
    monkeypatch.delenv(f"TRAINSHED_{other.upper()}")
    assert load(tmp_path / "c.toml", {}).tls_cert


def test_files_are_found_from_where_the_service_was_started(tmp_path: Path) -> None:
    settings = load(None, {"tls_cert": Path("a.pem"), "tls_key": Path("~/b.pem")})
    assert settings.tls_cert == str(tmp_path / "a.pem")
    assert settings.tls_key == str(tmp_path / "b.pem")
