#!/usr/bin/env bash
# Builds everything and fills a folder with it:
#   lib/libnccl-net.so               the plugin, and the link libnccl-net-ferrite.so
#   softrnic/libibverbs.so.1         the software RDMA device, and the link libibverbs.so
#   softrnic-tools/                  the same for RDMA tools (ibv_devinfo, perftest), also as librdmacm.so.1; not for NCCL
#   softrnic-provider/               softrnic under the system's own libibverbs and its driver library (softrnic run --provider); on
#                                    x86_64
#   bin/ferrite                      the companion
#   bin/softrnic                     runs programs on the software device, and controls its network
#
#   scripts/build.sh [--into DIR]                for this machine, into dist/ or DIR
#   scripts/build.sh --libraries DIR             only the libraries, into DIR
#   scripts/build.sh --programs DIR              puts the programs into DIR as the tests have been built: without optimisation
#   scripts/build.sh --portable DIR [PROCESSOR]  for every Linux with glibc 2.17 or newer on this processor, or on x86_64 or aarch64,
#                                                into DIR: by the compilers of scripts/portable.txt, which are fetched once
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

processor=${3:-$(uname -m)}
portable=""
# libraries: whether they are built. programs: the folder below target/ whose programs are taken ("": none). own_target: the folder below
# target/ to build in.
libraries=1 programs=release own_target=""
case "$# ${1:-}" in
"0 ") dist=dist ;;
"2 --into") dist=$2 ;;
"2 --libraries")
    dist=$2 programs=""
    # Without the programs, fewer features of dependencies are turned on: what is built is kept apart, or each kind would undo the other.
    own_target=libraries
    ;;
"2 --programs") dist=$2 libraries="" programs=debug ;;
"2 --portable" | "3 --portable") dist=$2 portable=1 ;;
*) die "usage: scripts/build.sh [--into DIR | --libraries DIR | --programs DIR | --portable DIR [PROCESSOR]]" ;;
esac
[ -z "$portable" ] || [[ $processor =~ ^(x86_64|aarch64)$ ]] || die "PROCESSOR=$processor: x86_64 or aarch64"

setup_build
export CARGO_TARGET_DIR=$CARGO_TARGET_DIR${own_target:+/$own_target}
build=(build)
release=release
if [ -n "$portable" ]; then
    target=$processor-unknown-linux-gnu
    setup_portable "$target"
    build=(auditable zigbuild --target "$target.2.17")
    release=$target/release programs=$release
    # Of its own, since the flags are others; and nothing that is built tells where it was built.
    export CARGO_TARGET_DIR=$CARGO_TARGET_DIR/portable
    export RUSTFLAGS="--remap-path-prefix=$ROOT=/ferrite --remap-path-prefix=$CARGO_TARGET_DIR=/target --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
    export CFLAGS="-ffile-prefix-map=$ROOT=/ferrite"
fi

# put FILE TARGET: with the commit in it (src/version.rs). By rename, so that a process that has the old file mapped keeps it.
commit=$(source_commit)
[[ $commit =~ ^[0-9a-z.]{1,33}$ ]] || die "FERRITE_COMMIT=$commit: 1 to 33 digits, small letters and dots are allowed"
stamp=$(printf '%-33s' "$commit" | tr ' ' _)
put() {
    mkdir -p "$(dirname "$2")"
    cp "$1" "$2.new"
    # Programs without optimisation are a third smaller without symbols; a test packs them.
    [ "$programs" != debug ] || strip "$2.new"
    LC_ALL=C sed -i "s/\(ferrite-version=[0-9A-Za-z.-]*+\)unknown_\{26\}/\1$stamp/" "$2.new"
    mv "$2.new" "$2"
}
built=()
if [ -n "$libraries" ]; then
    # Not the whole workspace: what only tests need takes as long again.
    packages=(-p nccl-net-ferrite -p softrnic)
    provider=""
    [ "$processor" != x86_64 ] || provider=1
    [ -z "$provider" ] || packages+=(-p softrnic-provider)
    [ -z "$programs" ] || packages+=(-p softrnic-cli -p ferrite)
    echo "building ${packages[*]} in $CARGO_TARGET_DIR; this takes some minutes if nothing is built yet" >&2
    cargo "${build[@]}" --release "${packages[@]}" --locked --quiet
    # In a folder of its own, since the file has the same name.
    cargo "${build[@]}" --release -p softrnic --features tools --target-dir "$CARGO_TARGET_DIR/tools" --locked --quiet
    put "$CARGO_TARGET_DIR/$release/libnccl_net.so" "$dist/lib/libnccl-net.so"
    put "$CARGO_TARGET_DIR/$release/libibverbs.so" "$dist/softrnic/libibverbs.so.1"
    put "$CARGO_TARGET_DIR/tools/$release/libibverbs.so" "$dist/softrnic-tools/libibverbs.so.1"
    ln -sfn libnccl-net.so "$dist/lib/libnccl-net-ferrite.so"
    ln -sfn libibverbs.so.1 "$dist/softrnic/libibverbs.so"
    ln -sfn libibverbs.so.1 "$dist/softrnic-tools/libibverbs.so"
    ln -sfn libibverbs.so.1 "$dist/softrnic-tools/librdmacm.so.1"
    built+=(lib/libnccl-net.so softrnic/libibverbs.so.1 softrnic-tools/libibverbs.so.1)
    if [ -n "$provider" ]; then
        put "$CARGO_TARGET_DIR/$release/libsoftrnic_provider.so" "$dist/softrnic-provider/libsoftrnic-provider.so"
        built+=(softrnic-provider/libsoftrnic-provider.so)
    fi
fi
if [ -n "$programs" ]; then
    [ -x "$CARGO_TARGET_DIR/$programs/ferrite" ] && [ -x "$CARGO_TARGET_DIR/$programs/softrnic" ] ||
        die "$CARGO_TARGET_DIR/$programs: no programs there; scripts/test.sh builds them, or cargo build --bins"
    put "$CARGO_TARGET_DIR/$programs/ferrite" "$dist/bin/ferrite"
    put "$CARGO_TARGET_DIR/$programs/softrnic" "$dist/bin/softrnic"
    built+=(bin/ferrite bin/softrnic)
fi
if [ -n "$portable" ]; then
    for file in "${built[@]}"; do
        grep -q '\.dep-v0' "$dist/$file" || die "$dist/$file: cargo-auditable has written no list of dependencies into it"
    done
fi
echo "built: ${built[*]/#/$dist/}"
