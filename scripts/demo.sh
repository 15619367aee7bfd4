#!/usr/bin/env bash
# The main job: builds everything, then compares Ferrite with the IB transport inside stock NCCL 2.21.5, both moving the
# same checked bytes over the same software RDMA device. Arguments go to `ferrite compare`. Its last lines say what the result is.
# Exit code 0: the data is right and nothing was found worse, on a busy machine too, where small differences stay undecided (3 of
# `ferrite compare`). Every other code is that of `ferrite compare`: 1: worse, or wrong data; 2: not valid.
#
#   scripts/demo.sh [ARGUMENT...]
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
setup_fetch
scripts/build.sh
for argument in "$@"; do
    [[ ! $argument =~ ^(-h|--help)$ ]] || exec dist/bin/ferrite compare "$@"
done

code=0
dist/bin/ferrite compare "$@" || code=$?
echo
case $code in
0)
    echo "Result: PASSED. The data is right, and Ferrite was not found worse. The verdict above says more."
    echo "Next: README.md, \"Install\". All figures are in the report named above."
    ;;
3)
    code=0
    echo "Result: UNDECIDED. The data is right, and Ferrite was not found worse. This machine was too busy to tell small differences."
    echo "Next: run it again while nothing else runs. All figures are in the report named above."
    ;;
1)
    echo "Result: FAILED. Ferrite was found worse, or data was wrong. The last lines above say where."
    echo "Next: run it again while nothing else runs. If it stays, open an issue and attach the report."
    ;;
130) echo "Result: none. The run was interrupted." ;;
*)
    echo "Result: none. The comparison could not be made. The last lines above say why."
    echo "Next: correct that, and run it again."
    ;;
esac
exit "$code"
