"""Uploads the demo's files into a bucket. Not part of the source, which never writes to a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from framework.errors import FatalError
from gcs_source.google_packages import AnonymousCredentials, Client, GoogleAPIError

_THREADS = 8


def fill_bucket(endpoint: str, *, bucket: str, files: Mapping[str, Path]) -> int:
    """Make the bucket hold the files; return how many had to be sent. See `framework.cli.demo.demo_store.DemoStore.fill`.

    Args:
        endpoint: of the local server.
        bucket: made when it is missing.
        files: key -> file.

    Raises:
        FatalError: the server did not take them.
    """
    client = Client(
        project="demo",
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        client_options={"api_endpoint": endpoint},
    )
    try:
        place = client.lookup_bucket(bucket) or client.create_bucket(bucket)
        there = {blob.name: blob.size for blob in client.list_blobs(place)}
        missing = [key for key, file in files.items() if there.get(key) != file.stat().st_size]

        def put(key: str) -> None:
            place.blob(key).upload_from_filename(str(files[key]), content_type="application/octet-stream")

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(put, missing))
    except GoogleAPIError as error:
        raise FatalError(f"the local GCS server at {endpoint} did not take the demo's objects: {error}") from error
    finally:
        client.close()
    return len(missing)
