"""A registry on the loopback that a real engine pulls from: images of one file, and errors on demand."""

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from typing import Self

from aiohttp import web

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class LoopbackRegistry:
    """Serves `add`ed images under `address`.

    `down` makes the next requests for manifests fail, so many of them; while `limited`, all are refused with 429.
    """

    def __init__(self) -> None:
        self.address = ""
        self.asked: Counter[str] = Counter()
        self.images: list[str] = []
        self.down = 0
        self.limited = False
        self.slow_s = 0.0
        """Delay of each part of an image."""
        self._blobs: dict[str, bytes] = {}
        self._manifests: dict[str, bytes] = {}

    def add(self, name: str, architecture: str = "amd64", padding: int = 0) -> str:
        """An image with one file, `hello`, and so many bytes beside it. Returns what the engine is to be asked for."""
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            entry = tarfile.TarInfo("hello")
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
            entry = tarfile.TarInfo("padding")
            entry.size = padding
            archive.addfile(entry, io.BytesIO(os.urandom(padding)))
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer.getvalue())]},
        }
        parts = [
            self._blob("application/vnd.docker.container.image.v1+json", json.dumps(config).encode()),
            self._blob("application/vnd.docker.image.rootfs.diff.tar.gzip", gzip.compress(layer.getvalue())),
        ]
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": parts[0], "layers": parts[1:]}
        self._manifests[name] = json.dumps(manifest).encode()
        self.images.append(f"{self.address}/{name}:latest")
        return self.images[-1]

    def _blob(self, kind: str, content: bytes) -> dict[str, str | int]:
        self._blobs[_digest(content)] = content
        return {"mediaType": kind, "size": len(content), "digest": _digest(content)}

    async def _manifest(self, request: web.Request) -> web.Response:
        name, reference = request.match_info["name"], request.match_info["reference"]
        self.asked[name] += 1
        if self.limited:
            error = {"code": "TOOMANYREQUESTS", "message": "You have reached your pull rate limit."}
            return web.json_response({"errors": [error]}, status=429)
        if self.down > 0:
            self.down -= 1
            return web.Response(status=503)
        content = self._manifests.get(name)
        if content is None or reference not in {"latest", _digest(content)}:
            return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "unknown"}]}, status=404)
        return web.Response(body=content, content_type=MANIFEST, headers={"Docker-Content-Digest": _digest(content)})

    async def _part(self, request: web.Request) -> web.Response:
        self.asked[request.match_info["digest"]] += 1
        await asyncio.sleep(self.slow_s)
        return web.Response(body=self._blobs[request.match_info["digest"]])

    async def _hello(self, request: web.Request) -> web.Response:
        return web.json_response({}, headers={"Docker-Distribution-Api-Version": "registry/2.0"})

    @classmethod
    @contextlib.asynccontextmanager
    async def serving(cls) -> AsyncIterator[Self]:
        made = cls()
        app = web.Application()
        app.router.add_get("/v2/", made._hello)
        app.router.add_get("/v2/{name}/manifests/{reference}", made._manifest)
        app.router.add_get("/v2/{name}/blobs/{digest}", made._part)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            made.address = f"{host}:{port}"
            yield made
        finally:
            await runner.cleanup()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
