"""Each protocol's own invariants, on its own variables and messages.

`whitebox`   those of Figure *inv* and of appendix A that can be observed
`skeen`      consensus decides once; the clock and the local timestamps of Skeen's family
"""

from multicast.protocol import Protocol
from multicast.sim.checkers import Checker, Multicasts
from multicast.sim.host import Host
from multicast.sim.invariants.skeen import Decisions, Promises
from multicast.sim.invariants.whitebox import Agreement, Monotone
from multicast.skeen import FtSkeen
from multicast.topology import Topology
from multicast.types import ReplicaId
from multicast.whitebox import WhiteBox


def invariants_of(
    protocol: type[Protocol], topology: Topology, multicasts: Multicasts, hosts: dict[ReplicaId, Host]
) -> list[Checker]:
    """Return the checkers of the protocol's own invariants."""
    if issubclass(protocol, WhiteBox):
        return [Agreement(topology, multicasts, hosts), Monotone()]
    if issubclass(protocol, FtSkeen):
        return [Decisions(topology), Promises()]
    return []


__all__ = ["invariants_of"]
