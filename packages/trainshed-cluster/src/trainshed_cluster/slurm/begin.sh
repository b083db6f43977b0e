# Script of an agent's step. It becomes the agent, which reports when it has read its input; srun is not needed
# after that. The agent's standard error goes to a file on the node. The script avoids other commands: each one
# takes as long as the whole script, and Slurm then needs one more second to end the step.
PATH=$1; export PATH; errors=$2; shift 2
command -v "$1" >/dev/null || { echo "the command $1 does not exist on $(hostname)" >&2; exit 127; }
kept=${errors%/*}; [ -d "$kept" ] || mkdir -p -m 700 "$kept" || exit 1
[ -O "$kept" ] && [ ! -L "$kept" ] || { echo "$kept on $(hostname) belongs to another user" >&2; exit 1; }
: >"$errors" || exit 1
exec "$@" 2>"$errors"
