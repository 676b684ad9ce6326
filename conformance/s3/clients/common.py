"""What the scripts of clients share. Each has the cases of cases.go that its client offers."""
import os
import subprocess
import tempfile

ENDPOINT = "http://" + os.environ["ENDPOINT"]
BUCKET = os.environ["BUCKET"]
RUN = os.environ["RUN"]
CURRENT = RUN.endswith("-current/")
SEEDED, SEEDED_TEXT = "seed/one.txt", b"0123456789"
SEEDED_PART, PART_SIZE = "seed/part.bin", 5 << 20
SEEDED_KEYS = [SEEDED, SEEDED_PART]
FOLDER = tempfile.TemporaryDirectory()


class Refused(Exception):
    """A refusal: its status, where the client shows it, and its code."""

    def __init__(self, code, status=0):
        super().__init__(f"{status} {code}" if status else code)
        self.code, self.status = code, status


def command(refusal, *words, **how):
    """Runs a command. refusal matches the code and the status of a refusal in what it complains of."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **how)
    reason = refusal.search(done.stderr)
    if reason:
        raise Refused(reason["code"], int(reason["status"]))
    if done.returncode:
        raise AssertionError(done.stderr or done.stdout)
    return done.stdout


def file(name, data=b""):
    path = os.path.join(FOLDER.name, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    return path


def own(name):
    """A key that only this client writes, with what it presents now."""
    return RUN + name


def own_or_seeded(name):
    """own with a current grant; without one nothing of one's own is there."""
    return RUN + name if CURRENT else SEEDED


def same(what, got, want):
    if got != want:
        raise AssertionError(f"{what} is {str(got)[:80]!r}, wanted {str(want)[:80]!r}")


def run(cases):
    """Does the cases in order, and prints a line for each."""
    for name, do in cases.items():
        try:
            do()
            outcome = "ok"
        except Refused as e:
            outcome = str(e)
        except Exception as e:  # pylint: disable=broad-except
            outcome = "failed: " + repr(e).replace("\n", " ")
        print(name + "\t" + outcome)
