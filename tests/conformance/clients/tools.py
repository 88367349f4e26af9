"""Commands of docs/clients.md: how each client is generated and compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
HOME = ROOT / ".clients"
DOCUMENT = ROOT / "docs" / "openapi.json"
PROGRAMS = Path(__file__).parent / "programs"
GO_MODULE = "example.invalid/treadleapi"


class Tools:
    """Each method returns the folder with its result."""

    VALIDATOR = Path("/usr/share/gocode/src/gopkg.in/validator.v2")
    JARS = tuple(
        Path("/usr/share/java") / f"{name}.jar" for name in ("httpmime", "httpcore", "geronimo-annotation-1.3-spec")
    )

    def __init__(self) -> None:
        self.bin = HOME / "venv" / "bin"
        self.node = HOME / "node" / "node_modules"
        (self.site,) = (HOME / "venv" / "lib").glob("python*/site-packages")

    def run(self, *command: str | Path, cwd: Path | None = None, **environ: str) -> str:
        """Output of the command.

        Raises:
            AssertionError: it failed; with its output.
        """
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", **environ}
        words = [str(word) for word in command]
        done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, f"{' '.join(words)}\n{(done.stdout + done.stderr)[-6000:]}"
        return done.stdout

    def npx(self, name: str, *arguments: str | Path, cwd: Path | None = None) -> str:
        """Run a command of an npm package."""
        return self.run(self.bin / "node", self.node / ".bin" / name, *arguments, cwd=cwd)

    def _generate(self, generator: str, out: Path, *options: str) -> Path:
        self.run(self.bin / "openapi-generator-cli", "generate", "-i", DOCUMENT, "-g", generator, "-o", out, *options)
        return out

    def python(self, out: Path) -> Path:
        """openapi-generator's Python client; every module is imported."""
        self._generate("python", out, "--package-name", "treadle_api")
        modules = [path.relative_to(out) for path in (out / "treadle_api").rglob("*.py")]
        names = sorted({".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in modules})
        self.run(self.bin / "python", "-W", "error::SyntaxWarning", "-c", f"import {', '.join(names)}", cwd=out)
        return out

    def go(self, out: Path) -> Path:
        """openapi-generator's Go client; its one dependency is Debian's copy."""
        self._generate("go", out, "--package-name", "treadleapi")
        shutil.rmtree(out / "test")
        validator = out.parent / "validator.v2"
        validator.mkdir(exist_ok=True)
        for path in self.VALIDATOR.glob("*.go"):
            if not path.name.endswith("_test.go"):
                shutil.copy(path, validator)
        (validator / "go.mod").write_text("module gopkg.in/validator.v2\n")
        program = out / "program"
        program.mkdir()
        shutil.copy(PROGRAMS / "main.go", program)
        lines = (
            f"module {GO_MODULE}", "go 1.19", "require gopkg.in/validator.v2 v2.0.1",
            "replace gopkg.in/validator.v2 => ../validator.v2",
        )  # fmt: skip
        (out / "go.mod").write_text("\n".join(lines) + "\n")
        (out / "go.sum").unlink()
        cache = str(HOME / "go-cache")
        self.run("go", "build", "-o", "treadle-program", "./program", cwd=out, GOFLAGS="-mod=mod", GOCACHE=cache)
        return out

    def typescript(self, out: Path) -> Path:
        """openapi-generator's TypeScript client for fetch."""
        self._generate("typescript-fetch", out, "--additional-properties", "importFileExtension=.js")
        shutil.copy(PROGRAMS / "program.ts", out)
        self._tsc(out, "program.ts", "index.ts")
        return out

    def java(self, out: Path) -> Path:
        """openapi-generator's Java client on the JDK's own HttpClient; Jackson is in the generator's own jar."""
        options = "openApiNullable=false,supportUrlQuery=false"
        self._generate(
            "java", out, "--library", "native", "--generate-alias-as-model", "--additional-properties", options
        )
        sources = sorted((out / "src" / "main").rglob("*.java"))
        for source in sources:  # a fault of the generator in models of maps
            source.write_text(source.read_text().replace("Objects.hash(, ", "Objects.hash("))
        sources.append(PROGRAMS / "Program.java")
        self.run("javac", "-nowarn", "-d", out / "classes", "-cp", self.class_path(), *sources)
        return out

    def class_path(self, *more: Path) -> str:
        """Jars of the Java client."""
        jar = self.site / "openapi_generator_cli" / "openapi-generator.jar"
        return ":".join(map(str, (*more, jar, *self.JARS)))

    def openapi_python_client(self, out: Path) -> Path:
        """openapi-python-client's client; for NDJSON it needs an override of the content type."""
        config = out.with_suffix(".yaml")
        config.write_text("content_type_overrides:\n  application/x-ndjson: application/octet-stream\n")
        package = out / "treadle_client"
        options = ("--meta", "none", "--config", config, "--fail-on-warning")
        self.run(self.bin / "openapi-python-client", "generate", "--path", DOCUMENT, "--output-path", package, *options)
        self.run(self.bin / "python", "-m", "compileall", "-q", package)
        return out

    def openapi_typescript(self, out: Path) -> Path:
        """Types by openapi-typescript, and a program on openapi-fetch."""
        out.mkdir()
        self.npx("openapi-typescript", DOCUMENT, "--default-non-nullable", "false", "-o", out / "treadle.ts")
        shutil.copy(PROGRAMS / "program_fetch.ts", out)
        self._tsc(out, "program_fetch.ts")
        return out

    def _tsc(self, out: Path, *files: str) -> None:
        (out / "node_modules").symlink_to(self.node)
        (out / "package.json").write_text('{"type": "module"}')
        options = ("--module", "esnext", "--moduleResolution", "bundler", "--target", "es2022", "--lib", "es2022,dom")
        self.npx("tsc", "--strict", "--types", "node", *options, "--outDir", "built", *files, cwd=out)

    def spectral(self, folder: Path) -> str:
        """Findings of Spectral's rules for OpenAPI, errors and warnings alike."""
        ruleset: Sequence[str] = ('extends: ["spectral:oas"]', "rules:", "  info-contact: off")
        (folder / "spectral.yaml").write_text("\n".join(ruleset) + "\n")
        return self.npx("spectral", "lint", "--fail-severity", "warn", "-r", folder / "spectral.yaml", DOCUMENT)
