"""boto3, as Debian has it."""
import urllib.request

import boto3
import botocore.config
import botocore.exceptions

from common import BUCKET, ENDPOINT, PART_SIZE, SEEDED, SEEDED_KEYS, SEEDED_PART, SEEDED_TEXT, Refused, own, own_or_seeded, refused, run, same, send

S3 = boto3.client("s3", endpoint_url=ENDPOINT, config=botocore.config.Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"}, signature_version="s3v4"))


def call(operation, **arguments):
    """Calls an operation on the bucket."""
    try:
        return getattr(S3, operation)(Bucket=BUCKET, **arguments)
    except botocore.exceptions.ClientError as e:
        raise Refused(e.response["Error"]["Code"], e.response["ResponseMetadata"]["HTTPStatusCode"]) from e


def read(key, **arguments):
    return call("get_object", Key=key, **arguments)["Body"].read()


def write(key, data, **arguments):
    call("put_object", Key=key, Body=data, **arguments)
    same(key, read(key), data)


def put_checksum():
    for algorithm in ["CRC32", "SHA1", "SHA256"]:  # the others need a library that is not there
        write(own("checksum-" + algorithm), b"hello", ChecksumAlgorithm=algorithm)


def with_header(name, value, do):
    """Adds a header that this version has no parameter for."""
    def add(params, **_):
        params["headers"][name] = value
    S3.meta.events.register("before-call.s3.PutObject", add)
    try:
        do()
    finally:
        S3.meta.events.unregister("before-call.s3.PutObject", add)


def put_if_none_match():
    key = own("once")
    with_header("If-None-Match", "*", lambda: write(key, b"first"))
    with_header("If-None-Match", "*", lambda: refused("PreconditionFailed", lambda: write(key, b"second")))


def put_if_match():
    key = own("match")
    write(key, b"first")
    etag = call("head_object", Key=key)["ETag"]
    with_header("If-Match", etag, lambda: write(key, b"second"))
    with_header("If-Match", etag, lambda: refused("PreconditionFailed", lambda: write(key, b"third")))


def upload(key, part):
    """A multipart upload whose parts are made by part."""
    upload_id = call("create_multipart_upload", Key=key)["UploadId"]
    parts = [{"PartNumber": number, "ETag": part(upload_id, number)} for number in (1, 2)]
    same("the parts", len(call("list_parts", Key=key, UploadId=upload_id)["Parts"]), 2)
    call("complete_multipart_upload", Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts})


def multipart():
    key, data = own("multipart"), [b"a" * PART_SIZE, b"end"]
    upload(key, lambda upload_id, n: call("upload_part", Key=key, UploadId=upload_id, PartNumber=n, Body=data[n - 1])["ETag"])
    same(key, read(key), data[0] + data[1])


def copy():
    call("copy_object", Key=own("copy"), CopySource={"Bucket": BUCKET, "Key": SEEDED})
    same("the copy", read(own("copy")), SEEDED_TEXT)


def part_copy():
    key, sources = own("part copy"), [(SEEDED_PART, f"bytes=0-{PART_SIZE - 1}"), (SEEDED, "bytes=2-4")]
    upload(key, lambda upload_id, n: call("upload_part_copy", Key=key, UploadId=upload_id, PartNumber=n, CopySource={"Bucket": BUCKET, "Key": sources[n - 1][0]},
                                          CopySourceRange=sources[n - 1][1])["CopyPartResult"]["ETag"])
    same(key, read(key), bytes(PART_SIZE) + b"234")


def delete_many():
    answer = call("delete_objects", Delete={"Objects": [{"Key": own_or_seeded("copy")}, {"Key": own_or_seeded("once")}]})
    for e in answer.get("Errors", []):
        raise Refused(e["Code"])


def versions(key):
    found = call("list_object_versions", Prefix=key)["Versions"]
    same("the number of versions", len(found), 2)
    return found


def delete_version():
    key = own_or_seeded("match")
    call("delete_object", Key=key, VersionId=versions(key)[1]["VersionId"])


def presigned_put():
    url = S3.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": own("presigned")})
    send(urllib.request.Request(url, b"hello", {"Content-Type": ""}, method="PUT"))


def conditional():
    etag = call("head_object", Key=SEEDED)["ETag"]
    same("the object", read(SEEDED, IfMatch=etag), SEEDED_TEXT)
    refused("304", lambda: read(SEEDED, IfNoneMatch=etag))


def overrides():
    same("the type", call("get_object", Key=SEEDED, ResponseContentType="application/json")["ContentType"], "application/json")


def head():
    answer = call("head_object", Key=SEEDED)
    same("the head", (answer["ContentLength"], answer["ContentType"], answer["Metadata"]), (10, "text/plain", {"by": "conformance"}))


def listed(operation, **arguments):
    pages = S3.get_paginator(operation).paginate(Bucket=BUCKET, PaginationConfig={"PageSize": 1}, **arguments)
    return [o["Key"] for page in pages for o in page.get("Contents", [])]


def list_v2():
    same("the list", listed("list_objects_v2", Prefix="seed/"), SEEDED_KEYS)
    same("the prefixes", call("list_objects_v2", Prefix="se", Delimiter="/")["CommonPrefixes"], [{"Prefix": "seed/"}])


def attributes():
    answer = call("get_object_attributes", Key=SEEDED, ObjectAttributes=["ObjectSize", "Checksum"])
    same("the attributes", (answer["ObjectSize"], "ChecksumSHA256" in answer["Checksum"]), (10, True))


def checksum():
    answer = call("get_object", Key=SEEDED, ChecksumMode="ENABLED")
    same("the object", (answer["Body"].read(), "ChecksumSHA256" in answer), (SEEDED_TEXT, True))


run({
    "put": lambda: write(own("put"), b"hello"), "put with checksum": put_checksum, "put if none match": put_if_none_match, "put if match": put_if_match,
    "multipart": multipart, "copy": copy, "part copy": part_copy,
    "put tags": lambda: call("put_object_tagging", Key=own_or_seeded("put"), Tagging={"TagSet": [{"Key": "size", "Value": "small"}]}),
    "delete tags": lambda: call("delete_object_tagging", Key=own_or_seeded("put")), "delete": lambda: call("delete_object", Key=own_or_seeded("put")),
    "delete many": delete_many, "delete a version": delete_version, "presigned put": presigned_put,
    "get": lambda: same("the object", read(SEEDED), SEEDED_TEXT), "range": lambda: same("the range", read(SEEDED, Range="bytes=2-4"), b"234"),
    "conditional get": conditional, "response overrides": overrides, "head": head,
    "list v1": lambda: same("the list", listed("list_objects", Prefix="seed/"), SEEDED_KEYS), "list v2": list_v2, "list versions": lambda: versions(SEEDED),
    "get a version": lambda: same("the older version", read(SEEDED, VersionId=versions(SEEDED)[1]["VersionId"]), b"first"), "attributes": attributes,
    "get tags": lambda: same("the tags", call("get_object_tagging", Key=SEEDED)["TagSet"], [{"Key": "colour", "Value": "blue"}]),
    "presigned get": lambda: same("the object", send(S3.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": SEEDED})), SEEDED_TEXT),
    "checksum": checksum,
})
