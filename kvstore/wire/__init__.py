"""The wire between nodes. Read `frames` first: its tag table is the format.

`schema` (MessagePack formats of classes), `messages` (messages between nodes themselves), `frames` (the
codec), `payloads` (which parts of messages may travel apart), `flow` (slices, references and epochs of a
link: `outflow` sends, `inflow` receives), `connection` (one TCP connection), `link` (the dialling side),
`acceptor` (the accepting side), `transport` (both, for a node).
"""
