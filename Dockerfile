# One image for every service of the mesh; docker-compose.yml says which process runs in which container.
# Any Debian with Python >= 3.11 and its venv module can be the base.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

# What sandboxed programs may be written in, beside Python. A node reports what it finds.
ARG TOOLCHAINS="gcc g++ libc6-dev nodejs"
RUN if [ -n "$TOOLCHAINS" ]; then \
        apt-get update && apt-get install --yes --no-install-recommends $TOOLCHAINS && rm -rf /var/lib/apt/lists/*; \
    fi

# The dependencies are a layer of their own: it is built again only when the lock changes. The empty packages let pip
# read pyproject.toml before the sources are there; the installation is editable and finds them afterwards.
ARG PIP_OPTIONS=""
WORKDIR /opt/treadle
COPY pyproject.toml requirements.lock README.md LICENSE ./
RUN mkdir alembic docs services shared treadle && touch docs/openapi.json services/__init__.py shared/__init__.py treadle/__init__.py \
    && python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir $PIP_OPTIONS --constraint requirements.lock --editable '.[mesh]'
COPY alembic alembic
COPY services services
COPY shared shared
COPY treadle treadle
# Compiled once, here: the planner's loops too, which else take it some seconds at its first start.
RUN /opt/venv/bin/python -m compileall -q services shared treadle \
    && /opt/venv/bin/python -c "from shared.policy.elastic import scheduling; from shared.policy.scaling import simulation_kernel; scheduling.warm(); simulation_kernel.warm()"

ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
# `treadle up` in one container is a whole stack; compose runs one service each.
CMD ["treadle", "up"]
