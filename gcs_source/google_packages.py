"""Google's packages, without their warning about versions of Python past their end of life, which this project supports."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"You are using a .*Python version", FutureWarning)
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

__all__ = ["AnonymousCredentials", "Client", "GoogleAPIError"]
