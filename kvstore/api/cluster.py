"""The service `Cluster`."""

from __future__ import annotations

import json
from typing import Final

from google.protobuf.message import Message
from wbkv_proto.v1 import cluster_pb2 as cluster

from kvstore.api.health import serves
from kvstore.api.methods import ApiContext, Methods, Unary
from kvstore.machine.placement import Scheme

SERVICE: Final = "wbkv.v1.Cluster"
_SCHEME: Final = {Scheme.HASHED: cluster.Placement.HASHED, Scheme.ORDERED: cluster.Placement.ORDERED}


class Cluster:
    """The servicer."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api
        self.methods: Methods = {
            "Topology": Unary(cluster.TopologyRequest, self._topology),
            "Status": Unary(cluster.StatusRequest, self._status),
        }

    async def _topology(self, _: cluster.TopologyRequest, timeout_s: float) -> Message:
        known, limits = self._api.facts.topology(), self._api.service.limits
        options = self._api.options
        return cluster.TopologyResponse(
            header=self._api.header(revision=known.revision),
            nodes=[
                cluster.Node(name=name, address=address) for name, address in sorted(known.addresses.items())
            ],
            partitions=[
                cluster.Partition(id=group, leader=facts.leader or "", members=facts.members)
                for group, facts in sorted(known.partitions.items())
            ],
            placement=cluster.Placement(
                version=known.placement.version,
                scheme=_SCHEME[known.placement.scheme],
                starts=known.placement.starts,
                owners=known.placement.owners,
            ),
            limits=cluster.Limits(
                key_bytes=limits.key_bytes,
                value_bytes=limits.value_bytes,
                transaction_bytes=limits.transaction_bytes,
                operations=limits.operations,
                scan_bytes=limits.scan_bytes,
                transaction_rows=limits.transaction_rows,
                delete_keys=limits.delete_keys,
                delete_bytes=limits.delete_bytes,
                message_bytes=self._api.message_bytes,
                response_bytes=options.response_bytes,
                session_calls=options.session_calls,
            ),
        )

    async def _status(self, _: cluster.StatusRequest, timeout_s: float) -> Message:
        return cluster.StatusResponse(
            header=self._api.header(),
            partitions=[
                cluster.PartitionStatus(
                    id=group, serving=serves(facts), leads=facts.leads, revision=facts.revision
                )
                for group, facts in sorted(self._api.facts.topology().partitions.items())
            ],
            json=json.dumps(self._api.facts.status()),
        )
