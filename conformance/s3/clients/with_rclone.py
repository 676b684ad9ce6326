"""rclone, as Debian has it, configured by the environment alone, as docs/s3.md says."""
import json
import os
import re
import urllib.request

from common import BUCKET, CURRENT, ENDPOINT, FOLDER, PART_SIZE, SEEDED, SEEDED_KEYS, SEEDED_TEXT, Refused, command, file, own, own_or_seeded, run, same

REFUSAL = re.compile(r"\b(?P<code>[A-Z]\w+): [^\n]*\n?\s*status code: (?P<status>\d{3})")
ENV = {**os.environ, "RCLONE_CONFIG": "/dev/null", "RCLONE_CONFIG_F_TYPE": "s3", "RCLONE_CONFIG_F_PROVIDER": "Other", "RCLONE_CONFIG_F_ENV_AUTH": "true",
       "RCLONE_CONFIG_F_ENDPOINT": ENDPOINT, "RCLONE_RETRIES": "1"}


def rclone(*words, data=None):
    return command(REFUSAL, "rclone", *words, env=ENV, input=data)


def each(*verbs):
    """Does all of them, which must fare alike."""
    outcomes = set()
    for verb in verbs:
        try:
            verb()
            outcomes.add(None)
        except Refused as e:
            outcomes.add((e.code, e.status))
    if len(outcomes) > 1:
        raise AssertionError(f"they fared differently: {outcomes}")
    if None not in outcomes:
        raise Refused(*outcomes.pop())


def url(key):
    return f"F:{BUCKET}/{key}"


def read(key, *words):
    return rclone("cat", *words, url(key)).encode()


def copyto():
    rclone("copyto", file("a", b"hello"), url(own("put")))
    same("put", read(own("put")), b"hello")


def copy_file():
    rclone("copy", file("b", b"hello"), url(own("files")))
    same("files/b", read(own("files/b")), b"hello")


def streamed():
    rclone("rcat", url(own("streamed")), data="hello")
    same("streamed", read(own("streamed")), b"hello")


def moved_there():
    source = file("c", b"hello")
    try:
        rclone("moveto", source, url(own("moved")))
    except Refused:
        same("whether the source is left", os.path.exists(source), True)
        raise
    same("moved", read(own("moved")), b"hello")


def synced():
    """A folder with one file more, and then with one less."""
    file("folder/sub/one", b"1")
    extra = file("folder/two", b"2")
    folder = os.path.dirname(extra)
    rclone("sync", folder, url(own("folder")))
    rclone("check", "--download", folder, url(own("folder")))
    os.remove(extra)
    rclone("sync", folder, url(own("folder")))
    same("the list", rclone("lsf", "-R", "--files-only", url(own("folder"))), "sub/one\n")


def copied():
    rclone("copyto", url(SEEDED), url(own("copy")))
    same("the copy", read(own("copy")), SEEDED_TEXT)


def renamed():
    rclone("moveto", url(own_or_seeded("copy")), url(own("renamed")))
    same("renamed", read(own("renamed")), SEEDED_TEXT)
    same("the list", rclone("lsf", url(own("")), "--include", "/copy"), "")


def part_copied():
    rclone("copyto", "--s3-copy-cutoff", "5M", "--s3-chunk-size", "5M", url(own_or_seeded("multipart")), url(own("part copy")))
    same("the size", json.loads(rclone("size", "--json", url(own("part copy"))))["bytes"], PART_SIZE + 3)


def multipart():
    source = file("large", b"a" * (PART_SIZE + 3))
    rclone("copyto", "--s3-upload-cutoff", "5M", "--s3-chunk-size", "5M", source, url(own("multipart")))
    same("the size", json.loads(rclone("size", "--json", url(own("multipart"))))["bytes"], PART_SIZE + 3)


def deleted(verb, folder):
    if not CURRENT:
        rclone(verb, url("seed"))
        return
    for name in ("1", "2"):
        rclone("copyto", file("d", b"hello"), url(own(f"{folder}/{name}")))
    rclone(verb, url(own(folder)))
    same("what is left", rclone("lsf", url(own("")), "--include", f"/{folder}/**"), "")


def fetched():
    target = os.path.join(FOLDER.name, "fetched")
    rclone("copy", url("seed"), target)
    rclone("check", target, url("seed"))
    rclone("sync", url("seed"), target)
    same("the object", read(SEEDED), SEEDED_TEXT)


def head():
    entry = json.loads(rclone("lsjson", "--stat", "--metadata", url(SEEDED)))
    same("the size", entry["Size"], 10)


def listed(version):
    same("the list", ["seed/" + line.split()[-1] for line in rclone("ls", "--s3-list-version", version, url("seed")).splitlines()], SEEDED_KEYS)


def versions():
    names = [line.split()[-1] for line in rclone("ls", "--s3-versions", url("seed")).splitlines()]
    same("the current ones", [n for n in names if "-v2" not in n], [k.removeprefix("seed/") for k in SEEDED_KEYS])


def linked():
    with urllib.request.urlopen(rclone("link", "--expire", "1m", url(SEEDED)).strip()) as response:
        same("the object", response.read(), SEEDED_TEXT)


run({
    "put": lambda: each(copyto, copy_file, streamed, moved_there, synced), "multipart": multipart, "copy": lambda: each(copied, renamed), "part copy": part_copied,
    "delete": lambda: rclone("deletefile", url(own_or_seeded("put"))), "delete many": lambda: each(lambda: deleted("delete", "many"), lambda: deleted("purge", "purged")),
    "get": fetched, "range": lambda: same("the range", read(SEEDED, "--offset", "2", "--count", "3"), SEEDED_TEXT[2:5]), "head": head,
    "list v1": lambda: listed("1"), "list v2": lambda: listed("2"), "list versions": versions, "presigned get": linked,
    "checksum": lambda: same("the checksum", rclone("md5sum", url(SEEDED)).split()[0], "781e5e245d69b566979b86e28d23f2c7"),
})
