import django
from common import options, select, story, where
from django.conf import settings

settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": where["database"], "HOST": where["host"], "PORT": where["port"],
    "USER": where["login"], "PASSWORD": where["password"], "CONN_MAX_AGE": 600, "OPTIONS": {"options": options},
}})
django.setup()

from django.db import close_old_connections, connection, transaction  # noqa: E402


def read():
    with connection.cursor() as cursor:
        cursor.execute(select)
        return cursor.fetchone()[0]


def write(sql):
    close_old_connections()  # as at the beginning of each request
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)


story(f"Django {django.__version__}, `CONN_MAX_AGE`", read, write)
