"""How many files and connections this process may have open at once."""

from __future__ import annotations

import resource

WANTED = 65_536


def allow_open_files() -> None:
    """Raise the soft limit, often 1,024, as far as the hard limit allows: hundreds of connections are usual here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
