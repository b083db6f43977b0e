"""The program of a viewer: TensorBoard on an open socket.

`python -c` runs the text of this file in a Python environment of the runtime family `tensorboard`. The
program imports nothing from Trainshed. Arguments: file descriptor of the socket, directory with event files.
"""

import importlib
import sys
from typing import Any


def with_its_fonts(application: Any) -> Any:
    """Wrap the WSGI application so that its page requests fonts below the page's own path. TensorBoard
    requests them from the root of the host (tensorflow/tensorboard#1885)."""

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        is_page = environ["PATH_INFO"] == "/"  # Read before the application changes `environ`.
        parts = application(environ, start_response)
        if not is_page:
            return parts
        try:
            # Keep the length of the page, because the response's headers with the length were already sent.
            return [part.replace(b"url(/font-", b"url( font-") for part in parts]
        finally:
            if hasattr(parts, "close"):
                parts.close()

    return answer


def main(listener: int, directory: str) -> None:
    default: Any = importlib.import_module("tensorboard.default")
    program: Any = importlib.import_module("tensorboard.program")
    serving: Any = importlib.import_module("werkzeug.serving")

    class Quiet(serving.WSGIRequestHandler):  # type: ignore[misc]
        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Log nothing, because the service already logs forwarded requests."""

    class Server(program.TensorBoardServer):  # type: ignore[misc]
        def __init__(self, application: Any, flags: Any) -> None:
            # The host name has no effect, because the server uses the open socket `listener`.
            self._server = serving.make_server(
                *("unix://viewer", 0, with_its_fonts(application)),
                threaded=True,
                request_handler=Quiet,
                fd=listener,
            )

        def serve_forever(self) -> None:
            self._server.serve_forever()

        def get_url(self) -> str:
            # Any URL suffices: TensorBoard only writes the URL's port to a file in /tmp for other processes,
            # which cannot see the /tmp of this process.
            return "http://localhost:1/"

        def print_serving_message(self) -> None:
            pass

    board = program.TensorBoard(plugins=default.get_static_plugins(), server_class=Server)
    board.configure(
        logdir=directory,
        # Read the files in this process. TensorBoard's data server would listen on a port without
        # authentication.
        load_fast="false",
        # Several programs of a job write at the same time. After a restart, a program uses another file.
        reload_multifile=True,
    )
    board.main()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
