"""Order in which the hosts of a database URL are tried: the one that worked last is first, one that failed is last.

Without it, a frozen host that the URL names first delays every new connection until the time limit.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

Address = tuple[str, str]
"""Host and port."""


class HostOrder:
    def __init__(self, addresses: tuple[Address, ...]) -> None:
        self._addresses = list(addresses)

    def list_arguments(self) -> dict[str, str]:
        """The hosts and ports as arguments of libpq, in the order to try them."""
        hosts, ports = zip(*self._addresses, strict=True)
        return {"host": ",".join(hosts), "port": ",".join(ports)}

    def prefer(self, address: Address) -> None:
        """Puts the host first that a connection was made to."""
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.insert(0, address)

    def demote_first(self) -> None:
        """Puts the first host last, because no host accepted a connection; it may be the one that does not answer."""
        self._addresses.append(self._addresses.pop(0))


def find_host_order(arguments: Mapping[str, Any]) -> HostOrder | None:
    """The order of these hosts, shared by all connections of the process; None for a single host."""
    hosts, ports = str(arguments.get("host", "")).split(","), str(arguments.get("port", "")).split(",")
    if len(hosts) < 2 or len(hosts) != len(ports):
        return None
    return _get_host_order(tuple(zip(hosts, ports, strict=True)))


@lru_cache(maxsize=100)
def _get_host_order(addresses: tuple[Address, ...]) -> HostOrder:
    return HostOrder(addresses)
