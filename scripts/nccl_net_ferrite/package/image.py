"""The image: an OCI image layout in a tar file, written without a container engine. It has everything in /ferrite, and one program that
copies it: for `COPY --from`, and for an init container."""

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

from .archive import gzipped, tar
from .description import DEBIAN_MACHINES, LICENCE, NAME, SUMMARY, Entry, Release

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


def make(release: Release, copy: bytes) -> tuple[str, bytes]:
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
