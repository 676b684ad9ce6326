import asyncio

import asyncpg
from common import lease, select, story, where


async def made():
    return await asyncpg.create_pool(
        host=where["host"], port=int(where["port"]), database=where["database"], user=where["login"], password=where["password"],
        min_size=1, max_size=1, server_settings={"fence.lease": lease},
    )


loop = asyncio.new_event_loop()
pool = loop.run_until_complete(made())
story(
    f"asyncpg {asyncpg.__version__}, `create_pool`",
    lambda: loop.run_until_complete(pool.fetchval(select)),
    lambda sql: loop.run_until_complete(pool.execute(sql)),
)
loop.run_until_complete(pool.close())
