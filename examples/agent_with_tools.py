"""An agent: Quire calls the model, runs your functions, and stops at the answer or at a limit."""

import os

import quire.sync

DATABASE_URL = os.environ.get("QUIRE_DATABASE_URL", "sqlite:///examples.db")


def get_weather(city: str) -> str:
    """Returns the current weather of a city."""
    return f"Rain in {city}, 12 °C"


@quire.tool(needs_approval=True, timeout_seconds=10)
def send_mail(to: str, text: str) -> str:
    """Sends a mail."""
    return f"sent to {to}: {text}"


def approve(call: quire.ToolCallPart) -> bool | quire.Deny:
    if "ann@example.com" in call.arguments:
        return True
    return quire.Deny("Only Ann may be written to.")


def main() -> None:
    with quire.sync.open(DATABASE_URL, model="gpt-4o") as engine:
        conversation = engine.conversation("agent-with-tools")
        turn = conversation.send(
            "Mail Ann (ann@example.com) whether she needs an umbrella in Ghent.",
            tools=[get_weather, send_mail],
            approve=approve,
            max_steps=10,
        )
        print(turn.text)
        print(f"{turn.reason} after {turn.steps} steps, {turn.usage.input_tokens} tokens read")
        for entry in conversation.messages():
            print(f"#{entry.seq} {entry.role}")


if __name__ == "__main__":
    main()
