#!/usr/bin/env python3
"""Makes the packages of what scripts/build.sh has built, and SHA256SUMS of them. scripts/package.sh starts it.

Exit code 0: made. 2: it could not be.
"""

import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from nccl_net_ferrite import elf, exit_codes, files
from nccl_net_ferrite.exit_codes import Invalid
from nccl_net_ferrite.repository import HERE, JOB, ROOT

# -- what is released: its name, its version, and every file with its place. All packages are made from this --

NAME = "nccl-net-ferrite"
# Of the package that has the software RDMA device alone.
DEVICE = "softrnic"
SUMMARY = "A network plugin for NCCL over RDMA verbs"
TEXT = """Ferrite is a network plugin for NCCL: one shared library, libnccl-net.so, that moves
NCCL's data over RDMA verbs (InfiniBand and RoCE). With it come ferrite, which checks,
measures and compares transports; softrnic, a software RDMA device for tests; and
programs that compare it with NCCL's built-in transport inside PyTorch."""
LICENCE = "MIT OR Apache-2.0"
MAINTAINER = "The Ferrite authors"
# The programs in Python.
PYTHON = ("*.py", "*.c")
# Debian's names of machines.
DEBIAN_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Entry:
    """A file, or a link to another one."""

    path: str
    content: bytes = b""
    executable: bool = False
    link: str = ""  # where it leads to; "" for a file

    def below(self, folder: str) -> "Entry":
        return replace(self, path=f"{folder}/{self.path}")


@dataclass(frozen=True)
class Release:
    version: str  # such as 0.1.0
    build: str  # the same with the commit, such as 0.1.0+0123456789ab
    machine: str
    glibc: tuple[int, int]  # the oldest that all its programs can be loaded with
    epoch: int  # seconds since 1970, the time of every file
    programs: tuple[Entry, ...]
    python: tuple[Entry, ...]  # the folder nccl_net_ferrite
    headers: tuple[Entry, ...]  # NCCL's, for what is compiled while it runs
    documents: tuple[Entry, ...]
    device_documents: tuple[Entry, ...]  # those of the software device
    pages: tuple[Entry, ...]  # man pages and completions, below share

    @property
    def tree(self) -> list[Entry]:
        """As it lies in a folder of its own."""
        python = [entry.below("python") for entry in self.python]
        headers = [entry.below("include/nccl") for entry in self.headers]
        return sorted([*self.programs, *python, *headers, *self.documents, *self.pages], key=lambda entry: entry.path)

    @property
    def device_tree(self) -> list[Entry]:
        """The same of the software device alone."""
        folders = (f"{DEVICE}/", f"{DEVICE}-tools/", f"{DEVICE}-provider/")
        programs = [entry for entry in self.programs if entry.path == f"bin/{DEVICE}" or entry.path.startswith(folders)]
        pages = [entry for entry in self.pages if entry.path.rpartition("/")[2].lstrip("_").startswith(DEVICE)]
        return sorted([*programs, *pages, *self.device_documents], key=lambda entry: entry.path)

    def name(self, suffix: str, package: str = NAME) -> str:
        """Of a file: nccl-net-ferrite-0.1.0-linux-x86_64 and `suffix`."""
        return f"{package}-{self.version}-linux-{self.machine}{suffix}"


def cargo_version() -> str:
    match = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    if not match:
        raise Invalid("Cargo.toml has no version")
    return match.group(1)


def programs_in(built: Path) -> list[Entry]:
    """What scripts/build.sh has put into `built`."""
    found = []
    for folder in ("lib", "softrnic", "softrnic-tools", "softrnic-provider", "bin"):
        for path in sorted((built / folder).glob("*")):
            name = f"{folder}/{path.name}"
            found.append(Entry(name, link=os.readlink(path)) if path.is_symlink() else Entry(name, path.read_bytes(), executable=True))
    if not any(entry.path == "bin/ferrite" for entry in found):
        raise Invalid(f"--built {built}: bin/ferrite is not there; scripts/build.sh makes it")
    return found


# A link of a page, or a picture.
LINK = re.compile(r"!?\[([^\[\]]*)\]\(([^()\s]+)\)")


def documents_in(folder: str, names: dict[PurePosixPath, Path]) -> tuple[Entry, ...]:
    """These files below share/doc/`folder`. Of a link to a file that is not among them, only the text stays."""

    def content(name: PurePosixPath, path: Path) -> bytes:
        def linked(match: re.Match[str]) -> str:
            target = match[2].partition("#")[0]
            there = PurePosixPath(os.path.normpath(name.parent / target))
            return match[0] if not target or "://" in target or there in names else match[1]

        return LINK.sub(linked, path.read_text()).encode() if path.suffix == ".md" else path.read_bytes()

    return tuple(Entry(f"share/doc/{folder}/{name}", content(name, path)) for name, path in names.items())


def read_release(built: Path, pages: list[Entry], epoch: int) -> Release:
    elfs = [elf.read(built / entry.path) for entry in programs_in(built) if not entry.link]
    versions, machines = {one.version for one in elfs if one.version}, {one.machine for one in elfs}
    if len(versions) != 1 or len(machines) != 1:
        raise Invalid(f"--built {built}: files of several builds: {', '.join(sorted(versions | machines))}; run scripts/build.sh again")
    python = {path.relative_to(HERE): path for pattern in PYTHON for path in sorted(HERE.glob(pattern))}
    python[Path(JOB.name)] = JOB
    # docs/SUMMARY.md is for the site alone.
    guides = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "SUMMARY.md"]
    documents = [ROOT / name for name in ("README.md", "CHANGELOG.md", "LICENSE")] + guides
    device = ROOT / "softrnic"
    of_device = [device / "README.md", *sorted((device / "docs").glob("*.md"))]
    device_documents = {PurePosixPath(page.relative_to(device)): page for page in of_device}
    device_documents[PurePosixPath("LICENSE")] = ROOT / "LICENSE"
    return Release(
        version=cargo_version(),
        build=versions.pop(),
        machine=machines.pop(),
        glibc=max((2, 17), *(one.glibc for one in elfs)),
        epoch=epoch,
        programs=tuple(programs_in(built)),
        python=tuple(Entry(f"nccl_net_ferrite/{name}", path.read_bytes()) for name, path in python.items()),
        headers=tuple(Entry(path.name, path.read_bytes()) for path in sorted((ROOT / "include/nccl").glob("*.h"))),
        documents=documents_in(NAME, {PurePosixPath(path.relative_to(ROOT)): path for path in documents}),
        device_documents=documents_in(DEVICE, device_documents),
        pages=tuple(pages),
    )


# -- tar files: equal entries make equal bits --


def folders(entries: Iterable[Entry]) -> list[str]:
    """All that the entries lie in, each before what is in it."""
    found = {str(parent) for entry in entries for parent in PurePosixPath(entry.path).parents}
    return sorted(found - {"."})


def tar(entries: Iterable[Entry], epoch: int, prefix: str = "") -> bytes:
    """Of these entries and the folders that they lie in; `prefix` comes before each name."""
    entries = list(entries)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as file:
        for folder in folders(entries):
            add_to_tar(file, prefix + folder, tarfile.DIRTYPE, 0o755, epoch)
        for entry in entries:
            if entry.link:
                add_to_tar(file, prefix + entry.path, tarfile.SYMTYPE, 0o777, epoch, link=entry.link)
            else:
                add_to_tar(file, prefix + entry.path, tarfile.REGTYPE, 0o755 if entry.executable else 0o644, epoch, entry.content)
    return buffer.getvalue()


def add_to_tar(file: tarfile.TarFile, name: str, kind: bytes, mode: int, epoch: int, content: bytes = b"", link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime, info.linkname, info.size = kind, mode, epoch, link, len(content)
    info.uname = info.gname = "root"
    file.addfile(info, io.BytesIO(content))


def gzipped(content: bytes, level: int = 6) -> bytes:
    """Without a name and a time."""
    return gzip.compress(content, level, mtime=0)


# -- man pages and completions of the programs, which scripts/package.sh has had them write --

ZSH = "share/zsh/site-functions/"
# Where Debian's zsh looks.
ZSH_OF_DEBIAN = "share/zsh/vendor-completions/"


def read_pages(share: Path) -> list[Entry]:
    """All files of the folder, below share. Man pages are compressed, as they lie on systems."""
    found = []
    for path in sorted(path for path in share.rglob("*") if path.is_file()):
        name = f"share/{path.relative_to(share)}"
        manual = name.startswith("share/man/")
        found.append(Entry(f"{name}.gz", gzipped(path.read_bytes(), 9)) if manual else Entry(name, path.read_bytes()))
    if not any(entry.path == "share/man/man1/ferrite.1.gz" for entry in found):
        raise Invalid(f"--share {share}: man/man1/ferrite.1 is not there; scripts/package.sh makes it")
    return found


# -- the tarballs, each of one folder, which may lie anywhere: one of everything, and one of the software RDMA device alone --


def make_tarball(release: Release) -> tuple[str, bytes]:
    """Its name and its content."""
    return packed(release.name(""), release.tree, release.epoch)


def make_device_tarball(release: Release) -> tuple[str, bytes]:
    """Those of the software device."""
    return packed(release.name("", DEVICE), release.device_tree, release.epoch)


def packed(folder: str, tree: list[Entry], epoch: int) -> tuple[str, bytes]:
    return f"{folder}.tar.gz", gzipped(tar([entry.below(folder) for entry in tree], epoch))


# -- the wheel: pip installs the programs with the Python package --

# What the oldest Python of the programs can run.
OLDEST_PYTHON = ">=3.10"
SCRIPTS = {
    "nccl-net-ferrite": "nccl_net_ferrite.command:main",
    "ferrite": "nccl_net_ferrite.command:ferrite",
    "softrnic": "nccl_net_ferrite.command:softrnic",
}
# Zip files know no earlier time.
FIRST_TIME = 315532800


def make_wheel(release: Release) -> tuple[str, bytes]:
    """Its name and its content."""
    tag = f"py3-none-manylinux_{release.glibc[0]}_{release.glibc[1]}_{release.machine}"
    stem = f"{NAME.replace('-', '_')}-{release.version}"
    # pip puts it into the environment's own share.
    shared = [entry.below(f"{stem}.data/data") for entry in release.pages]
    entries = [*release.python, *files_of_wheel(release), *shared, *information_for_pip(release, f"{stem}.dist-info", tag)]
    entries.append(record_of(entries, f"{stem}.dist-info/RECORD"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as file:
        for entry in entries:
            info = zipfile.ZipInfo(entry.path, time.gmtime(max(release.epoch, FIRST_TIME))[:6])
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix: so the mode counts
            info.external_attr = (0o100755 if entry.executable else 0o100644) << 16
            file.writestr(info, entry.content)
    return f"{stem}-{tag}.whl", buffer.getvalue()


def files_of_wheel(release: Release) -> list[Entry]:
    """Beside the Python files. A wheel has no links: programs look for libibverbs.so too, so softrnic is there under both names, and two
    copies in one process work; the plugin is found by its path."""
    contents = {entry.path: entry for entry in release.programs if not entry.link}
    found = list(contents.values())
    for entry in release.programs:
        if entry.link and not entry.path.startswith("lib/"):
            target = contents[f"{entry.path.rpartition('/')[0]}/{entry.link}"]
            found.append(Entry(entry.path, target.content, executable=True))
    headers = [entry.below("nccl_net_ferrite/include/nccl") for entry in release.headers]
    return sorted([*(entry.below("nccl_net_ferrite/dist") for entry in found), *headers], key=lambda entry: entry.path)


def information_for_pip(release: Release, folder: str, tag: str) -> list[Entry]:
    """For pip."""
    fields = [
        "Metadata-Version: 2.4",
        f"Name: {NAME}",
        f"Version: {release.version}",
        f"Summary: {SUMMARY}",
        f"License-Expression: {LICENCE}",
        "License-File: LICENSE",
        f"Requires-Python: {OLDEST_PYTHON}",
        "Description-Content-Type: text/plain",
    ]
    scripts = [f"{name} = {target}" for name, target in SCRIPTS.items()]
    licence = next(entry for entry in release.documents if entry.path.endswith("/LICENSE"))
    return [
        text_entry(f"{folder}/METADATA", [*fields, "", TEXT, "", f"Build {release.build}."]),
        text_entry(f"{folder}/WHEEL", ["Wheel-Version: 1.0", f"Generator: {NAME}", "Root-Is-Purelib: false", f"Tag: {tag}"]),
        text_entry(f"{folder}/entry_points.txt", ["[console_scripts]", *scripts]),
        Entry(f"{folder}/licenses/LICENSE", licence.content),
    ]


def text_entry(path: str, lines: list[str]) -> Entry:
    return Entry(path, ("\n".join(lines) + "\n").encode())


def record_of(entries: list[Entry], path: str) -> Entry:
    """The list of all files with their sums."""
    lines = []
    for entry in entries:
        digest = base64.urlsafe_b64encode(hashlib.sha256(entry.content).digest()).rstrip(b"=").decode()
        lines.append(f"{entry.path},sha256={digest},{len(entry.content)}")
    return text_entry(path, [*lines, f"{path},,"])


# -- the Debian package: everything in /usr/lib/nccl-net-ferrite, and links to it where programs are --


def make_deb(release: Release) -> tuple[str, bytes]:
    """Its name and its content: an ar archive of three files."""
    machine = DEBIAN_MACHINES[release.machine]
    entries = [placed_for_debian(entry) for entry in installed(release)]
    doc = f"usr/share/doc/{NAME}"
    entries.append(Entry(f"{doc}/copyright", copyright_of(release)))
    sums = "".join(f"{hashlib.md5(entry.content).hexdigest()}  {entry.path}\n" for entry in entries if not entry.link)
    control = [Entry("control", control_of(release, machine, entries)), Entry("md5sums", sums.encode())]
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", gzipped(tar(control, release.epoch, "./"))),
        ("data.tar.gz", gzipped(tar(entries, release.epoch, "./"))),
    ]
    return f"{NAME}_{release.version}_{machine}.deb", b"!<arch>\n" + b"".join(ar_member(*one, release.epoch) for one in members)


def placed_for_debian(entry: Entry) -> Entry:
    """Debian has completions of zsh in a folder of its own."""
    return replace(entry, path=entry.path.replace(f"usr/{ZSH}", f"usr/{ZSH_OF_DEBIAN}"))


def ar_member(name: str, content: bytes, epoch: int) -> bytes:
    header = f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
    return header.encode() + content + b"\n" * (len(content) % 2)


def installed(release: Release) -> list[Entry]:
    """Where each file lies on a system. No plugin where the loader looks, under whatever name: ldconfig would make a link of its soname
    there, libnccl-net.so, and every NCCL of the system would take that without being asked."""
    root = f"usr/lib/{NAME}"
    entries = [entry.below(root) for entry in release.tree if not entry.path.startswith("share/")]
    entries += [entry.below("usr") for entry in release.tree if entry.path.startswith("share/")]
    entries += [
        Entry("usr/bin/ferrite", link=f"../lib/{NAME}/bin/ferrite"),
        Entry("usr/bin/softrnic", link=f"../lib/{NAME}/bin/softrnic"),
        Entry("usr/bin/nccl-net-ferrite", START.encode(), executable=True),
    ]
    return sorted(entries, key=lambda entry: entry.path)


# Python with the folder of the programs first in its path.
START = f"""#!/bin/sh
PYTHONPATH="/usr/lib/{NAME}/python${{PYTHONPATH:+:$PYTHONPATH}}" exec python3 -m nccl_net_ferrite "$@"
"""


def control_of(release: Release, machine: str, entries: list[Entry]) -> bytes:
    size = sum(len(entry.content) for entry in entries)
    description = "\n".join(f" {line}" for line in TEXT.splitlines())
    return f"""Package: {NAME}
Version: {release.version}
Architecture: {machine}
Maintainer: {MAINTAINER}
Installed-Size: {-(-size // 1024)}
Depends: libc6 (>= {release.glibc[0]}.{release.glibc[1]}), libgcc-s1 | libgcc1
Recommends: libibverbs1, ibverbs-providers, python3 (>= 3.10)
Section: net
Priority: optional
Description: {SUMMARY}
{description}
""".encode()


def copyright_of(release: Release) -> bytes:
    licence = next(entry for entry in release.documents if entry.path.endswith("/LICENSE"))
    return f"Licence: {LICENCE}\nBuild: {release.build}\n\n".encode() + licence.content


# -- the RPM package, made by rpmbuild: the files of the Debian package --


def has_rpmbuild() -> bool:
    return shutil.which("rpmbuild") is not None


def make_rpm(release: Release) -> tuple[str, bytes]:
    """Its name and its content."""
    entries = installed(release)
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        lay_out(entries, top / "root")
        (top / "spec").write_text(spec(release, entries, top))
        command = ["rpmbuild", "-bb", "--quiet", "--target", f"{release.machine}-linux", f"--define=_topdir {top}", str(top / "spec")]
        done = subprocess.run(command, env=environment_of_rpmbuild(release), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"rpmbuild failed: {done.stderr}")
        [made] = (top / "RPMS").rglob("*.rpm")
        return made.name, made.read_bytes()


def environment_of_rpmbuild(release: Release) -> dict[str, str]:
    return {**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch), "LC_ALL": "C", "TZ": "UTC"}


def lay_out(entries: list[Entry], root: Path) -> None:
    for entry in entries:
        path = root / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.link:
            path.symlink_to(entry.link)
        else:
            path.write_bytes(entry.content)
            path.chmod(0o755 if entry.executable else 0o644)


def spec(release: Release, entries: list[Entry], top: Path) -> str:
    """The files are there already: nothing is compiled, stripped, compressed or looked into."""
    own = [f"%dir /{folder}" for folder in folders(entries) if f"/{NAME}" in f"/{folder}"]
    files = [f"/{entry.path}" for entry in entries]
    date = time.strftime("%a %b %d %Y", time.gmtime(release.epoch))
    lines = "\n".join([*own, *files])
    return f"""%global __os_install_post %{{nil}}
%global debug_package %{{nil}}
%global _build_id_links none
%global _buildhost localhost
%global _binary_payload w6.gzdio
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global source_date_epoch_from_changelog 0
Name: {NAME}
Version: {release.version}
Release: 1
Summary: {SUMMARY}
License: {LICENCE}
AutoReqProv: no
Requires: libc.so.6(GLIBC_{release.glibc[0]}.{release.glibc[1]})(64bit), libgcc_s.so.1()(64bit)
Recommends: libibverbs, python3 >= 3.10

%description
{TEXT}

%install
mkdir -p %{{buildroot}}
cp -a {top}/root/. %{{buildroot}}

%files
%defattr(-,root,root,0755)
{lines}

%changelog
* {date} The Ferrite authors - {release.version}-1
- Build {release.build}.
"""


# The image: an OCI image layout in a tar file, written without a container engine. It has everything in /ferrite, and one program that
# copies it: for `COPY --from`, and for an init container.

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True)
class Blob:
    media_type: str
    content: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def entry(self) -> Entry:
        return Entry(f"blobs/sha256/{self.digest}", self.content)

    def descriptor(self, **more: Any) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": len(self.content), **more}


def make_image(release: Release, copy: bytes) -> tuple[str, bytes]:
    """Its name and its content; `copy` is the program of scripts/container/copy.c, which needs no library."""
    platform = {"architecture": DEBIAN_MACHINES[release.machine], "os": "linux"}
    plain = tar([Entry("copy", copy, executable=True), *(entry.below("ferrite") for entry in release.tree)], release.epoch)
    layer = Blob(LAYER, gzipped(plain))
    config = blob(
        CONFIG,
        {
            "created": rfc3339(release.epoch),
            **platform,
            "config": {"Entrypoint": ["/copy", "/ferrite"], "Labels": labels(release)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
        },
    )
    manifest = blob(MANIFEST, {"schemaVersion": 2, "mediaType": MANIFEST, "config": config.descriptor(), "layers": [layer.descriptor()]})
    # What the image is called where it is loaded: by podman and skopeo, by Docker.
    name = f"{NAME}:{release.version}"
    names = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": f"docker.io/library/{name}"}
    index = blob(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest.descriptor(platform=platform, annotations=names)]})
    entries = [
        Entry("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'),
        Entry("index.json", index.content),
        *sorted((one.entry for one in (layer, config, manifest)), key=lambda entry: entry.path),
    ]
    return release.name("-image.tar"), tar(entries, release.epoch)


def blob(media_type: str, content: dict[str, Any]) -> Blob:
    return Blob(media_type, json.dumps(content, separators=(",", ":")).encode())


def labels(release: Release) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": NAME,
        "org.opencontainers.image.description": SUMMARY,
        "org.opencontainers.image.licenses": LICENCE,
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.build.partition("+")[2],
    }


def rfc3339(epoch: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


# -- the software bill of materials, in CycloneDX 1.5: the crates that are in what is released, as Cargo.lock has them --

# Whose files are released; what only tests and builds need is not.
SHIPPED = ("nccl-net-ferrite", "ferrite", "softrnic", "softrnic-cli", "softrnic-provider")


def make_bom(release: Release) -> tuple[str, bytes]:
    """Its name and its content."""
    found = cargo_metadata(release.machine)
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    roots = [name for name, package in packages.items() if package["name"] in SHIPPED and not package["source"]]
    needed = reachable(nodes, roots)
    sums = checksums()
    components = [component(packages[name], sums) for name in sorted(needed)]
    main = {"type": "application", "bom-ref": NAME, "name": NAME, "version": release.version, "description": SUMMARY}
    bom: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(release.epoch)),
            "component": {
                **main,
                "licenses": [{"expression": LICENCE}],
                "properties": [{"name": f"{NAME}:build", "value": release.build}],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": NAME, "dependsOn": sorted(reference(packages[name]) for name in roots)},
            *(
                {"ref": reference(packages[name]), "dependsOn": sorted(reference(packages[one]) for one in linked_with(nodes[name]))}
                for name in sorted(needed)
            ),
        ],
    }
    # The same for the same content.
    serial = uuid.UUID(bytes=hashlib.sha256(json.dumps(bom).encode()).digest()[:16], version=4)
    return release.name(".cdx.json"), json.dumps({"serialNumber": f"urn:uuid:{serial}", **bom}, indent=1).encode() + b"\n"


def cargo_metadata(machine: str) -> dict[str, Any]:
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", f"{machine}-unknown-linux-gnu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Invalid(f"cargo metadata failed: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def linked_with(node: dict[str, Any]) -> list[str]:
    """What it is linked with: neither for its build nor for its tests."""
    return [one["pkg"] for one in node["deps"] if any(kind["kind"] is None for kind in one["dep_kinds"])]


def reachable(nodes: dict[str, Any], roots: list[str]) -> set[str]:
    found: set[str] = set()
    left = list(roots)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += linked_with(nodes[name])
    return found


def checksums() -> dict[tuple[str, str], str]:
    """Of each crate's archive, by name and version."""
    text = (ROOT / "Cargo.lock").read_text()
    entries = re.findall(r'name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "(.+)"', text)
    return {(name, version): checksum for name, version, checksum in entries}


def reference(package: dict[str, Any]) -> str:
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: dict[str, Any], sums: dict[tuple[str, str], str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    }
    if package["license"]:
        # Older crates separate them so.
        found["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


LATEST = 2**32 - 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="package", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", type=Path, required=True, metavar="DIR", help="what scripts/build.sh made")
    parser.add_argument("--copy", type=Path, required=True, metavar="FILE", help="scripts/container/copy.c, compiled without libraries")
    parser.add_argument("--share", type=Path, required=True, metavar="DIR", help="man pages and completions, as they lie below /usr/share")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the packages")
    return parser.parse_args()


def epoch_of_user() -> int:
    """SOURCE_DATE_EPOCH, the time of every file."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "0")
    if not text.isdigit() or int(text) > LATEST:
        raise Invalid(f"SOURCE_DATE_EPOCH={text}: must be seconds since 1970, a number from 0 to {LATEST}")
    return int(text)


def make_all(release: Release, copy: bytes) -> dict[str, bytes]:
    """Every package by its name."""
    tarballs = [make_tarball(release), make_device_tarball(release)]
    made = dict([*tarballs, make_wheel(release), make_deb(release), make_image(release, copy), make_bom(release)])
    if has_rpmbuild():
        made |= dict([make_rpm(release)])
    else:
        print("no .rpm: rpmbuild is missing (Debian: apt-get install rpm)")
    return made


def run(chosen: argparse.Namespace) -> int:
    files.check_writable(chosen.out)
    release = read_release(chosen.built, read_pages(chosen.share), epoch_of_user())
    if not chosen.copy.is_file():
        raise Invalid(f"--copy {chosen.copy}: no such file")
    made = make_all(release, chosen.copy.read_bytes())
    chosen.out.mkdir(parents=True, exist_ok=True)
    sums = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(made.items())]
    for name, content in made.items():
        (chosen.out / name).write_bytes(content)
    (chosen.out / "SHA256SUMS").write_text("".join(sums))
    print(f"{release.build} for {release.machine} with glibc {release.glibc[0]}.{release.glibc[1]} or newer:")
    for name, content in sorted(made.items()):
        print(f"  {len(content) / 1e6:6.2f} MB  {chosen.out / name}")
    return exit_codes.GOOD


def main() -> int:
    chosen = arguments()
    return exit_codes.of_program(lambda: run(chosen))


if __name__ == "__main__":
    sys.exit(main())
