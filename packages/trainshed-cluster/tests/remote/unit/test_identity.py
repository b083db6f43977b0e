"""The identity that distinguishes a service from other services of its cluster."""

import shutil
from pathlib import Path

from trainshed.engines.local import machine
from trainshed_cluster.remote.options import service_identity


def test_copied_or_recreated_data_directory_has_a_different_service_identity(tmp_path: Path) -> None:
    data = tmp_path / "data"
    engine, copy = data / "engines/slurm", tmp_path / "copy"
    own = service_identity(data, engine)
    assert service_identity(data, engine) == own
    shutil.copytree(data, copy)
    assert service_identity(copy, copy / "engines/slurm") != own
    shutil.rmtree(data)
    assert service_identity(data, engine) != own
    (engine / "identity").unlink()
    (engine / "attempts").mkdir()
    (engine / "attempts/1.json").touch()
    assert service_identity(data, engine) == machine.identity(data)
