#!/usr/bin/env bash
# Makes a release of the last commit: checks that all files name this version, builds the packages, compares the plugin with that of
# the last release, leaves one folder to publish, packages/vVERSION, and makes the tag. It pushes nothing.
#
#   scripts/release.sh [--dry-run|--tagged] [--without aarch64] VERSION
#
#   --dry-run            checks, and says what would be done; builds and tags nothing
#   --tagged             for the hosted workflow: makes the folder of the tag that is checked out, whose message has the same checksums
#   --without aarch64    for a machine that cannot build for 64-bit ARM
#
# The folder has all packages, SHA256SUMS, and NOTES.md from CHANGELOG.md. 1: something is in the way; all of it is named.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage="usage: scripts/release.sh [--dry-run|--tagged] [--without aarch64] VERSION"
dry_run="" tagged="" version="" processors=(x86_64 aarch64)
while [ $# -gt 0 ]; do
    case "$1" in
    --dry-run) dry_run=1 ;;
    --tagged) tagged=1 ;;
    --without)
        [ "${2:-}" = aarch64 ] || die "$usage"
        processors=(x86_64)
        shift
        ;;
    -*) die "$usage" ;;
    *) [ -z "$version" ] && version=$1 || die "$usage" ;;
    esac
    shift
done
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-rc\.[0-9]+)?$ ]] || die "VERSION=$version: such as 0.1.0 or 0.1.0-rc.1. $usage"
[ -z "$dry_run" ] || [ -z "$tagged" ] || die "$usage"
tag=v$version
folder=packages/$tag

# -- what is in the way --

problems=0
wrong() {
    echo "in the way: $*" >&2
    problems=$((problems + 1))
}

git rev-parse --verify --quiet HEAD >/dev/null || die "a release is made of a commit, and $ROOT has none"
changed=$(git status --porcelain)
[ -z "$changed" ] || wrong "files that are in no commit: $(awk '{ print $2 }' <<<"$changed" | xargs)"
if [ -z "$tagged" ]; then
    ! git rev-parse --verify --quiet "refs/tags/$tag" >/dev/null || wrong "the tag $tag is there: it is of $(git log -1 --format=%h "$tag")"
elif [ "$(git rev-parse --verify --quiet "refs/tags/$tag^{commit}")" != "$(git rev-parse HEAD)" ]; then
    wrong "no tag $tag of $(git log -1 --format=%h); without --tagged it is made"
fi

cargo=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
[ "$cargo" = "$version" ] || wrong "Cargo.toml has the version $cargo"
# The first heading with a version; above it nothing may wait for a release.
heading=$(grep -m 1 -E '^## [0-9]' CHANGELOG.md || echo "none")
[[ $heading =~ ^##\ ([^ ]+)\ -\ [0-9]{4}-[0-9]{2}-[0-9]{2}$ && ${BASH_REMATCH[1]} = "$version" ]] ||
    wrong "CHANGELOG.md's newest release is \"$heading\", and should be \"## $version - $(date -u +%F)\""
waiting=$(sed -n '/^## Unreleased/,/^## [0-9]/p' CHANGELOG.md | grep -c '^- ' || true)
[ "$waiting" = 0 ] || wrong "CHANGELOG.md has $waiting entries under \"Unreleased\""
protocol=$(sed -n 's/^pub const PROTOCOL_VERSION: u16 = \([0-9]*\);$/\1/p' crates/proto/src/lib.rs)
grep -q "^| $version | $protocol |" docs/releases.md ||
    wrong "docs/releases.md has no row \"| $version | $protocol |\", which is the version of the wire protocol in crates/proto/src/lib.rs"
# Names of packages and of images.
others=$(grep -osE '(ferrite[-_:]|softrnic-|/v)[0-9]+\.[0-9]+\.[0-9]+(-rc\.[0-9]+)?' README.md docs/install.md scripts/container/* |
    grep -vE "[-_:v]${version//./\\.}\$" | cut -d : -f 1 | uniq) || true
[ -z "$others" ] || wrong "$(xargs <<<"$others"): names of packages of another version"

compiler=$(rustc --version 2>/dev/null | awk '{ print $2 }')
[ "$compiler" = "$(rust_pinned)" ] || wrong "Rust is ${compiler:-missing}, and rust-toolchain.toml says $(rust_pinned)"
for processor in "${processors[@]}"; do
    target=$processor-unknown-linux-gnu
    [ -d "$(rustc --print target-libdir --target "$target" 2>/dev/null)" ] ||
        wrong "Rust's standard library for $processor is missing: rustup target add $target$([ "$processor" = x86_64 ] || echo ", or --without $processor")"
done
command -v rpmbuild >/dev/null || wrong "rpmbuild is missing, which makes the .rpm (Debian: rpm)"
[ "$problems" = 0 ] || die "$problems things are in the way of $version"

# -- what is done --

last=$(git describe --tags --abbrev=0 --match 'v[0-9]*' --exclude "$tag" 2>/dev/null || true)
if [ -n "$dry_run" ]; then
    echo "nothing is in the way of $version, of $(git log -1 --format=%h). Without --dry-run:"
    for processor in "${processors[@]}"; do
        echo "  scripts/package.sh $processor"
    done
    if [ -n "$last" ]; then echo "  scripts/compatible.sh, with the plugin of $last"; else echo "  no older release to compare with"; fi
    echo "  $folder: the packages, SHA256SUMS and NOTES.md"
    echo "  git tag --annotate $tag"
    exit
fi

for processor in "${processors[@]}"; do
    scripts/package.sh "$processor"
    (cd "packages/$processor" && sha256sum --check --quiet SHA256SUMS)
done
here=packages/$(uname -m)/built
commit=$(git rev-parse --short=12 HEAD)
built=$("$here/bin/ferrite" -V)
[ "$built" = "ferrite $version+$commit" ] || die "$here/bin/ferrite is $built, and not $version+$commit"

if [ -n "$last" ]; then
    base=${FERRITE_BASE_PLUGIN:-}
    if [ -z "$base" ]; then
        older=$CARGO_TARGET_DIR/release-$last
        rm -rf "$older"
        git clone --quiet --branch "$last" "$ROOT" "$older"
        CARGO_TARGET_DIR=$older/target "$older/scripts/build.sh" --into "$older/dist"
        base=$older/dist/lib/libnccl-net.so
    fi
    FERRITE_DIST=$ROOT/$here scripts/compatible.sh "$base"
else
    echo "no older release to compare with"
fi

# -- the folder --

rm -rf "$folder"
mkdir -p "$folder"
for processor in "${processors[@]}"; do
    awk '{ print $2 }' "packages/$processor/SHA256SUMS" | (cd "packages/$processor" && xargs cp -t "$ROOT/$folder")
done
# Links of the repository lead nowhere there.
{
    echo "Wire protocol $protocol. Check the files with \`sha256sum -c SHA256SUMS\`."
    sed -n "/^## $version - /,/^## /p" CHANGELOG.md | sed '/^## /d; s/\[\([^]]*\)\]([^):]*)/\1/g'
} >"$folder/NOTES.md"
sums=$(cd "$folder" && LC_ALL=C && sha256sum -- *)
echo "$sums" >"$folder/SHA256SUMS"

if [ -n "$tagged" ]; then
    differing=$(grep -vxFf <(git for-each-ref --format='%(contents)' "refs/tags/$tag") <<<"$sums" | awk '{ print $2 }') || true
    [ -z "$differing" ] || die "the message of the tag $tag has other checksums: $(xargs <<<"$differing")"
    echo "$folder is that of the tag $tag"
else
    git tag --annotate "$tag" --message "Ferrite $version, wire protocol $protocol" --message "$sums"
    echo "$tag is of $commit. To publish it: git push origin $tag, and $folder"
fi
