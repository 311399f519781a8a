"""Generated secrets of the known formats. No file contains one, so that no scanner reports the repository."""

import random
import string
from collections.abc import Iterator
from typing import NamedTuple

ALPHANUMERIC = string.ascii_letters + string.digits
HEXADECIMAL = "0123456789abcdef"
BASE64 = ALPHANUMERIC + "+/"
UPPER = string.ascii_uppercase + string.digits


class SecretSample(NamedTuple):
    kind: str
    value: str
    """The secret part: what no masked text may contain."""
    text: str
    """The value as it appears, with its context."""


class SecretGenerator:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chars(self, count: int, alphabet: str = ALPHANUMERIC) -> str:
        # A digit at every fifth place: a value of letters alone would be a word.
        chars = [self._random.choice(alphabet) for _ in range(count)]
        chars[::5] = [self._random.choice("23456789") for _ in chars[::5]]
        return "".join(chars)

    def write_samples(self) -> Iterator[SecretSample]:
        """One sample of every format."""
        for kind, prefix, body in self._list_prefixed():
            yield SecretSample(kind, body, f"{prefix}{body}")
        yield from self._list_in_context()
        yield from self._list_assignments()

    def _list_prefixed(self) -> list[tuple[str, str, str]]:
        return [
            ("Quire API key", f"quire_{self.chars(26, string.ascii_lowercase)}_", self.chars(43)),
            ("GitHub token", "ghp_", self.chars(36)),
            ("GitHub token", "ghs_", self.chars(40)),
            ("GitHub fine-grained token", "github_pat_", f"{self.chars(22)}_{self.chars(59)}"),
            ("GitLab token", "glpat-", self.chars(20)),
            ("Slack token", "xoxb-", f"{self.chars(12, string.digits)}-{self.chars(24)}"),
            ("Slack token", "xapp-", f"1-{self.chars(11, UPPER)}-{self.chars(64, HEXADECIMAL)}"),
            ("Stripe key", "sk_live_", self.chars(24)),
            ("Stripe key", "rk_test_", self.chars(24)),
            ("webhook secret", "whsec_", self.chars(32)),
            ("Anthropic API key", "sk-ant-", f"api03-{self.chars(93)}AA"),
            ("OpenRouter API key", "sk-or-", f"v1-{self.chars(64, HEXADECIMAL)}"),
            ("OpenAI API key", "sk-proj-", self.chars(100)),
            ("OpenAI API key", "sk-", self.chars(48)),
            ("Google API key", "AIza", self.chars(35)),
            ("Google OAuth client secret", "GOCSPX-", self.chars(28)),
            ("Google OAuth token", "ya29.", self.chars(120)),
            ("AWS access key ID", "AKIA", self.chars(16, UPPER)),
            ("npm token", "npm_", self.chars(36)),
            ("PyPI token", "pypi-", f"AgEIcHlwaS5vcmc{self.chars(120)}"),
            ("Twilio API key", "SK", self.chars(32, HEXADECIMAL)),
            ("SendGrid API key", "SG.", f"{self.chars(22)}.{self.chars(43)}"),
            ("Hugging Face token", "hf_", self.chars(34)),
            ("Groq API key", "gsk_", self.chars(52)),
            ("DigitalOcean token", "dop_v1_", self.chars(64, HEXADECIMAL)),
            ("Databricks token", "dapi", self.chars(32, HEXADECIMAL)),
            ("HashiCorp Vault token", "hvs.", self.chars(90)),
            ("age secret key", "AGE-SECRET-KEY-1", self.chars(58, UPPER)),
            ("xAI API key", "xai-", self.chars(80)),
            ("Perplexity API key", "pplx-", self.chars(48)),
            ("Replicate token", "r8_", self.chars(37)),
            ("Shopify token", "shpat_", self.chars(32, HEXADECIMAL)),
            ("Docker token", "dckr_pat_", self.chars(27)),
            ("Linear API key", "lin_api_", self.chars(40)),
            ("Notion token", "ntn_", self.chars(46)),
            ("Grafana token", "glsa_", f"{self.chars(32)}_{self.chars(8, HEXADECIMAL)}"),
            ("Sentry token", "sntryu_", self.chars(64, HEXADECIMAL)),
            ("Tailscale key", "tskey-", f"auth-{self.chars(12)}-{self.chars(32)}"),
            ("LangSmith API key", "lsv2_pt_", f"{self.chars(32, HEXADECIMAL)}_{self.chars(10, HEXADECIMAL)}"),
        ]

    def _list_in_context(self) -> Iterator[SecretSample]:
        body = "\n".join(self.chars(64, BASE64) for _ in range(12))
        for name in ("RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY"):
            yield SecretSample("private key", body, f"-----BEGIN {name}-----\n{body}\n-----END {name}-----")
        yield SecretSample("private key", body, f"-----BEGIN EC PRIVATE KEY-----\n{body}")
        jwt = f"{self.chars(30)}.{self.chars(80)}.{self.chars(43)}"
        yield SecretSample("JWT", jwt, f"eyJ{jwt}")
        yield from self._list_cloud_keys()
        value = self.chars(35)
        yield SecretSample("Telegram bot token", value[2:], f"{self.chars(10, '123456789')}:AA{value[2:]}")
        value = f"{self.chars(6)}.{self.chars(38)}"
        yield SecretSample("Discord bot token", value, f"M{self.chars(23)}.{value}")
        value = self.chars(68)
        yield SecretSample("Discord webhook", value, f"https://discord.com/api/webhooks/{'1' * 18}/{value}")
        value = f"T{self.chars(8, UPPER)}/B{self.chars(8, UPPER)}/{self.chars(24)}"
        yield SecretSample("Slack webhook", value, f"https://hooks.slack.com/services/{value}")
        for scheme in ("postgresql", "postgresql+psycopg", "mongodb+srv", "redis", "https"):
            value = self.chars(14)
            yield SecretSample("URL password", value, f"{scheme}://ada:{value}@db.example.com:5432/app")

    def _list_cloud_keys(self) -> Iterator[SecretSample]:
        value = self.chars(40, BASE64)
        yield SecretSample("AWS secret access key", value, f"aws_secret_access_key = {value}")
        value = self.chars(40, BASE64)
        yield SecretSample("AWS secret access key", value, f'"SecretAccessKey": "{value}"')
        value = self.chars(86, BASE64)
        connection = f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={value}==;EndpointSuffix=x"
        yield SecretSample("Azure account key", value, connection)
        value = self.chars(43, BASE64)
        yield SecretSample(
            "Azure account key", value, f"Endpoint=sb://x;SharedAccessKeyName=n;SharedAccessKey={value}="
        )
        value = self.chars(34)
        yield SecretSample("Azure client secret", value, f"aB38Q~{value}")

    def _list_assignments(self) -> Iterator[SecretSample]:
        value = self.chars(40)
        yield SecretSample("bearer token", value, f"Authorization: Bearer {value}")
        value = self.chars(32)
        yield SecretSample("basic credentials", value, f"Authorization: Basic {value}==")
        for kind, pattern in (
            ("token", "GITHUB_TOKEN={}"),
            ("token", "auth_token: '{}'"),
            ("secret", 'clientSecret = "{}"'),
            ("secret", "export SESSION_SECRET={}"),
            ("password", "PGPASSWORD={} psql"),
            ("API key", "X-Api-Key: {}"),
            ("API key", '"apiKey":"{}"'),
        ):
            value = self.chars(32)
            yield SecretSample(kind, value, pattern.format(value))
        yield SecretSample("password", "Tr0ub4dor&3!", 'db_password = "Tr0ub4dor&3!"')
        for pattern in ("DB_PASS={}", "dbPass: '{}'", "pwd={}", "mysql --password {} db", 'tool --token "{}"'):
            # A password is recognized by letters of both cases and a digit, whatever the others are.
            value = f"{self.chars(11)}aZ"
            yield SecretSample("password", value, pattern.format(value))
        value = self.chars(12)
        yield SecretSample("password", value, f"machine api.example.com login ada password {value}")
        value = self.chars(32)
        yield SecretSample("API key", value, f"OPENAI_KEY={value}")
        value = self.chars(32)
        yield SecretSample("cookie", value, f"Cookie: theme=dark; session={value}")


def list_samples(seed: int = 0) -> list[SecretSample]:
    return list(SecretGenerator(seed).write_samples())
