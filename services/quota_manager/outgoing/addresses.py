"""Judge of IP addresses: only addresses of the public internet may be called, and what the operator allows.

An IPv6 address of a transition mechanism leads to an IPv4 address. It is refused as a form, and if the operator allows
the form (NAT64), the IPv4 address in it is judged as well: `64:ff9b::/96` does not allow `64:ff9b::7f00:1`.

IPv6 has one list of what is public, `2000::/3`, and exceptions. So forms that are not listed here are refused too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from shared.runtime.http_addresses import is_own

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

REFUSED: Final[tuple[tuple[str, str], ...]] = (
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a carrier (CGNAT)"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "metadata of a cloud"),
    ("169.254.0.0/16", "link-local, metadata of clouds"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarks"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved, broadcast"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::ffff:0:0/96", "IPv4-mapped"),
    ("::ffff:0:0:0/96", "IPv4-translated"),
    ("::/96", "IPv4-compatible"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64 of a network"),
    ("100::/64", "discarded"),
    ("2001::/32", "Teredo"),
    ("2001::/23", "reserved"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "documentation"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
    ("::/3", "not public"),
    ("4000::/2", "not public"),
    ("8000::/1", "not public"),
)
"""Network -> kind. The first that contains an address names the reason."""

_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})
"""Upper half of an interface identifier that has an IPv4 address in its lower half (RFC 5214)."""


class Addresses:
    """Judge of addresses. Immutable."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        """Read the operator's exceptions.

        Args:
            allow: networks (CIDR) that may be called although they are refused otherwise.
        Raises:
            ValueError: one is not a network; its text names it.
        """
        self._allowed = tuple(ip_network(each) for each in allow)
        self._refused = tuple((ip_network(network), f"{kind}, {network}") for network, kind in REFUSED)

    def refusal(self, text: str) -> str:
        """Return the reason why an address is refused; empty if it may be called. O(networks)."""
        try:
            address = ip_address(text)
        except ValueError:
            return "it is not an IP address"
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            return "it belongs to one interface of this host (zone)"
        for each in (address, *embedded(address)):
            if reason := self._refusal(each):
                return f"it is not public ({reason}); the operator can allow it by QUOTA_MANAGER_ALLOW_ADDRESSES"
        if not self._is_allowed(address) and is_own(address.compressed):
            return "it belongs to this host; the operator can allow it by QUOTA_MANAGER_ALLOW_ADDRESSES"
        return ""

    def _refusal(self, address: Address) -> str:
        if self._is_allowed(address):
            return ""
        for network, reason in self._refused:
            if address.version == network.version and address in network:
                return reason
        return ""

    def _is_allowed(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._allowed)


def embedded(address: Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that packets to an IPv6 address may be sent on to."""
    if isinstance(address, IPv4Address):
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    value = int(address)
    low = IPv4Address(value & 0xFFFFFFFF)
    compatible = value >> 32 == 0 and value > 1  # `::` and `::1` have no IPv4 address
    if compatible or value >> 32 in (0xFFFF0000, 0x64FF9B << 64) or value >> 80 == 0x64FF9B0001:
        yield low
    if (value >> 32) & 0xFFFFFFFF in _ISATAP:
        yield low
