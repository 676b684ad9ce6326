"""psycopg 3: a transaction under a grant.

go run ./cmd/fencegate dev --ephemeral -- python3 examples/python/psycopg_app.py
"""

import os
from contextlib import contextmanager

import psycopg

from lease import refused, two_holders


# --- what an application needs ---
@contextmanager
def fenced(conn, resource, grant):
    """A transaction of the connection that presents the grant, to its end."""
    with conn.transaction():
        # psycopg.Cursor binds on the server; a ClientCursor would put the seal into the statement's text.
        psycopg.Cursor(conn).execute("SELECT fence.use(%s::text, %s::text)", (resource, grant))
        yield conn
# ---


with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
    conn.execute("DROP TABLE IF EXISTS psycopg_orders")
    conn.execute("CREATE TABLE psycopg_orders (id bigint PRIMARY KEY, status text NOT NULL)")
    conn.execute("SELECT fence.protect('psycopg_orders', under => 'psycopg/')")
    paused, current = two_holders("psycopg/1")

    with fenced(conn, "psycopg/1", current):
        conn.execute("INSERT INTO psycopg_orders VALUES (1, 'paid')")
    for grant, state in ((paused, "ZF001"), (None, "ZF002")):
        try:
            if grant:
                with fenced(conn, "psycopg/1", grant):
                    conn.execute("UPDATE psycopg_orders SET status = 'stale'")
            else:
                conn.execute("UPDATE psycopg_orders SET status = 'unfenced'")
            raise SystemExit("it should have been refused")
        except psycopg.Error as error:
            assert refused(error, state), error
    assert conn.execute("SELECT status FROM psycopg_orders").fetchall() == [("paid",)]
print("psycopg", psycopg.__version__, "ok")
