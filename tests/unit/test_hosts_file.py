"""The hosts file of a machine that a gang has to itself."""

from pathlib import Path

from trainshed.engines.local.layout import MachineHosts

KUBELETS = """\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
10.1.2.3\treplica-0.trainshed.default.svc.cluster.local\treplica-0
"""


def test_peers_are_written_below_what_others_have_written(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(KUBELETS)
    hosts = MachineHosts(path)
    for address in ("10.1.2.4", "10.1.2.5"):
        hosts.write([("replica-0", "10.1.2.3"), ("replica-1", address)])
        assert path.read_text().startswith(KUBELETS)
        assert path.read_text().endswith(f"{address}\treplica-1\n")
    assert path.read_text().count("10.1.2.3") == 1
