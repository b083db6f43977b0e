# Functions for the scripts that run in a machine (tests/e2e/test_machines.py). Each check prints one line
# `@ NAME SECONDS ok` or `@ NAME SECONDS failed`, and in the second case the end of its output.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root COLUMNS=200
export TRAINSHED_DATA=/var/lib/trainshed/.trainshed
export PY="--image us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:slim"
mkdir -p /tmp/jobs
cd /tmp/jobs

check() {
    started=$(date +%s%N)
    if timeout 240 bash -euo pipefail -c "trap 'echo \$TRAINSHED_DATA >/tmp/data' EXIT; set -x; $1" >/tmp/check.log 2>&1; then result=ok; else result=failed; fi
    took=$(( ($(date +%s%N) - started) / 100000000 ))
    echo "@ $1 $((took / 10)).$((took % 10)) $result"
    [ $result = ok ] || {
        tail -n 40 /tmp/check.log
        export TRAINSHED_DATA=$(cat /tmp/data)
        trainshed jobs list --all
        trainshed jobs describe "$(trainshed jobs list --all --format json | grep -o '"uid": *"[0-9]*"' | head -n 1 | tr -dc 0-9)"
        journalctl --no-pager --lines 15 --unit trainshed
    } 2>&1 | sed 's/^/    /'
}

serving() {
    curl -sS --retry 120 --retry-delay 1 --retry-connrefused http://127.0.0.1:${1:-8080}/healthz
}

# has PATTERN: like a quiet grep, but it reads all of its input, so that the writer's pipe stays open.
has() { grep -- "$1" >/dev/null; }

# until_so COMMAND: run a command until it succeeds, for a minute.
until_so() {
    set +x
    local deadline=$((SECONDS + 60))
    until "$@"; do [ $SECONDS -lt $deadline ] || return 1; sleep 0.2; done
}

# measure WHAT COMMAND...: run a command, and print how many seconds it took.
measure() {
    local started result=0
    started=$(date +%s%N)
    "${@:2}" || result=$?
    started=$(( ($(date +%s%N) - started) / 100000000 ))
    echo "# $1: $((started / 10)).$((started % 10)) s" >/dev/console
    return $result
}

printed() { trainshed jobs logs "$1" 2>/dev/null | has "$2"; }

# counting NAME: start a job that counts until `counted`, and wait for its first lines.
counting() {
    trainshed run /tmp/jobs/counts.py --name "$1" --env NAME="$1" $PY --detach
    until_so printed "$1" ' 3$'
}

# to_its_end NAME FILE [OPTION...]: run a job that may fail.
to_its_end() {
    trainshed run "$2" --name "$1" $PY "${@:3}" --detach
    trainshed jobs wait "$1" || true
}

# counted NAME [STARTS]: have it end. It must have started so often, once by default, and its log must be whole.
counted() {
    touch "$TRAINSHED_DATA/buckets/trainshed/end-$1"
    trainshed jobs wait "$1"
    trainshed jobs timeline "$1" >/tmp/timeline
    [ "$(grep -c replica_started /tmp/timeline)" -eq "${2:-1}" ]
    trainshed jobs logs "$1" | grep -o '[0-9]*$' | sort -n | uniq >/tmp/lines
    seq 0 "$(tail -n 1 /tmp/lines)" | diff - /tmp/lines
}

# group_of JOB: the control group (version 2) of its first replica.
group_of() {
    local uid
    uid=$(trainshed jobs describe "$1" --format json | grep -o '"[a-z]*[jJ]obs/[0-9]*"' | head -n 1 | tr -dc 0-9)
    find /sys/fs/cgroup -type d -name "trainshed-*$uid-*-workerpool0-0"
}
export -f has measure serving until_so printed counting to_its_end counted group_of

cat > counts.py <<'END'
import itertools, os, time
for number in itertools.count():
    print(number, flush=True)
    time.sleep(0.3)
    if os.path.exists("/gcs/trainshed/end-" + os.environ["NAME"]):
        break
END
cat > hog.py <<'END'
import json, os, time
task = json.loads(os.environ["CLUSTER_SPEC"])["task"]
if os.environ.get("HOG", "workerpool0/0") != f"{task['type']}/{task['index']}":
    time.sleep(1000)
kept = []
while True:
    kept.append(b"x" * 2_000_000)
END
cat > bomb.py <<'END'
import os, time
made = 0
while True:
    try:
        child = os.fork()
    except OSError as error:
        print("refused after", made, error.errno, flush=True)
        break
    if child == 0:
        time.sleep(1000)
    made += 1
END

# run_checks NAME...: run checks, functions, in this order.
run_checks() {
    local name
    export -f "$@"
    for name in "$@"; do check "$name"; done
}
