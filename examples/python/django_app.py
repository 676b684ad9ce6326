"""Django: a block, or a view, whose transaction presents a grant.

go run ./cmd/fencegate dev --ephemeral -- python3 examples/python/django_app.py
"""

import os
from contextlib import contextmanager
from urllib.parse import unquote, urlparse

import django
from django.conf import settings

from lease import refused, two_holders

url = urlparse(os.environ["DATABASE_URL"])
settings.configure(
    INSTALLED_APPS=[],
    DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "HOST": url.hostname, "PORT": url.port,
        "USER": url.username, "PASSWORD": unquote(url.password),
    }},
)
django.setup()

from django.db import DatabaseError, connections, models, transaction  # noqa: E402


# --- what an application needs ---
@contextmanager
def fenced(resource, grant, using="default"):
    """An outermost transaction that presents the grant, to its end. As a decorator it wraps a view."""
    with transaction.atomic(using=using, durable=True):
        connection = connections[using]
        with connection.wrap_database_errors, presenting(connection.connection) as cursor:
            cursor.execute("SELECT fence.use(%s::text, %s::text)", (resource, grant))
        yield


def presenting(connection):
    """The driver's own cursor: Django's logs and keeps what it executes."""
    if type(connection).__module__.startswith("psycopg2"):
        return connection.cursor()  # psycopg2 has no parameters: the seal is in the statement's text
    import psycopg

    return psycopg.Cursor(connection)  # binds on the server
# ---


class Order(models.Model):
    id = models.BigAutoField(primary_key=True)
    status = models.TextField()

    class Meta:
        app_label = "orders"
        db_table = "django_orders"


with connections["default"].cursor() as cursor:
    cursor.execute("DROP TABLE IF EXISTS django_orders")
with connections["default"].schema_editor() as editor:
    editor.create_model(Order)
with connections["default"].cursor() as cursor:
    cursor.execute("SELECT fence.protect('django_orders', under => 'django/')")
paused, current = two_holders("django/1")

with fenced("django/1", current):
    with transaction.atomic():  # a savepoint
        Order.objects.create(id=1, status="paid")
    Order.objects.bulk_create([Order(id=i, status="new") for i in range(2, 5)])


@fenced("django/1", paused)
def view():
    Order.objects.filter(id=1).update(status="stale")


def unfenced():
    Order.objects.filter(id=1).update(status="unfenced")


for write, state in ((view, "ZF001"), (unfenced, "ZF002")):
    try:
        write()
        raise SystemExit("it should have been refused")
    except DatabaseError as error:
        assert refused(error, state), error
assert Order.objects.get(id=1).status == "paid" and Order.objects.count() == 4
print("Django", django.__version__, "ok")
