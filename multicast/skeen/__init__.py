"""Skeen's protocol, and its fault-tolerant versions, which use consensus as a black box.

The white-box protocol is compared with these. All of them run the same processes (`multicast.process`): only
the way to timestamps differs, by PROPOSE between leaders and by `multicast.consensus` inside a group.

`ftskeen`    Figure *skeen*, where each group plays one process by consensus (after Fritzke et al.)
`skeen`      the figure itself: groups of one process
`fastcast`   leaders proceed while consensus runs (after Coelho et al.)
"""

from multicast.skeen.entry import Entry
from multicast.skeen.fastcast import EagerFastCast, FastCast
from multicast.skeen.ftskeen import EagerFtSkeen, FtSkeen
from multicast.skeen.skeen import Skeen

__all__ = ["EagerFastCast", "EagerFtSkeen", "Entry", "FastCast", "FtSkeen", "Skeen"]
