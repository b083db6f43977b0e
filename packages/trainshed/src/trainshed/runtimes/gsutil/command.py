"""The command `gsutil` of jobs. It runs the original gsutil against the replica's own endpoint, which adds
the job's identity.

The text of this file becomes the command, so it imports nothing of Trainshed. gsutil always uses TLS for its
JSON host. The endpoint is an address of the replica itself, so only connections to it are made without TLS.
"""

import os
import sys
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit


def main() -> None:
    endpoint = urlsplit(os.environ.get("STORAGE_EMULATOR_HOST", ""))
    if endpoint.hostname and endpoint.port:
        _reach_plainly(endpoint.hostname, endpoint.port)
        settings = {
            "Credentials:gs_json_host": endpoint.hostname,
            "Credentials:gs_json_port": str(endpoint.port),
            # Without this option, gsutil responds to a rejection with advice about Google accounts.
            "Tests:bypass_anonymous_access_warning": "True",
            "Boto:num_retries": "5",
            "GSUtil:prefer_api": "json",
            "GSUtil:default_project_id": os.environ.get("GOOGLE_CLOUD_PROJECT", ""),
            "GSUtil:check_hashes": "if_fast_else_skip",
            "GSUtil:software_update_check_period": "0",
            # For -m, use threads of one process: its memory does not grow with the machine's processors.
            "GSUtil:parallel_process_count": "1",
            "GSUtil:parallel_thread_count": "8",
        }
        # The caller's own options come later on the command line and take precedence.
        sys.argv[1:1] = [
            word for name, value in settings.items() if value for word in ("-o", f"{name}={value}")
        ]
    sys.exit(import_module("gslib.__main__").main())


def _reach_plainly(host: str, port: int) -> None:
    http: Any = import_module("httplib2")
    plain = http.HTTPConnectionWithTimeout.connect
    secure = http.HTTPSConnectionWithTimeout.connect

    def connect(connection: Any) -> None:
        is_ours = (connection.host, connection.port) == (host, port)
        (plain if is_ours else secure)(connection)

    http.HTTPSConnectionWithTimeout.connect = connect


if __name__ == "__main__":
    main()
