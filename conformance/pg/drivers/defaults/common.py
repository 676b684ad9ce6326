import os

url = os.environ["DATABASE_URL"]
insert = "INSERT INTO ledger VALUES ('python')"


def ways(driver, version, sqlstate, **functions):
    print(f"driver\t{driver} {version}")
    for name, function in functions.items():
        try:
            function()
            print(f"{name}\tok")
        except Exception as e:
            print(f"{name}\t{getattr(e, sqlstate, None) or repr(e)}")
