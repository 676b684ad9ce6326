import os
import re

import pyodbc
from common import insert, ways


def write():
    c = pyodbc.connect(f"Driver=PostgreSQL Unicode;Database={os.environ['PGDATABASE']}", autocommit=True)
    c.execute(insert)


class Refused(Exception):
    pass


def refusal():
    try:
        write()
    except pyodbc.Error as e:
        refused = Refused(e)
        refused.sqlstate = e.args[0]
        raise refused


ways("psqlODBC", os.popen("dpkg-query -W -f '${Version}' odbc-postgresql").read(), "sqlstate", variables=refusal)
