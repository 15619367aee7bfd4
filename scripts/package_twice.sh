#!/usr/bin/env bash
# Builds the packages of the last commit twice, in clones that lie in different folders, and compares them bit by bit.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ $# = 0 ] || die "usage: scripts/package_twice.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for clone in one another/of_a_longer_name; do
    git clone --quiet "$ROOT" "$work/$clone"
    # What a user has set must not show either.
    umask "$([ "$clone" = one ] && echo 022 || echo 027)"
    CARGO_TARGET_DIR=$work/$clone/target "$work/$clone/scripts/package.sh"
done
cmp "$work/one/packages/SHA256SUMS" "$work/another/of_a_longer_name/packages/SHA256SUMS" ||
    die "the two builds differ: $(diff "$work/one/packages/SHA256SUMS" "$work/another/of_a_longer_name/packages/SHA256SUMS" | tr '\n' ' ')"
echo "the same bits"
