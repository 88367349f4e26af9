#!/usr/bin/env bash
# A base image without a registry: a minimal Debian with Python, and in /wheels what the Dockerfile will install.
# Usage: base_image.sh TAG WORK_FOLDER, as root, in the checkout. About a minute and a half.
set -euo pipefail
tag=$1 root=$2/root

debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" >"$2/debootstrap.log"
rm -rf "$root"/var/cache/apt/archives "$root"/var/lib/apt/lists
.venv/bin/python - >"$2/wanted.txt" <<'PYTHON'
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))
# pip judges markers by the Python it runs on; Debian's 3.11.2 needs async-timeout where a later one does not.
extra = [*project["build-system"]["requires"], "editables", "async-timeout"]
print(*project["project"]["dependencies"], *extra, sep="\n")
PYTHON
.venv/bin/python -m pip download --quiet --disable-pip-version-check --only-binary :all: --python-version 3.11 \
    --constraint requirements.lock --requirement "$2/wanted.txt" --dest "$root/wheels"
tar -C "$root" -c . | docker import - "$tag" >/dev/null
