"""runc without what machines like CI's do not allow: raised limits and negative OOM scores.

Run by dockerd, or by podman, as its runtime.
"""

import json
import os
import sys


def main() -> None:
    arguments = sys.argv[1:]
    if "create" in arguments or "run" in arguments:
        for at, word in enumerate(arguments):
            if word in ("--bundle", "-b"):
                _mend(f"{arguments[at + 1]}/config.json")
            elif word.startswith("--bundle="):
                _mend(f"{word.partition('=')[2]}/config.json")
    elif "exec" in arguments and "--process" in arguments:
        _mend(arguments[arguments.index("--process") + 1])
    os.execvp("runc", ["runc", *arguments])


def _mend(path: str) -> None:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123  # Each import delays each container.
        config = json.load(file)
    process = config.get("process", config)
    process["oomScoreAdj"] = max(0, process.get("oomScoreAdj", 0))
    process.pop("rlimits", None)
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(config, file)


if __name__ == "__main__":
    main()
