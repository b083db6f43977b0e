"""Writes scalars into an event file like TensorFlow 1's `FileWriter`, byte for byte, without TensorFlow."""

import os
import pathlib
import socket
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class EventWriter:
    """Appends to a new file in the directory. `clock`: seconds since the epoch."""

    def __init__(self, directory: "str | pathlib.Path", clock: "Callable[[], float]" = time.time) -> None:
        self.clock = clock
        place = pathlib.Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(clock())}.{socket.gethostname()}.{os.getpid()}"
        self.file = open(place / name, "ab")  # noqa: SIM115 closed at the program's exit
        self._append(field(3, b"brain.Event:2"))

    def scalar(self, tag: str, value: float, step: int) -> None:
        told_value = field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
        told_step = b"\x10" + varint(step) if step else b""
        self._append(told_step + field(5, field(1, told_value)))

    def _append(self, event: bytes) -> None:
        record = b"\x09" + struct.pack("<d", self.clock()) + event
        self.file.write(frame_record(record))
        self.file.flush()


def frame_record(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    checks = struct.pack("<I", masked_crc(length)), struct.pack("<I", masked_crc(record))
    return length + checks[0] + record + checks[1]


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def _entry(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


TABLE = [_entry(byte) for byte in range(256)]
