"""What becomes of the S3 properties of Aiven's connectors, for the command `convert`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from framework.config.kafka_connect import (
    COMMON,
    COMPRESSION,
    NO_LOGIN,
    ConnectorOption,
    address,
    duration,
    whole_number,
)


def _attempts(text: str) -> int:
    return whole_number(text) + 1


_UPLOADS = "for uploads; a source only reads"
_IDENTITY = "without keys the AWS libraries search for credentials: environment, shared files, container, instance"
_BUFFER = "every object has a position, so late keys are found: [discovery] allowed_lateness"

OPTIONS: Mapping[str, ConnectorOption] = {
    "aws.s3.bucket.name": ConnectorOption(to="s3.bucket"),
    "aws.s3.region": ConnectorOption(to="s3.region"),
    "aws.s3.endpoint": ConnectorOption(to="s3.endpoint", read=address, note=NO_LOGIN),
    "aws.s3.prefix": ConnectorOption(to="s3.prefix", replaces_template=True),
    "file.name.prefix": ConnectorOption(note="Aiven's S3 sink does not use it: its keys begin with aws.s3.prefix"),
    COMPRESSION: attrs.evolve(COMMON[COMPRESSION], sink_default="gzip"),
    "aws.access.key.id": ConnectorOption(to="s3.access_key_id", variable="AWS_ACCESS_KEY_ID"),
    "aws.secret.access.key": ConnectorOption(to="s3.secret_access_key", variable="AWS_SECRET_ACCESS_KEY"),
    "aws.credentials.provider": ConnectorOption(note=_IDENTITY),
    "aws.sts.role.arn": ConnectorOption(to="s3.role_arn"),
    "aws.sts.role.external.id": ConnectorOption(to="s3.role_external_id"),
    "aws.sts.role.session.name": ConnectorOption(to="s3.role_session_name"),
    "aws.sts.role.session.duration": duration("s3.role_duration", "s"),
    "aws.sts.config.endpoint": ConnectorOption(to="s3.sts_endpoint", read=address, note=NO_LOGIN),
    "aws.s3.backoff.delay.ms": duration("s3.retry_base", "ms"),
    "aws.s3.backoff.max.delay.ms": duration("s3.retry_cap", "ms"),
    "aws.s3.backoff.max.retries": ConnectorOption(
        to="s3.max_attempts",
        read=_attempts,
        note="attempts include the first, so one more",
        by_hand="write one more than it holds",
    ),
    "aws.s3.fetch.page.size": ConnectorOption(note="pages have 1,000 keys: [s3] page_size"),
    "aws.s3.fetch.buffer.size": ConnectorOption(note=_BUFFER),
    "aws.s3.sse.algorithm": ConnectorOption(note=_UPLOADS),
    "aws.s3.part.size.bytes": ConnectorOption(note=_UPLOADS),
    "aws_s3_bucket": ConnectorOption(to="s3.bucket", note="the former name of aws.s3.bucket.name", yields=True),
    "aws_s3_region": ConnectorOption(to="s3.region", note="the former name of aws.s3.region", yields=True),
    "aws_s3_endpoint": ConnectorOption(
        to="s3.endpoint", read=address, note=f"the former name of aws.s3.endpoint; {NO_LOGIN}", yields=True
    ),
    "aws_s3_prefix": ConnectorOption(
        to="s3.prefix", note="the former name of aws.s3.prefix", yields=True, replaces_template=True
    ),
    "aws_access_key_id": ConnectorOption(to="s3.access_key_id", variable="AWS_ACCESS_KEY_ID", yields=True),
    "aws_secret_access_key": ConnectorOption(to="s3.secret_access_key", variable="AWS_SECRET_ACCESS_KEY", yields=True),
}
"""Names as of Aiven's S3 source connector 3.4; its S3 sink has them too."""
