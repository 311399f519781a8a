"""Secrets are found by their formats in text, in JSON and in JSON within JSON; ordinary text has none."""

import base64
import gc
import json
import random
import sys
import time
import uuid
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.sizes import IS_FULL_SIZE
from quire.model import FilePart, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from quire.model.secrets import TOKEN_FORMATS, find_secrets, mask_message, mask_secret_values, mask_secrets
from secret_samples import SecretGenerator, SecretSample, list_samples

SAMPLES = list_samples()
ORDINARY_WORDS = (
    "See",
    "token",
    "the password",
    "\n",
    "key: ",
    "=",
    '"',
    "\\",
    "https://example.com/a:b@c",
    "{",
    "é",
    "İ",
)


@pytest.mark.parametrize("kind", sorted({sample.kind for sample in SAMPLES}))
def test_each_format_is_found_and_masked(kind: str):
    for sample in SAMPLES:
        if sample.kind != kind:
            continue
        for text in (sample.text, f"see {sample.text} now", f"({sample.text})", f"x=1\n{sample.text}\ny=2"):
            [match] = [match for match in find_secrets(text) if sample.value in text[match.start : match.end]]
            assert match.kind == kind
            masked = mask_secrets(text)
            assert sample.value not in masked
            assert f"…[masked {kind}]" in masked
            assert mask_secrets(masked) == masked
        document = {"command": f"first\n{sample.text}\nlast", "quoted": f'a "{sample.text}" b'}
        once = json.dumps(document)
        for text in (once, json.dumps({"arguments": once}), once.replace("/", "\\/")):
            masked = mask_secrets(text)
            valid = json.dumps(json.loads(masked))
            assert not any(line in valid for line in sample.value.split("\n") if len(line) > 8)
            assert masked.count("[masked ") == 2
        assert sample.value not in json.dumps(mask_secret_values(document))


def test_every_token_format_has_a_sample():
    assert {kind for kind, _, _ in TOKEN_FORMATS} <= {sample.kind for sample in SAMPLES}


def test_a_private_key_is_masked_however_it_is_printed():
    for text, lines in SecretGenerator(0).write_key_forms():
        for written in (text, json.dumps(text), json.dumps(json.dumps(text))):
            masked = mask_secrets(f"Before {written} after")
            assert not [line for line in lines if line in masked or line.replace("/", "\\/") in masked]
            assert masked.startswith("Before ")
            assert masked.endswith(" after")


def test_a_key_cut_from_a_tool_result_hides_only_the_key():
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"
    masked = mask_secrets(f"-----BEGIN PRIVATE KEY-----\n{body}\n[truncated] The tests pass now.")
    assert masked == "-----BEGIN PRIVATE KEY-----…[masked private key]\n[truncated] The tests pass now."


@pytest.mark.parametrize(
    "text",
    [
        "The token count is 128000 and the password is in the vault; ask for the secret sauce: paprika.",
        "max_tokens=4096, token_count: 1234567890123456789, tokenizer: cl100k_base",
        "password: string; secret: Optional[str] = None; api_key=os.environ['OPENAI_API_KEY']",
        "token = request.headers.get('Authorization') or get_token_from_keyring_v2()",
        "PASSWORD=$DB_PASSWORD TOKEN=${TOKEN} SECRET=<your-secret> API_KEY=************************",
        "password = 'xxxxxxxxxxxxxxxx', secret: {{ vault_secret }}",
        "The bearer token authentication-mechanism is described in RFC 6750. Basic authentication too.",
        "postgres://user:$PASSWORD@localhost, https://host:8080/a@b, http://[::1]:80/x",
        "task-force risk-assessment-of-the-projects-and-more, desk-something-long-and-wide-enough",
        "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBa\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBa\n-----END PUBLIC KEY-----",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl ada@host",
        "key=value, sort_key: created_at, primary_key=conversation, keys: ['a', 'b']",
        "PWD=/home/Ada/project1 OLDPWD=/Home/Ada2 pwd: ./Some/Folder3 bypass=Allowed123 pass: 128 of 130 tests",
        "quire ask --password PROMPT --token FILE, PUBLIC_KEY=a1b2c3d4e5f6a7b8c9d0, Cookie: theme=dark; lang=en-US",
        "re_compile_everything_again_and_again_until_done, fw_configurationmanagerservice, as-soon-as-possible",
        "key-0123456789abcdef0123456789abcdef-cache, secret_sauce_of_the_whole_restaurant_is_paprika_and_salt",
        "session sess-1 of sk_learn, pa-rameters-of-the-function-that-we-call-later, sl.slots, v1.0-beta.1, pat.py",
        "if '-----BEGIN PRIVATE KEY-----' in text and '-----END PRIVATE KEY-----' in text: refuse(text)",
        "machine learning: login with a password or a passkey. a\u200bzero\u200bwidth\u200bspace",
    ],
)
def test_ordinary_text_has_no_secret(text: str):
    assert find_secrets(text) == []
    assert mask_secrets(text) is text


def test_identifiers_hashes_and_images_have_no_secret():
    source = random.Random(3)
    uuids = [str(uuid.UUID(int=source.getrandbits(128))) for _ in range(500)]
    hashes = [sha256(each.encode()).hexdigest() for each in uuids]
    image = base64.b64encode(source.randbytes(300_000)).decode()
    text = "\n".join([*uuids, *hashes, *(f"sha256:{each}" for each in hashes), f"data:image/png;base64,{image}"])
    assert find_secrets(text) == []


def test_source_code_has_few_false_positives():
    """The package's own source, which speaks of tokens, keys and passwords throughout."""
    source = Path(__file__).parents[2] / "src/quire"
    found = [
        (path.name, text[match.start : match.end])
        for path in source.rglob("*.py")
        for text in [path.read_text()]
        for match in find_secrets(text)
    ]
    assert found == []


@given(st.lists(st.sampled_from([*ORDINARY_WORDS, *(sample.text for sample in SAMPLES)]) | st.text(max_size=5)))
def test_masks_are_idempotent_and_matches_do_not_overlap(words: list[str]):
    text = " ".join(words)
    matches = find_secrets(text)
    assert all(match.start < match.end <= len(text) for match in matches)
    assert all(left.end <= right.start for left, right in pairwise(matches))
    masked = mask_secrets(text)
    assert mask_secrets(masked) == masked


@given(st.text(), st.sampled_from(SAMPLES), st.text())
def test_a_secret_between_any_texts_is_masked(before: str, sample: SecretSample, after: str):
    assert sample.value not in mask_secrets(f"{before}\n{sample.text}\n{after}")


def test_one_letter_alone_has_a_longer_lower_case():
    """Otherwise positions in the lower-case text would differ from those in the text."""
    assert [chr(code) for code in range(sys.maxunicode + 1) if len(chr(code).lower()) != 1] == ["\u0130"]


@pytest.mark.parametrize("invisible", ["\u200b", "\u200d", "\u2060", "\ufeff", "\xad", "\u200b\u200c"])
def test_a_token_with_invisible_characters_is_masked(invisible: str):
    for sample in SAMPLES[1:12]:
        middle = len(sample.text) - 12
        text = f"a{invisible}b {sample.text[:middle]}{invisible}{sample.text[middle:]} c{invisible}d"
        masked = mask_secrets(text)
        assert sample.text[middle:] not in masked, sample.kind
        assert (masked.startswith(f"a{invisible}b "), masked.endswith(f" c{invisible}d")) == (True, True)
        assert mask_secrets(masked) == masked
        assert sample.text[middle:] not in mask_secrets(json.dumps({"x": text}))


def test_a_token_that_two_parts_share_is_masked():
    sample = next(each for each in SAMPLES if each.kind == "GitHub token")
    halves = (f"first {sample.text[:20]}", f"{sample.text[20:]} second")
    parts = tuple(TextPart(text=half) for half in halves)
    result = ToolResultPart(call_id="c", content=parts)
    masked = mask_message(Message(role="user", parts=(*parts, result)))
    first, second = TextPart(text="first ghp_…[masked GitHub token]"), TextPart(text=" second")
    assert masked.parts == (first, second, ToolResultPart(call_id="c", content=(first, second)))


def test_a_message_is_masked_in_every_part():
    sample = SAMPLES[1]
    message = Message(
        role="assistant",
        parts=(
            TextPart(text=sample.text, provider_fields={"x": [sample.text]}),
            ThinkingPart(text=sample.text, signature="signed"),
            ToolCallPart(id="c", name="bash", arguments=json.dumps({"command": f"\n{sample.text}"})),
            ToolResultPart(call_id="c", content=(TextPart(text=sample.text),)),
            FilePart(url=f"https://example.com/{sample.text}"),
        ),
        provider_fields={sample.text: 1},
        name=sample.text,
    )
    assert message.canonical_json().count(sample.value) == 8
    masked = mask_message(message)
    assert sample.value not in masked.canonical_json()
    assert isinstance(masked.parts[1], ThinkingPart)
    assert masked.parts[1].signature is None
    ordinary = Message(role="assistant", parts=(ThinkingPart(text="why", signature="signed"), TextPart(text="because")))
    assert mask_message(ordinary) == ordinary


HOSTILE_UNITS = (
    "sk-",
    "sk-ant-",
    "ghp_\\n",
    "eyJ-",
    "eyJa.",
    "://a:",
    "-----BEGIN PRIVATE KEY-----",
    "token=",
    "API_TOKEN=",
    "token=$1b2c3",
    "token=" * 40 + " ",
    "password=Abc1!",
    "secret_key='",
    "AKIA1234567890ABCDEF ",
    "Q~",
    "SG.",
    "a.b-",
    "\\n",
    "Aa1-",
    "x",
    "pass=",
    "Cookie: a=",
    "machine a login b ",
    "\u200b",
    "a\u200b",
    "_KEY=",
    "--token ",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----" + "\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcw" * 40,
    "-----BEGIN PRIVATE KEY-----" + " abcdefghijklmnopqrstuvwxyz01234" * 40,
    "Private-Lines: 12 ",
    "eyJhbGciOi.",
    "fw_aaaaaaaa",
)
HOSTILE_CHARS = 200_000 if IS_FULL_SIZE else 50_000
MAX_SECONDS_PER_MEGABYTE = 3.0
"""CPU time; the slowest of these texts takes a quarter of it."""


@pytest.mark.parametrize("unit", HOSTILE_UNITS)
def test_a_hostile_text_takes_linear_time(unit: str):
    def measure(chars: int) -> float:
        """The shortest of three runs, without the garbage of other tests."""
        text = unit * (chars // len(unit))
        seconds: list[float] = []
        gc.disable()
        try:
            for _ in range(3):
                started = time.thread_time()
                mask_secrets(text)
                seconds.append(time.thread_time() - started)
        finally:
            gc.enable()
        return min(seconds)

    measure(1_000)
    small = measure(HOSTILE_CHARS)
    assert small < HOSTILE_CHARS / 1_000_000 * MAX_SECONDS_PER_MEGABYTE
    assert measure(2 * HOSTILE_CHARS) < 3.5 * small


@pytest.mark.parametrize("unit", HOSTILE_UNITS)
def test_a_secret_in_a_hostile_text_is_masked(unit: str):
    text = unit * 100
    samples = SAMPLES[:: 7 if IS_FULL_SIZE else 21]
    found = [each.kind for each in samples if each.value in mask_secrets(f"{text} {each.text} {text}")]
    assert found == []


def test_the_end_of_a_value_may_name_the_next_one():
    value = "2P7034Tlqx780HO4kFm38NLeA50SRc5a"
    assert value not in mask_secrets(f'secret: clientSecret = "{value}"')
    assert value not in mask_secrets(f"token={'token=' * 200}{value}")
