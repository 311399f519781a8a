"""Messages that share no word with the item that they need, and messages that need no item.

The constants of the selection by meaning were tuned on `SHOP_TUNING` and `IRRELEVANT`. `SHOP_HELD_OUT`, `SMALL_AGENTS`
and `IRRELEVANT_HELD_OUT` were written separately, but a constant was settled on the results of all cases, so they are
regression tests and no independent evaluation.
"""

from quire.model.agents import Agent, Reference

SHOP_TUNING = {
    "How do I sign in?": "authentication",
    "The site is offline and nobody can order anything": "incident-response",
    "Our AWS invoice is far too high": "cost-control",
    "I'd like to take two weeks off in August": "holiday-policy",
    "Make this photo smaller": "resize_image",
    "Is it going to be sunny on Saturday?": "forecast",
    "Ping my team in chat that we are done": "post_message",
    "Blind visitors should be able to use our site": "frontend-accessibility",
    "Our French wording sounds wrong": "translation",
    "The new hire begins tomorrow, what should she set up?": "onboarding",
    "Sketch how the components connect to each other": "diagrams",
    "The box never arrived at the buyer's home": "warehouse",
    "Book an appointment with the designers": "create_event",
    "The app crashed with a stack trace": "error-handling",
    "Our Postgres needs another field for gift cards": "sql-migrations",
}
SHOP_HELD_OUT = {
    "Where can I see how fast our pages respond?": "monitoring",
    "How expensive is a subscription for companies?": "pricing",
    "What should I write when I push my work to version control?": "commit-messages",
    "A user wants us to forget everything about him": "privacy",
    "The unit specs fail on my laptop": "testing",
    "Shoppers cannot pay with Visa": "payments",
    "Looking up a shoe gives odd results": "search-design",
    "I caught the flu and stay in bed": "holiday-policy",
    "Try the new layout on half of the visitors": "feature-flags",
    "Our iPhone application freezes at start": "mobile-app",
    "The client is furious, what do I say?": "customer-tone",
    "Keep results in memory so that pages load faster": "caching",
    "Put it on the servers of the cluster tonight": "deployment-runbook",
    "Does it get cold in Oslo next week?": "forecast",
    "Write to Maria that the contract is signed": "send_email",
}


def _make_agent(**descriptions: str) -> Agent:
    references = [
        Reference(name=name, description=text, text=text, include="agent") for name, text in descriptions.items()
    ]
    return Agent(name="small", references=tuple(references))


SMALL_AGENTS = (
    (
        _make_agent(
            deployment="How releases are shipped to production",
            security="Passwords, secrets and access rights",
            billing="Invoices, payments and taxes",
            hiring="Interviews and offers for candidates",
            style="Wording and layout of documents",
            backups="Copies of data and how to restore them",
        ),
        {
            "My login does not work any more": "security",
            "A client wants to pay later": "billing",
            "Whom should we employ next?": "hiring",
            "The disk died, is everything lost?": "backups",
            "Push the new version out to users": "deployment",
            "Which font do we use for headings?": "style",
            "The job applicant comes on Monday": "hiring",
            "How much VAT do we owe?": "billing",
        },
    ),
    (
        _make_agent(
            recipes="Meals, ingredients and how to cook them",
            garden="Plants, flowers and vegetables outside",
            pets="Feeding the dog and the cat, the vet",
            car="Repairs, fuel and insurance of the car",
            budget="What the household spends and saves",
            school="Homework, teachers and exams of the children",
        ),
        {
            "What shall we eat tonight?": "recipes",
            "The roses look dry": "garden",
            "My puppy is ill": "pets",
            "The engine makes a strange noise": "car",
            "Can we afford a new sofa?": "budget",
            "My daughter has to learn for maths": "school",
            "How long do I boil potatoes?": "recipes",
            "When do I plant tomatoes?": "garden",
        },
    ),
)

IRRELEVANT = (
    "Tell me a story about dragons",
    "What's the capital of Peru?",
    "Write a poem about the moon",
    "Convert 5 miles to kilometres",
    "Who won the world cup in 1998?",
    "How do I bake sourdough bread?",
    "Explain photosynthesis",
    "What is the meaning of life?",
    "Which guitar chords are in the key of G?",
    "Name three composers of the baroque",
    "My cat sleeps all day, is that normal?",
    "Sum up the plot of Hamlet",
    "How far away is the sun?",
    "Give me five names for a puppy",
    "What is a good stretch for my back?",
    "hello",
    "Continue",
    "yes please",
    "Thank you so much",
    "Why is the sky blue?",
)
IRRELEVANT_HELD_OUT = (
    "How tall is Mount Everest?",
    "Write me a limerick about a fisherman",
    "What's a synonym for happy?",
    "Is 97 a prime number?",
    "Who painted the Mona Lisa?",
    "Tell me about the French Revolution",
    "How long should I boil an egg?",
    "What does my dream about falling mean?",
    "Suggest a gift for my grandmother",
    "How do airplanes fly?",
    "Which planet has the most moons?",
    "Teach me a card trick",
    "I feel lonely today",
    "What rhymes with orange?",
    "Summarize the rules of chess",
    "When was Beethoven born?",
    "Pick a number between one and ten",
    "How do I tie a bow tie?",
    "Why do cats purr?",
    "What's the tallest building in Dubai?",
)
