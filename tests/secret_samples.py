"""Generated secrets of the known formats. No file contains one, so that no scanner reports the repository."""

import random
import string
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

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
            *self._list_newer(),
            ("LangSmith API key", "lsv2_pt_", f"{self.chars(32, HEXADECIMAL)}_{self.chars(10, HEXADECIMAL)}"),
        ]

    def _list_newer(self) -> list[tuple[str, str, str]]:
        hexadecimal, chars = (lambda count: self.chars(count, HEXADECIMAL)), self.chars
        uuid = "-".join(hexadecimal(count) for count in (8, 4, 4, 4, 12))
        base64 = lambda count: self.chars(count, BASE64)  # noqa: E731
        lower = lambda count: self.chars(count, string.ascii_lowercase)  # noqa: E731
        return [
            ("GitLab token", "gloas-", hexadecimal(64)),
            ("GitLab token", "glagent-", chars(50)),
            ("HashiCorp Vault token", "hvr.", chars(90)),
            ("Linear API key", "lin_oauth_", chars(64)),
            ("Docker token", "dckr_oat_", chars(32)),
            ("Hugging Face token", "api_org_", chars(34)),
            ("age secret key", "AGE-SECRET-KEY-PQ-1", self.chars(58, UPPER)),
            ("private key", "LS0tLS1CRUdJTi", f"BQUklWQVRFIEtFWS0tLS0t{chars(400)}"),
            ("AWS session token", "IQoJb3JpZ2lu", base64(300)),
            ("Amazon Bedrock API key", "ABSK", f"QmVkcm9ja0FQSUtleS{chars(110)}"),
            ("Google API key", "AQ.", f"Ab8R{chars(46)}"),
            ("Supabase key", "sbp_", hexadecimal(40)),
            ("Supabase key", "sb_secret_", chars(31)),
            ("Vercel token", "vck_", chars(56)),
            ("Vercel token", "vercel_blob_rw_", f"{chars(16)}_{chars(30)}"),
            ("Netlify token", "nfp_", chars(36)),
            ("Fly.io token", "fm2_", base64(120)),
            ("Render API key", "rnd_", chars(28)),
            ("Heroku API key", "HRKU-", f"AA{chars(58)}"),
            ("Cloudflare origin key", "v1.0-", f"{hexadecimal(24)}-{hexadecimal(146)}"),
            ("RubyGems API key", "rubygems_", hexadecimal(48)),
            ("crates.io token", "cio", chars(32)),
            ("NuGet API key", "oy2", lower(43)),
            ("Atlassian token", "ATATT3", chars(180)),
            ("Atlassian token", "ATBB", chars(32)),
            ("Airtable token", "pat", f"{chars(14)}.{hexadecimal(64)}"),
            ("Figma token", "figd_", chars(40)),
            ("Postman API key", "PMAK-", f"{hexadecimal(24)}-{hexadecimal(34)}"),
            ("New Relic key", "NRAK-", self.chars(27, UPPER)),
            ("Grafana token", "glc_", chars(120)),
            ("Doppler token", "dp.pt.", chars(43)),
            ("Dynatrace token", "dt0c01.", f"{self.chars(24, UPPER)}.{self.chars(64, UPPER)}"),
            ("1Password token", "ops_eyJ", chars(300)),
            ("Pulumi token", "pul-", hexadecimal(40)),
            ("CircleCI token", "CCIPAT_", f"{chars(22)}_{hexadecimal(40)}"),
            ("Buildkite token", "bkua_", hexadecimal(40)),
            ("Artifactory key", "AKCp", chars(69)),
            ("Artifactory key", "cmVmdGtuOj", chars(54)),
            ("PlanetScale token", "pscale_tkn_", chars(43)),
            ("Neon API key", "napi_", lower(64)),
            ("MongoDB Atlas secret", "mdb_sa_sk_", chars(40)),
            ("Mapbox token", "sk.eyJ", f"{chars(60)}.{chars(22)}"),
            ("Mailgun key", "key-", hexadecimal(32)),
            ("Resend API key", "re_", f"{chars(8)}_{chars(24)}"),
            ("Brevo API key", "xkeysib-", f"{hexadecimal(64)}-{chars(16)}"),
            ("Square token", "sq0atp-", chars(22)),
            ("Square token", "EAAA", chars(60)),
            ("Facebook token", "EAA", chars(180)),
            ("Plaid token", "access-production-", uuid),
            ("Dropbox token", "sl.", chars(140)),
            ("Contentful token", "CFPAT-", chars(43)),
            ("Typeform token", "tfp_", chars(59)),
            ("PostHog key", "phx_", chars(43)),
            ("Sourcegraph token", "sgp_", f"{hexadecimal(16)}_{hexadecimal(40)}"),
            ("Duffel token", "duffel_live_", chars(43)),
            ("EasyPost key", "EZAK", chars(54)),
            ("Shippo token", "shippo_live_", hexadecimal(40)),
            ("Flutterwave key", "FLWSECK-", f"{hexadecimal(32)}-X"),
            ("Together API key", "tgp_v1_", chars(43)),
            ("Fireworks API key", "fw_", chars(24)),
            ("Cerebras API key", "csk-", lower(48)),
            ("NVIDIA API key", "nvapi-", chars(64)),
            ("Anyscale key", "esecret_", chars(26)),
            ("Pinecone API key", "pcsk_", f"{chars(6)}_{chars(63)}"),
            ("ElevenLabs API key", "sk_", hexadecimal(48)),
            ("Voyage API key", "pa-", chars(43)),
            ("Jina API key", "jina_", chars(60)),
            ("Tavily API key", "tvly-", f"dev-{chars(32)}"),
            ("Firecrawl API key", "fc-", hexadecimal(32)),
            ("Langfuse key", "sk-lf-", uuid),
            ("Helicone key", "sk-helicone-", f"{lower(7)}-{lower(7)}-{lower(7)}"),
            ("Modal token", "as-", chars(22)),
            ("RunPod API key", "rpa_", self.chars(46, UPPER)),
            ("Apify token", "apify_api_", chars(36)),
            ("Browserbase key", "bb_live_", chars(27)),
            ("SonarQube token", "squ_", hexadecimal(40)),
            ("Ory token", "ory_pat_", chars(32)),
            ("Notion token", "secret_", chars(43)),
            ("OpenAI session token", "sess-", chars(40)),
            ("Prefect key", "pnu_", chars(36)),
            ("Scalingo token", "tk-us-", chars(48)),
            ("Databricks token", "dose", hexadecimal(32)),
        ]

    def write_key_forms(self) -> Iterator[tuple[str, list[str]]]:
        """A private key in the forms in which files, programs and people print it, each with the lines to hide."""
        lines = [self.chars(64, BASE64) for _ in range(8)]

        def wrap(name: str = "PRIVATE KEY", head: str = "") -> str:
            return "\n".join([f"-----BEGIN {name}-----", *([head] if head else []), *lines, f"-----END {name}-----"])

        key = wrap()
        numbered = [*enumerate(key.split("\n"), start=1)]
        yield wrap("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123456789ABCDEF\n"), lines
        yield wrap("ENCRYPTED PRIVATE KEY"), lines
        yield wrap("PGP PRIVATE KEY BLOCK", "Version: GnuPG v2\nComment: https://example.org/_a@b\n"), lines
        yield key.replace("\n", "\\n"), lines
        yield key.replace("\n", "\r\n"), lines
        yield key.replace("\n", "<br>\n"), lines
        yield quote(key, safe="+/"), lines
        for form in ("> {}", "+{}", "-{}", "# {}", "// {}", " * {}", '"{}\\n"', '"{}\\n" +', "'{}',"):
            yield "\n".join(form.format(line) for line in key.split("\n")), lines
        for form in ("{:6}\t{}", "{:6}→{}", "{:3} | {}", "key.pem:{}:{}", "id_rsa-{}-{}"):
            yield "\n".join(form.format(*each) for each in numbered), lines
        yield "\n".join(f"{number:6}→{line}" for number, line in numbered[:5]), lines
        ssh2 = "---- {} SSH2 ENCRYPTED PRIVATE KEY ----"
        yield "\n".join([ssh2.format("BEGIN"), 'Comment: "a key"', *lines, ssh2.format("END")]), lines
        yield "\n".join(["PuTTY-User-Key-File-3: ssh-ed25519", "Private-Lines: 8", *lines, "Private-MAC: 12"]), lines

    def _list_in_context(self) -> Iterator[SecretSample]:
        body = "\n".join(self.chars(64, BASE64) for _ in range(12))
        for name in ("RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY"):
            yield SecretSample("private key", body, f"-----BEGIN {name}-----\n{body}\n-----END {name}-----")
        yield SecretSample("private key", body, f"-----BEGIN EC PRIVATE KEY-----\n{body}")
        body = f"{self.chars(30)}..{self.chars(16)}.{self.chars(80)}.{self.chars(22)}"
        yield SecretSample("JWT", body, f"eyJ{body}")
        value = self.chars(100)
        yield SecretSample("Google OAuth refresh token", value, f"1//0{value}")
        value = f"production${self.chars(16, string.ascii_lowercase)}${self.chars(32, HEXADECIMAL)}"
        yield SecretSample("PayPal access token", value, f"access_token${value}")
        value = self.chars(67)
        yield SecretSample("Terraform token", value, f"{self.chars(14)}.atlasv1.{value}")
        value = self.chars(43, BASE64)
        yield SecretSample("API key", value, f"PrivateKey = {value}=")
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
