"""As every script here: a pool whose connections ask for the lease LEASE reads the balance; whoever runs it ends the
session, and another writes; then the pool writes what it makes of the balance that it has read, up to eight times."""

import os
import sys
import time

where = {k.lower(): os.environ[k] for k in ("HOST", "PORT", "DATABASE", "LOGIN", "PASSWORD")}
lease = os.environ["LEASE"]
options = f"-c fence.lease={lease}"
select = "SELECT balance FROM orders"


def tell(*words):
    print(*words, sep="\t", flush=True)


def one_line(e):
    """What it says, with its SQLSTATE and its causes."""
    said = []
    while e is not None:
        original = getattr(e, "orig", None) or e
        state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
        said.append(" ".join(f"{state or ''} {type(original).__name__} {original}".split()))
        e = e.__cause__
    return "; ".join(said)


def story(driver, read, write):
    tell("driver", driver)
    balance = read()
    tell("read", balance)
    sys.stdin.readline()
    for _ in range(8):
        try:
            write(f"UPDATE orders SET balance = {balance + 1}")
            tell("write", "ok")
            return
        except Exception as e:
            tell("write", one_line(e))
            time.sleep(0.2)
