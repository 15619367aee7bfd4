"""The packages that are released: tarballs, wheel, .deb, .rpm, image and bill of materials, all from the files that scripts/build.sh made.

    description   name, version and licence, and every file with its place: the only list of them
    pages         man pages and completions
    archive       tar files, the same bits for the same files
    tarball, wheel, deb, rpm, image, sbom    one package each
    command       writes them all, and SHA256SUMS

It is not part of what it makes. Equal files and an equal SOURCE_DATE_EPOCH make equal packages, bit by bit.
"""
