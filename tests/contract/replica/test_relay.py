"""A replica's own endpoint: it says whose a connection is (spec/program#storage)."""

from tests.contract.replica.conftest import Place
from tests.contract.replica.relays import IDENTITY, Behind, own_address

ADDRESS = own_address(0)
PRINTS = f"""
import socket
for _ in range(2):
    with socket.create_connection(('{ADDRESS}', 23456)) as connection:
        connection.sendall(b'{{"project": "p2"}}\\n')
        connection.shutdown(socket.SHUT_WR)
        print(connection.recv(100).decode())
"""


def test_every_connection_begins_with_the_line_that_says_whose_it_is(
    place: Place, behind: Behind
) -> None:
    """A program says what it likes behind that line, never before it."""
    line = place.python(
        PRINTS,
        storage_socket=behind.path,
        storage_port=23456,
        address=ADDRESS,
        identity=IDENTITY.decode(),
    )
    for number in range(2):
        introduction, connection = behind.accept()
        assert introduction == IDENTITY + b"\n"
        with connection:
            received = b""
            while data := connection.recv(100):
                received += data
            assert received == b'{"project": "p2"}\n'
            connection.sendall(b"answer %d" % number)
    assert line.record()["exit_code"] == 0, place.texts()
    assert place.texts() == ["answer 0", "answer 1"]
