#!/usr/bin/env python3
"""A gateway to try shaper with: it answers every request after some seconds, and tells how many it has at once.

    python3 slow-gateway.py [PORT] [SECONDS]
"""

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 8080
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0

lock = threading.Lock()
at_once = 0


def change(by):
    global at_once
    with lock:
        at_once += by
        print(f"{time.strftime('%H:%M:%S')}  {at_once} at once", flush=True)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        change(+1)
        try:
            time.sleep(SECONDS)
            answer = b"answered\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
        finally:
            change(-1)

    do_GET = do_POST

    def log_message(self, *_):
        pass


print(f"listening on 127.0.0.1:{PORT}, {SECONDS:g} s for each answer", flush=True)
try:
    ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
except KeyboardInterrupt:
    pass
