#!/usr/bin/env bash
# perftest's `-s 1G` measures messages of one byte, and `-s 64k` messages of 64 bytes: only capital K and M multiply.
#
# One expects: sizes as elsewhere, 64k, 64KB or 1G, or an error.
# What happens: K and M as the last letter are 2^10 and 2^20. Any other letter, and all that follows the number, is ignored without a message. So 64k and
#   64KB are 64, 1G is 1, and 9000.9K is 9000K. Of the numbers among the options, the size is not checked: `-n 5k` is an error.
# What follows: a bandwidth that is far too low, which looks like a slow link. The column #bytes of the result has the real size. Write bytes.
#
# Seen with ib_write_bw of perftest 4.5+0.17 and 25.01.0, with a stand-in for the kernel's side of a card. The region that perftest registers shows
# the size: it has twice the size, rounded up to whole cache lines, and at least two pages.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
# measure SUITE ARGUMENT...: ib_write_bw; it ends by itself, since this card has no address.
measure() {
    debian_run "$folder/$1" CARD=mlx5 CARD_TELLS=1 SYSFS_PATH=/card/mlx5 \
        /lib64/ld-linux-x86-64.so.2 --preload /card/card.so /usr/bin/ib_write_bw --port "$port" "${@:2}" 2>&1
}
# region SUITE SIZE: the size of the region that a client registers.
region() {
    measure "$1" --size "$2" >"$folder/server" &
    local server=$! output=
    for _ in {1..100}; do
        output=$(measure "$1" --size "$2" 127.0.0.1) || true
        [[ $output == *"card: region"* ]] && break
        sleep 0.1
    done
    wait "$server" || true
    sed -n 's/^card: region of //p' <<<"$output" | head -1
}
for version in bookworm=44.0-2=4.5+0.17-1=librdmacm1 trixie=56.1-1=25.01.0+0.80-1=librdmacm1t64; do
    IFS='=' read -r suite core perftest rdmacm <<<"$version"
    verbs_get "$suite" "$core" "perftest=$perftest" "$rdmacm" libibumad3 libpci3 libudev1 libcap2
    seen=$(for size in 9000 9000K 9000k 9000KB 9000G 9000.9K 2M 2m; do echo "-s $size: $(region "$suite" "$size")"; done)
    seen+=$'\n'"-n 5k:$(measure "$suite" --iters 5k 127.0.0.1 | sed -n '1s/ should be.*//p' || true)"
    compare "perftest $perftest" "$seen" "-s 9000: 18048 bytes
-s 9000K: 18432000 bytes
-s 9000k: 18048 bytes
-s 9000KB: 18048 bytes
-s 9000G: 18048 bytes
-s 9000.9K: 18432000 bytes
-s 2M: 4194304 bytes
-s 2m: 8192 bytes
-n 5k: Iteration num argument 5k"
done
exit "$status"
