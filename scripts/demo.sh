#!/usr/bin/env bash
# The main job: builds everything, then compares Ferrite with the IB transport inside stock NCCL 2.21.5, both moving the
# same checked bytes over the same software RDMA device. Arguments go to `ferrite compare`.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
scripts/build.sh
exec dist/bin/ferrite compare "$@"
