"""The files in deploy/compose match each other, the container image and the code."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sources import ROOT
from trainshed.serve import settings

DEPLOY = ROOT / "deploy" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
IMAGE = (ROOT / "deploy/image/Containerfile").read_text()


def test_compose_mounts_only_existing_files() -> None:
    sources = [volume.split(":")[0] for row in SERVICES.values() for volume in row["volumes"]]
    files = {source for source in sources if source.startswith(".")}
    assert set(COMPOSE["volumes"]) == {*sources} - files
    # The administrator creates this file from a token of the service.
    assert all((DEPLOY / file).is_file() for file in files - {"./prometheus.token"})
    assert "prometheus.token" in (DEPLOY / ".gitignore").read_text()


def test_compose_settings_of_the_service_match_those_of_the_compose_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = SERVICES["trainshed"]
    image = re.findall(r"(TRAINSHED_\w+)=(\S+)", IMAGE)
    for name, value in {**dict(image), **row["environment"]}.items():
        monkeypatch.setenv(name, re.sub(r"\$\{HOST[^}]*\}", "training.example.org", value))
    loaded = settings.load(None, {})
    assert (loaded.host, loaded.insecure, loaded.tls) == ("0.0.0.0", True, False)
    assert loaded.web_url == "https://training.example.org"
    assert SERVICES["proxy"]["command"].endswith(f" --to trainshed:{loaded.port}")
    assert "trainshed" in loaded.allowed_hosts, "Prometheus uses this host name"


def test_only_the_proxy_of_the_compose_file_is_reachable_from_other_machines() -> None:
    """Inside the compose network, the service uses HTTP without TLS."""
    ports = {name: row["ports"] for name, row in SERVICES.items() if "ports" in row}
    assert ports.pop("proxy") == ["80:80", "443:443"]
    assert all(port.startswith("127.0.0.1:") for mapped in ports.values() for port in mapped)


def test_job_programs_cannot_reach_prometheus_or_grafana() -> None:
    """Programs share the network of the service, and Prometheus has data of all projects."""
    assert SERVICES["grafana"]["networks"] == ["inside"]
    assert "networks" not in SERVICES["trainshed"]
    prometheus = SERVICES["prometheus"]
    [address] = prometheus["networks"]["inside"]["aliases"]
    assert f"--web.listen-address={address}:9090" in prometheus["command"]
    assert SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"].startswith("${")


def test_prometheus_and_grafana_configurations_match_compose() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert scraped["global"]["scrape_interval"] == "15s", "as Grafana's $__rate_interval expects"
    [job] = scraped["scrape_configs"]
    paths = [*scraped["rule_files"], job["authorization"]["credentials_file"]]
    mounted = {volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]}
    assert {*paths} < mounted
    assert job["static_configs"] == [{"targets": ["trainshed:8080"]}]
    [source] = yaml.safe_load((DEPLOY / "grafana.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus-inside:9090"
    [boards] = yaml.safe_load((DEPLOY / "dashboards.yml").read_text())["providers"]
    path = boards["options"]["path"]
    assert any(f":{path}/" in volume for volume in SERVICES["grafana"]["volumes"])


def test_backup_script_keeps_14_complete_backups(tmp_path: Path) -> None:
    [script] = SERVICES["backup"]["command"]
    once = script.replace("$$", "$").replace("/backups", str(tmp_path)).replace("sleep 86400", "break")
    for day in range(10, 26):
        (tmp_path / f"2026-11-{day}").mkdir()
        (tmp_path / f"2026-11-{day}/MANIFEST").touch()
    (tmp_path / "2026-11-26").mkdir()
    command = f'trainshed() {{ mkdir "$2"; touch "$2/MANIFEST"; }}\n{once}'
    subprocess.run([*SERVICES["backup"]["entrypoint"][2:], command], check=True)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == 14 and kept[0] == "2026-11-13" and "2026-11-26" not in kept
