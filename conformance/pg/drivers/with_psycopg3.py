import psycopg
from common import cases, insert, options, where

def connect():
    return psycopg.connect(**where, options=options, autocommit=True)

def by_default(address):
    with psycopg.connect(address, autocommit=True) as c:
        c.execute(insert)

def simple(row):
    with psycopg.ClientCursor(connect()) as cur:
        cur.execute("INSERT INTO ledger VALUES (%s)", (row,))

def extended(row):
    with connect() as c:
        c.execute("INSERT INTO ledger VALUES (%s)", (row,))

def prepared(row):
    with connect() as c:
        for n in range(3):
            c.execute("INSERT INTO ledger VALUES (%s)", (f"{row} {n}",), prepare=True)

def pipelined(row):
    with connect() as c, c.pipeline():
        for n in range(10):
            c.execute("INSERT INTO ledger VALUES (%s)", (f"{row} {n}",))

def copy(row):
    with connect() as c, c.cursor() as cur, cur.copy("COPY ledger FROM STDIN") as out:
        for n in range(1000):
            out.write_row((f"{row} {n}",))

def reading(row):
    with connect() as c, c.cursor() as cur, cur.copy("COPY (SELECT * FROM generate_series(1, 100000)) TO STDOUT") as rows:
        assert sum(1 for _ in rows.rows()) == 100000

cases("psycopg 3", psycopg.__version__, lambda e: e.sqlstate, by_default, simple=simple, extended=extended, prepared=prepared, pipelined=pipelined, copy=copy, reading=reading)
