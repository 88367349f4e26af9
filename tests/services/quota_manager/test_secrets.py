"""Secrets: how they are read, to whom they are given, and that they do not show themselves."""

from __future__ import annotations

import copy
import json
import os
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.quota_manager.secrets import Secret, SecretRefused, Secrets, SecretValue, WrongSecret, load_secrets
from services.quota_manager.settings import QuotaManagerSettings
from shared.runtime.settings import WrongSetting, load

VALUE = "hidden-7f3a9c"
ENTRY: dict[str, Any] = {
    "value": VALUE,
    "tenants": ["team-a"],
    "hosts": ["api.example.com"],
    "header": "Authorization",
    "prefix": "Bearer ",
}
ORIGIN = ("https", "api.example.com", 443)


def written(path: Path, secrets: Any, mode: int = 0o600) -> Path:
    path.write_text(secrets if isinstance(secrets, str) else json.dumps(secrets))
    path.chmod(mode)
    return path


def from_variable(**changes: Any) -> Secrets:
    return load_secrets(None, {"QUOTA_SECRET_KEY": json.dumps({**ENTRY, **changes})})


def test_secrets_are_read_from_a_file_and_from_variables(tmp_path: Path) -> None:
    environ = {"QUOTA_SECRET_SERPER_2": json.dumps(ENTRY), "QUOTA_SECRET_EMPTY": "", "QUOTA_MANAGER_NODE": "n"}
    secrets = load_secrets(written(tmp_path / "secrets", {"in-file": ENTRY}), environ)
    assert len(secrets) == 2
    for name in ("in-file", "serper_2"):
        secret = secrets.granted(name, tenant="team-a", origin=ORIGIN, header="authorization")
        assert secret.header_value() == f"Bearer {VALUE}"


def test_variables_are_removed_so_that_no_child_inherits_them() -> None:
    environ = {"QUOTA_SECRET_KEY": json.dumps(ENTRY), "HOME": "/"}
    load_secrets(None, environ)
    assert environ == {"HOME": "/"}


def test_an_empty_setting_names_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUOTA_MANAGER_SECRETS", "")
    assert load(QuotaManagerSettings).secrets is None


def test_without_settings_there_are_no_secrets() -> None:
    assert len(load_secrets(None, {})) == 0


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({}, True),
        ({"header": "AUTHORIZATION"}, True),
        ({"name": "other"}, False),
        ({"name": "KEY"}, False),
        ({"tenant": "team-b"}, False),
        ({"tenant": "*"}, False),
        ({"tenant": ""}, False),
        ({"origin": ("http", "api.example.com", 443)}, False),
        ({"origin": ("http", "api.example.com", 80)}, False),
        ({"origin": ("https", "api.example.com", 8443)}, False),
        ({"origin": ("https", "example.com", 443)}, False),
        ({"origin": ("https", "evil.api.example.com", 443)}, False),
        ({"origin": ("https", "api.example.com.evil.com", 443)}, False),
        ({"header": "x-echo"}, False),
    ],
)
def test_a_secret_is_given_for_its_tenant_origin_and_header_alone(asked: dict[str, Any], given: bool) -> None:
    full = {"name": "key", "tenant": "team-a", "origin": ORIGIN, "header": "Authorization", **asked}
    name = full.pop("name")
    if given:
        assert from_variable().granted(name, **full).name == "key"
        return
    with pytest.raises(SecretRefused) as caught:
        from_variable().granted(name, **full)
    assert VALUE not in str(caught.value)


def test_a_refusal_does_not_show_whether_another_tenant_has_the_secret() -> None:
    def refusal(name: str) -> str:
        with pytest.raises(SecretRefused) as caught:
            from_variable().granted(name, tenant="team-b", origin=ORIGIN, header="authorization")
        return str(caught.value).replace(name, "NAME", 1)

    assert refusal("key") == refusal("nothing")


def test_every_tenant_may_use_a_secret_of_all() -> None:
    secrets = from_variable(tenants=["*"])
    assert secrets.granted("key", tenant="anyone", origin=ORIGIN, header="Authorization").name == "key"


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("api.example.com", ("https", "api.example.com", 443)),
        ("API.example.com.", ("https", "api.example.com", 443)),
        ("api.example.com:8443", ("https", "api.example.com", 8443)),
        ("https://api.example.com/", ("https", "api.example.com", 443)),
        ("http://127.0.0.1:8080", ("http", "127.0.0.1", 8080)),
        ("http://[::1]", ("http", "::1", 80)),
    ],
)
def test_a_host_is_an_origin(host: str, origin: tuple[str, str, int]) -> None:
    secrets = from_variable(hosts=["other.example.com", host])
    assert secrets.granted("key", tenant="team-a", origin=origin, header="Authorization").name == "key"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610, 0o601, 0o666, 0o777])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(WrongSecret, match="chmod 600"):
        load_secrets(written(tmp_path / "secrets", {"key": ENTRY}, mode), {})


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_ours_alone_is_read(tmp_path: Path, mode: int) -> None:
    assert len(load_secrets(written(tmp_path / "secrets", {"key": ENTRY}, mode), {})) == 1


def test_a_link_is_judged_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(written(tmp_path / "open", {"key": ENTRY}, 0o644))
    with pytest.raises(WrongSecret, match="chmod 600"):
        load_secrets(tmp_path / "link", {})


def test_a_file_of_another_account_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "secrets", {"key": ENTRY})
    owner = path.stat().st_uid
    if owner == 0:
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(path, 4711, -1)
        owner = 4711
    monkeypatch.setattr(os, "geteuid", lambda: 4712)
    with pytest.raises(WrongSecret, match=f"belongs to account {owner}"):
        load_secrets(path, {})
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    assert len(load_secrets(path, {})) == 1


@pytest.mark.parametrize("what", ["missing", "folder", "device", "large"])
def test_what_is_no_readable_file_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "folder").mkdir(mode=0o700)
    written(tmp_path / "large", json.dumps({"key": ENTRY}) + " " * (1 << 20))
    path = Path("/dev/null") if what == "device" else tmp_path / what
    with pytest.raises(WrongSecret, match="QUOTA_MANAGER_SECRETS"):
        load_secrets(path, {})


@pytest.mark.parametrize("text", [json.dumps(ENTRY), f' {{"key": {json.dumps(ENTRY)}}}', f'"{VALUE}"'])
def test_a_secret_in_place_of_a_path_is_not_shown(text: str) -> None:
    with pytest.raises(WrongSecret, match="is the path of a file") as caught:
        load_secrets(Path(text), {})
    assert VALUE not in str(caught.value)


WRONG: dict[str, Any] = {
    "no-json": VALUE,
    "cut": json.dumps(ENTRY)[:40],
    "list": [VALUE],
    "text": f'"{VALUE}"',
    "value-number": {**ENTRY, "value": 73914652},
    "value-short": {**ENTRY, "value": "short-7"},
    "value-empty": {**ENTRY, "value": ""},
    "value-long": {**ENTRY, "value": VALUE * 400},
    "value-line-break": {**ENTRY, "value": f"{VALUE}\r\nX: y"},
    "value-final-line-break": {**ENTRY, "value": f"{VALUE}\n"},
    "value-not-ascii": {**ENTRY, "value": f"{VALUE}é"},
    "value-space-at-end": {**ENTRY, "value": f"{VALUE} "},
    "prefix-line-break": {**ENTRY, "prefix": "a\nb"},
    "prefix-long": {**ENTRY, "prefix": "a" * 65},
    "header-host": {**ENTRY, "header": "Host"},
    "header-length": {**ENTRY, "header": "content-length"},
    "header-proxy": {**ENTRY, "header": "Proxy-Authorization"},
    "header-space": {**ENTRY, "header": "a b"},
    "header-empty": {**ENTRY, "header": ""},
    "no-tenants": {**ENTRY, "tenants": []},
    "no-hosts": {**ENTRY, "hosts": []},
    "host-pattern": {**ENTRY, "hosts": ["*.example.com"]},
    "host-every": {**ENTRY, "hosts": ["*"]},
    "host-path": {**ENTRY, "hosts": ["api.example.com/v1"]},
    "host-user": {**ENTRY, "hosts": ["user@api.example.com"]},
    "host-scheme": {**ENTRY, "hosts": ["ftp://api.example.com"]},
    "host-decimal": {**ENTRY, "hosts": ["2130706433"]},
    "host-empty": {**ENTRY, "hosts": [""]},
    "field-unknown": {**ENTRY, "tenant": "team-a"},
    "field-missing": {name: value for name, value in ENTRY.items() if name != "header"},
}  # fmt: skip


@pytest.mark.parametrize("entry", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("where", ["file", "variable"])
def test_a_wrong_secret_is_refused_without_showing_its_value(tmp_path: Path, entry: Any, where: str) -> None:
    text = entry if isinstance(entry, str) else json.dumps(entry)
    path = written(tmp_path / "secrets", f'{{"key": {text}}}') if where == "file" else None
    with pytest.raises(WrongSecret) as caught:
        load_secrets(path, {} if path else {"QUOTA_SECRET_KEY": text})
    seen: BaseException | None = caught.value
    while seen is not None:
        assert not any(part in f"{seen!r} {seen}" for part in (VALUE, "hidden", "7f3a9c", "73914652", "short-7"))
        seen = seen.__context__
    assert isinstance(caught.value, WrongSetting)


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 65, "a/b", "a\nb"])
def test_a_wrong_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(WrongSecret, match="its name should be"):
        load_secrets(written(tmp_path / "secrets", {name: ENTRY}), {})


def test_a_name_is_there_once(tmp_path: Path) -> None:
    with pytest.raises(WrongSecret, match="twice"):
        load_secrets(written(tmp_path / "secrets", {"key": ENTRY}), {"QUOTA_SECRET_KEY": json.dumps(ENTRY)})
    with pytest.raises(WrongSecret, match="twice"):
        load_secrets(None, {"QUOTA_SECRET_KEY": json.dumps(ENTRY), "QUOTA_SECRET_key": json.dumps(ENTRY)})


def test_there_are_at_most_1024(tmp_path: Path) -> None:
    with pytest.raises(WrongSecret, match="1024"):
        load_secrets(written(tmp_path / "secrets", {f"key-{number}": ENTRY for number in range(1025)}), {})


def test_a_value_shows_itself_to_nothing_but_reveal() -> None:
    value = SecretValue(VALUE)
    shown = [repr(value), str(value), f"{value}", f"{value!r:>20}", format(value, ">9")]
    shown += ["%s %r" % (value, value)]  # noqa: UP031
    secret = from_variable().granted("key", tenant="team-a", origin=ORIGIN, header="authorization")
    shown += [repr(secret), str(secret), repr([secret]), repr(from_variable()), repr({"a": value})]
    assert not any(VALUE in one or "hidden" in one for one in shown)
    assert value.reveal() == VALUE
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize(
    "leak",
    [json.dumps, pickle.dumps, copy.copy, copy.deepcopy, msgspec.json.encode, msgspec.to_builtins, vars, iter, bytes],
)
def test_a_value_cannot_be_serialised_or_copied(leak: Any) -> None:
    with pytest.raises(TypeError) as caught:
        leak(SecretValue(VALUE))
    assert VALUE not in str(caught.value)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError):
            pickle.dumps(SecretValue(VALUE), protocol)


def test_a_secret_cannot_be_serialised() -> None:
    secret = Secret("key", SecretValue(VALUE), frozenset({"*"}), frozenset({ORIGIN}), "authorization", "")
    for leak in (asdict, pickle.dumps, msgspec.json.encode):
        with pytest.raises(TypeError):
            leak(secret)
