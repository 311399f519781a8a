"""Secrets in text: find and mask keys, tokens and passwords by their known formats.

Transcripts of agents hold credentials. What leaves Quire for another model or person is masked: MCP answers,
hand-overs, recalled messages of hooks and shared exports. What is stored is masked only for tenants that say so
(`quire.log.secret_masker`); a purge erases a secret that is stored.

A format is found in two steps, so that text without secrets costs little: a quick search for literal text, then the
pattern at that position. Every pattern also matches inside JSON strings, where a line break before a secret is the two
characters backslash and `n`, and a slash or a quote may be escaped. Mask a text before an excerpt is cut from it,
because half a secret matches no format.

The work is linear in the length of the text, whatever the text is: a search continues near the end of what it has
matched, and no single call of the regular expression engine, which holds the interpreter, is long.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple, TypeVar, cast

from pydantic import JsonValue

from quire.model import (
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from quire.model.secret_patterns import SecretPattern

MASK_MARK = "…[masked "
"""Every mask contains it."""
MIN_RANDOM_CHARS = 16
"""A shorter value of an assignment is a secret only if it has the character classes of a password."""
SEARCH_CHARS = 65_536
"""Characters that one call of a search goes through: it holds the interpreter, and other threads wait."""
MAX_ASSIGNED_CHARS = 512
"""Characters of an assigned value that are masked."""
MAX_RESCANNED_CHARS = 128
"""Characters at the end of a match in which another one is searched for, which may be longer."""
MIN_PASSWORD_CLASSES = 3
"""Of lower case, upper case, digits and symbols."""

MAX_SPLIT_CHARS = 4_096
"""Characters at the end of a text, and at the start of the next one, that may be one secret."""

T = TypeVar("T", bound=JsonValue)
PartT = TypeVar("PartT", bound=Part)


class _SecretFormat(NamedTuple):
    """A secret that only its context identifies.

    The group `secret` is what a mask replaces; the group `head` is the public start of it, which a mask preserves.
    """

    kind: str
    starts: tuple[str, ...]
    """A match begins with one of these texts."""
    pattern: re.Pattern[str]
    must_be_random: bool = False
    must_be_password: bool = False


_WORD_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))"
"""The start of a word, or the end of a JSON escape."""
_SEGMENT_START = r"(?:(?<![A-Za-z0-9_.-])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))"
_SLASH = r"\\{0,4}/"
_BASE64 = rf"(?:[A-Za-z0-9+]|{_SLASH})"
_GAP = r"(?:\s|\\{1,4}[nrt])"
"""White space, also as a JSON escape."""
_ASSIGNS = r"\\{0,4}[\"']?\]?[ \t]{0,4}(?:=>|:=|[=:])[ \t]{0,4}\\{0,4}[\"'`]?"
_SPACE = r"(?: |%20|\+)"
_KEY_NAME = rf"{_SPACE}(?:[A-Z0-9]|{_SPACE}){{0,30}}PRIVATE{_SPACE}KEY(?:{_SPACE}BLOCK)?"
_KEY_BEGIN = rf"(?:-----BEGIN{_KEY_NAME}-----|---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----)"
_KEY_END = rf"(?:-----END{_KEY_NAME}-----|---- END SSH2 ENCRYPTED PRIVATE KEY ----)"
_IN_KEY = r"(?:(?!---- ?-?(?:BEGIN|END))[^\[\]{}])"
"""A character before the next marker. Lines of a key may be numbered, quoted, commented or string literals. Without
brackets, so that JSON stays valid."""
_KEY_GAP = r"(?:\\{1,4}[nrt]|[A-Z][A-Za-z-]{2,20}: [^\r\n\\]{0,80}+|[0-9]{1,6}(?![A-Za-z0-9+/=])|[^A-Za-z0-9+/=])"
_KEY_LINES = rf"(?:(?>{_KEY_GAP}{{0,40}})(?>(?:{_BASE64}|=){{16,}}))+"

_ENCODED_KEYS = (
    "SU0EgUFJJVkFUR",
    "QUklWQVRFIEtFW",
    "FQyBQUklWQVRFIEtFW",
    "PUEVOU1NIIFBSSVZBVEUgS0VZ",
    "FTkNSWVBURUQgUFJJVkFUR",
    "EU0EgUFJJVkFUR",
    "QR1AgUFJJVkFUR",
)
"""What follows the base64 of `-----BEGIN` where a private key does, as in a file of Kubernetes or a variable of CI."""

TOKEN_FORMATS = (
    ("Quire API key", "quire_", r"[0-9a-z]{26}_[0-9A-Za-z]{43}"),
    ("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9_.-]{36,}+"),
    ("GitHub fine-grained token", "github_pat_", r"[A-Za-z0-9_]{40,}+"),
    (
        "GitLab token",
        "glpat- gldt- glrt- glrtr- glcbt- glptt- gloas- glft- glimt- glagent- glsoat- glffct-",
        r"[A-Za-z0-9_.-]{20,}+",
    ),
    ("Slack token", "xoxb- xoxp- xoxa- xoxe- xoxo- xoxr- xoxs- xoxc- xoxd- xapp-", r"[A-Za-z0-9%-]{10,}+"),
    ("Stripe key", "sk_live_ sk_test_ rk_live_ rk_test_", r"[A-Za-z0-9]{16,}+"),
    ("webhook secret", "whsec_", r"[A-Za-z0-9+/=_-]{24,}+"),
    ("Anthropic API key", "sk-ant-", r"[A-Za-z0-9_-]{20,}+"),
    ("OpenRouter API key", "sk-or-", r"[A-Za-z0-9_-]{20,}+"),
    ("OpenAI API key", "sk-proj- sk-svcacct- sk-admin- sk-None-", r"[A-Za-z0-9_-]{20,}+"),
    ("OpenAI API key", "sk-", r"[A-Za-z0-9]{32,}+(?![_-])"),
    ("Google API key", "AIza", r"[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    ("Google OAuth client secret", "GOCSPX-", r"[A-Za-z0-9_-]{24,}+"),
    ("Google OAuth token", "ya29.", r"[A-Za-z0-9_.-]{20,}+"),
    ("AWS access key ID", "AKIA ASIA ABIA ACCA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("npm token", "npm_", r"[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    ("PyPI token", "pypi-", r"Ag[A-Za-z0-9_-]{50,}+"),
    ("Twilio API key", "SK", r"[0-9a-f]{32}(?![A-Za-z0-9])"),
    ("SendGrid API key", "SG.", r"[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"),
    ("Hugging Face token", "hf_ api_org_", r"[A-Za-z0-9]{30,}+"),
    ("Groq API key", "gsk_", r"[A-Za-z0-9]{40,}+"),
    ("xAI API key", "xai-", r"[A-Za-z0-9]{60,}+"),
    ("LangSmith API key", "lsv2_pt_ lsv2_sk_", r"[0-9a-f]{32}_[0-9a-f]{10}(?![A-Za-z0-9])"),
    ("Perplexity API key", "pplx-", r"[A-Za-z0-9]{40,}+"),
    ("Replicate token", "r8_", r"[A-Za-z0-9]{37}(?![A-Za-z0-9])"),
    ("DigitalOcean token", "dop_v1_ doo_v1_ dor_v1_", r"[0-9a-f]{64}"),
    ("Shopify token", "shpat_ shpca_ shppa_ shpss_", r"[0-9a-fA-F]{32}"),
    ("Databricks token", "dapi", r"[0-9a-f]{32}(?![A-Za-z0-9])"),
    ("Docker token", "dckr_pat_ dckr_oat_", r"[A-Za-z0-9_-]{20,}+"),
    ("HashiCorp Vault token", "hvs. hvb. hvr.", r"[A-Za-z0-9_-]{24,}+"),
    ("Linear API key", "lin_api_ lin_oauth_", r"[A-Za-z0-9]{32,}+"),
    ("Notion token", "ntn_", r"[A-Za-z0-9]{40,}+"),
    ("Grafana token", "glsa_", r"[A-Za-z0-9_]{32,}+"),
    ("Sentry token", "sntrys_ sntryu_", r"[A-Za-z0-9_=+/-]{40,}+"),
    ("Tailscale key", "tskey-", r"[a-z]{2,12}-[A-Za-z0-9-]{16,}+"),
    ("age secret key", "AGE-SECRET-KEY-1 AGE-SECRET-KEY-PQ-1", r"[0-9A-Z]{58,}+"),
    ("private key", "LS0tLS1CRUdJTi", rf"B(?:{'|'.join(_ENCODED_KEYS)})(?>(?:{_BASE64}|=|{_GAP}){{64,}})"),
    ("Amazon Bedrock API key", "ABSK bedrock-api-key-", rf"(?>(?:{_BASE64}|=){{80,}})"),
    ("Google API key", "AQ.", r"Ab8R[A-Za-z0-9_-]{40,}+"),
    ("Supabase key", "sbp_", r"[0-9a-f]{40}(?![A-Za-z0-9])"),
    ("Supabase key", "sb_secret_", r"[A-Za-z0-9_-]{20,}+"),
    ("Vercel token", "vcp_ vck_ vci_ vca_ vcr_", r"[A-Za-z0-9]{24,}+"),
    ("Vercel token", "vercel_blob_rw_", r"[A-Za-z0-9_]{24,}+"),
    ("Netlify token", "nfp_ nfc_ nfo_ nfu_ nfb_", r"[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    ("Render API key", "rnd_", r"[A-Za-z0-9]{28,}+"),
    ("Heroku API key", "HRKU-", r"[A-Za-z0-9_-]{30,}+"),
    ("Cloudflare origin key", "v1.0-", r"[0-9a-f]{24}-[0-9a-f]{100,}+"),
    ("RubyGems API key", "rubygems_", r"[0-9a-f]{48}"),
    ("crates.io token", "cio", r"[A-Za-z0-9]{32}(?![A-Za-z0-9])"),
    ("NuGet API key", "oy2", r"[a-z0-9]{43}(?![A-Za-z0-9])"),
    ("Atlassian token", "ATATT3 ATCTT3", r"[A-Za-z0-9_=-]{40,}+"),
    ("Atlassian token", "ATBB", r"[A-Za-z0-9]{32}(?![A-Za-z0-9])"),
    ("Airtable token", "pat", r"[A-Za-z0-9]{14}\.[0-9a-f]{64}(?![A-Za-z0-9])"),
    ("Figma token", "figd_ figu_ figo_", r"[A-Za-z0-9_-]{36,}+"),
    ("Postman API key", "PMAK-", r"[0-9a-f]{24}-[0-9a-f]{34}"),
    ("New Relic key", "NRAK- NRII- NRIQ- NRRA- NRJS-", r"[A-Za-z0-9_-]{19,42}+"),
    ("Grafana token", "glc_", r"[A-Za-z0-9+/=_-]{40,}+"),
    ("Doppler token", "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", r"[A-Za-z0-9_.-]{40,}+"),
    ("Dynatrace token", "dt0c01. dt0s01. dt0s16.", r"[A-Z0-9]{8,24}\.[A-Z0-9]{64}"),
    ("1Password token", "ops_eyJ", r"[A-Za-z0-9+/=_-]{100,}+"),
    ("Pulumi token", "pul-", r"[0-9a-f]{40}(?![A-Za-z0-9])"),
    ("CircleCI token", "CCIPAT_ CCIPRJ_", r"[A-Za-z0-9]{16,64}+_[0-9a-f]{40}"),
    ("Buildkite token", "bkua_ bkct_ bkaj_", r"[A-Za-z0-9]{40,}+"),
    ("Artifactory key", "AKCp", r"[A-Za-z0-9]{60,}+"),
    ("Artifactory key", "cmVmdGtuOj", r"[A-Za-z0-9]{48,}+"),
    ("PlanetScale token", "pscale_tkn_ pscale_pw_ pscale_oauth_", r"[A-Za-z0-9_.=-]{32,}+"),
    ("Neon API key", "napi_", r"[a-z0-9]{48,}+"),
    ("MongoDB Atlas secret", "mdb_sa_sk_", r"[A-Za-z0-9_-]{40,}+"),
    ("Mapbox token", "sk.eyJ", r"[A-Za-z0-9_-]{40,300}+\.[A-Za-z0-9_-]{20,}+"),
    ("Mailgun key", "key-", r"[0-9a-f]{32}(?![A-Za-z0-9-])"),
    ("Resend API key", "re_", r"[A-Za-z0-9]{8}_[A-Za-z0-9]{24}(?![A-Za-z0-9_])"),
    ("Brevo API key", "xkeysib- xsmtpsib-", r"[0-9a-f]{64}-[A-Za-z0-9]{16}"),
    ("Square token", "sq0atp- sq0csp-", r"[A-Za-z0-9_-]{22,43}+"),
    ("Square token", "EAAA", r"[A-Za-z0-9_-]{60}(?![A-Za-z0-9_-])"),
    ("Facebook token", "EAA", r"[A-Za-z0-9]{100,}+"),
    (
        "Plaid token",
        "access-sandbox- access-production- access-development-",
        r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    ),
    ("Dropbox token", "sl.", r"[A-Za-z0-9_.-]{130,}+"),
    ("Contentful token", "CFPAT-", r"[A-Za-z0-9_-]{43}"),
    ("Typeform token", "tfp_", r"[A-Za-z0-9_.-]{40,}+"),
    ("PostHog key", "phx_", r"[A-Za-z0-9]{40,}+"),
    ("Sourcegraph token", "sgp_", r"(?:[0-9a-f]{16}_)?[0-9A-Za-z]{40,}+"),
    ("Duffel token", "duffel_live_ duffel_test_", r"[A-Za-z0-9_=-]{40,}+"),
    ("EasyPost key", "EZAK EZTK", r"[A-Za-z0-9]{54}(?![A-Za-z0-9])"),
    ("Shippo token", "shippo_live_ shippo_test_", r"[0-9a-f]{40}"),
    ("Flutterwave key", "FLWSECK- FLWSECK_TEST-", r"[0-9a-zA-Z]{12,64}+-X"),
    ("Together API key", "tgp_v1_", r"[A-Za-z0-9_-]{40,}+"),
    ("Fireworks API key", "fw_", r"(?=[A-Za-z]{0,40}+[0-9])[A-Za-z0-9]{20,64}+(?![A-Za-z0-9_])"),
    ("Cerebras API key", "csk-", r"[a-z0-9]{40,}+"),
    ("NVIDIA API key", "nvapi-", r"[A-Za-z0-9_-]{60,}+"),
    ("Anyscale key", "esecret_", r"[A-Za-z0-9]{24,}+"),
    ("Pinecone API key", "pcsk_", r"[A-Za-z0-9_]{48,}+"),
    ("ElevenLabs API key", "sk_", r"[0-9a-f]{48}(?![A-Za-z0-9])"),
    ("Voyage API key", "pa-", r"(?=[A-Za-z_-]{0,42}+[0-9])[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    ("Jina API key", "jina_", r"[A-Za-z0-9_-]{56,}+"),
    ("Tavily API key", "tvly-", r"[A-Za-z0-9-]{24,}+"),
    ("Firecrawl API key", "fc-", r"[0-9a-f]{32}(?![A-Za-z0-9-])"),
    ("Langfuse key", "sk-lf-", r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    ("Helicone key", "sk-helicone-", r"[a-z0-9-]{20,}+"),
    ("Modal token", "ak- as-", r"(?=[A-Za-z]{0,21}+[0-9])[A-Za-z0-9]{22}(?![A-Za-z0-9_-])"),
    ("RunPod API key", "rpa_", r"[A-Za-z0-9]{40,}+"),
    ("Apify token", "apify_api_", r"[A-Za-z0-9]{30,}+"),
    ("Browserbase key", "bb_live_", r"[A-Za-z0-9_-]{20,}+"),
    ("SonarQube token", "squ_ sqp_ sqa_", r"[0-9a-f]{40}(?![A-Za-z0-9])"),
    ("Ory token", "ory_pat_ ory_st_ ory_apikey_", r"[A-Za-z0-9]{32,}+"),
    ("Notion token", "secret_", r"[A-Za-z0-9]{43}(?![A-Za-z0-9_])"),
    ("OpenAI session token", "sess-", r"[A-Za-z0-9]{40}(?![A-Za-z0-9])"),
    ("Prefect key", "pnu_ pnb_", r"[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
    ("Scalingo token", "tk-us-", r"[A-Za-z0-9_-]{48}"),
    ("Databricks token", "dose", r"[0-9a-f]{32}(?![A-Za-z0-9])"),
)
"""Tokens with a public prefix: kind, prefixes, body."""

_CONTEXTS = (
    (
        "private key",
        ("-----BEGIN", "---- BEGIN SSH2"),
        rf"(?P<secret>(?P<head>{_KEY_BEGIN})(?>{_IN_KEY}{{0,1000}}?[A-Za-z0-9+/]{{32}})(?>{_IN_KEY}{{0,20000}}){_KEY_END})",
    ),
    # Without its end, as a truncated tool result has it.
    ("private key", ("-----BEGIN",), rf"(?P<secret>(?P<head>{_KEY_BEGIN}){_KEY_LINES})"),
    ("private key", ("Private-Lines:",), rf"Private-Lines: {{0,2}}[0-9]{{1,4}}(?P<secret>{_KEY_LINES})"),
    (
        "Google OAuth refresh token",
        ("1//0", "1\\"),
        rf"{_SEGMENT_START}(?P<secret>(?P<head>1{_SLASH}{_SLASH}0)[A-Za-z0-9_-]{{40,}}+)",
    ),
    (
        "AWS session token",
        ("IQoJb3JpZ2lu",),
        rf"{_WORD_START}(?P<secret>(?P<head>IQoJb3JpZ2lu)(?>(?:{_BASE64}|=){{80,}}))",
    ),
    (
        "Fly.io token",
        ("fm2_",),
        rf"{_WORD_START}(?P<secret>(?P<head>fm2_)(?>(?:{_BASE64}|[=_,-]){{40,}}))",
    ),
    (
        "PayPal access token",
        ("access_token$",),
        r"(?P<secret>(?P<head>access_token\$)[a-z]{4,12}\$[0-9a-z]{16}\$[0-9a-f]{32})",
    ),
    ("Terraform token", (".atlasv1.",), r"(?<=[A-Za-z0-9]{14})(?P<secret>(?P<head>\.atlasv1\.)[A-Za-z0-9_=-]{60,}+)"),
    (
        "JWT",
        ("eyJ",),
        rf"{_SEGMENT_START}(?P<secret>(?P<head>eyJ)[\w-]{{8,}}+\.[\w-]*+\.[\w-]{{16,}}+(?:\.[\w-]{{8,}}+\.[\w-]{{16,}}+)?)",
    ),
    (
        "AWS secret access key",
        ("AKIA", "ASIA"),
        rf"A[KS]IA[A-Z0-9]{{16}}[\s,;:|\\\"']{{1,12}}(?P<secret>{_BASE64}{{40}})(?![A-Za-z0-9+/=])",
    ),
    (
        "AWS secret access key",
        ("ecret_access_key", "ECRET_ACCESS_KEY", "ecretAccessKey", "ecret_key", "ecretKey", "ecret access key"),
        rf"(?i:ecret[_ ]?(?:access)?[_ ]?key)[\s=:>,\\\"']{{1,12}}(?P<secret>{_BASE64}{{40}})(?![A-Za-z0-9+/=])",
    ),
    (
        "Azure account key",
        ("AccountKey=", "SharedAccessKey="),
        rf"(?:AccountKey|SharedAccessKey)=(?P<secret>{_BASE64}{{40,100}}={{0,2}})",
    ),
    ("Azure shared access signature", ("sig=",), r"(?:(?<=[?&;])|(?<=u0026))sig=(?P<secret>[A-Za-z0-9%+/=]{40,100}+)"),
    (
        "Azure client secret",
        ("Q~",),
        r"(?<=[A-Za-z0-9_~.]{3}[0-9])(?P<secret>(?P<head>Q~)[A-Za-z0-9_~.-]{31,34})(?![A-Za-z0-9_~.-])",
    ),
    ("Telegram bot token", (":AA",), r"(?<=[0-9]{8})(?P<secret>(?P<head>:AA)[A-Za-z0-9_-]{33})(?![A-Za-z0-9_-])"),
    (
        "Discord webhook",
        ("webhooks",),
        rf"webhooks{_SLASH}[0-9]{{15,20}}{_SLASH}(?P<secret>[A-Za-z0-9_-]{{60,80}})",
    ),
    (
        "Slack webhook",
        ("hooks.slack.com",),
        rf"hooks\.slack\.com{_SLASH}(?:services|workflows){_SLASH}(?P<secret>(?:[A-Za-z0-9]|{_SLASH}){{20,100}})",
    ),
    (
        "URL password",
        ("://", ":\\"),
        rf":{_SLASH}{_SLASH}[^\s:/@\"'\\]{{0,128}}:(?P<secret>[^\s@/\"'\\<>`…]{{1,256}}+)@[A-Za-z0-9\[]",
    ),
    # A line or a record of several lines in .netrc.
    (
        "password",
        ("machine ",),
        rf"machine {_GAP}{{0,4}}[^\s\\\"]{{1,256}}{_GAP}{{1,8}}login{_GAP}{{1,8}}[^\s\\\"]{{1,128}}{_GAP}{{1,8}}"
        rf"password{_GAP}{{1,8}}(?P<secret>[^\s\\\"'…]{{1,256}}+)",
    ),
)
"""Secrets that only their context identifies: kind, starts, pattern."""

_RANDOM_VALUES = (
    ("bearer token", ("earer ", "EARER "), r"(?i:earer) {1,4}(?P<secret>[A-Za-z0-9._~+/=-]{16,}+)"),
    ("basic credentials", ("Basic ", "basic ", "BASIC "), r"(?i:basic) (?P<secret>[A-Za-z0-9+/_-]{16,}+={0,2})"),
    ("cookie", ("ookie", "OOKIE"), rf"(?i:ookie){_ASSIGNS}(?P<secret>[^\s\"'\\…][^\r\n\"'\\…]{{15,4096}}+)"),
    ("API key", ("_KEY",), rf"(?<!PUBLIC)(?<!CACHE)_KEY{_ASSIGNS}(?P<secret>[^\s\"'`\\,;&<>(){{}}…]{{16,512}}+)"),
)
"""Headers and variables, whose values are secrets only if they are random: kind, starts, pattern."""

_PASSWORDS = (
    # `PWD` is also the working folder.
    (
        ("pass", "PASS", "Pass", "pwd", "PWD", "Pwd"),
        rf"(?:(?<![A-Za-z])|(?<=\\[bfnrt])|(?<=[a-z])(?=P))(?i:pass|pwd){_ASSIGNS}(?P<secret>[^\s\"'`\\,;&<>(){{}}\[\]|/~.…]"
        r"[^\s\"'`\\,;&<>(){}\[\]|…]{7,512}+)(?![(\[{…])",
    ),
    (
        ("--pass", "--token", "--secret", "--api-key"),
        rf"--(?:pass(?:word|wd|phrase)?|token|secret|api-key){_GAP}{{1,4}}\\{{0,4}}[\"']?"
        r"(?P<secret>[^\s\"'`\\…-][^\s\"'`\\…]{7,512}+)",
    ),
)
"""Values that are secrets if they look like a password: starts, pattern."""

_CONTEXT_FORMATS = (
    *(_SecretFormat(kind, starts, re.compile(pattern, re.ASCII)) for kind, starts, pattern in _CONTEXTS),
    *(
        _SecretFormat(kind, starts, re.compile(pattern, re.ASCII), must_be_random=True)
        for kind, starts, pattern in _RANDOM_VALUES
    ),
    *(
        _SecretFormat("password", starts, re.compile(pattern, re.ASCII), must_be_password=True)
        for starts, pattern in _PASSWORDS
    ),
)

_PREFIX_FORMATS = {
    prefix: (kind, re.compile(body)) for kind, prefixes, body in TOKEN_FORMATS for prefix in prefixes.split()
}
"""Kind and pattern of the tokens with each prefix."""

_INVISIBLE_MARKS = ("\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\xad", "\\u200", "\\u2060", "\\ufeff", "\\u00ad")
_INVISIBLE = re.compile("(?:[\u200b-\u200d\u2060\ufeff\xad]++|\\\\{1,4}u(?:200[b-d]|2060|feff|00ad))+")
"""Characters without a width, also as JSON escapes."""

_MAX_PREFIX_CHARS = max(map(len, _PREFIX_FORMATS))

_MIN_RUN_CHARS = 20
_WORD_RUN = re.compile(rf"[A-Za-z0-9_.-]{{{_MIN_RUN_CHARS},}}+")
"""A prefix and its token are within one of these. Most text has few."""

_PREFIX = re.compile(rf"{_WORD_START}(?:{'|'.join(map(re.escape, sorted(_PREFIX_FORMATS, key=len, reverse=True)))})")

_DISCORD_TOKEN = re.compile(
    r"\.(?:(?<=[MNO][A-Za-z0-9_-]{23}\.)|(?<=[MNO][A-Za-z0-9_-]{25}\.))"
    r"(?P<secret>[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45})(?![A-Za-z0-9_-])"
)
"""A bot token has no literal start: it begins with the bot's public id, which the mask preserves."""

_MAX_DISCORD_CHARS = 64

_ASSIGNMENT_NAMES = ("secret", "token", "passw", "passphrase", "key", "credential")
"""Lower-case parts of the names of variables, fields and headers that hold secrets."""

_ASSIGNMENT = re.compile(
    r"(?i:(?P<name>secret|token|password|passwd|passphrase|credential|"
    r"(?:(?<=api)|(?<=api[_-])|(?<=access[_-])|(?<=access)|(?<=private[_-])|(?<=private)|(?<=auth[_-])|(?<=account[_-]))key)"
    r"s?(?:[_-]?(?:key|value|base64|prod|dev|test|live|v?[0-9]{1,2})){0,2})"
    r"\\{0,4}[\"']?\]?[ \t]{0,4}(?:=>|:=|[=:])[ \t]{0,4}"
    rf"(?:\\{{0,4}}[\"'`](?P<quoted>[^\s\"'`\\…]{{8,{MAX_ASSIGNED_CHARS}}}+)"
    rf"|(?P<bare>[^\s\"'`\\,;&<>(){{}}\[\]|…]{{8,{MAX_ASSIGNED_CHARS}}}+)(?![(\[{{…]))"
)
"""An assignment in code, JSON, YAML or a shell. It is matched at the position of one of the names."""


_RANDOM = re.compile(r"[\W_]*+(?:[^\W\d_]\D*+\d[\W\d_]*+[^\W\d_]\D*+\d|\d[\W\d_]*+[^\W\d_]\D*+\d[\W\d_]*+[^\W\d_])")
"""Three changes between letters and digits, whatever is between them. Words and identifiers have fewer."""


class SecretMatch(NamedTuple):
    """The range of a secret in a text."""

    kind: str
    start: int
    end: int
    head: str = ""
    """Public start of the secret, such as `ghp_`, which a mask preserves."""

    @property
    def mask(self) -> str:
        return f"{self.head}{MASK_MARK}{self.kind}]"


def find_secrets(text: str, own: Sequence[SecretPattern] = ()) -> list[SecretMatch]:
    """Secrets of the known formats and of `own` patterns, in order, without overlaps.

    JSON text needs no decoding: escapes are part of the formats.
    """
    # Specific formats come first, and the sort is stable: of two formats at the same place the specific one counts.
    candidates = sorted(
        (
            *_find_own(text, own),
            *_find_prefixed(text),
            *_find_in_context(text),
            *_find_assignments(text),
            *_find_interrupted(text, own),
        ),
        key=attrgetter("start"),
    )
    return merge_matches(candidates)


def merge_matches(candidates: Iterable[SecretMatch]) -> list[SecretMatch]:
    """Joins overlapping secrets, which are sorted by their start."""
    secrets: list[SecretMatch] = []
    for match in candidates:
        if secrets and match.start < secrets[-1].end:
            secrets[-1] = secrets[-1]._replace(end=max(secrets[-1].end, match.end))
        else:
            secrets.append(match)
    return secrets


def mask_secrets(text: str, own: Sequence[SecretPattern] = ()) -> str:
    """The text with each secret replaced by its public start and its kind. Idempotent. JSON stays valid JSON."""
    return replace_secrets(text, find_secrets(text, own))


def replace_secrets(text: str, secrets: Sequence[SecretMatch]) -> str:
    """Masks the secrets that `find_secrets` found in the text."""
    if not secrets:
        return text
    pieces: list[str] = []
    position = 0
    for secret in secrets:
        pieces += [text[position : secret.start], secret.mask]
        position = secret.end
    return "".join([*pieces, text[position:]])


def mask_secret_values(value: T, own: Sequence[SecretPattern] = ()) -> T:
    """Masks every string of a JSON value, keys of objects included."""
    return cast("T", _mask_value(value, own))


def mask_message(message: Message, own: Sequence[SecretPattern] = ()) -> Message:
    """The message with masked texts, thinking, tool calls, tool results and provider fields."""
    return Message(
        role=message.role,
        parts=tuple(_mask_part(part, own) for part in _cut_split_secrets(message.parts, own)),
        provider_fields=mask_secret_values(message.provider_fields, own) if message.provider_fields else None,
        name=None if message.name is None else mask_secrets(message.name, own),
    )


def _find_own(text: str, own: Sequence[SecretPattern]) -> Iterator[SecretMatch]:
    for kind, head, body in own:
        position = _find_text(text, head, 0)
        while position >= 0:
            match = body.match(text, position + len(head))
            if match is not None:
                yield SecretMatch(kind, position, match.end(), head)
            position = _find_text(text, head, match.end() if match is not None else position + 1)


def _find_interrupted(text: str, own: Sequence[SecretPattern]) -> Iterator[SecretMatch]:
    """Tokens with invisible characters in them, as copied from a page or written to hide them."""
    if not any(mark in text for mark in _INVISIBLE_MARKS):
        return
    spans = [match.span() for match in _INVISIBLE.finditer(text)]
    starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
    pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    offsets = list(accumulate(map(len, pieces), initial=0))

    def find_position(visible: int) -> int:
        piece = bisect_right(offsets, visible) - 1
        return starts[piece] + visible - offsets[piece]

    visible_text = "".join(pieces)
    for match in (
        *_find_own(visible_text, own),
        *_find_prefixed(visible_text),
        *_find_in_context(visible_text),
        *_find_assignments(visible_text),
    ):
        yield match._replace(start=find_position(match.start), end=find_position(match.end - 1) + 1)


def _cut_split_secrets(parts: Sequence[PartT], own: Sequence[SecretPattern]) -> list[PartT]:
    """The parts, with a mask in place of each secret that begins in one text and ends in one that follows it."""
    parts = list(parts)
    for index in range(len(parts) - 1):
        first, second = parts[index], parts[index + 1]
        if isinstance(first, TextPart) and isinstance(second, TextPart):
            start, end = first.text[-MAX_SPLIT_CHARS:], second.text[:MAX_SPLIT_CHARS]
            for match in find_secrets(start + end, own):
                if match.start < len(start) < match.end:
                    before = first.text[: len(first.text) - len(start) + match.start]
                    parts[index] = first.model_copy(update={"text": before + match.mask})
                    parts[index + 1] = second.model_copy(update={"text": second.text[match.end - len(start) :]})
    return parts


def _find_prefixed(text: str) -> Iterator[SecretMatch]:
    """Tokens that begin with a known prefix."""
    for start, end in _find_word_runs(text):
        position = start
        while (prefix := _PREFIX.search(text, position, end)) is not None:
            kind, pattern = _PREFIX_FORMATS[prefix[0]]
            body = pattern.match(text, prefix.end())
            # Another prefix may begin within this one: after a line break in JSON, `\\napi_org_` is not `napi_`.
            position = prefix.start() + 1
            if body is not None:
                position = max(prefix.end(), body.end() - MAX_RESCANNED_CHARS)
                if not _is_placeholder(body[0]):
                    yield SecretMatch(kind, prefix.start(), body.end(), prefix[0])


def _find_word_runs(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each run. A very long one in pieces, each with what a prefix at its end needs of the next."""
    position, length = 0, len(text)
    while position < length:
        last = position + SEARCH_CHARS
        run = _WORD_RUN.search(text, position, last)
        if run is None:
            # A run may begin shortly before the end.
            position = last - _MIN_RUN_CHARS if last < length else length
        else:
            position = run.end()
            yield run.start(), position + (_MAX_PREFIX_CHARS if position == last else 0)


def _find_text(text: str, part: str, position: int) -> int:
    """Like `text.find(part, position)`, in several calls."""
    while position < len(text):
        last = position + SEARCH_CHARS
        found = text.find(part, position, last + len(part) - 1)
        if found >= 0:
            return found
        position = last
    return -1


def _find_in_context(text: str) -> Iterator[SecretMatch]:
    for kind, starts, pattern, must_be_random, must_be_password in _CONTEXT_FORMATS:
        for start in starts:
            position = _find_text(text, start, 0)
            while position >= 0:
                match = pattern.match(text, position)
                position = _find_text(text, start, position + len(start) if match is None else match.end())
                if match is None:
                    continue
                value = match["secret"]
                is_secret = not _is_placeholder(value)
                if must_be_random or must_be_password:
                    is_secret &= _is_random(value) or (must_be_password and _is_password(value))
                if is_secret:
                    yield SecretMatch(kind, *match.span("secret"), match.groupdict().get("head") or "")
    for first in range(0, len(text), SEARCH_CHARS):
        for match in _DISCORD_TOKEN.finditer(text, first, first + SEARCH_CHARS + _MAX_DISCORD_CHARS):
            yield SecretMatch("Discord bot token", *match.span("secret"))


def _find_assignments(text: str) -> Iterator[SecretMatch]:
    # The one letter whose lower case has another length, which would move the positions.
    lowered = text.replace("\u0130", "I").lower()
    for name in _ASSIGNMENT_NAMES:
        position = _find_text(lowered, name, 0)
        while position >= 0:
            match = _ASSIGNMENT.match(text, position)
            position += len(name)
            if match is not None:
                group = "bare" if match["quoted"] is None else "quoted"
                value, (start, end) = match[group], match.span(group)
                is_secret = _is_random(value) or (name == "passw" and _is_password(value))
                is_placeholder = is_secret and _is_placeholder(value)
                if is_secret and not is_placeholder:
                    yield SecretMatch(_ASSIGNMENT_KINDS.get(name, name), start, end)
                if not is_placeholder:
                    # A value within this one is part of the secret, or not even the whole is one. A name at the end may
                    # have a value that follows; where this value was cut, every name has a value that goes further.
                    is_cut = len(value) == MAX_ASSIGNED_CHARS
                    position = max(position, start + MAX_RESCANNED_CHARS if is_cut else end - MAX_RESCANNED_CHARS)
            position = _find_text(lowered, name, position)


_ASSIGNMENT_KINDS = {"passw": "password", "key": "API key"}


def _is_placeholder(value: str) -> bool:
    """Whether a value is filled in later: `$NAME`, `{name}`, `%s`, `***`, `xxxx`."""
    return value.startswith(("$", "{", "%", "*", "<", "[")) or not value.lower().strip(value[0].lower())


def _is_random(value: str) -> bool:
    return len(value) >= MIN_RANDOM_CHARS and _RANDOM.match(value) is not None


def _is_password(value: str) -> bool:
    has_symbol = any(not char.isalnum() and char not in "_-./:" for char in value)
    classes = has_symbol + sum(any(map(test, value)) for test in (str.islower, str.isupper, str.isdigit))
    return classes >= MIN_PASSWORD_CLASSES


def _mask_value(value: JsonValue, own: Sequence[SecretPattern]) -> JsonValue:
    match value:
        case str():
            return mask_secrets(value, own)
        case list():
            return [_mask_value(each, own) for each in value]
        case dict():
            return {mask_secrets(key, own): _mask_value(each, own) for key, each in value.items()}
        case _:
            return value


def _mask_part(part: Part, own: Sequence[SecretPattern]) -> Part:
    fields = mask_secret_values(part.provider_fields, own) if part.provider_fields else None
    match part:
        case TextPart(text=text):
            return TextPart(text=mask_secrets(text, own), provider_fields=fields)
        case ThinkingPart(text=text, signature=signature, redacted=redacted):
            masked = mask_secrets(text, own)
            # A signature is for the exact text.
            valid_signature = signature if masked == text else None
            return ThinkingPart(text=masked, signature=valid_signature, redacted=redacted, provider_fields=fields)
        case ToolCallPart(id=id_, name=name, arguments=arguments):
            return ToolCallPart(id=id_, name=name, arguments=mask_secrets(arguments, own), provider_fields=fields)
        case ToolResultPart(call_id=call_id, content=content, is_error=is_error):
            pieces = [_mask_part(piece, own) for piece in _cut_split_secrets(content, own)]
            masked_content = tuple(each for each in pieces if isinstance(each, TextPart | ImagePart | FilePart))
            return ToolResultPart(call_id=call_id, content=masked_content, is_error=is_error, provider_fields=fields)
        case ImagePart(url=url):
            masked_url = None if url is None else mask_secrets(url, own)
            return part.model_copy(update={"url": masked_url, "provider_fields": fields})
        case FilePart(url=url, name=name):
            masked_url, masked_name = (None if each is None else mask_secrets(each, own) for each in (url, name))
            return part.model_copy(update={"url": masked_url, "name": masked_name, "provider_fields": fields})
