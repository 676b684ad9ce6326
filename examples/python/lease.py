"""Leases from the gateway's HTTP API, for the examples beside it."""

import json
import os
import urllib.request


def acquire(resource, ttl="300ms", wait="20s"):
    """Acquires a resource and returns its grant: what a writer presents."""
    request = urllib.request.Request(
        os.environ["FENCEGATE_GATEWAY"] + "/v1/leases",
        data=json.dumps({"resource": resource, "ttl": ttl, "wait": wait}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["grant"]


def two_holders(resource):
    """The grants of a worker that paused beyond its lease, and of the one that took over."""
    return acquire(resource), acquire(resource, ttl="1m")


def refused(error, state):
    """Whether PostgreSQL refused with this SQLSTATE, whatever wraps its error."""
    while error is not None:
        if state in (getattr(error, "sqlstate", None), getattr(error, "pgcode", None)):
            return True
        error = error.__cause__ or getattr(error, "orig", None)
    return False
