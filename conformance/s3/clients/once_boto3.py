"""boto3 with its default settings, under a current grant, at a bucket whose objects are written once."""
import sys

import boto3
import botocore.exceptions

from common import ENDPOINT, own

S3, BUCKET, KEY = boto3.client("s3", endpoint_url=ENDPOINT), sys.argv[1], own("record")


def say(case, call, **arguments):
    try:
        call(Bucket=BUCKET, **arguments)
        outcome = "ok"
    except botocore.exceptions.ClientError as e:
        outcome = f"{e.response['ResponseMetadata']['HTTPStatusCode']} {e.response['Error']['Code']}"
    print(f"{case}\t{outcome}", flush=True)


say("write", S3.put_object, Key=KEY, Body=b"first")
say("overwrite", S3.put_object, Key=KEY, Body=b"second")
say("delete", S3.delete_object, Key=KEY)
read = S3.get_object(Bucket=BUCKET, Key=KEY)["Body"].read()
print(f"read\t{'ok' if read == b'first' else repr(read)}", flush=True)
say("write another", S3.put_object, Key=own("another"), Body=b"first")
