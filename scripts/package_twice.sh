#!/usr/bin/env bash
# Builds the packages of the last commit twice, in clones that lie in different folders, and compares them bit by bit.
#
#   scripts/package_twice.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ $# = 0 ] || die "usage: scripts/package_twice.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for clone in one another/of_a_longer_name; do
    git clone --quiet "$ROOT" "$work/$clone"
    # What a user has set must not show either.
    umask "$([ "$clone" = one ] && echo 022 || echo 027)"
    for processor in x86_64 aarch64; do
        CARGO_TARGET_DIR=$work/$clone/target "$work/$clone/scripts/package.sh" "$processor"
    done
done
for processor in x86_64 aarch64; do
    one=$work/one/packages/$processor/SHA256SUMS another=$work/another/of_a_longer_name/packages/$processor/SHA256SUMS
    cmp "$one" "$another" || die "the two builds differ: $(diff "$one" "$another" | tr '\n' ' ')"
    cat "$one"
done
echo "the same bits"
