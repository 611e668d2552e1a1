"""Section `[s3]` of the configuration: all options of the S3 source."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import ClassVar

import attrs

from framework.config.bucket import BucketConfig, address_errors, bucket_errors, customer_key_errors
from framework.config.option import Seconds, option

ROLE_SECONDS = (900, 43_200)


@attrs.frozen(kw_only=True)
class S3Config(BucketConfig):
    """What to read, from where, with which identity, and how often to retry.

    Identity: the first that is set of `anonymous`, `access_key_id` with `secret_access_key`, `profile`;
    otherwise the default chain of the AWS libraries (environment, shared files, container, instance).
    With `role_arn`, that identity assumes the role, whose temporary keys are renewed automatically.
    """

    scheme: ClassVar[str] = "s3"

    bucket: str = option(doc="Name of the bucket, or the ARN of an access point.", example="my-bucket")
    region: str = option("", doc="Region of the bucket; empty = environment or profile, else us-east-1.")
    endpoint: str = option(
        "", doc="Address of another store with the S3 protocol, with its scheme: `http://localhost:8333`."
    )
    addressing_style: str = option(
        "auto",
        choices=("auto", "path", "virtual"),
        doc="Place of the bucket's name: path or host. auto = path with `endpoint`, else the default of AWS.",
    )
    access_key_id: str = option("", secret=True, doc="Static access key; goes with `secret_access_key`.")
    secret_access_key: str = option("", secret=True, doc="Secret of the static access key.")
    session_token: str = option("", secret=True, doc="Token of temporary static keys.")
    profile: str = option("", doc="Name of a profile of the shared AWS configuration files.")
    anonymous: bool = option(default=False, doc="Send unsigned requests: for public buckets.")
    expected_bucket_owner: str = option(
        "", doc="Account that must own the bucket, 12 digits. With another owner every request is denied."
    )
    requester_pays: bool = option(default=False, doc="Accept the costs of requests to a requester-pays bucket.")
    sse_customer_key: str = option(
        "", secret=True, doc="Customer-provided key of encrypted objects (SSE-C, AES256): 32 bytes in base64."
    )
    role_arn: str = option("", doc="ARN of a role to assume.")
    role_session_name: str = option(
        "", doc="Name of the role's session, visible in audit logs; empty = iggy-s3-source."
    )
    role_external_id: str = option("", doc="External id that the role's trust policy requires.")
    role_duration: Seconds = option(
        3600,
        minimum=ROLE_SECONDS[0],
        maximum=ROLE_SECONDS[1],
        doc="Lifetime of the role's temporary keys, which are renewed automatically.",
        former_names={"role_duration_seconds": ""},
    )
    sts_endpoint: str = option("", doc="Address of the token service, with its scheme; empty = the region's.")

    def validate_options(self) -> Iterator[str]:
        """Yield all errors of combined options, or of an option's form; each begins with the option's name.

        Ranges and choices of single options are checked when the file is read. No I/O; no error contains a secret.
        """
        yield from _names(self)
        yield from address_errors(endpoint=self.endpoint, sts_endpoint=self.sts_endpoint, proxy=self.proxy)
        yield from _identity(self)
        yield from _role(self)
        owner = self.expected_bucket_owner
        if owner and re.fullmatch(r"\d{12}", owner, re.ASCII) is None:
            yield "expected_bucket_owner: an account's number, 12 digits"
        yield from customer_key_errors(sse_customer_key=self.sse_customer_key)


# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html; other stores keep old, looser names
# (upper case, underscores, up to 255), so with an endpoint only what would break the address is refused.
_AWS_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ANY_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


def _names(config: S3Config) -> Iterator[str]:
    bucket = config.bucket
    known = not bucket or "://" in bucket or bucket.startswith("arn:")
    if not known and not _is_bucket_name(bucket, aws=not config.endpoint):
        yield f"bucket: {bucket!r} cannot be a bucket's name (3 to 63 of a-z, 0-9, dot, hyphen; none at its ends)"
    yield from bucket_errors(config, bucket)


def _is_bucket_name(bucket: str, *, aws: bool) -> bool:
    if (_AWS_BUCKET if aws else _ANY_BUCKET).fullmatch(bucket) is None or ".." in bucket:
        return False
    try:
        ipaddress.IPv4Address(bucket)
    except ValueError:
        return True
    return False


def _identity(config: S3Config) -> Iterator[str]:
    if config.access_key_id and not config.secret_access_key:
        yield "secret_access_key: missing, access_key_id is set"
    if config.secret_access_key and not config.access_key_id:
        yield "access_key_id: missing, secret_access_key is set"
    if config.session_token and not (config.access_key_id and config.secret_access_key):
        yield "session_token: goes with access_key_id and secret_access_key only"
    keys = {name: getattr(config, name) for name in ("access_key_id", "secret_access_key", "session_token")}
    yield from (
        f"{name}: has a line break, a space or a character that is not ASCII, as no key has; check where it comes from"
        for name, value in keys.items()
        if value and re.fullmatch(r"[!-~]+", value) is None
    )
    static = bool(config.access_key_id or config.secret_access_key)
    if static and config.profile:
        yield "profile, access_key_id: give one of them"
    if config.anonymous:
        useless = {"access_key_id": static, "profile": bool(config.profile), "role_arn": bool(config.role_arn)}
        yield from (f"anonymous: unsigned requests have no use for {name}" for name, given in useless.items() if given)
        if config.requester_pays:
            yield "requester_pays: an anonymous requester cannot pay"


def _role(config: S3Config) -> Iterator[str]:
    if not config.role_arn:
        lonely = {
            "role_session_name": config.role_session_name,
            "role_external_id": config.role_external_id,
            "sts_endpoint": config.sts_endpoint,
        }
        yield from (f"{name}: has no effect without role_arn" for name, value in lonely.items() if value)
        if config.role_duration != attrs.fields(S3Config).role_duration.default:
            yield "role_duration: has no effect without role_arn"
    elif re.fullmatch(r"arn:[\w-]+:iam::\d{12}:role/.+", config.role_arn) is None:
        yield "role_arn: must look like arn:aws:iam::123456789012:role/name"
    if config.role_session_name and re.fullmatch(r"[\w+=,.@-]{2,64}", config.role_session_name, re.ASCII) is None:
        yield "role_session_name: 2 to 64 of letters, digits and _+=,.@-"
    if not ROLE_SECONDS[0] <= config.role_duration <= ROLE_SECONDS[1]:
        yield f"role_duration: {ROLE_SECONDS[0]} to {ROLE_SECONDS[1]}"
