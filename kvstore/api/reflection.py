"""gRPC's reflection service: which services there are, and the files that describe them, for tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2 as messages

from kvstore.api.calls import Calls, parse
from kvstore.http2.call import Call, Method
from kvstore.http2.status import Status

SERVICE: Final = "grpc.reflection.v1alpha.ServerReflection"


class Reflection:
    """The servicer."""

    def __init__(self, calls: Calls, services: Sequence[str]) -> None:
        self._calls = calls
        self._services = sorted((*services, SERVICE))
        pool: Any = descriptor_pool.Default()
        self._find: Final[dict[str, Callable[[Any], Any]]] = {
            "file_by_filename": pool.FindFileByName,
            "file_containing_symbol": pool.FindFileContainingSymbol,
            "file_containing_extension": lambda asked: (
                pool.FindExtensionByNumber(
                    pool.FindMessageTypeByName(asked.containing_type), asked.extension_number
                ).file
            ),
        }
        self._pool = pool

    def handlers(self) -> dict[str, Method]:
        """Return the methods for a port, by name."""
        return {"ServerReflectionInfo": Method(self._begin, self._calls.announce, streams_requests=True)}

    def _begin(self, call: Call, _: bytes) -> asyncio.Task[None]:
        return self._calls.task(call, self._serve)

    async def _serve(self, call: Call) -> None:
        self._calls.begin(call)
        with self._calls.stream("streams", call.peer()):
            while (arrived := await call.read()) is not None:
                if arrived.room is not None:
                    arrived.room.release()
                asked = parse(messages.ServerReflectionRequest, arrived.message)
                await call.write(self._answer(asked).SerializeToString())
        call.finish(Status.OK)

    def _answer(self, asked: messages.ServerReflectionRequest) -> messages.ServerReflectionResponse:
        answer = messages.ServerReflectionResponse(valid_host=asked.host, original_request=asked)
        kind = asked.WhichOneof("message_request")
        try:
            if kind == "list_services":
                for name in self._services:
                    answer.list_services_response.service.add(name=name)
            elif kind == "all_extension_numbers_of_type":
                found = self._pool.FindMessageTypeByName(asked.all_extension_numbers_of_type)
                numbers = answer.all_extension_numbers_response
                numbers.base_type_name = found.full_name
                numbers.extension_number.extend(
                    sorted(each.number for each in self._pool.FindAllExtensions(found))
                )
            elif kind is not None:
                self._add(self._find[kind](getattr(asked, kind)), answer.file_descriptor_response)
            else:
                self._fail(answer, Status.INVALID_ARGUMENT, "the request is empty")
        except KeyError:
            self._fail(answer, Status.NOT_FOUND, f"not found: {getattr(asked, str(kind))!s:.200}")
        return answer

    def _add(self, file: Any, found: messages.FileDescriptorResponse) -> None:
        """Add a file, and before it all that it imports."""
        files: dict[str, bytes] = {}

        def walk(file: Any) -> None:
            for imported in file.dependencies:
                if imported.name not in files:
                    walk(imported)
            files[file.name] = file.serialized_pb

        walk(file)
        found.file_descriptor_proto.extend(files.values())

    def _fail(self, answer: messages.ServerReflectionResponse, status: Status, message: str) -> None:
        answer.error_response.error_code = status
        answer.error_response.error_message = message
