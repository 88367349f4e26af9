"""Which addresses may be called."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.quota_manager.outgoing import addresses
from services.quota_manager.outgoing.addresses import Addresses
from shared.runtime.http_addresses import is_own
from tests.services.quota_manager.outgoing.tricks import ADDRESSES, PUBLIC


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES.keys())
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert "QUOTA_MANAGER_ALLOW_ADDRESSES" in Addresses().refusal(address)


@pytest.mark.parametrize("address", PUBLIC.values(), ids=PUBLIC.keys())
def test_an_address_beside_what_is_refused_is_public(address: str) -> None:
    assert Addresses().refusal(address) == ""


@given(st.ip_addresses())
def test_an_address_that_the_standard_library_calls_private_is_refused(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """Another list than ours, that of IANA's registries."""
    special = not address.is_global or address.is_multicast or address.is_reserved or address.is_link_local
    if special and address not in ipaddress.ip_network("192.0.0.0/24"):
        assert Addresses().refusal(str(address))


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "2130706433", "fe80::1%lo", "::1%1", "[::1]", "8.8.8.8:80"])
def test_what_is_no_plain_address_is_refused_even_if_all_is_allowed(text: str) -> None:
    assert Addresses(["0.0.0.0/0", "::/0"]).refusal(text)


def test_the_operator_can_allow_a_network() -> None:
    judge = Addresses(["10.1.0.0/16", "fd00:1::/32", "::1/128"])
    assert [judge.refusal(one) for one in ("10.1.2.3", "fd00:1::7", "::1")] == ["", "", ""]
    assert all(judge.refusal(one) for one in ("10.2.0.1", "127.0.0.1", "fd00:2::7", "::ffff:10.1.2.3"))


@pytest.mark.parametrize(
    ("form", "private", "public"),
    [
        ("64:ff9b::/96", "64:ff9b::10.0.0.1", "64:ff9b::8.8.8.8"),
        ("64:ff9b:1::/48", "64:ff9b:1::10.0.0.1", "64:ff9b:1::8.8.8.8"),
        ("2002::/16", "2002:a00:1::1", "2002:808:808::1"),
        ("::ffff:0:0/96", "::ffff:10.0.0.1", "::ffff:8.8.8.8"),
        ("::ffff:0:0:0/96", "::ffff:0:10.0.0.1", "::ffff:0:8.8.8.8"),
        ("::/96", "::10.0.0.1", "::8.8.8.8"),
        ("2001::/32", "2001:0:808:808::f5ff:fffe", "2001:0:808:808::f7f7:f7f7"),
    ],
)
def test_an_allowed_form_does_not_allow_the_private_address_in_it(form: str, private: str, public: str) -> None:
    assert Addresses([form]).refusal(public) == ""
    assert Addresses([form]).refusal(private)
    assert Addresses([form, "10.0.0.0/8"]).refusal(private) == ""


@pytest.mark.parametrize("network", ["10.0.0.1/8", "localhost", "10/8", "", "10.0.0.0/33"])
def test_what_is_no_network_is_rejected(network: str) -> None:
    with pytest.raises(ValueError, match=network or "does not appear"):
        Addresses([network])


def test_an_address_of_this_host_is_refused_although_it_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "is_own", lambda address: address == "2606:4700::1")
    assert "belongs to this host" in Addresses().refusal("2606:4700:0::1")
    assert Addresses(["2606:4700::/64"]).refusal("2606:4700::1") == ""
    assert Addresses().refusal("2606:4700::2") == ""


@pytest.mark.parametrize(("address", "own"), [("127.0.0.1", True), ("8.8.8.8", False), ("2606:4700::1", False)])
def test_own_addresses_are_found(address: str, own: bool) -> None:
    assert is_own(address) is own


def test_a_refusal_does_not_show_the_address() -> None:
    """A name's address inside the operator's network is not for the tenant that asks."""
    assert "10.20.30.40" not in Addresses().refusal("10.20.30.40")
