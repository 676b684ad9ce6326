import sqlalchemy as sa
from common import options, select, story, where
from sqlalchemy.pool import QueuePool

engine = sa.create_engine(
    sa.engine.URL.create("postgresql+psycopg2", where["login"], where["password"], where["host"], int(where["port"]), where["database"]),
    poolclass=QueuePool, pool_size=1, max_overflow=0, pool_pre_ping=True, connect_args={"options": options},
)


def read():
    with engine.connect() as c:
        return c.execute(sa.text(select)).scalar()


def write(sql):
    with engine.begin() as c:
        c.execute(sa.text(sql))


story(f"SQLAlchemy {sa.__version__}, `QueuePool`, `pool_pre_ping`", read, write)
