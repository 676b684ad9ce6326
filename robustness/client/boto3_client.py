"""Puts and gets objects with boto3, as requests on standard input say: one JSON object a line, many at once.

Its settings are boto3's own, but for the endpoint, the region and the credentials. It ends with its input. Each
request is answered by one line with its "n"; before that, a put of which "pause" is true says {"n": …, "pause": true}
in the middle of its body and waits for {"n": …, "go": true}. {"n": …, "drop": true} gives a request up.
"""
import json
import os
import sys
import threading

import boto3
import boto3.exceptions
import botocore.exceptions

writing, making, clients = threading.Lock(), threading.Lock(), {}
requests, writes = {}, {}  # by n, and those that write by op


def say(**line):
    with writing:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


class Dropped(Exception):
    pass


class Request:
    def __init__(self, r):
        self.r, self.go, self.dropped, self.sending, self.attempts = r, threading.Event(), False, False, []

    def look(self):
        if self.dropped:
            raise Dropped()


class Body:
    """A file that pauses in the middle as it is sent, but not as it is hashed before."""

    def __init__(self, request):
        self.request, self.file = request, open(request.r["file"], "rb")
        self.size = os.fstat(self.file.fileno()).st_size
        self.paused = not request.r.get("pause")

    def read(self, n=-1):
        self.request.look()
        if not self.paused and self.request.sending:
            half = self.size // 2 - self.file.tell()
            if half > 0:
                n = half if n is None or n < 0 else min(n, half)
            else:
                self.paused = True
                say(n=self.request.r["n"], pause=True)
                self.request.go.wait()
                self.request.look()
        return self.file.read(n)

    def seek(self, *args):
        return self.file.seek(*args)

    def tell(self):
        return self.file.tell()

    def __len__(self):
        return self.size

    def close(self):
        self.file.close()


def writer(headers):
    """Whose write a request is of: the transfer manager sends it on a thread of its own."""
    op = headers.get("x-amz-meta-op", "")
    return writes.get(op.decode() if isinstance(op, bytes) else op)


def before_send(request, **kwargs):
    of = writer(request.headers)
    if of:
        of.look()
        of.sending = True


def needs_retry(request_dict, response=None, caught_exception=None, **kwargs):
    request = writer(request_dict["headers"])
    if request:
        request.sending = False
        if response is not None and response[0].status_code >= 300:
            request.attempts.append(answer(response[0].status_code, response[1].get("Error", {})))
        elif caught_exception is not None:
            request.attempts.append(failure(caught_exception))


def client(r):
    keys = r["keys"]
    key = (r["endpoint"], keys["session_token"])
    with making:
        if key not in clients:
            while len(clients) >= 64:
                clients.pop(next(iter(clients)))
            c = boto3.session.Session().client(
                "s3", endpoint_url=r["endpoint"], region_name=keys["region"], aws_access_key_id=keys["access_key_id"],
                aws_secret_access_key=keys["secret_access_key"], aws_session_token=keys["session_token"])
            c.meta.events.register("before-send.s3", before_send)
            c.meta.events.register_first("needs-retry.s3", needs_retry)
            clients[key] = c
        return clients[key]


def answer(status, error):
    return {"status": status, "code": error.get("Code", ""), "message": error.get("Message", "")}


def failure(e):
    if isinstance(e, boto3.exceptions.S3UploadFailedError):
        e = e.__context__ or e
    if isinstance(e, botocore.exceptions.ClientError):
        return answer(e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0), e.response.get("Error", {}))
    unsent = isinstance(e, (botocore.exceptions.EndpointConnectionError, botocore.exceptions.ConnectTimeoutError))
    return {"status": 0, "code": "", "message": "%s: %s" % (type(e).__name__, e), "unsent": unsent}


def put(c, request):
    body = Body(request)
    try:
        c.put_object(Bucket=request.r["bucket"], Key=request.r["key"], Body=body, Metadata={"op": request.r["op"]})
    finally:
        body.close()
    return {}


def upload(c, request):
    r = request.r
    c.upload_file(r["file"], r["bucket"], r["key"], ExtraArgs={"Metadata": {"op": r["op"]}})
    return {}


def get(c, request):
    out = c.get_object(Bucket=request.r["bucket"], Key=request.r["key"])
    with open(request.r["file"], "wb") as f:
        for piece in out["Body"].iter_chunks(1 << 16):
            f.write(piece)
    return {"op": out["Metadata"].get("op", "")}


def serve(request):
    r = request.r
    if r.get("op"):
        writes[r["op"]] = request
    try:
        done = {"put": put, "upload": upload, "get": get}[r["do"]](client(r), request) if r["do"] != "load" else {}
        say(n=r["n"], done=True, attempts=request.attempts, **done)
    except BaseException as e:
        say(n=r["n"], done=True, attempts=request.attempts, failure=failure(e))
    finally:
        requests.pop(r["n"], None)
        writes.pop(r.get("op"), None)


def main():
    for line in sys.stdin:
        r = json.loads(line)
        request = requests.get(r["n"])
        if r.get("go") or r.get("drop"):
            if request:
                request.dropped = request.dropped or bool(r.get("drop"))
                request.go.set()
            continue
        requests[r["n"]] = Request(r)
        threading.Thread(target=serve, args=(requests[r["n"]],), daemon=True).start()
    os._exit(0)


main()
