"""A small Iggy server for first runs and tests: one process, loopback only, durable, no dependencies to start.

Run it with `python -m framework.iggy.embedded PATH --port N`; `framework.iggy.embedded.launcher` starts it as a child. The
modules in the order of a request: `service` accepts, `connection` reads frames, `commands` carries them out on
`catalog` and `partition`, which store in `segment` files; `protocol` and `batch` hold the wire's layout.

It lacks, and answers with "feature unavailable": consumer groups, users and permissions, access tokens, retention,
TLS, QUIC, HTTP, clusters. Stored offsets are per consumer and partition.
"""
