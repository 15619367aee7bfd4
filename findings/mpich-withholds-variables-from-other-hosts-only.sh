#!/usr/bin/env bash
# MPICH's `mpiexec -genvlist` and `-genvnone` withhold variables from ranks on other hosts. Ranks on the host of mpiexec get all variables.
#
# One expects: "do not pass any environment variables", or only those of a list, to all ranks alike.
# What happens: on its own host, mpiexec starts the ranks as its descendants, and they inherit what the user has set. Ranks on other hosts
#   get the list alone. -envlist and -envnone do the same. No message says so. The default, all variables for all, is uniform.
# What follows: a list that forgets NCCL_NET, NCCL_IB_HCA or NCCL_PROTO leads to ranks of one job with different settings. On one host the
#   error does not show. Name all in the list, or start mpiexec itself with `env -i` and the variables that count.
#
# Seen with mpich 4.3.2 and 5.0.2. A script that clears the environment stands in for ssh and the other host.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/ssh" <<'SH'
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec env -i PATH="$PATH" sh -c "$*"
SH
chmod +x "$folder/ssh"
for release in 4.3.2 5.0.2; do
    python3 -m venv "$folder/$release"
    "$folder/$release/bin/python" -m pip install --quiet --no-deps "mpich==$release" 2>/dev/null
    # shellcheck disable=SC2016
    ranks() {
        env -i PATH="$PATH" NCCL_IB_HCA=mlx5_0 NCCL_NET=IB "$folder/$release/bin/mpiexec" -launcher ssh -launcher-exec "$folder/ssh" \
            -hosts localhost,127.0.0.2 -ppn 1 -n 2 "$@" sh -c 'echo rank "$PMI_RANK": $(env | grep ^NCCL_ | sort)' | sort
    }
    seen=$(for options in "" -genvall "-genvlist NCCL_IB_HCA" -genvnone "-envlist NCCL_IB_HCA" -envnone; do
        echo "\"$options\""
        # shellcheck disable=SC2086
        ranks $options
    done)
    compare "MPICH $release" "$seen" '""
rank 0: NCCL_IB_HCA=mlx5_0 NCCL_NET=IB
rank 1: NCCL_IB_HCA=mlx5_0 NCCL_NET=IB
"-genvall"
rank 0: NCCL_IB_HCA=mlx5_0 NCCL_NET=IB
rank 1: NCCL_IB_HCA=mlx5_0 NCCL_NET=IB
"-genvlist NCCL_IB_HCA"
rank 0: NCCL_IB_HCA=mlx5_0 NCCL_NET=IB
rank 1: NCCL_IB_HCA=mlx5_0
"-genvnone"
rank 0: NCCL_IB_HCA=mlx5_0 NCCL_NET=IB
rank 1:
"-envlist NCCL_IB_HCA"
rank 0: NCCL_IB_HCA=mlx5_0 NCCL_NET=IB
rank 1: NCCL_IB_HCA=mlx5_0
"-envnone"
rank 0: NCCL_IB_HCA=mlx5_0 NCCL_NET=IB
rank 1:'
done
exit "$status"
