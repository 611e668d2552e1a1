"""Costs of requests and bytes of a store: options of the command `plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from framework.engine.dry_run import DryRun

LIST_PRICE = 0.005
GET_PRICE = 0.0004
TRANSFER_PRICE = 0.0
"""Amazon S3 Standard in us-east-1, to a machine in the same region. Other regions, classes and stores have other prices.
"""

_GIGABYTE = 1e9


@attrs.frozen(kw_only=True)
class Prices:
    """Prices in US dollars.

    Attributes:
        list_per_1000: for 1,000 LIST requests.
        get_per_1000: for 1,000 GET requests.
        transfer_per_gb: for 1,000,000,000 bytes read.
    """

    list_per_1000: float = LIST_PRICE
    get_per_1000: float = GET_PRICE
    transfer_per_gb: float = TRANSFER_PRICE

    def cost(self, plan: DryRun) -> dict[str, float]:
        """Return the approximate cost of a listing and its reads: `list`, `get`, `transfer`, `total`."""
        parts = {
            "list": plan.list_requests / 1000 * self.list_per_1000,
            "get": plan.get_requests / 1000 * self.get_per_1000,
            "transfer": plan.total.size_bytes / _GIGABYTE * self.transfer_per_gb,
        }
        return {**parts, "total": sum(parts.values())}
