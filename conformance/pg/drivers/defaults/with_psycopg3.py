import psycopg
from common import insert, url, ways


def write(*where):
    with psycopg.connect(*where, autocommit=True) as c:
        c.execute(insert)


ways("psycopg 3", psycopg.__version__, "sqlstate", variables=write, url=lambda: write(url))
