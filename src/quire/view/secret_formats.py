"""Formats of known secrets.

A format is found in two steps, so that text without secrets costs little: a quick search for literal text, then the
pattern at that position. Every pattern also matches inside JSON strings, where a line break before a secret is the two
characters backslash and `n`, and a slash or a quote may be escaped.
"""

import re
from typing import NamedTuple


class SecretFormat(NamedTuple):
    """A secret that only its context identifies.

    The group `secret` is what a mask replaces; the group `head` is the public start of it, which a mask preserves.
    """

    kind: str
    starts: tuple[str, ...]
    """A match begins with one of these texts."""
    pattern: re.Pattern[str]
    must_be_random: bool = False


_WORD_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))"
"""The start of a word, or the end of a JSON escape."""
_SEGMENT_START = r"(?:(?<![A-Za-z0-9_.-])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))"
_SLASH = r"\\{0,4}/"
_BASE64 = rf"(?:[A-Za-z0-9+]|{_SLASH})"
_KEY_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_KEY_END = r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"

_PREFIXES = (
    ("Quire API key", "quire_", r"[0-9a-z]{26}_[0-9A-Za-z]{43}"),
    ("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9_.-]{36,}+"),
    ("GitHub fine-grained token", "github_pat_", r"[A-Za-z0-9_]{40,}+"),
    ("GitLab token", "glpat- gldt- glrt- glcbt- glptt-", r"[A-Za-z0-9_.-]{20,}+"),
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
    ("Hugging Face token", "hf_", r"[A-Za-z0-9]{30,}+"),
    ("Groq API key", "gsk_", r"[A-Za-z0-9]{40,}+"),
    ("xAI API key", "xai-", r"[A-Za-z0-9]{60,}+"),
    ("Perplexity API key", "pplx-", r"[A-Za-z0-9]{40,}+"),
    ("Replicate token", "r8_", r"[A-Za-z0-9]{37}(?![A-Za-z0-9])"),
    ("DigitalOcean token", "dop_v1_ doo_v1_ dor_v1_", r"[0-9a-f]{64}"),
    ("Shopify token", "shpat_ shpca_ shppa_ shpss_", r"[0-9a-fA-F]{32}"),
    ("Databricks token", "dapi", r"[0-9a-f]{32}(?![A-Za-z0-9])"),
    ("Docker token", "dckr_pat_", r"[A-Za-z0-9_-]{20,}+"),
    ("HashiCorp Vault token", "hvs. hvb.", r"[A-Za-z0-9_-]{24,}+"),
    ("Linear API key", "lin_api_", r"[A-Za-z0-9]{32,}+"),
    ("Notion token", "ntn_", r"[A-Za-z0-9]{40,}+"),
    ("Grafana token", "glsa_", r"[A-Za-z0-9_]{32,}+"),
    ("Sentry token", "sntrys_ sntryu_", r"[A-Za-z0-9_=+/-]{40,}+"),
    ("Tailscale key", "tskey-", r"[a-z]{2,12}-[A-Za-z0-9-]{16,}+"),
    ("age secret key", "AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
)
"""Tokens with a public prefix of their own: kind, prefixes, body."""

_CONTEXTS = (
    (
        "private key",
        ("-----BEGIN ",),
        rf"(?P<secret>(?P<head>{_KEY_BEGIN})(?:[A-Za-z0-9+/=\s\\:,.()]|-(?!-)){{16,}}+{_KEY_END})",
    ),
    # Without its end, as a truncated tool result has it.
    (
        "private key",
        ("-----BEGIN ",),
        rf"(?P<secret>(?P<head>{_KEY_BEGIN})(?:(?:\s|\\{{1,4}}[nr])*+(?:{_BASE64}|=){{16,}}+)++)",
    ),
    (
        "JWT",
        ("eyJ",),
        rf"{_SEGMENT_START}(?P<secret>(?P<head>eyJ)[\w-]{{8,}}+\.[\w-]{{8,}}+\.[\w-]{{16,}}+)",
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
    ("Azure shared access signature", ("sig=",), r"(?<=[?&;])sig=(?P<secret>[A-Za-z0-9%+/=]{40,100}+)"),
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
)
"""Secrets that only their context identifies: kind, starts, pattern."""

_RANDOM_VALUES = (
    ("bearer token", ("earer ", "EARER "), r"(?i:earer) {1,4}(?P<secret>[A-Za-z0-9._~+/=-]{16,}+)"),
    ("basic credentials", ("Basic ", "basic ", "BASIC "), r"(?i:basic) (?P<secret>[A-Za-z0-9+/_-]{16,}+={0,2})"),
)
"""Headers, whose values are secrets only if they are random: kind, starts, pattern."""

CONTEXT_FORMATS = (
    *(SecretFormat(kind, starts, re.compile(pattern, re.ASCII)) for kind, starts, pattern in _CONTEXTS),
    *(
        SecretFormat(kind, starts, re.compile(pattern, re.ASCII), must_be_random=True)
        for kind, starts, pattern in _RANDOM_VALUES
    ),
)

PREFIX_FORMATS = {prefix: (kind, re.compile(body)) for kind, prefixes, body in _PREFIXES for prefix in prefixes.split()}
"""Kind and pattern of the tokens with each prefix."""

WORD_RUN = re.compile(r"[A-Za-z0-9_.-]{20,}+")
"""A prefix and its token are within one of these; most text has few."""

PREFIX = re.compile(rf"{_WORD_START}(?:{'|'.join(map(re.escape, sorted(PREFIX_FORMATS, key=len, reverse=True)))})")

DISCORD_TOKEN = re.compile(
    r"\.(?:(?<=[MNO][A-Za-z0-9_-]{23}\.)|(?<=[MNO][A-Za-z0-9_-]{25}\.))"
    r"(?P<secret>[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,45})(?![A-Za-z0-9_-])"
)
"""A bot token has no literal start: it begins with the bot's public id, which the mask preserves."""

ASSIGNMENT_NAMES = ("secret", "token", "passw", "passphrase", "key", "credential")
"""Lower-case parts of the names of variables, fields and headers that hold secrets."""

ASSIGNMENT = re.compile(
    r"(?i:(?P<name>secret|token|password|passwd|passphrase|credential|"
    r"(?:(?<=api)|(?<=api[_-])|(?<=access[_-])|(?<=access)|(?<=private[_-])|(?<=auth[_-])|(?<=account[_-]))key)"
    r"s?(?:[_-]?(?:key|value|base64|prod|dev|test|live|v?[0-9]{1,2})){0,2})"
    r"\\{0,4}[\"']?\]?[ \t]{0,4}(?:=>|:=|[=:])[ \t]{0,4}"
    r"(?:\\{0,4}[\"'`](?P<quoted>[^\s\"'`\\…]{8,512}+)|(?P<bare>[^\s\"'`\\,;&<>(){}\[\]|…]{8,512}+)(?![(\[{…]))"
)
"""An assignment in code, JSON, YAML or a shell. It is matched at the position of one of the names."""
