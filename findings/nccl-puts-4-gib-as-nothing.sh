#!/usr/bin/env bash
# A one-sided put of 4 GiB over NCCL's built-in InfiniBand transport writes nothing, completes, and signals the peer.
#
# One expects: a put of 4 GiB is written as a whole, or is an error. NCCL's buffers may be larger, and its other operations take any size.
# What happens: the transport puts the size into a field of 32 bits. Of 4 GiB nothing is written, of 4 GiB and 8 bytes the first 8. The
#   signal follows, and the put completes. No line is logged. All releases that have one-sided operations do so.
# What follows: split the data of ncclPutSignal into pieces below 2 GiB, the longest message of a queue pair. By NCCL's sources,
#   ncclPutSignal passes sizes on as they are. The puts of GPU kernels are cut at 1 GiB.
#
# Seen with nvidia-nccl-cu12 2.29.7, 2.30.7, 2.31.2 and 2.32.3, by the transport's own functions, over a stand-in for libibverbs with one
# port that reaches the process itself. The script needs 2 MiB of memory; a release that writes all needs 4 GiB.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/fabric.sh
. "$here/fabric.sh"

fabric_get
for release in 2.29.7 2.30.7 2.31.2 2.32.3; do
    nccl_get "$release"
    seen=$(fabric_run "$release" <<'P'
import sys
from one_sided import Rank

rank = Rank(sys.argv[1])
(source, from_here), (target, to_there), (words, signals) = (rank.window(size) for size in ((4 << 30) + 4096, (4 << 30) + 4096, 4096))
source[:4096] = b"\1" * 4096
for size in (4096, 4 << 30, (4 << 30) + 8):
    target[:4096] = bytes(4096)
    end = rank.test(rank.put(from_here, to_there, size, signals))
    written = target[:4096].count(1)
    print(f"{size} bytes: {end}, signals: {words[0]}, written of the first 4096: {written}")
P
    )
    compare "NCCL $release" "$seen" "4096 bytes: done, signals: 1, written of the first 4096: 4096
4294967296 bytes: done, signals: 2, written of the first 4096: 0
4294967304 bytes: done, signals: 3, written of the first 4096: 8"
    rm -rf "$folder/nccl-$release"
done
exit "$status"
