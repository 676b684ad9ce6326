import io

import psycopg2
import psycopg2.extras
from common import cases, insert, options, where


def connect(*address, **more):
    c = psycopg2.connect(*address, **more)
    c.autocommit = True
    return c


def connection():
    return connect(**where, options=options)


def by_default(address):
    connect(address).cursor().execute(insert)


def simple(row):  # psycopg 2 knows no other protocol
    connection().cursor().execute("INSERT INTO ledger VALUES (%s)", (row,))


def several(row):
    psycopg2.extras.execute_batch(connection().cursor(), "INSERT INTO ledger VALUES (%s)", [(f"{row} {n}",) for n in range(100)])


def copy(row):
    connection().cursor().copy_expert("COPY ledger FROM STDIN", io.StringIO("".join(f"{row} {n}\n" for n in range(1000))))


def reading(row):
    out = io.StringIO()
    connection().cursor().copy_expert("COPY (SELECT * FROM generate_series(1, 100000)) TO STDOUT", out)
    assert out.getvalue().count("\n") == 100000


cases("psycopg 2", psycopg2.__version__.split()[0], lambda e: e.pgcode, by_default, simple=simple, several=several, copy=copy, reading=reading)
