"""Settings are read once, frozen, and refuse what they do not know."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from pydantic_settings import SettingsConfigDict

from shared.settings import MisspeltSetting, ServiceSettings, TreadleSettings, load


class LoomSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="LOOM_", frozen=True)

    shuttles: int = 4


def test_a_setting_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_SHUTTLES", "9")

    assert load(LoomSettings).shuttles == 9


def test_what_is_not_set_keeps_its_default() -> None:
    assert (load(LoomSettings).shuttles, load(LoomSettings).host) == (4, "127.0.0.1")


def test_a_misspelt_setting_is_named_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_SHUTTLEZ", "9")

    with pytest.raises(MisspeltSetting, match=r"LOOM_SHUTTLEZ names no setting; LOOM_\* knows .*LOOM_SHUTTLES"):
        load(LoomSettings)


def test_a_misspelt_setting_is_found_in_small_letters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("loom_shuttlez", "9")

    with pytest.raises(MisspeltSetting):
        load(LoomSettings)


def test_a_value_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_SHUTTLES", "many")

    with pytest.raises(ValidationError, match="shuttles"):
        load(LoomSettings)


def test_settings_do_not_change_once_they_are_read() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(LoomSettings).shuttles = 5


def test_every_service_shares_what_all_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_REDIS_URL", "redis://elsewhere:6379/1")

    assert load(LoomSettings).treadle.redis_url == "redis://elsewhere:6379/1"


def test_other_tools_may_use_the_common_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_SOMETHING_OF_A_TOOL", "x")

    assert load(TreadleSettings).log_level == TreadleSettings().log_level
