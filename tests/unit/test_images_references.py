"""What an image reference says by itself (spec/program, spec/runtimes#images)."""

import pytest

from trainshed.core.catalog.images import is_reference
from trainshed.runtimes.images.references import is_pinned, tag_of

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("reference", "tag"),
    [
        ("trainer", "latest"),
        ("trainer:2", "2"),
        ("host:5000/team/trainer", "latest"),
        ("host:5000/team/trainer:V1.0_x", "V1.0_x"),
        (f"gcr.io/p/trainer@{DIGEST}", ""),
        (f"gcr.io/p/trainer:1@{DIGEST}", ""),
    ],
)
def test_a_tag_is_told_from_a_port_and_from_a_digest(reference: str, tag: str) -> None:
    """spec/runtimes#builds: a digest never changes, a tag may."""
    assert tag_of(reference) == tag
    assert is_pinned(reference) == (not tag)
    assert is_reference(reference)


@pytest.mark.parametrize(
    "reference",
    [
        *(
            "gcr.io/Project/trainer",
            "Project/trainer",
            "gcr.io/p//trainer",
            "gs://b/trainer",
            "-x",
            "",
        ),
        *("trainer:a b", "trainer:", "trainer@sha256:abc", "ho_st.io:x/trainer"),
    ],
)
def test_what_is_no_reference_is_told(reference: str) -> None:
    """spec/submit#refusals: an invalid request is refused at once."""
    assert not is_reference(reference)
