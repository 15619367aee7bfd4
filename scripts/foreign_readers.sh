#!/usr/bin/env bash
# Has programs that were not written here read the packages: skopeo the image, CycloneDX's library the bill of materials.
#
#   scripts/foreign_readers.sh [DIR]     what scripts/package.sh made; by default packages/; 77: nothing can read them here
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ $# -le 1 ] || die "usage: scripts/foreign_readers.sh [DIR]"
packages=$(realpath "${1:-packages}")
image=$(compgen -G "$packages/nccl-net-ferrite-*-image.tar") || die "$packages has no image: scripts/package.sh makes it"
bom=$(compgen -G "$packages/nccl-net-ferrite-*.cdx.json") || die "$packages has no bill of materials: scripts/package.sh makes it"
tried=0

! may_install || command -v skopeo >/dev/null || install_packages skopeo
if command -v skopeo >/dev/null; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    skopeo inspect --format 'image for {{.Os}} {{.Architecture}}, {{len .Layers}} layer: {{index .Labels "org.opencontainers.image.title"}} {{index .Labels "org.opencontainers.image.version"}}' "oci-archive:$image"
    # All blobs are read, and their sums compared; what a registry would get is written.
    skopeo copy --quiet "oci-archive:$image" "dir:$work/copy"
    [ -s "$work/copy/manifest.json" ] || die "skopeo has copied no manifest"
    tried=1
else
    echo "skipped: skopeo"
fi

install_python_tools scripts/bom.txt
python=$(python_tools scripts/bom.txt)/bin/python
if [ -x "$python" ]; then
    "$python" - "$bom" <<'END'
import json, pathlib, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = pathlib.Path(sys.argv[1]).read_text()
version = json.loads(text)["specVersion"]
problem = JsonStrictValidator(SchemaVersion.from_version(version)).validate_str(text)
if problem:
    sys.exit(f"{sys.argv[1]}: {str(problem).splitlines()[0]}")
print(f"the bill of materials keeps the schema of CycloneDX {version}: {len(json.loads(text)['components'])} components")
END
    tried=1
else
    echo "skipped: what scripts/bom.txt lists"
fi
[ "$tried" = 1 ] || exit 77
