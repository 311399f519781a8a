"""An issuer of JSON Web Tokens on loopback, whose key the test has: for tokens that no real provider would sign."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

KEY = RSAKey.generate_key(2048, {"kid": "current", "use": "sig"}, private=True)
EC_KEY = ECKey.generate_key("P-256", {"kid": "curve", "use": "sig"}, private=True)
FOREIGN_KEY = RSAKey.generate_key(2048, {"kid": "current"}, private=True)
"""A key that the issuer does not publish, under the name of one that it does."""
FOREIGN_EC_KEY = ECKey.generate_key("P-256", {"kid": "own"}, private=True)


class TokenIssuer:
    def __init__(self, url: str) -> None:
        self.url = url

    def sign(
        self,
        changes: dict[str, Any] | None = None,
        *,
        header: dict[str, Any] | None = None,
        key: RSAKey | ECKey | OctKey = KEY,
        algorithms: list[str] | None = None,
    ) -> str:
        """A token for the audience `quire` with these claims changed; None removes a claim."""
        at = int(time.time())
        claims = {"iss": self.url, "sub": "ann", "aud": "quire", "iat": at, "exp": at + 300, "nonce": "n"}
        claims |= changes or {}
        headers = {"alg": "RS256", "kid": "current", **(header or {})}
        return jwt.encode(
            {name: value for name, value in headers.items() if value is not None},
            {name: value for name, value in claims.items() if value is not None},
            key,
            algorithms=algorithms or ["RS256", "ES256", "HS256", "RS512", "PS256"],
        )


@contextmanager
def run_token_issuer() -> Iterator[TokenIssuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = f"http://127.0.0.1:{self.server.server_address[1]}"
            documents: dict[str, Any] = {
                "/.well-known/openid-configuration": {"issuer": url, "jwks_uri": f"{url}/jwks"},
                "/jwks": KeySet([KEY, EC_KEY]).as_dict(private=False),
            }
            body = json.dumps(documents.get(self.path, {})).encode()
            self.send_response(200 if self.path in documents else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield TokenIssuer(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
