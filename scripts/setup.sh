#!/usr/bin/env bash
# What building and testing need beside this repository. The other scripts source it, which changes nothing on the machine, and call
# `setup_build`, `setup_fetch` or `setup_tests`: these install what is missing where they may (root on Debian or Ubuntu), and otherwise
# name it.
#
#   scripts/setup.sh             names what is missing for building and for testing; installs nothing; 1: building lacks something

set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}")
export CARGO_TARGET_DIR
RUST_MIN=1.90
PYTHON_MIN=3.10
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/ferrite
# Those of the plugin; none is on by default.
export ALL_FEATURES="rdma-sys bindgen env_logger"

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# -- what is missing --

# The newest directory with a libclang that rdma-sys 0.3.0's old bindgen can use, which the tests are built with.
find_libclang() {
    local dir
    for dir in /usr/lib/llvm-15/lib /usr/lib/llvm-14/lib /usr/lib64/llvm15/lib /usr/lib64/llvm14/lib; do
        # Not libclang-cpp, which comes without the C library that bindgen loads.
        if compgen -G "$dir/libclang.so*" >/dev/null || compgen -G "$dir/libclang-1[45].so*" >/dev/null; then
            echo "$dir"
            return
        fi
    done
}

may_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

# Debian packages for building.
missing_packages() {
    command -v cc >/dev/null || echo gcc
    command -v ld >/dev/null || echo binutils
    [ -e /usr/include/stdio.h ] || echo libc6-dev
}

# Debian packages for fetching stock NCCL.
missing_fetch_packages() {
    python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
}

# Debian packages for testing.
missing_test_packages() {
    missing_fetch_packages
    # For tests/layouts.
    command -v pkg-config >/dev/null || echo pkg-config
    pkg-config --exists libibverbs 2>/dev/null || echo libibverbs-dev
    pkg-config --exists librdmacm 2>/dev/null || echo librdmacm-dev
    [ -n "${LIBCLANG_PATH:-$(find_libclang)}" ] || echo libclang-14-dev
    # For libFuzzer (scripts/nightly.sh).
    command -v c++ >/dev/null || echo g++
    # For tests that are skipped without them.
    if may_install; then
        python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
        command -v ibv_devinfo >/dev/null || echo ibverbs-utils
        compgen -G "/usr/lib/*/libibverbs/libmlx5-rdmav*.so" >/dev/null || echo ibverbs-providers
        command -v ib_write_bw >/dev/null || echo perftest
        command -v rping >/dev/null || echo rdmacm-utils
        command -v ucx_perftest >/dev/null || echo ucx-utils
        command -v fi_pingpong >/dev/null || echo libfabric-bin
        command -v qperf >/dev/null || echo qperf
        command -v mpirun >/dev/null || echo openmpi-bin
        command -v ip >/dev/null || echo iproute2
        command -v mpicc >/dev/null || echo libopenmpi-dev
        command -v rpmbuild >/dev/null || echo rpm
        /usr/bin/python3 -c 'import pyverbs' 2>/dev/null || echo python3-pyverbs
        command -v shellcheck >/dev/null || echo shellcheck
        command -v valgrind >/dev/null || echo valgrind
    fi
}

# is_at_least VERSION MINIMUM
is_at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# The commit of these sources, in 12 digits. `.modified` follows it if files have been changed since; where there is no checkout it is
# what FERRITE_COMMIT says, or `unknown`.
source_commit() {
    # Outside of a checkout git would take one that happens to lie around it.
    local commit
    if [ ! -e .git ] || ! commit=$(git rev-parse HEAD 2>/dev/null); then
        echo "${FERRITE_COMMIT:-unknown}"
        return
    fi
    commit=${commit:0:12}
    [ -z "$(git --no-optional-locks status --porcelain --untracked-files=no)" ] || commit+=.modified
    echo "$commit"
}

# -- installing --

# install_packages [PACKAGE...]: these Debian packages, or those that missing_packages names.
install_packages() {
    local missing=$*
    [ $# -gt 0 ] || missing=$(missing_packages | tr '\n' ' ')
    [ -n "${missing// /}" ] || return 0
    if ! may_install; then
        die "missing: $missing (Debian and Ubuntu package names; as root this script installs them itself)"
    fi
    echo "installing: $missing"
    local log
    log=$(mktemp)
    # shellcheck disable=SC2086
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } \
        >"$log" 2>&1 || die "apt-get cannot install $missing: $(grep -E '^[EW]:' "$log" | tail -n 2)
    It needs a mirror of the system's packages (/etc/apt/sources.list). What is installed in another way is taken as it is"
    rm -f "$log"
}

# rust_pinned: the version in rust-toolchain.toml, which rustup takes.
rust_pinned() {
    sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml
}

# no_rust WHY: ends with the lines that help.
no_rust() {
    die "$1; Rust $RUST_MIN or newer is needed. By rustup, from the system's package or as https://rustup.rs says:
    rustup toolchain install $(rust_pinned) --profile minimal --component clippy,rustfmt
or, where the system's packages are new enough: apt-get install cargo rustfmt rust-clippy"
}

# apt_version PACKAGE: the version that apt-get would install, without what Debian adds; nothing if there is none.
apt_version() {
    apt-cache policy "$1" 2>/dev/null | awk '$1 == "Candidate:" && $2 != "(none)" { sub(/[+~-].*/, "", $2); print $2 }'
}

# What the system's packages have: rustup, which fetches the version of rust-toolchain.toml, or a compiler that is new enough.
install_rust() {
    if ! command -v cargo >/dev/null; then
        may_install || no_rust "missing: cargo"
        apt-get update -qq >/dev/null 2>&1 || true
        local version
        version=$(apt_version rustc)
        if [ -n "$(apt_version rustup)" ]; then
            install_packages rustup
        elif [ -n "$version" ] && is_at_least "$version" "$RUST_MIN"; then
            install_packages cargo rustfmt rust-clippy
        else
            no_rust "missing: cargo, and the system's packages have ${version:-none}"
        fi
    fi
    local said
    # rustup fetches the version here if it is not there.
    said=$(rustc --version 2>&1) || no_rust "rustc cannot be run: $(tail -n 1 <<<"$said")"
    said=$(awk '$1 == "rustc" { print $2 }' <<<"$said")
    is_at_least "$said" "$RUST_MIN" || no_rust "Rust $said is too old"
}

# A slim installation of Rust comes without these.
install_components() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return
    command -v rustup >/dev/null || die "missing: cargo fmt and cargo clippy (Debian: rustfmt rust-clippy)"
    local said
    said=$(rustup component add rustfmt clippy 2>&1) ||
        die "rustup component add rustfmt clippy failed, which needs a network: $(tail -n 1 <<<"$said")"
}

# no_crate CRATE WHY
no_crate() {
    die "cargo install $1 failed, and $2. It needs the network, or a registry that cargo's configuration names (source replacement)"
}

# What runs the tests. A version that is there is taken as it is.
install_nextest() {
    cargo nextest --version >/dev/null 2>&1 && return
    echo "installing: cargo-nextest, built from source once, some minutes"
    cargo install --locked --quiet cargo-nextest || no_crate cargo-nextest "it runs the tests"
}

# What writes the list of dependencies into a binary. Of one version, since what it writes has to be the same in each build.
AUDITABLE=0.6.7
install_auditable() {
    local folder=$CACHE/cargo-auditable-$AUDITABLE
    if [ ! -x "$folder/bin/cargo-auditable" ]; then
        echo "installing: cargo-auditable, built from source once, a minute"
        env -u RUSTFLAGS -u CARGO_TARGET_DIR cargo install --locked --quiet --root "$folder" "cargo-auditable@$AUDITABLE" ||
            no_crate "cargo-auditable@$AUDITABLE" "it writes the list of dependencies into the portable build"
    fi
    export PATH=$folder/bin:$PATH
}

# What changes the protocol in small ways, to see whether its tests notice: its program is printed.
MUTANTS=27.1.0
install_mutants() {
    local folder=$CACHE/cargo-mutants-$MUTANTS
    [ -x "$folder/bin/cargo-mutants" ] || env -u RUSTFLAGS -u CARGO_TARGET_DIR cargo install --locked --quiet --root "$folder" "cargo-mutants@$MUTANTS" ||
        no_crate "cargo-mutants@$MUTANTS" "it changes the protocol in small ways"
    echo "$folder/bin/cargo-mutants"
}

# What makes a site of the pages: its program is printed.
MDBOOK=0.4.52
install_mdbook() {
    local folder=$CACHE/mdbook-$MDBOOK
    [ -x "$folder/bin/mdbook" ] || env -u RUSTFLAGS -u CARGO_TARGET_DIR cargo install --locked --quiet --root "$folder" "mdbook@$MDBOOK" ||
        no_crate "mdbook@$MDBOOK" "it makes a site of the pages"
    echo "$folder/bin/mdbook"
}

# What checks the licences and the sources of dependencies (deny.toml): its program is printed.
DENY=0.20.2
install_deny() {
    local folder=$CACHE/cargo-deny-$DENY
    # Without optimisation it is made in a minute, and takes two seconds.
    [ -x "$folder/bin/cargo-deny" ] || env -u RUSTFLAGS -u CARGO_TARGET_DIR cargo install --debug --locked --quiet --root "$folder" "cargo-deny@$DENY" ||
        no_crate "cargo-deny@$DENY" "it checks the dependencies"
    echo "$folder/bin/cargo-deny"
}

# The folder of a virtual environment for a list of packages, by default scripts/requirements.txt, and this Python.
python_tools() {
    echo "$CACHE/python-$(sha256sum < <(cat "${1:-scripts/requirements.txt}" && python3 --version) | cut -c 1-12)"
}

# Makes it. Where that cannot be done, without pip or a network, the tests that need it say so.
install_python_tools() {
    local list=${1:-scripts/requirements.txt} folder fresh
    folder=$(python_tools "$list")
    [ ! -e "$folder/complete" ] || return 0
    mkdir -p "$CACHE"
    fresh=$(mktemp -d -p "$CACHE")
    if python3 -m venv "$fresh" && "$fresh/bin/python" -m pip install --quiet --disable-pip-version-check -r "$list"; then
        touch "$fresh/complete"
        # Another run may have made it meanwhile.
        mv -T "$fresh" "$folder" 2>/dev/null || [ -e "$folder/complete" ]
    else
        echo "what $list lists cannot be installed here" >&2
    fi
    rm -rf "$fresh"
}

# -- steps that the other scripts call --

# setup_build: all that building needs.
setup_build() {
    install_packages
    install_rust
}

# install_target TARGET: Rust's standard library for another processor.
install_target() {
    [ ! -d "$(rustc --print target-libdir --target "$1")" ] || return 0
    command -v rustup >/dev/null || die "missing: Rust's standard library for $1 (rustup target add $1)"
    echo "installing: Rust's standard library for $1"
    local said
    said=$(timeout 300 rustup target add "$1" 2>&1) || die "rustup target add $1 failed: $(tail -n 1 <<<"$said")"
}

# setup_portable [TARGET]: the compilers that build for other machines than this one, first in PATH, and what lists dependencies.
setup_portable() {
    [ $# = 0 ] || install_target "$1"
    install_python_tools scripts/portable.txt
    local folder
    folder=$(python_tools scripts/portable.txt)
    [ -e "$folder/complete" ] || die "missing: what scripts/portable.txt lists (pip installs it into a virtual environment)"
    export PATH=$folder/bin:$PATH
    install_auditable
}

# setup_fetch: all that `ferrite` needs to fetch stock NCCL.
setup_fetch() {
    local missing
    missing=$(missing_fetch_packages)
    [ -z "$missing" ] || install_packages "$missing"
}

# setup_tests: all that testing needs but install_python_tools, which takes a while and can run beside other things.
setup_tests() {
    local missing
    missing=$(missing_packages && missing_test_packages)
    # shellcheck disable=SC2086
    [ -z "$missing" ] || install_packages $missing
    setup_build
    install_components
    install_nextest
    export LIBCLANG_PATH=${LIBCLANG_PATH:-$(find_libclang)}
    # A file or a directory may be named.
    compgen -G "${LIBCLANG_PATH%/}/libclang.so*" >/dev/null || compgen -G "${LIBCLANG_PATH%/}/libclang-[0-9]*.so*" >/dev/null ||
        [ -f "$LIBCLANG_PATH" ] ||
        die "LIBCLANG_PATH=$LIBCLANG_PATH: no libclang.so there; name the directory that holds libclang 14 or 15, or unset it"
    local version
    version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    is_at_least "$version" "$PYTHON_MIN" || die "Python $version is too old: $PYTHON_MIN or newer is needed"
}

# shellcheck disable=SC1091
[ ! -f "$HOME/.cargo/env" ] || . "$HOME/.cargo/env"
# What the user chose is taken as it is.
found=$(find_libclang)
[ -z "$found" ] || export LIBCLANG_PATH=${LIBCLANG_PATH:-$found}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    missing=$(missing_packages)
    command -v cargo >/dev/null || missing+=$'\n'"Rust $RUST_MIN or newer, by rustup or from the system's packages"
    echo "missing for building: $(xargs <<<"${missing:-nothing}")"
    for_tests=$(missing_test_packages)
    cargo nextest --version >/dev/null 2>&1 || for_tests+=$'\n'cargo-nextest
    echo "missing for testing: $(xargs <<<"${for_tests:-nothing}")"
    [ -z "$missing" ]
fi
