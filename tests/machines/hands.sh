# In a machine whose services are started by hand, or by a user without root.
export TRAINSHED_CACHE=/srv/cache TRAINSHED_NODE_CPUS=32 TRAINSHED_NODE_MEMORY=128
export TRAINSHED_MEMORY_PER_REPLICA=300 TRAINSHED_MAX_PROCESSES=200

# as_user USER COMMAND: run a command as a user who has logged in without a terminal.
as_user() {
    local user=$1
    shift
    runuser -u "$user" -- env HOME="/home/$user" TRAINSHED_DATA="/home/$user/.trainshed" "$@"
}

# oom COMMAND...: run the hog by a command line before `trainshed`, and check the verdict.
oom() {
    "$@" trainshed run hog.py --name hog $PY --detach
    "$@" trainshed jobs wait hog || true
    "$@" trainshed jobs describe hog | has "ran out of memory and exited with a non-zero status of 137"
}

root_by_hand() {
    export TRAINSHED_DATA=$HOME/.trainshed
    trainshed up --detach
    scope=$(cut -d: -f3 </proc/$(service_of $TRAINSHED_DATA)/cgroup)
    [[ $scope == /system.slice/trainshed-*.scope/service ]]
    trainshed doctor >/tmp/doctor
    grep -q "memory limit *held by the kernel" /tmp/doctor
    counting by_hand
    [[ $(group_of by_hand) == /sys/fs/cgroup${scope%/service}/trainshed-* ]]
    oom env
    if find /sys/fs/cgroup/system.slice -maxdepth 1 -name 'trainshed-*' ! -name '*.scope' | grep .; then exit 1; fi
    counted by_hand
}

root_by_hand_killed() {
    export TRAINSHED_DATA=$HOME/.trainshed
    counting by_hand_killed
    kill -9 $(service_of $TRAINSHED_DATA)
    trainshed up --detach
    oom env
    counted by_hand_killed
}

root_with_podman_image() {
    export TRAINSHED_DATA=$HOME/.trainshed
    libraries=usr/lib/x86_64-linux-gnu
    tar -c -C / bin lib lib64 usr/bin/sh usr/bin/dash usr/lib64 $libraries/libc.so.6 $libraries/ld-linux-x86-64.so.2 |
        podman --cgroup-manager=cgroupfs import - localhost/tiny:1
    trainshed run --image localhost/tiny:1 --name image --detach -- /bin/sh -c 'echo in the image'
    trainshed jobs wait image
    trainshed jobs logs image | has "in the image"
    trainshed down
}

user_without_systemd() {
    chown -R ben: /srv/cache
    as_user ben trainshed doctor >/tmp/doctor
    grep -A3 "memory limit" /tmp/doctor | has "loginctl enable-linger $(id -u ben)"
    as_user ben trainshed up --detach --port 9000
    oom as_user ben
    as_user ben trainshed down
}

user_by_hand() {
    loginctl enable-linger $(id -u ben)
    until_so test -S /run/user/$(id -u ben)/bus
    as_user ben trainshed up --detach --port 9000
    as_user ben trainshed doctor >/tmp/doctor || true
    grep -q "memory limit *held by the kernel" /tmp/doctor
    grep -q "process limit *held by the kernel" /tmp/doctor
    oom as_user ben
    as_user ben trainshed down
}

user_unit() {
    chown -R ana: /srv/cache
    loginctl enable-linger ana
    until_so test -S /run/user/$(id -u ana)/bus
    as_user ana env XDG_RUNTIME_DIR=/run/user/$(id -u ana) bash -eux /tmp/jobs/user-blocks.sh
    serving
    as_user ana trainshed doctor >/tmp/doctor || true
    grep -q "memory limit *held by the kernel" /tmp/doctor
    oom as_user ana
}

user_unit_killed() {
    export TRAINSHED_DATA=/home/ana/.trainshed
    counting user_killed
    kill -9 $(service_of $TRAINSHED_DATA)
    serving
    counted user_killed
}

user_unit_restarted() {
    export TRAINSHED_DATA=/home/ana/.trainshed
    counting user_restarted
    as_user ana env XDG_RUNTIME_DIR=/run/user/$(id -u ana) systemctl --user restart trainshed
    serving
    limit=$(cat "$(group_of user_restarted)/memory.max")
    [ "$limit" = $((300 << 20)) ]
    counted user_restarted
}

# service_of DATA: the process of the service of a data directory.
service_of() { grep -o '"pid": *[0-9]*' "$1/service.json" | tr -dc 0-9; }

export -f as_user oom service_of
useradd --create-home --shell /bin/bash ben
cp /root/user-blocks.sh /tmp/jobs/
chmod -R a+rX /tmp/jobs
run_checks root_by_hand root_by_hand_killed root_with_podman_image user_without_systemd user_by_hand \
    user_unit user_unit_killed user_unit_restarted
systemctl poweroff
exit
