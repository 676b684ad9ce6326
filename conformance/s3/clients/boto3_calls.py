"""boto3 with its default settings: does the operations of the S3 API that standard input names, a line of JSON each."""
import base64
import json
import os
import sys

import boto3
import botocore.config
import botocore.exceptions

S3 = boto3.client("s3", endpoint_url=os.environ["ENDPOINT"])
SIGNER = boto3.client("s3", endpoint_url=os.environ["ENDPOINT"], config=botocore.config.Config(signature_version="s3v4"))


def do(operation, given):
    name = botocore.xform_name(operation)
    if operation.startswith("Presign"):
        return {"URL": SIGNER.generate_presigned_url(name.removeprefix("presign_"), given)}
    if given.pop("Pages", False):
        pages = list(S3.get_paginator(name).paginate(**given, PaginationConfig={"PageSize": 1}))
        return {"Contents": [o for page in pages for o in page.get("Contents", [])]}
    if "Body" in given:
        given["Body"] = base64.b64decode(given["Body"])
    # Headers that this version has no parameters for.
    headers = {header: given.pop(field) for field, header in (("IfMatch", "If-Match"), ("IfNoneMatch", "If-None-Match")) if name == "put_object" and field in given}

    def add(params, **_):
        params["headers"].update(headers)

    S3.meta.events.register("before-call.s3.PutObject", add)
    try:
        answer = getattr(S3, name)(**given)
    finally:
        S3.meta.events.unregister("before-call.s3.PutObject", add)
    if name == "get_object":
        answer["Body"] = answer["Body"].read().decode()
    return answer


for line in sys.stdin:
    call = json.loads(line)
    try:
        out = {"Answer": do(call["Operation"], call["Input"])}
    except botocore.exceptions.ClientError as e:
        out = {"Code": e.response["Error"]["Code"], "Status": e.response["ResponseMetadata"]["HTTPStatusCode"]}
    except Exception as e:  # pylint: disable=broad-except
        out = {"Failed": repr(e)}
    print(json.dumps(out, default=str), flush=True)
