"""Providers that are known by name: `groq:llama-3.3-70b-versatile` is a model of Groq.

Any other endpoint is named by its base URL. The environment variable `GROQ_BASE_URL` replaces the base URL here.
"""

from typing import NamedTuple


class Provider(NamedTuple):
    label: str
    base_url: str
    key_variables: tuple[str, ...]
    """Environment variables of its API key; the first that is set wins. None for a server that needs no key."""
    default_model: str


PROVIDERS = {
    "openai": Provider("OpenAI", "https://api.openai.com/v1", ("OPENAI_API_KEY",), "gpt-4o"),
    "anthropic": Provider("Anthropic", "https://api.anthropic.com", ("ANTHROPIC_API_KEY",), "claude-sonnet-4-5"),
    "google": Provider(
        "Google", "https://generativelanguage.googleapis.com", ("GOOGLE_API_KEY", "GEMINI_API_KEY"), "gemini-2.5-flash"
    ),
    "openrouter": Provider("OpenRouter", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",), "openai/gpt-4o"),
    "mistral": Provider("Mistral", "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",), "mistral-large-latest"),
    "groq": Provider("Groq", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), "llama-3.3-70b-versatile"),
    "deepseek": Provider("DeepSeek", "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",), "deepseek-chat"),
    "xai": Provider("xAI", "https://api.x.ai/v1", ("XAI_API_KEY",), "grok-4"),
    "cohere": Provider("Cohere", "https://api.cohere.ai/compatibility/v1", ("CO_API_KEY",), "command-r-plus-08-2024"),
    "cerebras": Provider("Cerebras", "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",), "gpt-oss-120b"),
    "moonshotai": Provider("Moonshot AI", "https://api.moonshot.ai/v1", ("MOONSHOTAI_API_KEY",), "kimi-latest"),
    "zai": Provider("Z.AI", "https://api.z.ai/api/paas/v4", ("ZAI_API_KEY",), "glm-4.5"),
    "together": Provider(
        "Together AI", "https://api.together.xyz/v1", ("TOGETHER_API_KEY",), "meta-llama/Llama-3.3-70B-Instruct-Turbo"
    ),
    "fireworks": Provider(
        "Fireworks AI",
        "https://api.fireworks.ai/inference/v1",
        ("FIREWORKS_API_KEY",),
        "accounts/fireworks/models/llama-v3p3-70b-instruct",
    ),
    "huggingface": Provider(
        "Hugging Face", "https://router.huggingface.co/v1", ("HF_TOKEN",), "meta-llama/Llama-3.3-70B-Instruct"
    ),
    "ollama": Provider("Ollama", "http://127.0.0.1:11434/v1", (), "qwen3"),
}
"""By the prefix of a model's name. Those without a key variable are not detected by `quire init`."""
