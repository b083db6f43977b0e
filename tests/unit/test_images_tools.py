"""Tests of the tools that pull images, and of messages without a usable tool (spec/runtimes#images).

Scripts simulate podman and docker.
"""

import asyncio
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from trainshed.runtimes.images.commands import Commands, ImageConfig, ToolFailed
from trainshed.runtimes.images.service import Images
from trainshed.runtimes.images.tools import Tools
from trainshed.runtimes.shelf import Shelf
from trainshed.runtimes.stop import Stop
from trainshed.runtimes.trees import remove_tree

STORE = {"graphRoot": "/var/lib/images", "graphDriverName": "overlay"}
WORKS = json.dumps({"store": STORE, "host": {"idMappings": {}}})
NO_DAEMON = "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is it running?"


def program(directory: Path, name: str, script: str) -> None:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def tools(directory: Path, wanted: str = "auto") -> Tools:
    directory.mkdir(exist_ok=True)
    images = Tools(wanted, {"PATH": str(directory)}, time.monotonic_ns)
    images.search()
    return images


def test_podman_named_docker_is_detected(tmp_path: Path) -> None:
    """spec/runtimes#images."""
    program(
        tmp_path, "docker", f"if [ \"$1\" = --version ]; then echo podman version 4; else echo '{WORKS}'; fi"
    )
    tool = tools(tmp_path, "docker").tool()
    assert tool is not None and tool.name == "podman"


def test_docker_is_tried_after_a_broken_podman(tmp_path: Path) -> None:
    """spec/runtimes#images."""
    program(tmp_path, "podman", "echo 'Error: no user namespaces' >&2; exit 125")
    program(tmp_path, "docker", f"echo '{NO_DAEMON}' >&2; exit 1")
    advice = tools(tmp_path).missing()
    assert "podman fails: no user namespaces." in advice
    assert "docker fails: Cannot connect" in advice


def test_error_advises_to_install_podman_if_no_container_tool_is_found(tmp_path: Path) -> None:
    """spec/runtimes#images."""
    advice = tools(tmp_path).missing()
    assert "podman or docker" in advice
    assert "neither is on the service's PATH" in advice
    assert "Install podman" in advice


def test_only_the_configured_container_tool_is_tried(tmp_path: Path) -> None:
    """spec/runtimes#images."""
    program(tmp_path, "podman", f"echo '{WORKS}'")
    assert "docker (setting container_tool)" in tools(tmp_path, "docker").missing()
    none = tools(tmp_path, "none")
    assert none.tool() is None
    assert "container_tool" in none.missing()


def test_container_tool_installed_after_the_service_start_is_found(tmp_path: Path) -> None:
    """spec/runtimes#images: the service need not be restarted after the installation."""
    now = [1]
    images = Tools("auto", {"PATH": str(tmp_path)}, lambda: now[0])
    assert images.search() is None
    program(tmp_path, "podman", f"echo '{WORKS}'")
    assert not images.is_stale()
    now[0] += 60 * 10**9
    assert images.is_stale()
    assert images.search() is not None
    assert not images.is_stale()


def test_starting_a_job_by_image_tag_updates_the_last_use_of_the_unpacked_image(tmp_path: Path) -> None:
    """spec/runtimes#environments: Used images are not removed."""
    program(tmp_path, "podman", f"[ $1 = info ] && echo '{WORKS}' || echo '[{{\"Id\": \"abc\"}}]'")
    shelf = Shelf(tmp_path / "images")

    def fill(draft: Path) -> None:
        draft.mkdir()
        (draft / "image.json").write_bytes(msgspec.json.encode(ImageConfig("abc")))

    os.utime(shelf.put("abc", fill) / ".built", ns=(1, 1))
    with contextlib.closing(
        Images(tmp_path / "images", now=time.monotonic_ns, environ={"PATH": str(tmp_path)})
    ) as images:
        asyncio.run(images.prepare("localhost/trainer:1", None))
    assert shelf.last_used("abc") > 1
    remove_tree(shelf.path("abc"))


def test_hanging_container_tool_is_killed_with_all_child_processes(tmp_path: Path) -> None:
    """spec/runtimes#builds: a command that exceeds its time limit fails with the reason."""
    program(tmp_path, "podman", "sleep 60 & echo $! > child; wait")
    commands = Commands(str(tmp_path / "podman"), os.environ, quick=0.3)
    with pytest.raises(ToolFailed, match="did not finish within 0 seconds"):
        commands.query("info")


_ASKING = """
import os, sys
from trainshed.runtimes.images.commands import Commands
Commands(sys.argv[1], os.environ).query("export")
"""


def test_running_container_tool_exits_when_the_service_is_killed(tmp_path: Path) -> None:
    """spec/runtimes#builds: An export without a reader would keep the tool's lock forever, and block all
    other pulls."""
    os.mkfifo(tmp_path / "alive")
    program(tmp_path, "podman", f"exec 9>{tmp_path}/alive; echo begun >&9; sleep 60")
    asking = [sys.executable, "-c", _ASKING, str(tmp_path / "podman")]
    with subprocess.Popen(asking) as service, (tmp_path / "alive").open() as alive:
        assert alive.readline() == "begun\n"
        service.kill()
        assert select.select([alive], [], [], 30)[0], "somebody has it open still"
        assert alive.read() == ""


def test_hanging_container_tool_does_not_block_the_service_stop(tmp_path: Path) -> None:
    """spec/runtimes#builds: A service stops within seconds."""
    os.mkfifo(tmp_path / "asked")
    program(tmp_path, "podman", f"echo >{tmp_path}/asked; sleep 60")
    images = Tools("podman", {"PATH": f"{tmp_path}:{os.environ['PATH']}"}, lambda: 1)
    searching = threading.Thread(target=images.search)
    searching.start()
    (tmp_path / "asked").read_text()
    images.close()
    searching.join(30)
    assert not searching.is_alive()
    assert "the service is stopping" in images.missing()


def test_abandoned_image_pull_is_stopped_with_all_child_processes(tmp_path: Path) -> None:
    """spec/runtimes#builds: a hanging pull of gigabytes stops when the job that requested the image ends."""
    os.mkfifo(tmp_path / "alive")
    program(tmp_path, "podman", f"exec 9>{tmp_path}/alive; echo begun >&9; sleep 60 & wait")
    commands, stop = Commands(str(tmp_path / "podman"), os.environ), Stop()
    failures: list[ToolFailed] = []

    def pull() -> None:
        try:
            commands.follow("pull", "x", tell=_ignore, doing="pulling", stop=stop)
        except ToolFailed as failure:
            failures.append(failure)

    pulling = threading.Thread(target=pull)
    pulling.start()
    with (tmp_path / "alive").open() as alive:
        assert alive.readline() == "begun\n"
        stop.request()
        assert alive.read() == ""
    pulling.join(30)
    assert "no job needs the image any more" in str(failures[0])


def test_output_lines_of_an_image_pull_are_reported_as_progress(tmp_path: Path) -> None:
    """spec/runtimes#builds: Progress is visible."""
    program(tmp_path, "podman", "printf 'a 1\\ra 2\\nb\\n' && printf last >&2")
    warnings: list[str] = []
    commands = Commands(str(tmp_path / "podman"), os.environ)
    commands.follow("pull", "x", tell=warnings.append, doing="pulling", stop=Stop())
    assert [w for w in warnings if "Still" not in w] == ["a 1", "a 2", "b", "last"]


def _ignore(line: str) -> None:
    """Ignore the line."""


@pytest.mark.parametrize(
    ("advice", "final"),
    [
        ("manifest unknown", True),
        ("reading manifest v1 in registry/team/trainer: StatusCode: 403, no", True),
        ("pinging container registry: invalid status code from registry 404 (Not Found)", True),
        ("no image found in manifest list for architecture amd64, OS linux", True),
        ("denied: requested access to the resource is denied", True),
        ("dial tcp: lookup registry.example on 10.0.0.2:53: no such host", True),
        ("dial tcp: lookup registry.example: Temporary failure in name resolution", False),
        ("dial tcp: lookup registry.example on 10.0.0.2:53: server misbehaving", False),
        ("connection refused", False),
        ("invalid status code from registry 500 (Internal Server Error)", False),
        # An error of the tool itself, so another image name would not help.
        ("writing blob: mkdir /var/lib/images: permission denied", False),
    ],
)
def test_failed_image_pull_is_final_only_if_the_registry_has_responded(
    tmp_path: Path, advice: str, final: bool
) -> None:
    """spec/failures: the service retries a pull without a response from the registry."""
    program(tmp_path, "podman", f"echo 'Error: {advice}' >&2; exit 125")
    commands = Commands(str(tmp_path / "podman"), os.environ)
    with pytest.raises(ToolFailed) as failed:
        commands.follow("pull", "x", tell=_ignore, doing="pulling", stop=Stop())
    assert failed.value.final == final
