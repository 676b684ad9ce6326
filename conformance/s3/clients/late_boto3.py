"""boto3 with its default settings: one call that it must repeat, then a newer upload of the same key."""
import os
import sys

import boto3

from common import BUCKET, ENDPOINT, own

METHOD, KEY = sys.argv[1], own("object")
RELAYED = boto3.client("s3", endpoint_url=ENDPOINT)
DIRECT = boto3.client("s3", endpoint_url="http://" + os.environ["DIRECT"])

if METHOD == "PUT":
    RELAYED.put_object(Bucket=BUCKET, Key=KEY, Body=b"older")
else:
    DIRECT.put_object(Bucket=BUCKET, Key=KEY, Body=b"older")
    RELAYED.delete_object(Bucket=BUCKET, Key=KEY)
DIRECT.put_object(Bucket=BUCKET, Key=KEY, Body=b"newer")
print("answered", flush=True)
sys.stdin.readline()
try:
    print(DIRECT.get_object(Bucket=BUCKET, Key=KEY)["Body"].read().decode(), flush=True)
except DIRECT.exceptions.NoSuchKey:
    print("nothing", flush=True)
