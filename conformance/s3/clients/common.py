"""What the clients in Python share: the cases, and how an outcome is said."""
import os
import urllib.error
import urllib.request

ENDPOINT = "http://" + os.environ["ENDPOINT"]
BUCKET = os.environ["BUCKET"]
RUN = os.environ["RUN"]
CURRENT = RUN.endswith("-current/")
SEEDED, SEEDED_TEXT = "seed/one.txt", b"0123456789"
SEEDED_PART, PART_SIZE = "seed/part.bin", 5 << 20
SEEDED_KEYS = [SEEDED, SEEDED_PART]

WRITES = ["put", "put with checksum", "put if none match", "put if match", "multipart", "copy", "part copy", "put tags", "delete tags",
          "delete", "delete many", "delete a version", "presigned put", "chunk-signed put", "chunk-signed put, trailing checksum"]
READS = ["get", "range", "conditional get", "response overrides", "head", "list v1", "list v2", "list versions", "get a version",
         "attributes", "get tags", "presigned get", "checksum"]


class Refused(Exception):
    """A refusal: its status, where the client shows it, and its code."""

    def __init__(self, code, status=0):
        super().__init__(f"{status} {code}" if status else code)
        self.code, self.status = code, status


def own(name):
    """A key that only this client writes, with what it presents now."""
    return RUN + name


def own_or_seeded(name):
    """own with a current grant; without one nothing of one's own is there."""
    return RUN + name if CURRENT else SEEDED


def same(what, got, want):
    if got != want:
        raise AssertionError(f"{what} is {str(got)[:80]!r}, wanted {str(want)[:80]!r}")


def refused(code, do):
    """Lets do be refused with the code."""
    try:
        do()
    except Refused as e:
        if e.code == code:
            return
        raise AssertionError(f"wanted {code}, got {e}") from e
    raise AssertionError(f"it was not refused with {code}")


def send(request):
    """Sends a presigned request."""
    try:
        with urllib.request.urlopen(request) as response:
            return response.read()
    except urllib.error.HTTPError as e:
        code = e.read().decode().partition("<Code>")[2].partition("</Code>")[0]
        raise Refused(code, e.code) from e


def run(cases):
    """Does the cases in order, and prints a line for each."""
    for name in WRITES + READS:
        outcome = "-"
        if name in cases:
            try:
                cases[name]()
                outcome = "ok"
            except Refused as e:
                outcome = str(e)
            except Exception as e:  # pylint: disable=broad-except
                outcome = "failed: " + repr(e).replace("\n", " ")
        print(name + "\t" + outcome)
