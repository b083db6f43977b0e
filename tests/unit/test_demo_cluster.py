"""The demo program finds its place in the cluster (spec/program, facts/program#cluster_spec and
facts/program#tf_config)."""

import json

import pytest
from trainshed_demo.checkpoints import output_uris
from trainshed_demo.cluster import ALONE, Address, Cluster, ClusterError, Role, read_cluster

VERTEX = {
    "workerpool0": ["cmle-training-workerpool0-1a2b3c4d5e-0:2222"],
    "workerpool1": [
        "cmle-training-workerpool1-1a2b3c4d5e-0:2222",
        "cmle-training-workerpool1-1a2b3c4d5e-1:2222",
    ],
    "workerpool3": ["cmle-training-workerpool3-1a2b3c4d5e-0:2222"],
}
VERTEX_PRIMARY = Address("cmle-training-workerpool0-1a2b3c4d5e-0", 2222)


def environment(
    cluster: dict[str, list[str]], kind: str, index: int = 0, variable: str = "CLUSTER_SPEC"
) -> dict[str, str]:
    spec = {"cluster": cluster, "environment": "cloud", "task": {"type": kind, "index": index}}
    return {variable: json.dumps(spec)}


@pytest.mark.parametrize(
    ("kind", "index", "expected"),
    [
        ("workerpool0", 0, Cluster(Role.PRIMARY, 0, 3, VERTEX_PRIMARY)),
        ("workerpool1", 0, Cluster(Role.WORKER, 1, 3, VERTEX_PRIMARY)),
        ("workerpool1", 1, Cluster(Role.WORKER, 2, 3, VERTEX_PRIMARY)),
        ("workerpool3", 0, Cluster(Role.EVALUATOR, None, 3, VERTEX_PRIMARY)),
    ],
)
def test_vertex_pools(kind: str, index: int, expected: Cluster) -> None:
    """spec/program#cluster_spec: skipped pools are absent; here pool 2."""
    assert read_cluster(environment(VERTEX, kind, index)) == expected


@pytest.mark.parametrize("primary", ["master", "chief"])
@pytest.mark.parametrize("variable", ["CLUSTER_SPEC", "TF_CONFIG"])
def test_ml_roles(primary: str, variable: str) -> None:
    cluster = {primary: ["m:2222"], "worker": ["w0:2222", "w1:2222"], "ps": ["p:2222"]}
    assert read_cluster(environment(cluster, "worker", 1, variable)) == Cluster(
        Role.WORKER, 2, 3, Address("m", 2222)
    )
    assert read_cluster(environment(cluster, "ps", 0, variable)).role is Role.NONE


def test_evaluator_is_not_in_its_own_tf_config() -> None:
    """spec/program#tf_config: TF_CONFIG's cluster never names the evaluator."""
    cluster = {"chief": ["c:2222"], "worker": ["w:2222"]}
    seen = read_cluster(environment(cluster, "evaluator", 0, "TF_CONFIG"))
    assert (seen.role, seen.rank) == (Role.EVALUATOR, None)


def test_cluster_spec_wins_over_tf_config() -> None:
    both = environment({"chief": ["c:2222"]}, "chief", variable="TF_CONFIG")
    both |= environment(VERTEX, "workerpool1", 1)
    assert read_cluster(both).rank == 2


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"CLUSTER_SPEC": "", "TF_CONFIG": "{}"},
        environment({"workerpool0": ["a:2222"]}, "workerpool0"),
        environment({"master": ["127.0.0.1:2222"]}, "master", variable="TF_CONFIG"),
    ],
)
def test_a_single_replica_opens_no_port(variables: dict[str, str]) -> None:
    assert read_cluster(variables) == ALONE


def test_labels_tell_replicas_apart() -> None:
    labels = [
        read_cluster(environment(VERTEX, kind, index)).label
        for kind, index in [("workerpool0", 0), ("workerpool1", 1), ("workerpool3", 0)]
    ]
    assert labels == ["primary", "worker 2", "evaluator"]


@pytest.mark.parametrize(
    "variables",
    [
        {"CLUSTER_SPEC": "{"},
        {"CLUSTER_SPEC": "[]"},
        environment({"workerpool0": ["a"], "workerpool1": ["b:1"]}, "workerpool0"),
        environment({"workerpool0": ["a:x"], "workerpool1": ["b:1"]}, "workerpool0"),
        environment({"workerpool0": ["a:1", "b:1"]}, "workerpool0"),
        environment({"workerpool1": ["b:1"]}, "workerpool1"),
        environment(VERTEX, "workerpool1", 2),
        environment(VERTEX, "workerpool9"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_refused(variables: dict[str, str]) -> None:
    with pytest.raises(ClusterError, match="CLUSTER_SPEC cannot be read"):
        read_cluster(variables)


def test_output_goes_where_the_job_says() -> None:
    """spec/program#arguments: `--job-dir` for ml jobs, AIP_* from baseOutputDirectory."""
    vertex = {"AIP_MODEL_DIR": "gs://b/j/model/", "AIP_CHECKPOINT_DIR": "gs://b/j/checkpoints/"}
    assert output_uris(None, vertex) == ("gs://b/j/checkpoints/", "gs://b/j/model/")
    assert output_uris("gs://b/x/", vertex) == ("gs://b/x/checkpoints", "gs://b/x/model")
    assert output_uris(None, {}) == ("output/checkpoints", "output/model")
