"""The story that the demo tells: a vault of notes, an agent, questions with their answers, a summary."""

from quire.agent.function_tools import FunctionTool, tool
from quire.model import Message, TextPart, ToolCallPart
from quire.model.agents import Agent, Reference, Rule
from quire.testing.scripted_model import ScriptStep

TITLE = "Bringing the tide mill back to work"

VAULT_NOTES = {
    "Tide mill.md": """---
aliases: [the mill]
---
# Tide mill

A small tide mill of 1790 with one undershot wheel, last worked in 1936. The pond fills through a sea gate at flood and
drives the wheel for about five hours of each ebb.

## Sea gate

The gate is elm, hung at the top, and closes by itself when the tide turns. Two of its five boards were replaced in
1998; the lower hinge is worn.

## Wheel

Twelve feet across, six wide, forty floats. The shaft is oak with iron gudgeons. See [[Timber]].
""",
    "Timber.md": """# Timber

Elm stays sound as long as it is always wet or always dry. For the gate only green elm will do; oak for whatever dries
out twice a day. The yard at the head of the creek cuts both to size, with six weeks' notice.
""",
    "Tides.md": """# Tides

Springs here range 4.4 m, neaps 2.1 m. The pond needs a high water of at least 3.2 m on the gauge to fill; about eight
days in fourteen reach it. Ebb leaves the wheel clear two hours after high water.
""",
    "survey/2025 survey.md": """# Survey of 2025

The masonry is sound. The pond holds 5,200 cubic metres above the sill, less 900 of silt. Leaks at the gate are put at
40 litres a second. The surveyor advises the gate first, then the silt, then the wheel.
""",
    "AGENTS.md": "The mill belongs to the parish. Write for volunteers, not for engineers.\n",
    "costs.csv": "part,pounds\ngate,4200\nsilt,2600\nwheel,11800\n",
}

AGENT = Agent(
    name="keeper",
    description="Knows the mill, its tides and its timber.",
    instructions="You help the volunteers who are bringing an old tide mill back to work. Be brief; name sources.",
    rules=(
        Rule(name="plain", text="Explain every term of the trade once.", include="always", description="Plain words"),
        Rule(name="units", text="Give metres and litres, with old measures in brackets.", description="Which units"),
        Rule(
            name="water-safety",
            text="Before any work at the gate or in the pond, say that nobody works alone and the tide is looked up.",
            include="agent",
            description="Safety for work at the sea gate, in the pond, in water, at low tide",
        ),
    ),
    references=(
        Reference(
            name="house rules", text="Work days are Saturdays, 9 to 16. Keys hang in the lodge.", include="always"
        ),
        Reference(
            name="grant letter",
            text="The trust gives 12,000 pounds for gate and pond, to be spent before March.",
            include="agent",
            description="The grant of the trust: pounds, costs, what money may be spent on gate and pond",
        ),
    ),
)


@tool(needs_approval=True)
def order_timber(wood: str, length: float) -> str:
    """Order timber from the yard.

    Args:
        wood: elm or oak.
        length: metres.
    """
    return f"Ordered {length:g} m of {wood}; it will be ready in six weeks."


TOOLS: tuple[FunctionTool, ...] = (order_timber,)


def make_tool_call(id: str, name: str, arguments: str, text: str = "") -> Message:
    parts = ((TextPart(text=text),) if text else ()) + (ToolCallPart(id=id, name=name, arguments=arguments),)
    return Message(role="assistant", parts=parts)


TURNS: list[tuple[str, list[ScriptStep]]] = [
    (
        "What do we know about [[Tide mill#Sea gate]]? It has to hold water by spring.",
        [
            "The **sea gate** (the door that lets the flood into the pond and shuts by itself on the ebb) is elm, hung "
            "at the top. Two of its five boards date from 1998, and the lower hinge is worn. *See [[Tide mill]].*\n\n"
            "To hold water by spring it needs:\n\n"
            "1. three new boards,\n2. a new lower hinge,\n3. a day at neaps to hang it."
        ],
    ),
    (
        "How bad is the leak, and what does the survey say comes first?",
        [
            make_tool_call(
                "c1", "read_document", '{"path": "survey/2025 survey.md"}', "I'll look it up in the survey."
            ),
            "The survey puts the leak at **40 litres a second** and advises this order:\n\n"
            "| order | part | why |\n|---|---|---|\n| 1 | gate | everything else waits for it |\n"
            "| 2 | silt | 900 of 5,200 cubic metres |\n| 3 | wheel | sound enough to wait |",
        ],
    ),
    (
        "Which wood do we need for the boards? See [[Timber]] and [[Joinery handbook]].",
        [
            "**Green elm** for the boards: always wet, it stays sound for a lifetime. Oak belongs where things dry out "
            "twice a day, such as the posts. The yard needs six weeks' notice. There is no note *Joinery handbook*."
        ],
    ),
    (
        "How much water does the pond lose over one ebb at that rate?",
        [
            "At 40 litres a second the gate loses 144 cubic metres an hour, so about **720 cubic metres** over an ebb "
            "of five hours: a seventh of the pond.\n\n```python\nper_hour = 40 * 3600 / 1000  # cubic metres\n"
            "print(per_hour * 5)          # 720.0\n```"
        ],
    ),
    (
        "When can we work at the gate? @Tides.md",
        [
            "Nobody works at the gate alone, and the tide is looked up. At neaps the high water stays below 3.2 m "
            "on the gauge, so the pond does not fill and the gate stands dry for the longest: about **six days in "
            "fourteen**. Saturdays from 9, as the house rules have it."
        ],
    ),
    (
        "What does the gate cost, and does the grant cover it?",
        [
            make_tool_call("c2", "read_document", '{"path": "costs.csv"}'),
            "The gate is put at **4,200 pounds** and the silt at 2,600: 6,800 together, well within the 12,000 of the "
            "grant, which must be spent before March.",
        ],
    ),
    (
        "Write down the plan so far as a list of work days.",
        [
            "- **1st Saturday**: measure the frame, order elm.\n- **2nd**: scaffold, take the lower hinge off.\n"
            "- **3rd**: new hinge.\n- **7th**, at neaps: hang the three boards, nobody alone.\n- **8th**: first flood, "
            "look for leaks [#9].\n\n> Six weeks between the 1st and the 7th, because the yard needs them."
        ],
    ),
    (
        "Who said that about six weeks again?",
        [
            make_tool_call("c3", "history_search", '{"query": "six weeks notice yard"}'),
            "That was the note [[Timber]]: the yard at the head of the creek cuts elm and oak to size *with six weeks' "
            "notice*.",
        ],
    ),
]

SUMMARY = (
    "## Task\nBring the sea gate of the tide mill back to work by spring [#3].\n\n"
    "## Decisions\n- Gate first, then silt, then wheel, as the survey advises [#7].\n- Green elm for the boards "
    "[#9].\n\n"
    "## Facts\n- Leak: 40 l/s [#7]; 720 m³ over one ebb [#13].\n- Two of five boards are from 1998 [#4].\n\n"
    "## Next\n- Order elm: the yard needs six weeks."
)
