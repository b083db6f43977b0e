"""The program of a viewer: TensorBoard, on a socket that is open already. Started with its text as `-c`, in
an environment of the family `tensorboard`; imports nothing of Trainshed.

Arguments: the handle of the socket, the directory of event files, the path at which browsers find it.
"""

import importlib
import sys
from typing import Any


def with_its_fonts(application: Any, prefix: str) -> Any:
    """The WSGI application with a page that looks for its fonts below its own path: TensorBoard's asks for
    them at the root of the host, whatever its `path_prefix` is (tensorflow/tensorboard#1885)."""

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        is_page = environ["PATH_INFO"] == f"{prefix}/"  # Which it changes.
        parts = application(environ, start_response)
        if not is_page:
            return parts
        try:
            # As long as it was, for the length is told already.
            return [part.replace(b"url(/font-", b"url( font-") for part in parts]
        finally:
            if hasattr(parts, "close"):
                parts.close()

    return answer


def main(listener: int, directory: str, prefix: str) -> None:
    """Serve until it is ended."""
    default: Any = importlib.import_module("tensorboard.default")
    program: Any = importlib.import_module("tensorboard.program")
    serving: Any = importlib.import_module("werkzeug.serving")

    class Quiet(serving.WSGIRequestHandler):  # type: ignore[misc]
        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Whoever forwards them logs requests."""

    class Server(program.TensorBoardServer):  # type: ignore[misc]
        def __init__(self, application: Any, flags: Any) -> None:
            # The name is not looked at: the socket is there.
            self._server = serving.make_server(
                *("unix://viewer", 0, with_its_fonts(application, prefix)),
                threaded=True,
                request_handler=Quiet,
                fd=listener,
            )

        def serve_forever(self) -> None:
            self._server.serve_forever()

        def get_url(self) -> str:
            # TensorBoard writes its port down for others of this user, who see nothing of its /tmp.
            return "http://localhost:1/"

        def print_serving_message(self) -> None:
            pass

    board = program.TensorBoard(plugins=default.get_static_plugins(), server_class=Server)
    board.configure(
        logdir=directory,
        path_prefix=prefix,
        # Read in this process. The data server listens on a port that asks nobody who he is.
        load_fast="false",
        # Several programs of a job write beside each other, and go on after a restart in another file.
        reload_multifile=True,
    )
    board.main()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
