"""Leases from the gateway's HTTP API, for the examples beside it."""

import atexit
import json
import os
import urllib.request


def call(path, **body):
    request = urllib.request.Request(
        os.environ["FENCEGATE_GATEWAY"] + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def acquire(resource, ttl):
    """Acquires a resource. The lease has a grant, which a writer presents, and a handle, which renews and releases it."""
    return json.loads(call("/v1/leases", resource=resource, ttl=ttl, wait="20s"))


def release(lease):
    """Ends a lease, so that the next holder need not wait for its TTL."""
    call("/v1/leases/release", handle=lease["handle"])


def two_holders(resource):
    """The grants of a worker that paused beyond its lease, and of the one that took over."""
    paused, current = acquire(resource, ttl="300ms"), acquire(resource, ttl="1m")
    atexit.register(release, current)
    return paused["grant"], current["grant"]


def refused(error, state):
    """Whether PostgreSQL refused with this SQLSTATE, whatever wraps its error."""
    while error is not None:
        if state in (getattr(error, "sqlstate", None), getattr(error, "pgcode", None)):
            return True
        error = error.__cause__ or getattr(error, "orig", None)
    return False
