"""The victim of the attacks: a program with a secret in every possible place, which waits."""

import os
import socket
import sys
import time

secret, then = sys.argv[1:3]
for place in ("secret", os.path.join(os.environ["TMPDIR"], "secret")):
    with open(place, "w") as file:
        file.write(secret)
print(secret)
if then == "fail":
    sys.exit(3)
endpoint = os.environ["GCE_METADATA_HOST"]
# Any port, because a program of the machine may use 2222.
listener = socket.create_server((endpoint.split(":")[0], 0))
print("ENDPOINT", endpoint, listener.getsockname()[1], flush=True)
while True:
    time.sleep(600)
