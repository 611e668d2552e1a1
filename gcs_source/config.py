"""Section `[gcs]` of the configuration: all options of the GCS source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

import attrs

from framework.config.bucket import BucketConfig, address_errors, bucket_errors, customer_key_errors
from framework.config.option import option

MAX_PAGE_SIZE = 5000

# https://cloud.google.com/storage/docs/buckets#naming: parts between dots of at most 63, all together of at most 222.
_BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?)*")
_SHORTEST_BUCKET, _MAX_BUCKET = 3, 222


@attrs.frozen(kw_only=True)
class GcsConfig(BucketConfig):
    """What to read, from where, with which identity, and how often to retry.

    Identity: `anonymous`, else `credentials_file`, else the application default of the Google libraries
    (the environment's GOOGLE_APPLICATION_CREDENTIALS, gcloud's credentials, the machine's or pod's own,
    workload identity). With `impersonate`, that identity gets tokens of another service account, which
    are renewed automatically.
    """

    scheme: ClassVar[str] = "gs"

    bucket: str = option(doc="Name of the bucket.", example="my-bucket")
    project: str = option("", doc="Project for calls that require one; empty = the identity's. A bucket requires none.")
    endpoint: str = option(
        "",
        doc="Address of another server with the GCS protocol, with its scheme; empty = STORAGE_EMULATOR_HOST,"
        " else Google.",
    )
    credentials_file: str = option(
        "", doc="Path of a JSON file: a service account's key, or a configuration of workload identity."
    )
    impersonate: str = option(
        "", doc="Address of a service account to act as: `reader@project.iam.gserviceaccount.com`."
    )
    anonymous: bool = option(default=False, doc="Send requests without an identity: for public buckets.")
    user_project: str = option("", doc="Project that pays for requests to a requester-pays bucket.")
    customer_key: str = option(
        "", secret=True, doc="Customer-supplied key of encrypted objects (CSEK, AES256): 32 bytes in base64."
    )
    page_size: int = option(1000, minimum=1, maximum=MAX_PAGE_SIZE, doc="Keys in one page of a listing.")

    def validate_options(self) -> Iterator[str]:
        """Yield all errors of combined options, or of an option's form; each begins with the option's name.

        Ranges of single options are checked when the file is read. No I/O; no error contains a secret.
        """
        yield from _names(self)
        yield from address_errors(endpoint=self.endpoint, proxy=self.proxy)
        yield from _identity(self)
        yield from customer_key_errors(customer_key=self.customer_key)


def _names(config: GcsConfig) -> Iterator[str]:
    bucket = config.bucket
    if bucket and "://" not in bucket:
        fits = _SHORTEST_BUCKET <= len(bucket) <= _MAX_BUCKET and _BUCKET.fullmatch(bucket) is not None
        if not fits:
            yield (
                f"bucket: {bucket!r} cannot be a bucket's name (3 to 63 of a-z, 0-9, dot, hyphen, underscore; letters or "
                f"digits at its ends)"
            )
    yield from bucket_errors(config, bucket)


def _identity(config: GcsConfig) -> Iterator[str]:
    if config.anonymous:
        others = {
            "credentials_file": config.credentials_file,
            "impersonate": config.impersonate,
            "user_project": config.user_project,
        }
        for name, value in others.items():
            if value:
                yield f"anonymous: requests without an identity have no use for {name}"
    if config.impersonate and re.fullmatch(r"[^@\s]+@[^@\s][^@\s.]*\.[^@\s]+", config.impersonate) is None:
        yield "impersonate: must look like reader@project.iam.gserviceaccount.com"
