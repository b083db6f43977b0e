"""Who a program in a container image is, by the image's own files."""

from pathlib import Path

import pytest

from trainshed.replica.sandbox.mounts import user_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (0, 0, "/root")),
        ("ada", (1000, 1000, "/home/ada")),
        ("1000", (1000, 1000, "/home/ada")),
        ("ada:crew", (1000, 2000, "/home/ada")),
        (":crew", (0, 2000, "/root")),
        ("7", (7, 0, "/")),
    ],
)
def test_users_are_those_of_the_image(
    tmp_path: Path, text: str, expected: tuple[int, int, str]
) -> None:
    """spec/program#hostnames: a container runs as its image's user, by name or number."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n"
    )
    (tmp_path / "etc/group").write_text("root:x:0:\ncrew:x:2000:\n")
    assert user_of(text, str(tmp_path)) == expected
