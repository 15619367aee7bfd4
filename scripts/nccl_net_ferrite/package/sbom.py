"""The software bill of materials, in CycloneDX 1.5: the crates that are in what is released, as Cargo.lock has them."""

import hashlib
import json
import re
import subprocess
import time
import uuid
from typing import Any

from ..errors import Invalid
from ..repository import ROOT
from .description import LICENCE, NAME, SUMMARY, Release

# Whose files are released; what only tests and builds need is not.
SHIPPED = ("nccl-net-ferrite", "ferrite", "softrnic", "softrnic-cli")


def make(release: Release) -> tuple[str, bytes]:
    """Its name and its content."""
    found = metadata(release.machine)
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
                {"ref": reference(packages[name]), "dependsOn": sorted(reference(packages[one]) for one in normal(nodes[name]))}
                for name in sorted(needed)
            ),
        ],
    }
    # The same for the same content.
    serial = uuid.UUID(bytes=hashlib.sha256(json.dumps(bom).encode()).digest()[:16], version=4)
    return release.name(".cdx.json"), json.dumps({"serialNumber": f"urn:uuid:{serial}", **bom}, indent=1).encode() + b"\n"


def metadata(machine: str) -> dict[str, Any]:
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", f"{machine}-unknown-linux-gnu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Invalid(f"cargo metadata failed: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def normal(node: dict[str, Any]) -> list[str]:
    """What it is linked with: neither for its build nor for its tests."""
    return [one["pkg"] for one in node["deps"] if any(kind["kind"] is None for kind in one["dep_kinds"])]


def reachable(nodes: dict[str, Any], roots: list[str]) -> set[str]:
    found: set[str] = set()
    left = list(roots)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += normal(nodes[name])
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
