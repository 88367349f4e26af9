"""Settings are read once, frozen, and refuse unknown names."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.cpu_manager.settings import CpuManagerSettings
from services.engine_proxy.settings import EngineProxySettings
from services.proxy.settings import ProxySettings
from services.scaling_planner.settings import ScalingPlannerSettings
from shared.runtime.settings import Duration, MisspeltSetting, ServiceSettings, TreadleSettings, WrongSetting, load
from treadle.stack.settings import StackSettings


class LoomSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="LOOM_", frozen=True)

    shuttles: int = Field(4, gt=0)
    rest: Duration = timedelta(seconds=1)
    weft: dict[str, int] = {}


def test_a_setting_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_SHUTTLES", "9")

    assert load(LoomSettings).shuttles == 9


def test_an_unset_setting_keeps_its_default() -> None:
    assert (load(LoomSettings).shuttles, load(LoomSettings).host) == (4, "127.0.0.1")


def test_a_misspelt_setting_is_named_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_SHUTTLEZ", "9")

    with pytest.raises(MisspeltSetting, match=r"LOOM_SHUTTLEZ names no setting; LOOM_\* settings are .*LOOM_SHUTTLES"):
        load(LoomSettings)


def test_a_misspelt_setting_is_found_in_small_letters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("loom_shuttlez", "9")

    with pytest.raises(MisspeltSetting):
        load(LoomSettings)


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("LOOM_SHUTTLES", "many", "LOOM_SHUTTLES is 'many': it should be a whole number"),
        ("LOOM_SHUTTLES", "0", "LOOM_SHUTTLES is '0': it should be greater than 0"),
        ("LOOM_REST", "abc", "LOOM_REST is 'abc': it should be seconds (15) or an ISO 8601 duration (PT15S)"),
        ("LOOM_REST", "inf", "LOOM_REST is 'inf': it should be seconds (15) or an ISO 8601 duration (PT15S)"),
        ("LOOM_REST", "-1", "LOOM_REST is '-1': it should be 0 or more"),
        ("LOOM_WEFT", "red", "LOOM_WEFT is not JSON"),
        ("LOOM_WEFT", '{"red": "x"}', "LOOM_WEFT.red is 'x': it should be a whole number"),
        ("TREADLE_LOG_JSON", "maybe", "TREADLE_LOG_JSON is 'maybe': it should be true or false"),
        (
            "TREADLE_LOG_LEVEL",
            "loud",
            "TREADLE_LOG_LEVEL is 'loud': it should be DEBUG, INFO, WARNING, ERROR or CRITICAL",
        ),
        (
            "TREADLE_REDIS_URL",
            "me:secret@host",
            "TREADLE_REDIS_URL is wrong: it should begin with redis:// or rediss:// or unix://",
        ),
        (
            "TREADLE_DATABASE_URL",
            "postgresql://host/db",
            "TREADLE_DATABASE_URL is wrong: it should begin with postgresql+asyncpg://",
        ),
    ],
)
def test_a_value_that_cannot_be_read_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, line: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(WrongSetting) as caught:
        load(LoomSettings)
    assert str(caught.value) == line


def test_each_wrong_setting_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_SHUTTLES", "many")
    monkeypatch.setenv("LOOM_REST", "abc")

    with pytest.raises(WrongSetting) as caught:
        load(LoomSettings)
    assert [line.split()[0] for line in str(caught.value).splitlines()] == ["LOOM_SHUTTLES", "LOOM_REST"]


def test_an_empty_setting_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_REDIS_URL", "")

    assert load(LoomSettings).treadle == TreadleSettings()


def test_settings_do_not_change_once_they_are_read() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(LoomSettings).shuttles = 5


def test_every_service_shares_what_all_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_REDIS_URL", "redis://elsewhere:6379/1")

    assert load(LoomSettings).treadle.redis_url == "redis://elsewhere:6379/1"


def test_other_tools_may_use_the_common_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_SOMETHING_OF_A_TOOL", "x")

    assert load(TreadleSettings).log_level == TreadleSettings().log_level


@pytest.mark.parametrize(("value", "seconds"), [("15", 15), ("0.5", 0.5), ("PT15S", 15), ("00:01:00", 60)])
def test_a_duration_is_seconds_or_iso_8601(monkeypatch: pytest.MonkeyPatch, value: str, seconds: float) -> None:
    monkeypatch.setenv("LOOM_REST", value)

    assert load(LoomSettings).rest == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "settings",
    [
        TreadleSettings,
        StackSettings,
        ProxySettings,
        ScalingPlannerSettings,
        CpuManagerSettings,
        EngineProxySettings,
    ],
)
def test_every_duration_of_every_service_accepts_plain_seconds(
    monkeypatch: pytest.MonkeyPatch, settings: type[BaseSettings]
) -> None:
    prefix = str(settings.model_config["env_prefix"])
    monkeypatch.setenv("ENGINE_PROXY_NODE", "n1")  # it has no default
    durations = [name for name, field in settings.model_fields.items() if field.annotation is timedelta]
    for name in durations:
        monkeypatch.setenv(prefix + name.upper(), "15")
    read = load(settings)
    assert [getattr(read, name) for name in durations] == [timedelta(seconds=15)] * len(durations)
    assert durations or settings is not StackSettings
