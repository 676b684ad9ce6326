"""What the drivers' scripts share. Where to connect, and the grant, come by the environment, as from a shell."""
import os

where = dict(host=os.environ["HOST"], port=int(os.environ["PORT"]), dbname=os.environ["DATABASE"], user=os.environ["LOGIN"], password=os.environ["PASSWORD"])
resource, token = os.environ.get("RESOURCE", ""), os.environ.get("TOKEN", "")
options = f"-c fence.resource={resource} -c fence.token={token}" if token else ""


def cases(driver, version, sqlstate, **functions):
    """Runs each case and prints a line for it: its name, and ok or the SQLSTATE."""
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
