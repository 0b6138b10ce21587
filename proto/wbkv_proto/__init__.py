"""The wire format: protobuf messages and gRPC stubs, generated from the sources beside this file."""
