"""Runs runc without raised limits and negative OOM scores, which machines such as CI's do not permit. dockerd
or podman uses it as runtime."""

import json
import os
import sys


def main() -> None:
    arguments = sys.argv[1:]
    if "create" in arguments or "run" in arguments:
        for at, word in enumerate(arguments):
            if word in ("--bundle", "-b"):
                _remove_limits(f"{arguments[at + 1]}/config.json")
            elif word.startswith("--bundle="):
                _remove_limits(f"{word.partition('=')[2]}/config.json")
    elif "exec" in arguments and "--process" in arguments:
        _remove_limits(arguments[arguments.index("--process") + 1])
    os.execvp("runc", ["runc", *arguments])


def _remove_limits(path: str) -> None:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123  # Each import delays each container.
        config = json.load(file)
    process = config.get("process", config)
    process["oomScoreAdj"] = max(0, process.get("oomScoreAdj", 0))
    process.pop("rlimits", None)
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(config, file)


if __name__ == "__main__":
    main()
