"""Settings of the quota manager, as an operator writes them in the environment."""

from __future__ import annotations

import pytest

from services.quota_manager.kinds import MOST_BYTES
from services.quota_manager.settings import QuotaManagerSettings
from shared.runtime.settings import WrongSetting, load


@pytest.mark.parametrize(
    ("text", "networks"),
    [
        ("[]", []),
        ("", []),
        ('["10.1.0.0/16", "fd00::/8"]', ["10.1.0.0/16", "fd00::/8"]),
        ("10.1.0.0/16", ["10.1.0.0/16"]),
        (" 10.1.0.0/16, 10.2.3.4 ,", ["10.1.0.0/16", "10.2.3.4/32"]),
        ("::1/128", ["::1/128"]),
    ],
)
def test_networks_are_a_json_list_or_separated_by_commas(
    monkeypatch: pytest.MonkeyPatch, text: str, networks: list[str]
) -> None:
    monkeypatch.setenv("QUOTA_MANAGER_ALLOW_ADDRESSES", text)
    assert [str(network) for network in load(QuotaManagerSettings).allow_addresses] == networks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10.1.2.3/16", "10.1.2.3/16 has bits past its prefix; write 10.1.0.0/16, or 10.1.2.3 for one address"),
        ('["fd00::1/8"]', "fd00::1/8 has bits past its prefix; write fd00::/8, or fd00::1 for one address"),
        ("intranet", "'intranet' is no network; write one as 10.1.0.0/16"),
        ("10.0.0.0/33", "'10.0.0.0/33' is no network"),
        ('["10.1.0.0/16"', 'it should be networks as a JSON list: ["10.1.0.0/16"], or 10.1.0.0/16,10.2.0.0/16'),
        ("[1]", "it should be networks as a JSON list"),
    ],
)
def test_a_wrong_network_says_what_to_write(monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.setenv("QUOTA_MANAGER_ALLOW_ADDRESSES", text)
    with pytest.raises(WrongSetting) as wrong:
        load(QuotaManagerSettings)
    assert "QUOTA_MANAGER_ALLOW_ADDRESSES" in str(wrong.value)
    assert words in str(wrong.value)


def test_a_tenant_has_a_quarter_of_the_memory_for_answers_and_room_for_the_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    least = 4 * MOST_BYTES
    monkeypatch.setenv("QUOTA_MANAGER_BODIES_BYTES", str(least))
    bodies = load(QuotaManagerSettings).bodies()
    assert (bodies.most, bodies.most_each) == (least, MOST_BYTES)
    monkeypatch.setenv("QUOTA_MANAGER_BODIES_BYTES", str(least - 1))
    with pytest.raises(WrongSetting):
        load(QuotaManagerSettings)
