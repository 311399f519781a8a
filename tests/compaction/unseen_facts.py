"""103 facts that summaries lack, in ten hand-written sessions of different styles, and facts that they have.

The rules of `lost_facts` were not made from these texts. `⟦…⟧` encloses what identifies a fact that the summary lacks.
Lines without it are in the summary in other words, or say nothing that one would miss.
"""

from typing import NamedTuple


class UnseenSession(NamedTuple):
    said: str
    """One message a line; those of the assistant begin with `>`."""
    summary: str


SESSIONS = (
    UnseenSession(
        """\
morning! the staging box moved over the weekend, it answers on ⟦10.44.7.19⟧ now
> Noted. Anything else that changed?
yes: ⟦Priyanka⟧ took over the billing rota from Tom, so ping her first
also we bumped the pool to ⟦385⟧ connections because of the Monday spike
> I'll look at the pool settings then.
the ini is in ⟦deploy/pg/overrides.ini⟧, not where the wiki claims
> Found it. Running `⟦pgbench -c 40 -T 90 shop⟧` to get a baseline.
please never touch the ⟦ledger_archive⟧ table, legal froze it
> Understood.
we settled on ⟦blue/green instead of rolling restarts⟧ for this service
the customer that complained is ⟦Halvorsen Marine⟧
their ticket is ⟦SUP-20981⟧
the certificate runs out on ⟦3 February 2027⟧
that's about it, coffee first
the replica in Oslo is read-only and must stay so
> Sure, I will leave the Oslo replica read-only.
""",
        "The user reorganised the staging host, the billing rota and the connection pool. The replica in Oslo stays "
        "read-only. Next: tune the pool.",
    ),
    UnseenSession(
        """\
Dear assistant, I am writing up the herring survey; kindly keep to British spelling throughout.
> Gladly. British spelling it is.
The vessel was the ⟦Guillemot⟧, chartered out of Peterhead.
We made ⟦1,742⟧ hauls between April and June.
Mean length came to ⟦23.8⟧ cm, which surprised everyone.
Dr ⟦Oyelaran⟧ insists on the Gulland correction.
The raw sheets live under ⟦/srv/surveys/2026/raw_hauls.parquet⟧ on the shared drive.
> Thank you, I will read them from there.
After some argument we ⟦dropped the bootstrapped intervals in favour of profile likelihood⟧.
The embargo lifts on ⟦14 May⟧ and not a day sooner.
The reviewer's contact is ⟦m.kjeldsen@fiskeridir.example⟧.
Figures must be rendered by `⟦Rscript figs/render.R --dpi 450⟧`.
Our grant number is ⟦NE/X0417/2⟧, which the journal prints.
> I shall add it to the acknowledgements.
I had soup for lunch.
""",
        "The user writes up a herring survey in British spelling. Methods and figures are in progress.",
    ),
    UnseenSession(
        """\
ok so bug: checkout total wrong when coupon + gift card
> Can you reproduce it?
yep. cart ⟦c_88213⟧, coupon ⟦HARVEST15⟧
expected ⟦47.10⟧ got 52.60
> The rounding happens in ⟦src/cart/settle.ts⟧ before the card is applied.
right. also Wei says only happens on the ⟦nb-NO⟧ locale
> That points to the decimal comma.
fix idea: parse with ⟦Intl.NumberFormat.formatToParts⟧, no regex
> Agreed, no regular expressions there.
don't add a dependency tho, ⟦Marguerite vetoed dinero.js⟧
run the suite w/ ⟦pnpm vitest run cart --retry=2⟧
> All green but one flaky test.
flaky one is ⟦settles_partial_refund⟧, known since march
flag for rollout is ⟦cart.settle_v3⟧
k thx
we ship behind a feature flag
""",
        "A wrong checkout total with a coupon and a gift card was traced to rounding and the decimal comma. The fix "
        "ships behind a feature flag and uses no regular expression.",
    ),
    UnseenSession(
        """\
The greenhouse controller has been misbehaving since the firmware update.
> Which update was that?
Version ⟦4.17.2⟧, installed by ⟦Anselm⟧ on Thursday.
> I see. What does the log say?
It repeats "⟦E_VALVE_TIMEOUT⟧" every ninety seconds.
> The pump may be too slow for the new limit.
The pump is a ⟦Wilo Stratos 25/1-8⟧, fitted in 2019.
Its relay hangs on GPIO ⟦27⟧.
> I would raise the limit from 4 to ⟦11⟧ seconds.
Agreed: ⟦keep the vents closed below 6 degrees⟧, whatever the schedule says.
The schedule is stored in ⟦/etc/greenhouse/zones.d/tomatoes.yaml⟧.
> I changed the limit and restarted with `⟦systemctl restart zonectl@tomatoes⟧`.
The neighbour, ⟦Mrs Abernethy⟧, has the spare key.
The MQTT topic is ⟦farm/zone4/valve/state⟧.
It is raining again.
The heater is off until October.
> The heater remains off until October.
""",
        "The greenhouse controller failed after a firmware update; a limit was raised and the service restarted. The "
        "heater is off until October.",
    ),
    UnseenSession(
        """\
Könnten wir kurz den Umzug der Datenbank durchgehen?
> Natürlich. Wann soll er stattfinden?
In der Nacht auf den ⟦23⟧. November, Beginn ⟦01:30⟧.
Zuständig ist ⟦Frau Dombrowski⟧ aus der Leitstelle.
Das Ziel heißt ⟦db-weiden-02⟧.
> Wie groß ist der Bestand?
Rund ⟦918⟧ Gigabyte, davon die Hälfte Bilder.
Wir haben uns entschieden, ⟦die Bilder erst nachträglich zu kopieren⟧.
> Dann reicht das Fenster.
Der Abzug entsteht mit `⟦pg_dump -Fd -j 6 weiden⟧`.
Er landet unter ⟦/mnt/umzug/abzug_a⟧.
Die Störungsnummer lautet ⟦INC-55104⟧.
Als Rückfallebene bleibt ⟦Keplerstraße⟧ in Betrieb.
Der Port ist ⟦6543⟧ wegen des Poolers.
Guten Appetit übrigens!
Die Anwender sind informiert.
""",
        "Der Umzug der Datenbank wurde besprochen; die Anwender sind informiert.",
    ),
    UnseenSession(
        """\
We need to pick names for the four microservices before Friday.
> Shall I propose some?
No, they are settled: the gateway is ⟦Heimdall⟧ and the mailer is ⟦Ratatoskr⟧.
> Nice. And the ports?
Gateway ⟦7106⟧, mailer ⟦7233⟧.
> I'll write that into the compose file.
The compose file is ⟦infra/compose.norse.yml⟧.
Secrets come from ⟦vault kv get -field=dsn apps/norse⟧.
> OK.
The board rejected Kubernetes, so ⟦we stay on plain Docker hosts until 2028⟧.
The budget is ⟦€61,400⟧.
Contact for invoices: ⟦Bartholomew Nkemelu⟧.
The old cluster is called ⟦Vanaheim⟧ and will be switched off.
Logs go to Loki, as before.
> Logs continue to go to Loki.
Nothing more for today.
""",
        "Names and ports of the microservices were settled. Logs continue to go to Loki.",
    ),
    UnseenSession(
        """\
Let me dictate the interview notes; tidy them later.
> Go ahead.
The witness, ⟦Ruaridh Calder⟧, lives above the bakery.
He heard the shutter at ⟦04:12⟧, certain because of the oven timer.
The van was a ⟦Renault Trafic⟧, pale green.
He remembered part of the plate: ⟦SN19 K⟧.
> Did he see a face?
No, but the driver limped and carried a case marked ⟦"Fragile — Voss"⟧.
Recording is saved as ⟦interviews/calder_0412.m4a⟧.
> I'll transcribe it with `⟦whisper calder_0412.m4a --model small.en⟧`.
We agreed to ⟦leave the bakery's name out of print⟧.
The editor wants ⟦1,250⟧ words.
The lawyer is ⟦Odalys Ferreira⟧.
Weather was foggy.
The story runs in the weekend edition.
""",
        "Interview notes were taken for a story that runs in the weekend edition. The weather was foggy.",
    ),
    UnseenSession(
        """\
profile of the importer is done, want the numbers?
> Yes please.
parse ⟦812⟧ ms, index ⟦2,940⟧ ms, rest is noise
> So indexing dominates.
hot spot is ⟦TermDictionary.merge⟧ in the C extension
> Could we batch the merges?
tried in branch ⟦spike/lazy-merge⟧, commit ⟦f3a91c7⟧
> And the result?
halved it, but memory went to ⟦3.4⟧ GB on the wiki corpus
decision: ⟦ship lazy merging only when the corpus is under a gigabyte⟧
the corpus is at ⟦s3://quarry-bench/enwiki-0926.zst⟧
bench machine is ⟦hetzner-ax41-b⟧
use `⟦perf record -g -F 997⟧` next time
> Will do.
tests pass on Linux and macOS
nice weekend
""",
        "The importer was profiled: indexing dominates, and lazy merging halves it at the price of memory. Tests pass "
        "on Linux and macOS.",
    ),
    UnseenSession(
        """\
> I have read the tender documents. What should the reply emphasise?
That we hold the ⟦ISO 27001⟧ certificate, obviously.
The client is ⟦Stadtwerke Lindenau⟧.
Submission closes ⟦29 January at noon⟧.
Our day rate must not appear; quote ⟦€212,000⟧ as the lump sum.
> Understood, a lump sum only.
The project lead will be ⟦Tamsin Okafor⟧.
We promise a response within ⟦35⟧ minutes.
Use the template ⟦tender_template_v9.docx⟧ from the shared folder.
> The template is open.
We decided ⟦against naming subcontractors⟧ in the first round.
Reference projects: only ⟦Hafen Rostock⟧, the other one is confidential.
The portal's reference is ⟦TED-884-1907⟧.
The reply is in German.
> The reply will be in German.
See you tomorrow.
""",
        "The user prepares a tender reply in German with a lump sum and no day rate.",
    ),
    UnseenSession(
        """\
Reminder for whoever continues: the flaky node is ⟦rack9-node14⟧.
> What is wrong with it?
ECC errors on DIMM ⟦B7⟧, roughly ⟦640⟧ a day.
> I can drain it.
Drain with `⟦kubectl drain rack9-node14 --ignore-daemonsets⟧`, then tell ⟦Ottoline⟧ at the desk.
> Drained. The pods moved.
The vendor case is ⟦7700-415-22⟧.
The replacement arrives in ⟦crate 31⟧.
⟦Never reboot the neighbour node in the same hour⟧, they share a power strip.
Thresholds are in ⟦alerts/ecc.rules.yaml⟧; we chose ⟦500⟧ as the limit.
The pager rotation belongs to ⟦team Kestrel⟧.
All workloads are healthy again.
> All workloads are healthy.
Good night.
""",
        "A node with memory errors was drained; all workloads are healthy.",
    ),
)
