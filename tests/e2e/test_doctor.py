"""`trainshed doctor`: the capabilities of the machine (spec/program#isolation: doctor shows the level)."""

import os
import sys
from pathlib import Path

import yaml

from tests.e2e import fork_server


def test_doctor_command_shows_the_isolation_level_and_its_effects(tmp_path: Path) -> None:
    environ = os.environ | {"TRAINSHED_CACHE": str(tmp_path / "cache")}
    words = ["-m", "trainshed", "doctor", "--data", str(tmp_path / "data"), "--format", "yaml"]
    done = fork_server.services().run(words, environ)
    assert done.returncode == 0, done.stderr
    rows = {finding["about"]: finding for finding in yaml.safe_load(done.stdout)}
    level = rows["isolation"]["text"].split(":")[0]
    assert level in ("own-user", "root", "user", "session")
    assert level == "own-user" or "Not own-user" in rows["isolation"]["cause"]
    assert set(rows) >= {"memory limit", "process limit", "addresses", "machine", "interpreters"}
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in rows["interpreters"]["text"]
    assert not any(tmp_path.iterdir()), "it leaves nothing behind"
