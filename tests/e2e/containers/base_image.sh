#!/usr/bin/env bash
# A base image without a registry: a minimal Debian with Python, and in /wheels what the Dockerfile will install.
# Usage: base_image.sh TAG WORK_FOLDER, as root, in the checkout. About a minute and a half.
set -euo pipefail
tag=$1 work=$2 root=$2/root

.venv/bin/python - >"$work/wanted.txt" <<'PYTHON'
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))
# pip judges markers by the Python it runs on; Debian's 3.11.2 needs async-timeout where a later one does not.
extra = [*project["build-system"]["requires"], "editables", "async-timeout"]
needed = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["mesh"]]
print(*needed, *extra, sep="\n")
PYTHON
.venv/bin/python -m pip download --quiet --disable-pip-version-check --only-binary :all: --python-version 3.11 \
    --constraint requirements.lock --requirement "$work/wanted.txt" --dest "$work/wheels" &
wheels=$!
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" >"$work/debootstrap.log"
rm -rf "$root"/var/cache/apt/archives "$root"/var/lib/apt/lists
wait "$wheels"
mv "$work/wheels" "$root/wheels"
tar -C "$root" -c . | docker import - "$tag" >/dev/null
