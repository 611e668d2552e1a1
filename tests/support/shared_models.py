"""What botocore knows of S3, read once in a process and not for every store that a test makes.

It reads files of JSON for each session: 0.1 s of CPU, ten times what the rest of a store takes. Here all sessions share what
was read, as clients of one session do. Where it is imported, it is read: forks of that process have it.
"""

import functools

import boto3
import botocore.session

botocore.session.create_loader = functools.cache(botocore.session.create_loader)
boto3.Session("none", "none", region_name="us-east-1").client("s3").close()
