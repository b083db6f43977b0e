import json
import os
import subprocess
import sys


class ClusterSpec(object):
    """Where the replicas of this job are."""

    def __init__(self):
        spec = json.loads(os.environ["CLUSTER_SPEC"])
        self.cluster = spec["cluster"]
        self.type = spec["task"]["type"]
        self.index = spec["task"]["index"]
        self.chief_host = self.cluster["workerpool0"][0].split(":")[0]

    @property
    def is_chief(self):
        return self.type == "workerpool0"

    @property
    def scheduler_address(self):
        return "tcp://%s:8786" % self.chief_host


def run(*command):
    print("+", " ".join(command), flush=True)
    return subprocess.Popen([sys.executable, "-m"] + list(command))
