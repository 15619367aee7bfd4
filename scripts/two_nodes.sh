#!/usr/bin/env bash
# Tries the recipes of docs/compare.md on one machine: two network namespaces are the hosts, each with a host name of its own, and
# a launcher starts one process in each. Their RDMA devices are softrnic's. Needs root, `ip`, and the launcher.
#
#   scripts/two_nodes.sh torchrun|mpirun|srun COMMAND [ARGUMENT...]
#
# For example, with a wheel of scripts/package.sh installed, on a machine with a GPU:
#
#   scripts/two_nodes.sh torchrun -m nccl_net_ferrite ab --softrnic
#   scripts/two_nodes.sh mpirun nccl-net-ferrite ab --softrnic
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

launcher=${1:-}
case "$launcher" in
torchrun | mpirun | srun) [ $# -ge 2 ] || die "$launcher: name the command that it is to start" ;;
*) die "usage: scripts/two_nodes.sh torchrun|mpirun|srun COMMAND [ARGUMENT...]" ;;
esac
shift
[ "$(id -u)" = 0 ] || die "needs root, to make network namespaces"
command -v ip >/dev/null || die "missing: ip (Debian: iproute2)"
command -v "$launcher" >/dev/null || die "missing: $launcher (Debian: openmpi-bin for mpirun; slurm-client, slurmd, slurmctld and munge for srun)"

work=$(mktemp -d)
chmod 755 "$work"
name=ferrite$$
started=()
undo() {
    local pid node
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait
    for node in 0 1; do
        # Slurm's daemon of a step, for one, has left its parent. All that runs in these namespaces was started here.
        for pid in $(ip netns pids "$name-$node" 2>/dev/null); do
            kill -KILL "$pid" 2>/dev/null || true
        done
        ip netns delete "$name-$node" 2>/dev/null || true
        rm -rf "/etc/netns/$name-$node"
    done
    rm -rf "$work"
}
trap undo EXIT

# -- the hosts --

for node in 0 1; do
    ip netns add "$name-$node"
    mkdir -p "/etc/netns/$name-$node"
    printf '127.0.0.1 localhost\n10.77.0.1 node0\n10.77.0.2 node1\n' >"/etc/netns/$name-$node/hosts"
done
ip -n "$name-0" link add wire type veth peer name wire netns "$name-1"
for node in 0 1; do
    ip -n "$name-$node" link set lo up
    ip -n "$name-$node" address add "10.77.0.$((node + 1))/24" dev wire
    ip -n "$name-$node" link set wire up
done

# `host N COMMAND...` runs it on host N; a program, since launchers call it as well.
cat >"$work/host" <<END
#!/bin/sh
node=\${1#node}
shift
exec ip netns exec $name-\$node unshare --uts sh -c 'hostname node\$0 && exec "\$@"' "\$node" "\$@"
END
chmod +x "$work/host"

# One for both hosts, which is how the software device tells that they are one machine. MASTER_ADDR and the interface are what the recipes set.
export SOFTRNIC_FABRIC=$name NCCL_SOCKET_IFNAME=wire MASTER_ADDR=node0

# -- the launchers --

with_torchrun() {
    local node status=0
    for node in 1 0; do
        "$work/host" "$node" torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint node0:29500 "$@" &
        started+=($!)
    done
    wait "${started[1]}" || status=$?
    wait "${started[0]}" || true
    return "$status"
}

with_mpirun() {
    printf '#!/bin/sh\nhost=$1\nshift\nexec %s/host "$host" sh -c "$*"\n' "$work" >"$work/agent"
    chmod +x "$work/agent"
    "$work/host" 0 mpirun --allow-run-as-root --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include wire --mca btl_tcp_if_include wire \
        -np 2 -H node0:1,node1:1 -x MASTER_ADDR -x SOFTRNIC_FABRIC -x NCCL_SOCKET_IFNAME "$@"
}

# Slurm itself: its controller on host 0, and its daemon on both.
with_srun() {
    local node deadline=$((SECONDS + 30))
    mkdir -p "$work/state" "$work/munge"
    dd if=/dev/urandom of="$work/munge/key" bs=128 count=1 status=none
    chmod 600 "$work/munge/key"
    munged --foreground --force --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munge/pid" \
        --log-file="$work/munge/log" --seed-file="$work/munge/seed" >/dev/null 2>&1 &
    started+=($!)
    cat >"$work/slurm.conf" <<END
ClusterName=ferrite
SlurmctldHost=node0(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
NodeName=node0 NodeAddr=10.77.0.1 CPUs=1
NodeName=node1 NodeAddr=10.77.0.2 CPUs=1
PartitionName=all Nodes=ALL Default=YES State=UP
END
    # Control groups are not used, but a plugin for them is loaded: version 1's does nothing before it is asked to.
    printf 'CgroupPlugin=cgroup/v1\nCgroupMountpoint=%s/cgroup\n' "$work" >"$work/cgroup.conf"
    export SLURM_CONF=$work/slurm.conf
    "$work/host" 0 slurmctld -D >/dev/null 2>&1 &
    started+=($!)
    for node in 0 1; do
        "$work/host" "$node" slurmd -D -N "node$node" >/dev/null 2>&1 &
        started+=($!)
    done
    until [ "$("$work/host" 0 sinfo --noheader --responding --states=idle --format=%D 2>/dev/null)" = 2 ]; do
        [ "$SECONDS" -lt "$deadline" ] || die "Slurm does not start: $(tail -n 3 "$work"/slurm*.log)"
        sleep 0.2
    done
    "$work/host" 0 srun --nodes 2 --ntasks-per-node 1 "$@"
}

"with_$launcher" "$@"
