# shellcheck shell=bash
# Packages of a Debian release, whatever this machine's own release is, unpacked in a folder in which programs run.
# It needs Debian or Ubuntu's apt-get with a mirror of Debian among its sources, and user namespaces (or root).

# debian_get SUITE FOLDER PACKAGE[=VERSION]...: downloads packages into FOLDER/packages and unpacks them in FOLDER/tree.
debian_get() {
    local suite=$1 folder=$2 mirror apt
    shift 2
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep '/debian/*$' | head -1)
    [ -n "$mirror" ] || { echo "apt-get has no mirror of Debian"; return 2; }
    mkdir -p "$folder"/{packages,root,lists/partial,cache/archives/partial}
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$folder/sources.list"
    apt=(-o Dir::Etc::SourceList="$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$folder/lists"
        -o Dir::State::status=/dev/null -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none
        -o Acquire::Check-Valid-Until=false)
    apt-get "${apt[@]}" -qq update >/dev/null || return 2
    (cd "$folder/packages" && apt-get "${apt[@]}" -qq download "$@" >/dev/null) || return 2
    local package
    # Where /lib and /lib64 are links to folders below /usr, the files of older packages have to get there as well.
    mkdir -p "$folder"/tree/{usr/lib,usr/lib64,usr/bin,usr/sbin,dev,proc,tmp}
    for package in lib lib64 bin sbin; do [ -e "$folder/tree/$package" ] || ln -s "usr/$package" "$folder/tree/$package"; done
    for package in "$folder"/packages/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -C "$folder/tree" --keep-directory-symlink --no-same-owner -xf - || return 2
    done
}

# debian_run FOLDER [VARIABLE=VALUE]... COMMAND...: runs a command in FOLDER/tree with these variables alone, in namespaces of its own.
debian_run() {
    local root=$1/tree variables=()
    shift
    while [[ $1 == *=* ]]; do variables+=("$1"); shift; done
    # shellcheck disable=SC2016
    unshare --user --map-root-user --mount sh -c '
        mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" && shift && exec "$@"' \
        sh "$root" env -i "${variables[@]}" "$(command -v chroot)" "$root" "$@"
}
