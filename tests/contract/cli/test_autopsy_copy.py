"""`trainshed jobs autopsy --copy`: files of a program cannot lead out of the copy (path traversal)."""

import os
from pathlib import Path

from trainshed.cli.jobs import shell


def test_autopsy_copy_omits_symlinks_that_lead_outside_the_copied_directory(tmp_path: Path) -> None:
    """Path traversal by links, including links to other links."""
    outside, root = tmp_path / "id_rsa", tmp_path / "copy"
    outside.write_text("key")
    inner = root / "model" / "inner"
    inner.mkdir(parents=True)
    (inner / "weights").write_text("w")
    for name, target in {
        "absolute": str(outside),
        "above": "../id_rsa",
        "directory": "..",
        "through": "model/up/up/id_rsa",
        "model/up": "..",
        "loop": "loop",
        "inside": "model/inner/weights",
        "model/sibling": "inner",
        "dangling": "not/there",
    }.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe")
    removed = shell._remove_escapes(root)  # pyright: ignore[reportPrivateUsage]
    assert {"absolute", "above", "directory", "pipe"} <= set(removed)
    assert not [
        path for path in root.rglob("*") if not Path(os.path.realpath(path)).is_relative_to(root.resolve())
    ]
    assert (root / "inside").read_text() == "w" == (root / "model/sibling/weights").read_text()
    assert outside.exists() and (root / "dangling").is_symlink()
