#!/usr/bin/env bash
# Runs a shell command as root in a virtual machine with two soft-RoCE devices, rxe0 and rxe1, which reach each other:
#
#   tests/rxe/run.sh [-t SECONDS] 'ibv_devinfo && dist/bin/ferrite verify --plugin dist/lib/libnccl-net.so --verbs system'
#
# The command sees this machine's files as they are, and what it writes is gone with the machine, except in the working
# directory, which is shared. It has none of the caller's environment. Its output (both streams in one) and its status come
# back; 124: it took longer than SECONDS (300); 125: the machine did not come up, or died. Where the status is not 0, the
# kernel's log follows on stderr. A machine that says nothing at all is started again, within the same time.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    echo "usage: $(basename "$0") [-t SECONDS] COMMAND" >&2
    exit 2
}

limit=300
while getopts t: option; do
    case "$option" in
    t) limit=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# = 1 ] || usage
[[ "$limit" =~ ^[1-9][0-9]*$ ]] || usage
if [ "$PWD" = / ]; then
    echo "$(basename "$0"): the working directory is shared with the machine, and / cannot be" >&2
    exit 2
fi

machine=$("$HERE/setup.sh")
job=$(mktemp -d)
machine_pid=""
end_machine() {
    if [ -n "$machine_pid" ]; then
        kill "$machine_pid" 2>/dev/null || true
        wait "$machine_pid" 2>/dev/null || true
    fi
    rm -rf "$job"
}
trap end_machine EXIT
{ cat "$machine/initramfs" && (cd "$HERE" && echo init | cpio -o -H newc --quiet); } >"$job/initramfs"
echo "$PWD" >"$job/shared"
cat >"$job/start" <<END
#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=${HOME@Q} LANG=C.UTF-8
ulimit -l unlimited
${HERE@Q}/network.sh up || exit 125
cd ${PWD@Q}
exec bash -c ${1@Q}
END
chmod 755 "$job/start"

# Fully preemptible and with more CPUs than are likely to be idle: processes that poll would starve the device otherwise.
qemu() {
    exec timeout --foreground --kill-after 10 $((limit - SECONDS)) qemu-system-x86_64 \
        -machine q35 -accel tcg,thread=multi -cpu max -smp 4 -m 2048 \
        -nodefaults -no-user-config -display none -no-reboot -nic none \
        -kernel "$machine/vmlinux" -initrd "$job/initramfs" \
        -append "console=ttyS1 quiet panic=-1 mitigations=off nokaslr tsc=reliable preempt=full" \
        -chardev stdio,id=output,signal=off -serial chardev:output \
        -chardev file,id=log,path="$job/console" -serial chardev:log \
        -fsdev "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap" \
        -device virtio-9p-pci,fsdev=root,mount_tag=root \
        -fsdev "local,id=job,path=$job,security_model=none,multidevs=remap" \
        -device virtio-9p-pci,fsdev=job,mount_tag=job \
        -fsdev "local,id=shared,path=${PWD//,/,,},security_model=none,multidevs=remap" \
        -device virtio-9p-pci,fsdev=shared,mount_tag=shared \
        -device virtio-rng-pci </dev/null
}

start() {
    rm -f "$job/console"
    qemu &
    machine_pid=$!
}

# Whether the machine runs and says nothing for 120 s.
is_silent() {
    local until=$((SECONDS + 120))
    while [ ! -s "$job/console" ] && kill -0 "$machine_pid" 2>/dev/null; do
        [ "$SECONDS" -lt "$until" ] || return 0
        sleep 1
    done
    return 1
}

SECONDS=0
start
# Under load an emulated machine has been seen to stand still before its first process began.
while [ $((limit - SECONDS)) -gt 240 ] && is_silent; do
    echo "$(basename "$0"): the machine has said nothing for 120 s, and is started again" >&2
    kill "$machine_pid" 2>/dev/null || true
    wait "$machine_pid" || true
    start
done
ended=0
wait "$machine_pid" || ended=$?
machine_pid=""
if [ -s "$job/status" ]; then
    status=$(cat "$job/status")
elif [ "$ended" = 124 ] || { [ "$ended" = 137 ] && [ "$SECONDS" -ge "$limit" ]; }; then
    echo "$(basename "$0"): no end within $limit s" >&2
    status=124
else
    echo "$(basename "$0"): the machine died without a status (qemu: $ended)" >&2
    status=125
fi
if [ "$status" != 0 ]; then
    echo "--- the kernel's log" >&2
    [ ! -e "$job/console" ] || tail -n 40 "$job/console" >&2
    [ ! -e "$job/dmesg" ] || tail -n 40 "$job/dmesg" >&2
fi
exit "$status"
