"""Items of an agent as a team might have them, and messages with the items that each should select.

`min_score` and the weights were tuned on `TUNING_CASES`; `HELD_OUT_CASES` were written before and evaluated after.
Expected names in brackets are optional: selecting them or not is correct.
"""

from typing import NamedTuple

from quire.model.agents import Agent, AgentTool, Reference, Rule
from quire.model.messages import ToolDefinition


class SelectionCase(NamedTuple):
    message: str
    expected: frozenset[str]
    allowed: frozenset[str]
    recent: tuple[str, ...] = ()


def _case(message: str, names: str = "", *recent: str) -> SelectionCase:
    words = [name.strip() for name in names.split(",") if name.strip()]
    expected = frozenset(name for name in words if not name.startswith("["))
    return SelectionCase(message, expected, frozenset(name.strip("[]") for name in words), recent)


_RULES = {
    "python-style": (
        "How Python code is written here: types, names, imports, formatting",
        "Write Python 3.11 with full type annotations. Format with ruff at 120 columns. No wildcard imports.",
    ),
    "commit-messages": (
        "Wording of git commits and pull requests",
        "A commit's subject is in the imperative, under 72 characters, and says why in its body. Squash fixups.",
    ),
    "authentication": (
        "Authentication and sessions: how users log in, tokens, passwords",
        "Users log in with OAuth. Access tokens live 15 minutes, refresh tokens 30 days. Never log a password.",
    ),
    "sql-migrations": (
        "Changing the database schema safely",
        "Every schema change is an Alembic migration. Add columns as nullable, backfill in batches, then constrain.",
    ),
    "testing": (
        "How tests are written and run with pytest",
        "Each test names one behaviour. Use fixtures rather than mocks. Run the suite before you push.",
    ),
    "frontend-accessibility": (
        "Accessible user interfaces: keyboard, screen readers, contrast",
        "Every control is reachable by keyboard, has a label, and keeps a contrast of at least 4.5 to 1.",
    ),
    "customer-tone": (
        "Tone of replies to customers in support tickets",
        "Be warm and brief. Apologise once. Never blame the customer, and never promise a date for a fix.",
    ),
    "refunds": (
        "When a customer gets money back, and how much",
        "A refund is granted within 30 days of purchase. Annual plans are refunded pro rata. Above 500 euros, ask.",
    ),
    "privacy": (
        "Personal data, GDPR requests, deletion and retention",
        "Personal data is deleted within 30 days of a request. Exports are encrypted. Never paste customer data.",
    ),
    "incident-response": (
        "What to do when production is down",
        "Declare the incident, appoint a commander, post updates every 20 minutes, write the post-mortem in a week.",
    ),
    "release-process": (
        "Cutting a release: versions, changelog, tags, rollout",
        "Bump the version by semver, update the changelog, tag, roll out to 5 % first and watch the dashboards.",
    ),
    "translation": (
        "Translating the product's texts into other languages",
        "Strings live in the locale files. Keep placeholders. German is addressed formally; dates follow the locale.",
    ),
    "cost-control": (
        "Keeping cloud spending low",
        "Prefer spot instances for batch work. Every resource carries an owner tag. Shut down what is idle over night.",
    ),
    "diagrams": (
        "Drawing architecture diagrams with Mermaid",
        "Use Mermaid flowcharts, left to right, at most twelve boxes, with a legend for colours.",
    ),
}

_REFERENCES = {
    "api-guide": (
        "REST API reference: endpoints, parameters, status codes, pagination",
        "GET /v2/orders lists orders, newest first. Pages hold 50 items; follow the cursor in `next`.",
    ),
    "error-handling": (
        "Error handling: exceptions, error codes, retries and what users are shown",
        "Errors form one tree. Retry only what is transient, with backoff. Users see a code and a way forward.",
    ),
    "database-schema": (
        "Tables, columns and indexes of the orders database",
        "orders(id, customer_id, total, currency, placed_at); customers(id, email, country); lines(order_id, sku).",
    ),
    "deployment-runbook": (
        "Deploying to Kubernetes: helm charts, clusters, rollback",
        "Deploy with `helm upgrade shop ./chart`. Roll back with `helm rollback`. Staging deploys on every merge.",
    ),
    "pricing": (
        "Plans and prices: free, team, enterprise, discounts",
        "Team costs 12 euros per seat a month. Enterprise is quoted. Non-profits get 40 % off. Annual billing: less.",
    ),
    "onboarding": (
        "First week of a new colleague: accounts, laptop, people to meet",
        "Day one: laptop, mail, VPN. Day two: clone the repositories and run the shop locally. Meet your buddy.",
    ),
    "monitoring": (
        "Dashboards, alerts and metrics in Grafana and Prometheus",
        "Latency is on the dashboard Shop/Overview. Alerts page the on-call when p99 exceeds 800 ms for ten minutes.",
    ),
    "payments": (
        "Card payments with Stripe: charges, webhooks, disputes, chargebacks",
        "A charge is captured on shipment. Webhooks are verified by signature. Disputes arrive in the finance inbox.",
    ),
    "search-design": (
        "How product search works: Elasticsearch, analyzers, ranking, synonyms",
        "Queries hit the index `products`. Titles weigh three times as much as descriptions. Synonyms reload nightly.",
    ),
    "mobile-app": (
        "The iOS and Android apps: build, signing, push notifications",
        "Built with React Native. Certificates are in the vault. Push goes through Firebase.",
    ),
    "warehouse": (
        "Shipping, stock and returns in the warehouse",
        "Parcels leave by 16:00. Stock is counted on Mondays. A return is inspected and restocked within three days.",
    ),
    "holiday-policy": (
        "Vacation days, sick leave and public holidays for employees",
        "Everyone has 28 days. Ask your lead two weeks ahead. Report sickness before ten in the morning.",
    ),
    "caching": (
        "Caching with Redis: keys, expiry, invalidation",
        "Keys are `shop:{entity}:{id}`. Everything expires in an hour. Invalidate on write, never by pattern.",
    ),
    "feature-flags": (
        "Feature flags and experiments, A/B tests",
        "Flags are declared in flags.yaml with an owner and an end date. An experiment needs a hypothesis and users.",
    ),
}

_TOOLS = {
    ("files", "read_file"): "Read the contents of a file in the workspace",
    ("files", "write_file"): "Create a file or overwrite it with new contents",
    ("files", "search_files"): "Find files by name or by a pattern in their text",
    ("github", "create_issue"): "Open a new issue in a GitHub repository",
    ("github", "list_pull_requests"): "List open pull requests of a repository with their reviewers",
    ("github", "merge_pull_request"): "Merge a pull request",
    ("database", "query"): "Run a read-only SQL query against the orders database",
    ("database", "explain"): "Show the execution plan of a SQL query",
    ("calendar", "create_event"): "Put a meeting into the calendar and invite people",
    ("calendar", "find_free_time"): "Find a time slot when all attendees are free",
    ("mail", "send_email"): "Send an email to one or more recipients",
    ("slack", "post_message"): "Post a message to a Slack channel",
    ("weather", "forecast"): "Weather forecast for a place and a day",
    ("browser", "screenshot"): "Take a screenshot of a web page",
    ("images", "resize_image"): "Resize or crop a picture",
    ("stripe", "issue_refund"): "Refund a charge to the customer's card",
}


def make_shop_agent() -> Agent:
    """An agent with all items in mode `agent`."""
    return Agent(
        name="shop",
        rules=tuple(
            Rule(name=name, description=about, text=text, include="agent") for name, (about, text) in _RULES.items()
        ),
        references=tuple(
            Reference(name=name, description=about, text=text, include="agent")
            for name, (about, text) in _REFERENCES.items()
        ),
        tools=tuple(
            AgentTool(
                definition=ToolDefinition(name=name, description=about, parameters={"type": "object"}, server=server),
                include="agent",
            )
            for (server, name), about in _TOOLS.items()
        ),
    )


_LONG_QUESTION = """
I pulled main this morning and the importer broke. Here is what I did so far: I looked at the importer
module, at the nightly job and at yesterday's merge, then I ran it twice by hand. The second run stopped because the
column `currency` is missing from the orders table on staging, while my laptop has it. My guess is that somebody altered
the schema by hand and forgot the Alembic migration. Could you write the migration, with a backfill from the country of
the customer, so that it can run while people are shopping? Bo says that last time the table was locked for minutes."""

_LONG_STORY = """
Yesterday my brother and I drove along the coast with the old van, the one with the blue roof. We stopped at a
village where they sell bread from a window, and a dog followed us down to the beach. The sea was rough, so we only
walked. On the way back the engine made a noise like a kettle and we had to wait two hours for a neighbour with a rope.
What would be a good title for this story?"""

TUNING_CASES = (
    _case(_LONG_QUESTION, "sql-migrations, database-schema, [query], [translation]"),
    _case(_LONG_STORY),
    _case("How do I authenticate?", "authentication"),
    _case("What's the error handling?", "error-handling"),
    _case("Write a commit message for this change", "commit-messages"),
    _case("How should I name variables in Python here?", "python-style"),
    _case("Add a column `discount` to the orders table", "sql-migrations, database-schema, [query], [pricing]"),
    _case("Which test fixtures do we have for pytest?", "testing"),
    _case("Is this button usable with a screen reader?", "frontend-accessibility"),
    _case("Draft an answer to this angry customer ticket", "customer-tone, [refunds]"),
    _case(
        "A customer bought an annual plan 20 days ago and wants her money back",
        "refunds, [issue_refund], [pricing], [customer-tone]",
    ),
    _case("Someone asks us to delete all his personal data", "privacy"),
    _case("Production is down! What now?", "incident-response"),
    _case("Let's cut release 2.4", "release-process"),
    _case("Translate the checkout page into German", "translation"),
    _case("Our cloud bill doubled, where can we save spending?", "cost-control"),
    _case("Draw a diagram of the architecture", "diagrams"),
    _case("Which endpoint lists the orders, and how does pagination work?", "api-guide, [database-schema], [query]"),
    _case("What are the columns of the customers table?", "database-schema, [query], [sql-migrations]"),
    _case("How do I roll back a deployment with helm?", "deployment-runbook, [release-process]"),
    _case("What does the team plan cost per seat?", "pricing"),
    _case("I start on Monday, which accounts do I need in my first week?", "onboarding"),
    _case("Which dashboard shows p99 latency?", "monitoring"),
    _case("Stripe sent a dispute webhook, how do we treat chargebacks?", "payments, [issue_refund]"),
    _case("Why are synonyms not found in product search?", "search-design"),
    _case("Push notifications don't arrive on Android", "mobile-app"),
    _case("When do parcels leave the warehouse?", "warehouse"),
    _case("How many vacation days do I have?", "holiday-policy"),
    _case("How do we invalidate Redis keys?", "caching"),
    _case("Start an A/B test for the new checkout behind a feature flag", "feature-flags, [testing]"),
    _case("Read the file src/shop/cart.py", "read_file, [search_files], [write_file]"),
    _case("Open an issue on GitHub about the slow checkout", "create_issue, [list_pull_requests]"),
    _case(
        "Which pull requests are waiting for a review?", "list_pull_requests, [merge_pull_request], [commit-messages]"
    ),
    _case("Run a query: how many orders were placed yesterday?", "query, [database-schema], [explain], [api-guide]"),
    _case("Why is this SQL query slow? Show me its execution plan", "explain, query, [database-schema]"),
    _case("Find a slot for a meeting with Ana and Bo, and invite them", "find_free_time, create_event"),
    _case("Email the invoice to the client", "send_email"),
    _case("Will it rain in Lisbon tomorrow? Check the weather", "forecast"),
    _case("Take a screenshot of the landing page", "screenshot"),
    _case("Crop this picture to a square", "resize_image"),
    _case("Tell me a joke about penguins"),
    _case("Thanks, that's all!"),
    _case("What is 17 times 23?"),
    _case("Good morning, who are you?"),
    _case("And for annual plans?", "refunds, [pricing], [holiday-policy]", "When does a customer get a refund?"),
    _case("Go on", "[authentication]", "How long does an access token live?"),
)

_LONG_LOG = """
This is from the on-call channel, please help. 02:14 alert: p99 above 800 ms for ten minutes. 02:16 checkout
returns 502 for every second customer. 02:20 pods restart in a loop after last night's rollout. 02:31 I tried to restart
the ingress, no change. 02:40 Ana asks whether we should declare an incident or simply roll back with helm first. The
dashboard shows that memory climbs since the deploy at 23:50. Nobody has posted to the status page yet. What are the
next steps, in which order, and who has to be told?"""

HELD_OUT_CASES = (
    _case(_LONG_LOG, "incident-response, deployment-runbook, monitoring, [post_message], [release-process]"),
    _case("My password reset link has expired, how do sessions work?", "authentication"),
    _case("What happens when an exception reaches the user?", "error-handling"),
    _case("Review the type annotations in this module", "python-style"),
    _case("I need to rename a database column without downtime", "sql-migrations, [database-schema]"),
    _case("Please merge PR 231", "merge_pull_request, [list_pull_requests], [commit-messages]"),
    _case("Tell the #shop channel on Slack that the deploy is done", "post_message, [deployment-runbook]"),
    _case("How long do we keep customer data under GDPR?", "privacy, [customer-tone]"),
    _case("Is there a discount for non-profits?", "pricing"),
    _case("Who do I ask for sick leave?", "holiday-policy"),
    _case("The cache shows stale prices, how long until keys expire?", "caching, [pricing]"),
    _case("Give this customer his 30 euros back", "refunds, issue_refund, [customer-tone], [pricing]"),
    _case("Which alerts page the on-call?", "monitoring, [incident-response]"),
    _case("Set up helm for the staging cluster", "deployment-runbook"),
    _case("How is ranking done in search?", "search-design, [search_files]"),
    _case("The iOS build fails at code signing", "mobile-app"),
    _case("A returned parcel is not restocked", "warehouse"),
    _case("Save this text to notes.txt", "write_file"),
    _case("Put a retro into the calendar for Friday", "create_event, [find_free_time]"),
    _case("Does the colour contrast of this form suffice?", "frontend-accessibility, [diagrams]"),
    _case("Bump the version and update the changelog", "release-process"),
    _case("Explain quantum entanglement to a child", "[explain]"),
    _case("Recommend a novel by a Portuguese author"),
    _case("ok"),
    _case("Write a haiku about autumn leaves", "[holiday-policy]"),
)
