"""Uploads the demo's files into a bucket. Not part of the source, which never writes to a bucket."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session as BotocoreSession

from framework.errors import FatalError

_THREADS = 8
_READY_SECONDS = 30.0


def fill_bucket(endpoint: str, access_key: str, secret_key: str, *, bucket: str, files: Mapping[str, Path]) -> int:
    """Make the bucket hold the files; return how many had to be sent.

    What is there with the same size stays as it is: the same bytes put again would be a new version, to be read again.
    Returns when every object can be read: a server that starts with data of its own lists them before it can.

    Args:
        endpoint: of the local server.
        access_key: who writes.
        secret_key: belongs to it.
        bucket: made when it is missing.
        files: key -> file.

    Raises:
        FatalError: the server did not take them.
    """
    # The user's profile, which AWS_PROFILE names, has no say here.
    session = BotocoreSession(session_vars={"profile": (None, [], None, None)})
    client = boto3.Session(botocore_session=session).client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 5, "mode": "standard"},
            max_pool_connections=_THREADS,
            proxies={},
        ),
    )
    try:
        if bucket not in (found["Name"] for found in client.list_buckets()["Buckets"]):
            client.create_bucket(Bucket=bucket)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        there = {found["Key"]: found["Size"] for page in pages for found in page.get("Contents", ())}
        missing = [key for key, file in files.items() if there.get(key) != file.stat().st_size]

        def put(key: str) -> None:
            client.put_object(Bucket=bucket, Key=key, Body=files[key].read_bytes())

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(put, missing))
        limit = time.monotonic() + _READY_SECONDS
        for key in files if len(missing) < len(files) else ():
            _wait_until_readable(client, bucket, key, limit)
    except (BotoCoreError, ClientError) as error:
        raise FatalError(f"the local S3 server at {endpoint} did not take the demo's objects: {error}") from error
    finally:
        client.close()
    return len(missing)


def _wait_until_readable(client: Any, bucket: str, key: str, limit: float) -> None:
    while True:
        try:
            client.get_object(Bucket=bucket, Key=key, Range="bytes=0-0")["Body"].close()
        except ClientError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.1)
        else:
            return
