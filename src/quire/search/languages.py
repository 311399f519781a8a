"""Stop words of each language, and the detection of a text's language by cheap evidence.

The evidence is its script, its stop words, its accented letters. Only languages with rules of their own in the
tokenizer are distinguished. A text without evidence counts as English.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, get_args

Language = Literal["english", "german", "french", "spanish", "russian", "chinese", "japanese"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
LATIN_LANGUAGES: tuple[Language, ...] = ("english", "german", "french", "spanish")
"""Languages in Latin letters, of which a word alone can be any."""
MAX_DETECTION_CHARS = 400
"""Characters at the start of a text that show its language."""
MIN_SCRIPT_SHARE = 0.2
"""Share of a script in a text that decides its language: names and code are in Latin letters anywhere."""

# Stop words are frequent words without a topic.
_ENGLISH = (
    "a about again all also am an and any are as at be been being both but by can could did do does doing don done"
    " each for from get got had has have having he hello her here hers hey hi him his how i if in into is it its just"
    " let like many may me might mine more most much must my myself no nor not of off oh ok okay on once only onto or"
    " other our ours out over own re really same shall she should so some such than thank thanks that the their theirs"
    " them then there these they this those to too under up us ve very was we well were what when where which who whom"
    " whose why will with without would yeah yes you your yours"
)
_GERMAN = (
    "aber alle allem allen aller alles als also am an ander andere anderen auch auf aus bei beim bin bis bist bitte"
    " da damit danach dann daran darauf das dass davon dazu dein deine deinem deinen deiner dem den denn der des dich"
    " die dies diese diesem diesen dieser dieses dir doch dort du durch ein eine einem einen einer eines er es euch"
    " euer eure für ganz gar gegen gerade habe haben hallo hast hat hatte hatten hattest hier hin ich ihm ihn ihnen"
    " ihr ihre ihrem ihren ihrer im in ins ist ja jede jedem jeden jeder jetzt kann kannst kein keine keinem keinen"
    " keiner können könnte mal man mehr mein meine meinem meinen meiner mich mir mit muss müssen nach nein nicht"
    " nichts noch nun nur ob oder ohne schon sehr sein seine seinem seinen seiner seit sich sie sind so soll sollte"
    " solche sondern sonst über um und uns unser unsere unserem unseren unserer unter vom von vor war waren warst"
    " warum was weg weil welche welchem welchen welcher welches wem wen wenn wer werde werden wessen wie wieder will"
    " wir wird wirst wo woher wohin worüber wurde wurden würde würden zu zum zur zwischen wann danke genau gern gerne"
    " echt halt eben okay"
)
_FRENCH = (
    "à ai ainsi alors après as assez au aucun aucune aujourd aussi autre autres aux avaient avais avait avec avez"
    " avoir avons beaucoup bien bonjour ça car ce cela ces cet cette ceux chez ci comme comment combien dans de depuis"
    " des deux dit donc dont du elle elles en encore entre es est et étaient étais était étant été êtes être eu eux"
    " fait il ils j je jusque l la là laquelle le lequel les lesquelles lesquels leur leurs lors lui m ma mais me même"
    " merci mes moi moins mon n ne ni non nos notre nous on ont ou où oui par parce pas pendant peu peut peux plus"
    " pour pourquoi qu quand que quel quelle quelles quels qui quoi s sa sans se sera serait ses si son sont sous suis"
    " sur t ta tes te toi ton tous tout toute toutes très trop tu un une va vais vas vers vos votre vous voici voilà y"
    " d c salut"
)
_SPANISH = (
    "a además ahí ahora al algo algún alguna algunas alguno algunos antes aquel aquella aquello aquí así aún aunque"
    " bien cada casi como cómo con contra cosa cuál cuáles cual cuales cuando cuándo cuánto cuánta cuántos cuántas"
    " cuanto de del desde donde dónde dos durante e el él ella ellas ellos en entonces entre era eran eras eres es esa"
    " esas ese eso esos esta está están estás estaba estaban estado estamos estar estas este esto estos estoy fue"
    " fueron fui ha haber había habían hacia han has hasta hay he hemos hola la las le les lo los luego más me mi mí"
    " mientras mis mucha muchas mucho muchos muy nada ni no nos nosotras nosotros nuestra nuestras nuestro nuestros o"
    " os otra otras otro otros para pero poco por porque pues qué que quien quién quiénes se sea según ser será si sí"
    " sido siempre sin sobre sois solo sólo somos son soy su sus suya suyo también tampoco tan tanto te tenía tengo ti"
    " tiene tienen tienes toda todas todavía todo todos tras tu tú tus un una uno unos unas usted ustedes va vamos van"
    " vaya voy vos vosotros vuestro y ya yo gracias vale bueno claro"
)
_RUSSIAN = (
    "а без более будет будешь будто буду будут бы был была были было быть в вам вами вас весь во вот всё все всего"
    " всем всех всю вы где да даже для до его ее её если есть еще ещё ж же за здесь и из или им ими их к как какая"
    " какие какой какого какую какое каких каком ко когда кого кому кто ли либо лишь между меня мне много можно мной"
    " мои мой моя мою моей моего моему мое моё мы на над надо наш наша наше наши нам нас не него нее неё ней нет ни"
    " нибудь никогда ним них ничего но ну о об он она они оно от очень по под после потом потому почему при про просто"
    " раз с сам сама свой свою своей своего своих себе себя сейчас со спасибо так такая такой такие там тебе тебя тем"
    " теперь то тобой тогда того тоже той только том тот ту тут ты у уж уже хоть хорошо чего чем через что чтоб чтобы"
    " чуть эта эти этим этих это этого этой этом этот эту я привет ага ладно сколько куда откуда зачем"
)

STOP_WORDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "english": frozenset(_ENGLISH.split()),
        "german": frozenset(_GERMAN.split()),
        "french": frozenset(_FRENCH.split()),
        "spanish": frozenset(_SPANISH.split()),
        "russian": frozenset(_RUSSIAN.split()),
    }
)
_CHINESE = (
    "什么时候 为什么 怎么样 什么 怎么 哪里 哪儿 哪个 哪些 多少 我们 你们 他们 她们 咱们 自己 一下 一个 这个 那个 这样"
    " 那样 这些 那些 因为 所以 但是 可是 不过 然后 还是 已经 就是 可以 没有 的 了 吗 呢 吧 啊 呀 嘛 哦 嗯 我 你 您 他"
    " 她 它 是 也 都 就 很 这 那 和 跟 在 谁 哪 几 把 被 给"
)
_JAPANESE = (
    "でしたか ましたか どうして について ですか ますか でした ました ません だった どんな という として ている ていた"
    " です ます だよ だね いつ どこ だれ なぜ どの どれ どう なに 何を 何が 何の 何に 何と 誰が 誰に 誰と 誰の 誰を"
    " これ それ あれ この その あの ここ そこ けど から まで より ので のに たら てる てた って した して する こと"
    " もの ため よう 私 僕 俺 は が を に で と も の へ や か ね よ"
)
UNSPACED_STOP_PHRASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"chinese": tuple(_CHINESE.split()), "japanese": tuple(_JAPANESE.split())}
)
"""Function words of scripts without spaces, the longest first. A run is cut at them."""

_KANA = re.compile(r"[\u3041-\u3096\u30a1-\u30fa]")
_HAN = re.compile(r"[\u3400-\u9fff]")
_CYRILLIC = re.compile(r"[\u0400-\u04ff]")
_LATIN_WORD = re.compile(r"[a-zà-ɏ]+")
_ACCENTS: Mapping[str, tuple[Language, ...]] = MappingProxyType(
    {
        **dict.fromkeys("äöß", ("german",)),
        **dict.fromkeys("ü", ("german", "spanish")),
        **dict.fromkeys("èêëàâçœîïôûù", ("french",)),
        **dict.fromkeys("é", ("french", "spanish")),
        **dict.fromkeys("ñáíóú¿¡", ("spanish",)),
    }
)
_ENGLISH_HOMOGRAPH_LIST = (
    "ai bin car comment con contra den des die dont dos entre era ha halt hat im les man non par plus pour"
    " sans sea sin solo son sur te ton tout van vale war weg ya yo"
)
_ENGLISH_HOMOGRAPHS = frozenset(_ENGLISH_HOMOGRAPH_LIST.split())
"""Stop words of other languages that are also words, names or abbreviations in English texts: evidence of nothing."""
_MIN_EVIDENCE_CHARS = 2
"""Shorter words are evidence of nothing: "don't" has a "t" too."""
_ACCENTED = re.compile(f"[{''.join(_ACCENTS)}]")


_EXCLUSIVE_WORDS: Mapping[str, Language] = {
    word: language
    for language in LATIN_LANGUAGES
    for word in STOP_WORDS[language].difference(*(STOP_WORDS[each] for each in LATIN_LANGUAGES if each != language))
    if len(word) >= _MIN_EVIDENCE_CHARS and (language == "english" or word not in _ENGLISH_HOMOGRAPHS)
}
"""Stop words that only one of the languages has, which a word alone identifies."""
_EVIDENCE = frozenset(_EXCLUSIVE_WORDS)
_ENGLISH_EVIDENCE = frozenset(word for word, language in _EXCLUSIVE_WORDS.items() if language == "english")


def detect_language(text: str) -> Language:
    """The language with the most evidence at the start of a text; "english" without any, or with a tie."""
    languages = _find_plausible_languages(text)
    return languages[0] if len(languages) == 1 else "english"


def detect_query_languages(text: str) -> tuple[Language, ...]:
    """Languages in which the words of a query may be indexed: its own, and English, whose rules apply to short texts
    without evidence. Without any evidence, or with accents, which languages share, all that use Latin letters."""
    plausible = _find_plausible_languages(text)
    others = () if text.isascii() or plausible[0] not in LATIN_LANGUAGES else LATIN_LANGUAGES
    return tuple(dict.fromkeys((*plausible, "english", *others)))


def _find_plausible_languages(text: str) -> tuple[Language, ...]:
    """The languages with the most evidence at the start of a text."""
    head = text[:MAX_DETECTION_CHARS].lower()
    if head.isascii():
        # Most texts are decided by the words between spaces, without a search for words.
        evidence = _EVIDENCE.intersection(head.split())
        if evidence and evidence <= _ENGLISH_EVIDENCE:
            return ("english",)
        return _find_most_frequent(_LATIN_WORD.findall(head))
    kana, han = len(_KANA.findall(head)), len(_HAN.findall(head))
    if kana + han > MIN_SCRIPT_SHARE * len(head):
        return ("japanese",) if kana else ("chinese",)
    if len(_CYRILLIC.findall(head)) > MIN_SCRIPT_SHARE * len(head):
        return ("russian",)
    return _find_most_frequent(_LATIN_WORD.findall(head), accents=_ACCENTED.findall(head))


def _find_most_frequent(words: Iterable[str], *, accents: Iterable[str] = ()) -> tuple[Language, ...]:
    counts = dict.fromkeys(LATIN_LANGUAGES, 0)
    for word in _EVIDENCE.intersection(words):
        counts[_EXCLUSIVE_WORDS[word]] += 1
    for accent in set(accents):
        for language in _ACCENTS[accent]:
            counts[language] += 1
    best = max(counts.values())
    return tuple(language for language, count in counts.items() if count == best)
