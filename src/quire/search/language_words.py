"""Words with a meaning of their own for recall, in all supported languages: the speaker, times, kinds of question.

Words that mean something else in another language are left out, so that no language has to be known.
"""

_FIRST_PERSON_WORDS_LIST = (
    "i me my mine we our ich mich mir mein meine meinen meinem meiner wir unser unsere unseren unserem je j moi mes"
    " nous notre nos yo mi mis nosotros nosotras nuestro nuestra nuestros nuestras я меня мне мной мой моя моё мое мои"
    " моей моего моих мы нас нам наш наша наше наши"
)
FIRST_PERSON_WORDS = frozenset(_FIRST_PERSON_WORDS_LIST.split())
_TIME_WORDS_LIST = (
    "yesterday today tonight tomorrow ago last next recently since morning week weeks weekend weekends day days month"
    " months year years summer winter fall spring monday tuesday wednesday thursday friday saturday sunday january"
    " february march april may june july august september october november december gestern heute morgen vorgestern"
    " letzte letzten letztes letzter nächste nächsten nächstes nächster woche wochen wochenende tag tage tagen monat"
    " monate monaten jahr jahre jahren sommer herbst frühling frühjahr montag dienstag mittwoch donnerstag freitag"
    " samstag sonntag januar februar märz mai juni juli oktober dezember hier aujourd'hui demain dernier dernière"
    " prochain prochaine semaine semaines jour jours mois année années été hiver automne printemps lundi mardi"
    " mercredi jeudi vendredi samedi dimanche janvier février avril juin juillet août septembre octobre novembre"
    " décembre ayer hoy mañana anteayer pasado pasada próximo próxima semana semanas día días mes meses año años"
    " verano invierno otoño primavera lunes martes miércoles jueves viernes sábado domingo enero febrero marzo abril"
    " mayo junio julio agosto septiembre octubre noviembre diciembre вчера сегодня завтра позавчера назад прошлой"
    " прошлом прошлый следующей следующем неделе неделю недели недель день дня дней месяц месяца месяцев месяце год"
    " года году лет летом зимой осенью весной понедельник вторник среду четверг пятницу субботу воскресенье выходные"
    " выходных января февраля марта апреля мая июня июля августа сентября октября ноября декабря январе феврале марте"
    " апреле июне июле августе сентябре октябре ноябре декабре"
)
TIME_WORDS = frozenset(_TIME_WORDS_LIST.split())
UNSPACED_FIRST_PERSON = "[我咱私僕俺]"
UNSPACED_TIMES = (
    "昨天|今天|明天|前天|后天|上周|下周|周末|上个月|下个月|去年|今年|明年|星期.|礼拜.|周[一二三四五六日]|[0-9一二三四五六七八九十]{1,3}[月号日点]"
    "|昨日|今日|明日|先週|来週|今週|週末|先月|来月|来年|[月火水木金土日]曜日|昨夜|今朝|きのう|あした"
)
_PREFERENCE_WORDS_LIST = "prefer rather lieber bevorzuge préfère plutôt prefiero предпочитаю лучше"
PREFERENCE_WORDS = frozenset(_PREFERENCE_WORDS_LIST.split())
STANDING_INSTRUCTIONS = (
    "always|never|from now on|immer|niemals|ab jetzt|ab sofort|toujours|jamais|désormais|dorénavant|siempre"
    "|nunca|a partir de ahora|всегда|никогда|отныне|с этого момента|впредь"
)
UNSPACED_STANDING_INSTRUCTIONS = "总是|永远|以后都|以后请|从现在起|いつも|必ず|今後|これから"

ASKS_WHEN = (
    r"\bwann\b|\ban welche[mn] (?:tag|tagen|abend|datum)\b|\bquand\b|\bquels? jours?\b|\bcuándo\b|\bqué días?\b"
    r"|\bкогда\b|\bпо каким дням\b|什么时候|哪天|几月|几号|星期几|いつ|何月|何日|何曜日|何時"
)
ASKS_NUMBER = (
    r"\bwie (?:viele?|lang|lange|oft|hoch|alt)\b|\bcombien\b|\bcuánt[oa]s?\b|\bсколько\b|多少|多长|多久|几个|几岁"
    "|いくら|いくつ|何人|何歳|何個|何分"
)
