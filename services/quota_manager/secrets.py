"""Secrets of the operator: values that calls name and never see.

`QUOTA_MANAGER_SECRETS` is the path of a JSON file, name -> secret. A variable `QUOTA_SECRET_<NAME>` is one secret, and
its name is <NAME> in lower case:

    {"value": "...", "tenants": ["team-a"], "hosts": ["api.example.com"],
     "header": "Authorization", "prefix": "Bearer "}

Laws:
  - a value is given for a tenant, an origin and a header that its secret names, else for nothing;
  - the text of an error has no value, and does not show whether a secret of another tenant exists;
  - nothing but `SecretValue.reveal` returns a value: not repr, str, format, JSON, pickle or a copy.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from services.quota_manager.urls import InvalidUrl, Origin, read_url
from shared.runtime.settings import WrongSetting

VARIABLE: Final = "QUOTA_SECRET_"
MOST_BYTES: Final = 1 << 20
"""Largest file of secrets."""
MOST_SECRETS: Final = 1024
FEWEST_CHARS: Final = 8
"""Shortest value. Echoes of shorter ones cannot be masked without masking other text."""
MOST_CHARS: Final = 4096
"""Longest value, with its prefix."""
SHOWN_CHARS: Final = 64
EVERY_TENANT: Final = "*"
EXAMPLE: Final = (
    '{"value": "...", "tenants": ["*"], "hosts": ["api.example.com"], "header": "Authorization", "prefix": "Bearer "}'
)
EXAMPLE_FILE: Final = f'{{"judge_key": {EXAMPLE}}}'
Form = TypeVar("Form")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_PREFIX: Final = re.compile(r"[\x20-\x7e]{0,64}")
_UNUSABLE: Final = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "keep-alive", "te", "trailer",
     "upgrade", "expect", "accept-encoding", "http2-settings", "user-agent", "accept"}
)  # fmt: skip


class WrongSecret(WrongSetting):
    """A secret cannot be used, so the service does not start. The message has the name and no value."""


class SecretRefused(ValueError):
    """A call may not use the secret that it names. The message says what to change, and has no value."""


class SecretValue:
    """A value that shows itself only to `reveal`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value. Call it where the value is sent or searched, and store the result nowhere."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a secret cannot be serialised or copied")

    def __getstate__(self) -> NoReturn:
        raise TypeError("a secret cannot be serialised or copied")


@dataclass(frozen=True, slots=True)
class Secret:
    """One secret, and what may use it."""

    name: str
    value: SecretValue
    tenants: frozenset[str]
    """Names of tenants; `*`: every tenant."""
    origins: frozenset[Origin]
    header: str
    """Name in lower case."""
    prefix: str

    def header_value(self) -> str:
        """Return the value of the header: prefix and value."""
        return self.prefix + self.value.reveal()


class Secrets:
    """All secrets. Immutable."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._by_name = {secret.name: secret for secret in secrets}

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"Secrets({len(self)})"

    def granted(self, name: str, *, tenant: str, origin: Origin, header: str) -> Secret:
        """Return a secret for one header of one call.

        Args:
            tenant: of the call.
            origin: scheme, host and port that the header is sent to.
            header: name of the header.
        Raises:
            SecretRefused: there is none of this name for the tenant, the origin or the header.
        """
        secret = self._by_name.get(name)
        shown = name[:SHOWN_CHARS]
        if secret is None or not secret.tenants & {tenant, EVERY_TENANT}:
            raise SecretRefused(
                f"there is no secret {shown!r} for tenant {tenant[:SHOWN_CHARS]!r}: "
                "the operator adds it to QUOTA_MANAGER_SECRETS (or as a variable QUOTA_SECRET_*, whose name is in "
                "lower case with `_`), or the tenant to its `tenants`"
            )
        if origin not in secret.origins:
            scheme, host, port = origin
            raise SecretRefused(
                f"the secret {shown!r} is not for {scheme}://{host}:{port}: the operator adds the host to its `hosts`, "
                "with http:// if it has no TLS, and with its port if that is not the usual one"
            )
        if header.lower() != secret.header:
            raise SecretRefused(f"the secret {shown!r} is for the header {secret.header!r} alone")
        return secret


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One secret as the operator writes it. msgspec's errors name its fields, and show no value."""

    value: str
    tenants: list[str]
    hosts: list[str]
    header: str
    prefix: str = ""

    def __repr__(self) -> str:
        return f"_Entry({self.header!r})"


def load_secrets(path: Path | None, environ: MutableMapping[str, str]) -> Secrets:
    """Return the secrets of a file and of the environment, and remove the latter from `environ`.

    Programs that this process starts later do not inherit them.

    Raises:
        WrongSecret: the file is readable for others, or a secret is not valid.
    """
    entries = {} if path is None else _read_file(path)
    for variable in sorted(name for name in environ if name.startswith(VARIABLE)):
        text = environ.pop(variable)
        name = variable.removeprefix(VARIABLE).lower()
        if not text:  # counts as not set, as for every setting
            continue
        if name in entries:
            raise WrongSecret(f"{variable} names a secret that is there twice: remove one of them")
        entries[name] = _decoded(text.encode("utf-8", "replace"), _Entry, variable)
    if len(entries) > MOST_SECRETS:
        raise WrongSecret(f"there are {len(entries)} secrets; the most are {MOST_SECRETS}")
    return Secrets(_secret(name, entry) for name, entry in entries.items())


def _read_file(path: Path) -> dict[str, _Entry]:
    if str(path).lstrip().startswith(("{", '"')):  # not shown: it may be a secret
        raise WrongSecret(
            f"QUOTA_MANAGER_SECRETS is the path of a file; one secret as JSON goes into a variable {VARIABLE}NAME"
        )
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise WrongSecret(f"QUOTA_MANAGER_SECRETS: {path} is no file")
            if found.st_mode & 0o077:
                mode = stat.S_IMODE(found.st_mode)
                raise WrongSecret(
                    f"QUOTA_MANAGER_SECRETS: others may use {path} (mode {mode:04o}): run `chmod 600 {path}`"
                )
            if found.st_uid not in (os.geteuid(), 0):
                raise WrongSecret(
                    f"QUOTA_MANAGER_SECRETS: {path} belongs to account {found.st_uid}: "
                    f"it should belong to this service's account ({os.geteuid()}) or to root"
                )
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise WrongSecret(f"QUOTA_MANAGER_SECRETS: {path} cannot be read ({error.strerror})") from None
    if len(content) > MOST_BYTES:
        raise WrongSecret(f"QUOTA_MANAGER_SECRETS: {path} is larger than {MOST_BYTES} bytes")
    return _decoded(content, dict[str, _Entry], f"QUOTA_MANAGER_SECRETS: {path}")


def _decoded(content: bytes, form: type[Form], where: str) -> Form:
    wrong = ""
    try:
        return msgspec.json.decode(content, type=form)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        wrong = str(error) if isinstance(error, msgspec.ValidationError) else "it is not valid JSON"
    example = EXAMPLE if form is _Entry else EXAMPLE_FILE
    # Outside of the handler: the decoder's error is not attached.
    raise WrongSecret(f"{where} is no secret: {wrong}; write {example}")


def _secret(name: str, entry: _Entry) -> Secret:
    where = f"the secret {name[:SHOWN_CHARS]!r}"
    header = entry.header.lower()
    for valid, what in (
        (_NAME.fullmatch(name), "its name should be letters, digits, `_`, `.` and `-`, at most 64"),
        (len(entry.value) >= FEWEST_CHARS, f"its value should have at least {FEWEST_CHARS} characters"),
        (len(entry.value) + len(entry.prefix) <= MOST_CHARS, f"its value should have at most {MOST_CHARS} characters"),
        (_VALUE.fullmatch(entry.value), "its value should be printable ASCII without spaces at its ends"),
        (_PREFIX.fullmatch(entry.prefix), "its prefix should be printable ASCII of at most 64 characters"),
        (_HEADER.fullmatch(header), "its header should be the name of a header"),
        (header not in _UNUSABLE and not header.startswith("proxy-"), "its header has another meaning"),
        (entry.tenants, 'it should name its tenants: ["team-a"], or ["*"] for all of them'),
        (entry.hosts, 'it should name its hosts: ["api.example.com"]'),
    ):
        if not valid:
            raise WrongSecret(f"{where} cannot be used: {what}")
    origins = frozenset(_origin(where, host) for host in entry.hosts)
    return Secret(name, SecretValue(entry.value), frozenset(entry.tenants), origins, header, entry.prefix)


def _origin(where: str, host: str) -> Origin:
    """Return the origin of an entry of `hosts`: a host is meant with https, and `http://host:port` as it is written."""
    try:
        target = read_url(host if "://" in host else f"https://{host}")
    except InvalidUrl as error:
        raise WrongSecret(f"{where} cannot be used: in its hosts, {error}") from None
    if target.path != "/" or target.query:
        raise WrongSecret(f"{where} cannot be used: its hosts should have no path")
    return target.origin
