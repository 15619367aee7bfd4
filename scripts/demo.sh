#!/usr/bin/env bash
# The main job: builds everything, then compares Ferrite with the IB transport inside stock NCCL 2.21.5, both moving the
# same checked bytes over the same software RDMA device. Arguments go to `ferrite compare`, whose exit code is this script's:
# 0: as good or better, 1: worse, 2: not valid, 3: too few runs to tell.
#
#   scripts/demo.sh [ARGUMENT...]
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
setup_fetch
scripts/build.sh
exec dist/bin/ferrite compare "$@"
