"""The wheel: pip installs the programs with the Python package."""

import base64
import hashlib
import io
import time
import zipfile

from .description import LICENCE, NAME, SUMMARY, TEXT, Entry, Release

# What the oldest Python of the programs can run.
PYTHON = ">=3.10"
SCRIPTS = {
    "nccl-net-ferrite": "nccl_net_ferrite.command:main",
    "ferrite": "nccl_net_ferrite.command:ferrite",
    "softrnic": "nccl_net_ferrite.command:softrnic",
}
# Zip files know no earlier time.
FIRST_TIME = 315532800


def make(release: Release) -> tuple[str, bytes]:
    """Its name and its content."""
    tag = f"py3-none-manylinux_{release.glibc[0]}_{release.glibc[1]}_{release.machine}"
    stem = f"{NAME.replace('-', '_')}-{release.version}"
    # pip puts it into the environment's own share.
    shared = [entry.below(f"{stem}.data/data") for entry in release.pages]
    entries = [*release.python, *files(release), *shared, *information(release, f"{stem}.dist-info", tag)]
    entries.append(record(entries, f"{stem}.dist-info/RECORD"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as file:
        for entry in entries:
            info = zipfile.ZipInfo(entry.path, time.gmtime(max(release.epoch, FIRST_TIME))[:6])
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix: so the mode counts
            info.external_attr = (0o100755 if entry.executable else 0o100644) << 16
            file.writestr(info, entry.content)
    return f"{stem}-{tag}.whl", buffer.getvalue()


def files(release: Release) -> list[Entry]:
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


def information(release: Release, folder: str, tag: str) -> list[Entry]:
    """For pip."""
    fields = [
        "Metadata-Version: 2.4",
        f"Name: {NAME}",
        f"Version: {release.version}",
        f"Summary: {SUMMARY}",
        f"License-Expression: {LICENCE}",
        "License-File: LICENSE",
        f"Requires-Python: {PYTHON}",
        "Description-Content-Type: text/plain",
    ]
    scripts = [f"{name} = {target}" for name, target in SCRIPTS.items()]
    licence = next(entry for entry in release.documents if entry.path.endswith("/LICENSE"))
    return [
        text(f"{folder}/METADATA", [*fields, "", TEXT, "", f"Build {release.build}."]),
        text(f"{folder}/WHEEL", ["Wheel-Version: 1.0", f"Generator: {NAME}", "Root-Is-Purelib: false", f"Tag: {tag}"]),
        text(f"{folder}/entry_points.txt", ["[console_scripts]", *scripts]),
        Entry(f"{folder}/licenses/LICENSE", licence.content),
    ]


def text(path: str, lines: list[str]) -> Entry:
    return Entry(path, ("\n".join(lines) + "\n").encode())


def record(entries: list[Entry], path: str) -> Entry:
    """The list of all files with their sums."""
    lines = []
    for entry in entries:
        digest = base64.urlsafe_b64encode(hashlib.sha256(entry.content).digest()).rstrip(b"=").decode()
        lines.append(f"{entry.path},sha256={digest},{len(entry.content)}")
    return text(path, [*lines, f"{path},,"])
