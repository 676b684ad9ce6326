"""s3cmd, as Debian has it."""
import os
import re

from common import BUCKET, PART_SIZE, SEEDED, SEEDED_KEYS, SEEDED_TEXT, Refused, command, file, own, own_or_seeded, run, same

REFUSAL = re.compile(r"(?P<status>\d{3}) \((?P<code>\w+)\):")
# No % in host_bucket: buckets by path. The credentials come by the environment.
CONFIG = file("s3cfg", f"[default]\nhost_base = {os.environ['ENDPOINT']}\nhost_bucket = {os.environ['ENDPOINT']}\nuse_https = False\nsignature_v2 = False\nmax_retries = 1\n".encode())


def s3cmd(*words):
    return command(REFUSAL, "s3cmd", "-c", CONFIG, "--no-progress", *words)


def url(key):
    return f"s3://{BUCKET}/{key}"


def read(key, *words):
    path = file("data")
    s3cmd("get", "--force", *words, url(key), path)
    with open(path, "rb") as f:
        return f.read()


def write(key, data, *words):
    s3cmd("put", *words, file("data", data), url(key))
    same(key, read(key), data)


def copy():
    s3cmd("cp", url(SEEDED), url(own("copy")))
    same("the copy", read(own("copy")), SEEDED_TEXT)


def delete_many():
    """With a prefix s3cmd deletes the listed keys in one request. It ignores the answers for the single keys."""
    if own_or_seeded("") == SEEDED:
        s3cmd("rm", "--recursive", "--force", url("seed/"))
        same("what is left", len(s3cmd("ls", url("seed/")).splitlines()), 2)
        raise Refused("unseen")
    for name in ("many/1", "many/2"):
        write(own(name), b"hello")
    s3cmd("rm", "--recursive", "--force", url(own("many/")))
    same("what is left", s3cmd("ls", url(own("many/"))), "")


def head():
    same("the length", "File size: 10" in s3cmd("info", url(SEEDED)), True)


def listed():
    same("the list", [line.split("/", 3)[3] for line in s3cmd("ls", "--recursive", url("seed/")).splitlines()], SEEDED_KEYS)


run({
    "put": lambda: write(own("put"), b"hello"), "multipart": lambda: write(own("multipart"), b"a" * (PART_SIZE + 3), "--multipart-chunk-size-mb=5"),
    "copy": copy,
    "delete": lambda: s3cmd("rm", url(own_or_seeded("put"))), "delete many": delete_many,
    "get": lambda: same("the object", read(SEEDED), SEEDED_TEXT), "head": head, "list v1": listed,
})
