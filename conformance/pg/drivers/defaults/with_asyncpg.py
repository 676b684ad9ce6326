import asyncio

import asyncpg
from common import insert, url, ways


async def write(*where):
    c = await asyncpg.connect(*where)
    try:
        await c.execute(insert)
    finally:
        await c.close()


ways("asyncpg", asyncpg.__version__, "sqlstate", variables=lambda: asyncio.run(write()), url=lambda: asyncio.run(write(url)))
