"""SQLAlchemy: each session presents its grant when its transaction begins.

go run ./cmd/fencegate dev --ephemeral -- python3 examples/python/sqlalchemy_app.py
"""

import asyncio
import os

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, declarative_base

from lease import refused, two_holders


# --- what an application needs ---
@sa.event.listens_for(Session, "after_begin")  # AsyncSession has one inside
def present(session, transaction, connection):
    """Presents session.info["grant"] = (resource, grant) for each transaction of the session."""
    grant = session.info.get("grant")
    if grant and not transaction.nested:
        connection.execute(sa.text("SELECT fence.use(CAST(:resource AS text), CAST(:grant AS text))"),
                           {"resource": grant[0], "grant": grant[1]})
# ---


Base = declarative_base()


class Order(Base):
    __tablename__ = "sqlalchemy_orders"
    id = sa.Column(sa.BigInteger, primary_key=True)
    status = sa.Column(sa.Text, nullable=False)


def save(session, status):
    with session.begin_nested():
        session.merge(Order(id=1, status=status))
    session.commit()


async def save_async(engine, info, status):
    async with AsyncSession(engine, info=info) as session:
        await session.run_sync(save, status)


def save_sync(engine, info, status):
    with Session(engine, info=info) as session:
        save(session, status)


url = sa.engine.make_url(os.environ["DATABASE_URL"].replace("postgres://", "postgresql://", 1))
engine = sa.create_engine(url)
Base.metadata.drop_all(engine)
Base.metadata.create_all(engine)
with engine.begin() as connection:
    connection.execute(sa.text("SELECT fence.protect('sqlalchemy_orders', under => 'sqlalchemy/')"))


async def asynchronous(info, status):
    without_libpq = {k: v for k, v in url.query.items() if k != "sslmode"}
    pool = create_async_engine(url.set(drivername="postgresql+asyncpg", query=without_libpq))
    try:
        await save_async(pool, info, status)
    finally:
        await pool.dispose()


paused, current = two_holders("sqlalchemy/1")
for name, write in (("psycopg2", lambda i, s: save_sync(engine, i, s)), ("asyncpg", lambda i, s: asyncio.run(asynchronous(i, s)))):
    write({"grant": ("sqlalchemy/1", current)}, "paid by " + name)
    for info, state in (({"grant": ("sqlalchemy/1", paused)}, "ZF001"), ({}, "ZF002")):
        try:
            write(info, "stale")
            raise SystemExit("it should have been refused")
        except sa.exc.DBAPIError as error:
            assert refused(error, state), error
    with Session(engine) as session:
        assert session.get(Order, 1).status == "paid by " + name
    print("SQLAlchemy", sa.__version__, name, "ok")
