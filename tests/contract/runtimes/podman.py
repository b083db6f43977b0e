"""Run podman in tests with a separate store (CONTAINERS_STORAGE_CONF)."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def storage(place: Path) -> Path:
    """Write the `storage.conf` of a store below `place`."""
    conf = place / "storage.conf"
    conf.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{place}/store"\nrunroot = "{place}/run"\n'
        f'rootless_storage_path = "{place}/store"\n'
    )
    return conf


def podman(*arguments: str) -> str:
    """Run podman and return its output. Skip the test if podman is missing or broken."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed: containers are NOT tested")
    command = ["podman", *arguments]
    if os.geteuid():
        command.insert(1, "--storage-opt=vfs.ignore_chown_errors=true")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        pytest.skip(f"podman does not work here, containers are NOT tested: {done.stderr}")
    return done.stdout
