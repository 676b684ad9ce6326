"""What the drivers' scripts share. Where to connect, and the grant, come by the environment, as from a shell."""
import os

env = os.environ
where = dict(host=env.get("HOST"), port=int(env.get("PORT", 0)), dbname=env.get("DATABASE"), user=env.get("LOGIN"), password=env.get("PASSWORD"))
resource, token = env.get("RESOURCE", ""), env.get("TOKEN", "")
options = f"-c fence.resource={resource} -c fence.token={token}" if token else ""
insert = "INSERT INTO ledger VALUES ('python')"


def cases(driver, version, sqlstate, write, **functions):
    """Runs each case and prints a line for it: its name, and ok or the SQLSTATE. With DEFAULTS, write writes with only what
    `fencegate run` gives: nothing, and DATABASE_URL."""
    if write and env.get("DEFAULTS"):
        functions = dict(variables=lambda _: write(""), url=lambda _: write(env["DATABASE_URL"]))
    print(f"driver\t{driver} {version}", flush=True)
    for name, function in functions.items():
        try:
            function(f"{driver} {name}")
            print(f"{name}\tok", flush=True)
        except Exception as e:
            code = None
            try:
                code = sqlstate(e)
            except AttributeError:
                pass
            print(f"{name}\t{code or repr(e)}", flush=True)
