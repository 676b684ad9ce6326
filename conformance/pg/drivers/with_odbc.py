import os

import pyodbc
from common import cases, insert


def write(_):
    pyodbc.connect(f"Driver=PostgreSQL Unicode;Database={os.environ['PGDATABASE']}", autocommit=True).execute(insert)


cases("psqlODBC", os.popen("dpkg-query -W -f '${Version}' odbc-postgresql").read(), lambda e: e.args[0], None, variables=write)
