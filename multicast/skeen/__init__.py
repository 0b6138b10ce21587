"""Skeen's protocol, and its fault-tolerant versions that use consensus as a black box.

`ftskeen`    Figure *skeen*, where each group plays one process by consensus (after Fritzke et al.)
`skeen`      the figure as it is: groups of one process
`fastcast`   leaders go on while consensus runs (after Coelho et al.)
"""

from multicast.skeen.entry import Entry
from multicast.skeen.fastcast import EagerFastCast, FastCast
from multicast.skeen.ftskeen import EagerFtSkeen, FtSkeen
from multicast.skeen.skeen import Skeen

__all__ = ["EagerFastCast", "EagerFtSkeen", "Entry", "FastCast", "FtSkeen", "Skeen"]
