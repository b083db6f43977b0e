# An agent becomes this script after its lease has expired. The script first waits for ten seconds: within that time,
# a service that runs again counts the agent as dead and decides about the allocation. Then the script with the lowest
# step of the allocation waits until the other agents have ended, because the service may still reach them. It renames
# the allocation before it cancels it, so that the service does not treat this as a cancellation by an operator, but
# requests another allocation. Slurm ends the script together with the allocation. While slurmctld does not respond,
# the script tries again.
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
