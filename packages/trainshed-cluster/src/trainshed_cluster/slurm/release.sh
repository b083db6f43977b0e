# An agent becomes this script when its service does not return. A service that returns counts the agent as dead
# within ten seconds, and decides what happens. The script with the lowest step of an allocation waits until the
# other agents have ended, because the service may still reach them. It renames the allocation before it cancels
# it: the service then requests another one, and does not take this for a cancellation by an operator. Slurm ends
# the script with the allocation. While slurmctld does not answer, the script tries again.
PATH=$PATH:$1; export PATH
sleep 10
pause=1
while :; do
  alone=yes
  if steps=$(squeue --noheader --steps --jobs="$SLURM_JOB_ID" -O StepID); then
    for step in $steps; do
      step=${step##*.}
      case $step in *[!0-9]*|"$SLURM_STEP_ID") continue;; esac
      [ "$step" -gt "$SLURM_STEP_ID" ] || exit 0
      alone=
    done
    if [ "$alone" ]; then
      scontrol update JobId="$SLURM_JOB_ID" JobName=trainshed-given-back
      scancel "$SLURM_JOB_ID"
    fi
  fi
  sleep $pause
  pause=$((pause < 16 ? 2 * pause : 30))
done
