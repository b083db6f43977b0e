"""What a process says of itself that is to be an agent, and where it has that from (docs/adr/0121)."""

from pathlib import Path

import pytest

from trainshed.engines.kubernetes.client import process_facts
from trainshed.engines.local.hosts_file import MachineHosts
from trainshed.engines.remote.cluster import ProcessFacts
from trainshed.engines.remote.content.manifest import Unit
from trainshed.engines.remote.known_nodes import KnownNodes

KUBELETS = """\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
127.0.1.1\treplica-0
10.1.2.3\treplica-0.trainshed.default.svc.cluster.local\treplica-0
fd00::3\treplica-0
"""


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (b"", ProcessFacts()),
        (b" abc\n", ProcessFacts("abc")),
        (b' abc {"address": "10.1.2.3", "named": true}\n', ProcessFacts("abc", "10.1.2.3", True)),
        (b" abc {} later words", ProcessFacts("abc")),
    ],
)
def test_older_code_says_less(said: bytes, facts: ProcessFacts) -> None:
    assert process_facts(said) == facts


def test_the_address_is_the_one_that_others_reach(tmp_path: Path) -> None:
    hosts = MachineHosts(tmp_path / "hosts")
    assert hosts.address_of("replica-0") == ""
    (tmp_path / "hosts").write_text(KUBELETS)
    assert hosts.address_of("replica-0") == "10.1.2.3"
    assert hosts.address_of("localhost") == hosts.address_of("replica-1") == ""


def test_peers_are_written_below_what_others_have_written(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(KUBELETS)
    hosts = MachineHosts(path)
    for address in ("10.1.2.4", "10.1.2.5"):
        hosts.write([("replica-0", "10.1.2.3"), ("replica-1", address)])
        assert path.read_text().startswith(KUBELETS)
        assert hosts.address_of("replica-1") == address
    assert path.read_text().count("10.1.2.3") == 1


def test_a_node_has_what_it_was_sent_until_something_is_lost_there(tmp_path: Path) -> None:
    known = KnownNodes(tmp_path / "nodes.json")
    sent, built_anew = (Unit("/cache/environment", digest, 1, True, ()) for digest in ("a", "b"))
    assert known.has("node1", []) and not known.has("node1", [sent])
    known.learn_content("node1", [sent])
    assert known.has("node1", [sent]) and not known.has("node2", [sent])
    assert not known.has("node1", [sent, built_anew])
    known.forget("node1")
    assert not known.has("node1", [sent])
