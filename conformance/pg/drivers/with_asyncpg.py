import asyncio

import asyncpg
from common import cases, insert, resource, token, where

login = dict(where, database=where["dbname"])
del login["dbname"]
grant = {"fence.resource": resource, "fence.token": token} if token else {}


async def connected(function, row, **how):
    c = await asyncpg.connect(**how)
    try:
        await function(c, row)
    finally:
        await c.close()


def case(function):
    return lambda row: asyncio.run(connected(function, row, **login, server_settings=grant, ssl=False))


def by_default(address):
    asyncio.run(connected(lambda c, row: c.execute(insert), "", dsn=address))


@case
async def simple(c, row):
    await c.execute(f"INSERT INTO ledger VALUES ('{row}')")


@case
async def extended(c, row):
    await c.execute("INSERT INTO ledger VALUES ($1)", row)


@case
async def prepared(c, row):
    statement = await c.prepare("INSERT INTO ledger VALUES ($1)")
    for n in range(3):
        await statement.fetch(f"{row} {n}")


@case
async def pipelined(c, row):  # executemany sends all before it reads
    await c.executemany("INSERT INTO ledger VALUES ($1)", [(f"{row} {n}",) for n in range(1000)])


@case
async def copy(c, row):
    await c.copy_records_to_table("ledger", records=[(f"{row} {n}",) for n in range(1000)])


@case
async def reading(c, row):
    assert len(await c.fetch("SELECT * FROM generate_series(1, 100000)")) == 100000


cases("asyncpg", asyncpg.__version__, lambda e: e.sqlstate, by_default, simple=simple, extended=extended, prepared=prepared, pipelined=pipelined, copy=copy, reading=reading)
