"""The wire between nodes. Read `frames` first: its tag table is the format.

`schema` (MessagePack formats of classes), `messages` (snapshot messages), `frames` (the codec),
`flow` (slices, references and epochs of a link), `connection` (one TCP connection), `link` (the dialling
side), `acceptor` (the accepting side), `transport` (both, for a node).
"""
