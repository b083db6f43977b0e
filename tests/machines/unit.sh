# In a machine whose service runs by the unit of docs/server.md.
unit_serves() { serving; systemctl is-active trainshed trainshed-jobs; }

doctor_reports_limits_by_the_kernel() {
    runuser -u trainshed -- env HOME=/var/lib/trainshed trainshed doctor --config /etc/trainshed/trainshed.toml >/tmp/doctor
    cat /tmp/doctor
    grep -q "memory limit *held by the kernel" /tmp/doctor
    grep -q "process limit *held by the kernel" /tmp/doctor
}

memory_limit() {
    measure "a program beyond its memory limit, from submission to the end of its job" to_its_end hog hog.py
    trainshed jobs describe hog | has "ran out of memory and exited with a non-zero status of 137"
}

groups_are_in_the_delegated_unit() {
    counting placed
    group=$(group_of placed)
    [ "${group%/*}" = /sys/fs/cgroup/trainshed.slice/trainshed-jobs.service ]
    [ "$(cat "$group/memory.max")" = $((300 << 20)) ]
    [ "$(cat "$group/memory.swap.max")" = 0 ]
    [ "$(cat "$group/pids.max")" -gt 0 ]
    systemctl daemon-reload
    [ "$(cat "$group/memory.max")" = $((300 << 20)) ]
    # Only the service and its helpers.
    if pgrep --cgroup /trainshed.slice/trainshed.service ts-; then exit 1; fi
    counted placed
    until_so test ! -e "$group"
}

out_of_memory_in_one_of_three() {
    counting beside
    to_its_end three hog.py --replicas 3 --env HOG=workerpool1/0
    trainshed jobs describe three | has "workerpool1-0 ran out of memory"
    counted beside
}

fork_bomb() {
    counting calm
    to_its_end bomb bomb.py
    made=$(trainshed jobs logs bomb | grep -o "refused after [0-9]*" | tr -dc 0-9)
    [ "$made" -gt 100 ] && [ "$made" -lt 200 ]
    counted calm
}

service_killed() {
    counting killed
    measure "kill -9 until calls are answered" bash -c \
        'systemctl kill --kill-who=main --signal=KILL trainshed; serving'
    printed killed ' 4$'
    counted killed
    trainshed jobs timeline killed | has service_away
}

service_restarted() {
    counting restarted
    measure "restart until calls are answered" bash -c 'systemctl restart trainshed; serving'
    counted restarted
}

limits_after_a_restart() {
    counting limited
    systemctl restart trainshed
    serving
    [ "$(cat "$(group_of limited)/memory.max")" = $((300 << 20)) ]
    to_its_end hog-later hog.py
    trainshed jobs describe hog-later | has "ran out of memory"
    counted limited
}

service_stopped() {
    counting stopped
    measure "stop of the service" systemctl stop trainshed.socket
    if systemctl is-active trainshed; then exit 1; fi
    sleep 2
    measure "start until calls are answered" bash -c 'systemctl start trainshed; serving'
    counted stopped
}

# But for the process that a rootless podman keeps.
journal_has_no_left_over_processes() {
    journalctl --no-pager --unit trainshed >/tmp/journal
    tail -n 40 /tmp/journal
    if grep -E "left-over process|remains running" /tmp/journal | grep -v "podman pause"; then exit 1; fi
}

without_etc_hosts() {
    mv /etc/hosts /root/hosts
    # Nothing resolves localhost now.
    export TRAINSHED_ENDPOINT=http://127.0.0.1:8080 TRAINSHED_TOKEN=$(cat $TRAINSHED_DATA/owner.token)
    systemctl restart trainshed
    serving
    counting without_hosts
    counted without_hosts
}

# Ten calls a second, each on a connection of its own and without a retry, over ten restarts.
restarts_refuse_no_call() {
    token=$(cat $TRAINSHED_DATA/owner.token)
    touch /tmp/calling
    : >/tmp/calls
    while [ -e /tmp/calling ]; do
        for url in http://127.0.0.1:8080/trainshed/v1/jobs "http://127.0.0.1:8081/storage/v1/b?project=trainshed"; do
            curl -sS -o /dev/null -w '%{http_code}\n' -m 60 -H "Authorization: Bearer $token" "$url" >>/tmp/calls 2>&1 &
        done
        sleep 0.1
    done &
    for number in 1 2 3 4 5 6 7 8 9 10; do
        systemctl restart trainshed
        serving
    done
    rm /tmp/calling
    wait
    sort /tmp/calls | uniq -c
    [ "$(sort -u /tmp/calls)" = 200 ]
}

jobs_unit_stopped() {
    counting ended
    measure "stop of all programs" systemctl stop trainshed-jobs
    if systemctl is-active trainshed; then exit 1; fi
    systemctl start trainshed
    serving
    counted ended 2
}

before_reboot() {
    mv /root/hosts /etc/hosts
    systemctl restart trainshed
    serving
    counting rebooted
}

after_reboot() {
    serving
    echo "# boot of the machine until calls are answered: $(cut -d' ' -f1 /proc/uptime) s" >/dev/console
    counted rebooted 2
}

if [ -e /root/rebooted ]; then
    run_checks after_reboot
    systemctl poweroff
else
    mkdir -p /etc/trainshed
    (set -eu; . /root/unit-blocks.sh) >/tmp/blocks.log 2>&1 || { echo "@ blocks 0 failed"; cat /tmp/blocks.log; }
    run_checks unit_serves doctor_reports_limits_by_the_kernel groups_are_in_the_delegated_unit memory_limit \
        out_of_memory_in_one_of_three fork_bomb service_killed service_restarted limits_after_a_restart \
        service_stopped restarts_refuse_no_call journal_has_no_left_over_processes jobs_unit_stopped without_etc_hosts \
        before_reboot
    touch /root/rebooted
    systemctl reboot
fi
exit
