"""Content and code on nodes where agents run as an ordinary user (docs/adr/0063)."""

from tests.contract.ordinary_user import as_root_only, run_as_nobody


@as_root_only
def test_content_and_bootstrap_tests_pass_for_an_unprivileged_user() -> None:
    run_as_nobody(
        "packages/trainshed-cluster/tests/remote/unit/test_content_trees.py",
        "packages/trainshed-cluster/tests/remote/test_content_bootstrap.py::test_agent_code_is_unpacked_once_per_node",
        timeout=120,
    )
