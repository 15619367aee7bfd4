#!/usr/bin/env bash
# Makes all packages that are released, in packages/: tarballs, wheel, .deb, .rpm (where rpmbuild is), image, bill of materials,
# SHA256SUMS. What is built depends on the commit and the Rust compiler alone: another folder, day or user makes the same bits.
#
#   scripts/package.sh [PROCESSOR]   builds for glibc 2.17 and this processor, or for x86_64 or aarch64 into packages/PROCESSOR/, and packs it
#   scripts/package.sh --built DIR   packs what scripts/build.sh has built in DIR, for this machine's glibc
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

case "$# ${1:-}" in
"0 " | "1 x86_64" | "1 aarch64")
    out=packages${1:+/$1}
    built=$out/built
    processor=${1:-$(uname -m)}
    rm -rf "$built"
    scripts/build.sh --portable "$built" "$processor"
    setup_portable
    compiler=(python3 -m ziglang cc -target "$processor-linux-musl" -s)
    ;;
"2 --built")
    out=packages
    built=$2
    processor=$(uname -m)
    compiler=(cc)
    ;;
*) die "usage: scripts/package.sh [--built DIR | x86_64 | aarch64]" ;;
esac

# Every file has the time of the commit.
if [ -z "${SOURCE_DATE_EPOCH:-}" ] && [ -e .git ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
fi
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The programs write their man pages and completions themselves, and have to run here for that: for another processor they are built for
# this one too.
here=$built
if [ "$processor" != "$(uname -m)" ]; then
    here=$CARGO_TARGET_DIR/portable/$(uname -m)-dist
    scripts/build.sh --portable "$here" "$(uname -m)"
fi
share=$work/share
mkdir -p "$share"/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
for program in ferrite softrnic; do
    "$here/bin/$program" man "$share/man/man1"
    "$here/bin/$program" completions bash >"$share/bash-completion/completions/$program"
    "$here/bin/$program" completions zsh >"$share/zsh/site-functions/_$program"
    "$here/bin/$program" completions fish >"$share/fish/vendor_completions.d/$program.fish"
done
"${compiler[@]}" -static -Os -Wall -o "$work/copy" scripts/container/copy.c
python3 scripts/packages.py --built "$built" --copy "$work/copy" --share "$share" \
    --out "${FERRITE_PACKAGES:-$out}"
