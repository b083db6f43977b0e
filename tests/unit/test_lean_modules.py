"""ADR 109: what starts wait for loads little of the standard library, and does the same without it."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainshed.engines.remote.options import module_paths
from trainshed.replica.system import lean_json, lean_signal, lean_socket, unix_sockets

_LOADS = """
import sys
sys.path[:0] = sys.argv[1:]
from trainshed.engines.remote import start
from trainshed.replica import zygote
print(*sys.modules)
"""
_LARGE = frozenset(
    {"collections", "contextlib", "enum", "functools", "json", "logging", "re", "signal"}
) | {
    "selectors",
    "socket",
    "subprocess",
    "typing",
}


def test_nothing_large_is_loaded_before_programs_start() -> None:
    argv = [sys.executable, "-I", "-S", "-c", _LOADS, *module_paths()]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert "trainshed.replica.supervisor.shim" in loaded
    assert not _LARGE & set(loaded)


_VALUES: list[Any] = [
    {"a": [1, 2.5, None, True, '\u00e9\n"\\', {}], "b": {"c": -1e300}},
    [],
    "text",
    "\ud800",
    12,
    0.1,
    None,
    (1, 2),
    {1: 2, None: 3},
    float("inf"),
]


@pytest.mark.parametrize("value", _VALUES)
def test_json_is_written_and_read_as_ever(value: Any) -> None:
    text = lean_json.dumps(value)
    assert text == json.dumps(value)
    assert lean_json.dumps(value, ensure_ascii=False) == json.dumps(value, ensure_ascii=False)
    assert lean_json.loads(f" \n{text}\t") == json.loads(text)


@pytest.mark.parametrize(
    "text", ["", "  ", "{", '{"a"}', "[1,]", "1 2", '"\n"', "nul", "\ufeff{}", '"\\x"']
)
def test_what_is_no_json_is_refused_as_ever(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        json.loads(text)
    with pytest.raises(ValueError, match=r"."):
        lean_json.loads(text)


_READS = """
import sys
sys.path[:0] = sys.argv[2:]
from trainshed.replica.system import lean_json
try:
    lean_json.loads(sys.argv[1])
except ValueError as refusal:
    print(refusal)
"""


def test_what_is_torn_is_refused_where_the_standard_library_is_not_loaded() -> None:
    """The scanner takes its exception from there: without it some Pythons say that they have none."""
    for text in ('{"a": "b', '{"a" 1}', "[1, 2"):
        argv = [sys.executable, "-I", "-S", "-c", _READS, text, *module_paths()]
        told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert told.strip(), text


def test_what_json_does_not_know_is_refused_as_ever() -> None:
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        lean_json.dumps({"a": set[int]()})
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="Circular"):
        lean_json.dumps(circle)


def test_signals_and_sockets_are_those_of_the_standard_library() -> None:
    for lean, whole in ((lean_signal, signal), (lean_socket, socket)):
        for name in lean.__all__:
            if name.isupper():
                assert getattr(lean, name) == getattr(whole, name), name


def test_sockets_do_what_those_of_the_standard_library_do() -> None:
    with lean_socket.socket(lean_socket.AF_INET, lean_socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client:
            taken, address = listener.accept()
            assert address == client.getsockname()
            with taken, lean_socket.fromfd(taken.fileno(), taken.family, taken.type) as other:
                other.sendall(b"hello")
                assert client.recv(5) == b"hello"
    assert listener.fileno() == taken.fileno() == -1
    ours, theirs = lean_socket.socketpair()
    with ours, theirs, Path(os.devnull).open("rb") as file:
        unix_sockets.send_with(ours, b"line\n", [file.fileno(), ours.fileno()])
        data, handles = unix_sockets.receive_some(theirs)
        assert data == b"line\n" and len(handles) == 2
        for handle in handles:
            os.close(handle)
        theirs.settimeout(0.01)
        with pytest.raises(TimeoutError):
            theirs.recv(1)
