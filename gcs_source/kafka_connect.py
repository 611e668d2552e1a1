"""What becomes of the GCS properties of Aiven's connectors, for the command `convert`.

Aiven ships a sink for GCS and no source; the names of the sink are known here.
"""

from __future__ import annotations

from collections.abc import Mapping

from framework.config.kafka_connect import NO_LOGIN, ConnectorOption, address, duration, whole_number

OPTIONS: Mapping[str, ConnectorOption] = {
    "gcs.bucket.name": ConnectorOption(to="gcs.bucket", of_sink=True),
    "gcs.endpoint": ConnectorOption(to="gcs.endpoint", read=address, note=NO_LOGIN),
    "gcs.credentials.path": ConnectorOption(to="gcs.credentials_file"),
    "gcs.credentials.json": ConnectorOption(
        note="not copied: write the JSON to a file, and name it in [gcs] credentials_file"
    ),
    "gcs.credentials.default": ConnectorOption(note="without credentials_file the application default is used"),
    "gcs.retry.backoff.initial.delay.ms": duration("gcs.retry_base", "ms"),
    "gcs.retry.backoff.max.delay.ms": duration("gcs.retry_cap", "ms"),
    "gcs.retry.backoff.total.timeout.ms": duration("gcs.retry_budget", "ms"),
    "gcs.retry.backoff.max.attempts": ConnectorOption(to="gcs.max_attempts", read=whole_number),
    "gcs.retry.backoff.delay.multiplier": ConnectorOption(note="each wait is twice the last"),
    "gcs.object.content.encoding": ConnectorOption(note="for uploads; a source only reads"),
    "gcs.user.agent": ConnectorOption(note="requests name this program"),
    "file.name.prefix": ConnectorOption(to="gcs.prefix"),
}
