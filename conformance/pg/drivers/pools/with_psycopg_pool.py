import logging

import psycopg_pool
from common import options, select, story, where

reasons = []  # of connections that the pool could not make: who waits for one hears of a timeout alone


class Listener(logging.Handler):
    def emit(self, record):
        reasons.append(record.getMessage())


logging.getLogger("psycopg.pool").addHandler(Listener())
logging.getLogger("psycopg.pool").propagate = False
pool = psycopg_pool.ConnectionPool(
    min_size=1, max_size=1, timeout=5,
    kwargs={"host": where["host"], "port": where["port"], "dbname": where["database"], "user": where["login"], "password": where["password"], "options": options},
)


def read():
    with pool.connection() as c:
        return c.execute(select).fetchone()[0]


def write(sql):
    try:
        with pool.connection(timeout=1.5) as c:
            c.execute(sql)
    except psycopg_pool.PoolTimeout as e:
        raise e from Exception("; ".join(reasons))


story(f"psycopg_pool {psycopg_pool.__version__}", read, write)
pool.close()
