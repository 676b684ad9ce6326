import psycopg2
from common import insert, url, ways


def write(where):
    c = psycopg2.connect(where)
    c.autocommit = True
    c.cursor().execute(insert)


ways("psycopg 2", psycopg2.__version__.split()[0], "pgcode", variables=lambda: write(""), url=lambda: write(url))
