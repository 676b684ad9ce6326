"""The AWS command line, as Debian has it: `aws s3api`, and `aws s3` for what that adds."""
import json
import os
import re
import subprocess
import tempfile

from common import BUCKET, ENDPOINT, PART_SIZE, SEEDED, SEEDED_KEYS, SEEDED_PART, SEEDED_TEXT, Refused, own, own_or_seeded, refused, run, same, send

AWS = ["/usr/bin/aws", "--endpoint-url", ENDPOINT, "--output", "json"]
FOLDER = tempfile.TemporaryDirectory()
REFUSAL = re.compile(r"An error occurred \((\w+)\)")


def aws(*words):
    done = subprocess.run([*AWS, *words], capture_output=True, text=True, check=False, env={**os.environ, "AWS_MAX_ATTEMPTS": "1"})
    if done.returncode:
        reason = REFUSAL.search(done.stderr)
        if not reason:
            raise AssertionError(done.stderr or done.stdout)
        raise Refused(reason[1])
    return json.loads(done.stdout) if done.stdout.strip().startswith(("{", "[")) else done.stdout


def api(operation, *words):
    return aws("s3api", operation, "--bucket", BUCKET, *words)


def file(data=b""):
    path = os.path.join(FOLDER.name, "data")
    with open(path, "wb") as f:
        f.write(data)
    return path


def read(key, *words):
    path = file()
    api("get-object", "--key", key, *words, path)
    with open(path, "rb") as f:
        return f.read()


def write(key, data, *words):
    api("put-object", "--key", key, "--body", file(data), *words)
    same(key, read(key), data)


def put_checksum():
    for algorithm in ["CRC32", "CRC32C", "SHA1", "SHA256"]:
        write(own("checksum-" + algorithm), b"hello", "--checksum-algorithm", algorithm)


def multipart():
    """`aws s3 cp` uploads in parts what is larger than 8 MiB."""
    data = b"a" * (2 * PART_SIZE)
    aws("s3", "cp", file(data), f"s3://{BUCKET}/{own('multipart')}")
    same("the object", read(own("multipart")), data)


def copy():
    api("copy-object", "--key", own("copy"), "--copy-source", BUCKET + "/" + SEEDED)
    same("the copy", read(own("copy")), SEEDED_TEXT)


def part_copy():
    key = own("part-copy")
    upload = api("create-multipart-upload", "--key", key)["UploadId"]
    named = ["--key", key, "--upload-id", upload]
    parts = [{"PartNumber": n, "ETag": api("upload-part-copy", *named, "--part-number", str(n), "--copy-source", BUCKET + "/" + source,
                                           "--copy-source-range", extent)["CopyPartResult"]["ETag"]}
             for n, source, extent in [(1, SEEDED_PART, f"bytes=0-{PART_SIZE - 1}"), (2, SEEDED, "bytes=2-4")]]
    api("complete-multipart-upload", *named, "--multipart-upload", json.dumps({"Parts": parts}))
    same(key, read(key), bytes(PART_SIZE) + b"234")


def delete_many():
    answer = api("delete-objects", "--delete", json.dumps({"Objects": [{"Key": own_or_seeded("copy")}, {"Key": own_or_seeded("checksum-SHA1")}]}))
    for e in answer.get("Errors", []):
        raise Refused(e["Code"])


def versions(key):
    found = api("list-object-versions", "--prefix", key)["Versions"]
    same("the number of versions", len(found), 2)
    return found


def delete_version():
    key = own_or_seeded("twice")
    if key != SEEDED:
        write(key, b"first")
        write(key, b"second")
    api("delete-object", "--key", key, "--version-id", versions(key)[1]["VersionId"])


def conditional():
    etag = api("head-object", "--key", SEEDED)["ETag"]
    same("the object", read(SEEDED, "--if-match", etag), SEEDED_TEXT)
    refused("304", lambda: read(SEEDED, "--if-none-match", etag))


def overrides():
    answer = api("get-object", "--key", SEEDED, "--response-content-type", "application/json", file())
    same("the type", answer["ContentType"], "application/json")


def head():
    answer = api("head-object", "--key", SEEDED)
    same("the head", (answer["ContentLength"], answer["ContentType"], answer["Metadata"]), (10, "text/plain", {"by": "conformance"}))


def listed(operation):
    return [o["Key"] for o in api(operation, "--prefix", "seed/", "--page-size", "1")["Contents"]]


def list_v2():
    same("the list", listed("list-objects-v2"), SEEDED_KEYS)
    same("the prefixes", api("list-objects-v2", "--prefix", "se", "--delimiter", "/")["CommonPrefixes"], [{"Prefix": "seed/"}])


def attributes():
    answer = api("get-object-attributes", "--key", SEEDED, "--object-attributes", "ObjectSize", "Checksum")
    same("the attributes", (answer["ObjectSize"], "ChecksumSHA256" in answer["Checksum"]), (10, True))


def checksum():
    same("it", "ChecksumSHA256" in api("head-object", "--key", SEEDED, "--checksum-mode", "ENABLED"), True)


run({
    "put": lambda: write(own("put"), b"hello"), "put with checksum": put_checksum, "multipart": multipart, "copy": copy, "part copy": part_copy,
    "put tags": lambda: api("put-object-tagging", "--key", own_or_seeded("put"), "--tagging", "TagSet=[{Key=size,Value=small}]"),
    "delete tags": lambda: api("delete-object-tagging", "--key", own_or_seeded("put")), "delete": lambda: api("delete-object", "--key", own_or_seeded("put")),
    "delete many": delete_many, "delete a version": delete_version,
    "get": lambda: same("the object", read(SEEDED), SEEDED_TEXT), "range": lambda: same("the range", read(SEEDED, "--range", "bytes=2-4"), b"234"),
    "conditional get": conditional, "response overrides": overrides, "head": head,
    "list v1": lambda: same("the list", listed("list-objects"), SEEDED_KEYS), "list v2": list_v2, "list versions": lambda: versions(SEEDED),
    "get a version": lambda: same("the older version", read(SEEDED, "--version-id", versions(SEEDED)[1]["VersionId"]), b"first"), "attributes": attributes,
    "get tags": lambda: same("the tags", api("get-object-tagging", "--key", SEEDED)["TagSet"], [{"Key": "colour", "Value": "blue"}]),
    "presigned get": lambda: same("the object", send(aws("s3", "presign", f"s3://{BUCKET}/{SEEDED}").strip()), SEEDED_TEXT),
    "checksum": checksum,
})
