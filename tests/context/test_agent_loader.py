"""Agent loader: the file format, allowed paths, and the error for every mistake."""

from pathlib import Path

import pytest

from quire.context.agent_loader import load_agent
from quire.errors import DocumentNotFound, InvalidConfiguration
from quire.model.agents import Agent, AgentMemory, Reference, Rule


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path.parent / "outside.md").write_text("CANARY")
    return write_files(
        tmp_path,
        {
            "README.md": "---\ndescription: What it is\ninclude: agent\n---\nThe shop.\n",
            "agents/instructions.md": "You review code.",
            "agents/mcp.json": '{"mcpServers": {"files": {"command": "npx", "include": "agent"}}}',
            "agents/rules/style.md": "---\nname: Style\ndescription: How code looks\n"
            "include: always\npriority: 3\n---\nUse types.\n",
            "agents/rules/deep/tone.md": "Be kind.\n",
            "agents/rules/off.md": "---\nenabled: false\n---\nNever.\n",
            "agents/rules/notes.txt": "no rule",
            "agents/references/api.md": "---\ninclude: agent\n---\n# API\n",
        },
    )


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def load(project: Path, toml: str) -> Agent:
    write_files(project, {"agents/reviewer.toml": toml})
    return load_agent(project / "agents/reviewer.toml", project=project)


def test_an_empty_file_is_an_agent_with_the_items_next_to_it(project: Path):
    agent = load(project, "")
    assert agent.name == "reviewer"
    assert agent.rules == (
        Rule(name="Style", description="How code looks", include="always", priority=3, text="Use types.\n"),
        Rule(name="off", enabled=False, text="Never.\n"),
        Rule(name="tone", text="Be kind.\n"),
    )
    assert agent.references == (
        Reference(name="api", include="agent", text="# API\n", path="agents/references/api.md"),
    )
    assert agent.memory == AgentMemory()


def test_a_whole_agent(project: Path):
    agent = load(
        project,
        """
        name = "Reviewer"
        description = "Reads changes"
        model = "openai:gpt-4o"
        instructions_file = "instructions.md"
        servers_file = "mcp.json"

        [settings]
        context_threshold = 0.8
        strategy = "summarize"

        [rules.tone]
        include = "always"

        [rules.brevity]
        text = "Be brief."
        priority = 9

        [references.readme]
        path = "../README.md"
        priority = 2

        [servers.web]
        url = "https://x.test/mcp"
        tools = { fetch = { include = "manual" } }

        [memory]
        files = ["NOTES.md"]
        namespace = "team"
        """,
    )
    assert (agent.name, agent.description, agent.model) == ("Reviewer", "Reads changes", "openai:gpt-4o")
    assert agent.instructions == "You review code."
    assert agent.settings == {"context_threshold": 0.8, "strategy": "summarize"}
    by_name = {rule.name: rule for rule in agent.rules}
    assert by_name["tone"] == Rule(name="tone", text="Be kind.\n", include="always")
    assert by_name["brevity"] == Rule(name="brevity", text="Be brief.", priority=9)
    readme = next(each for each in agent.references if each.name == "readme")
    assert (readme.text, readme.path, readme.priority) == ("The shop.\n", "README.md", 2)
    assert (readme.include, readme.description) == ("agent", "What it is")
    assert [(server.name, server.include) for server in agent.servers] == [("web", None), ("files", "agent")]
    assert agent.memory == AgentMemory(files=("NOTES.md",), namespace="team")


def test_other_folders_can_be_named(project: Path):
    write_files(project, {"shared/rules/law.md": "Obey."})
    assert [rule.name for rule in load(project, 'rules_folder = "../shared/rules"').rules] == ["law"]


def test_a_project_may_keep_its_agents_in_a_hidden_folder(tmp_path: Path):
    write_files(tmp_path, {".quire/me.toml": "", ".quire/rules/a.md": "A"})
    assert [rule.name for rule in load_agent(tmp_path / ".quire/me.toml", project=tmp_path).rules] == ["a"]


def test_without_a_project_the_agents_own_folder_is_the_bound(project: Path):
    path = write_files(project, {"agents/a.toml": '[references.readme]\npath = "../README.md"'}) / "agents/a.toml"
    assert load_agent(path, project=project).references[1].name == "readme"
    with pytest.raises(InvalidConfiguration, match=r"references\.readme\.path"):
        load_agent(path)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("nam = 'x'", "`nam`; did you mean `name`"),
        ("instruction = 'x'", "did you mean `instructions`"),
        ("[setings]", "did you mean `settings`"),
        (
            "[settings]\ncontext_treshold = 0.5",
            "`settings.context_treshold`; did you mean `settings.context_threshold`",
        ),
        ("[settings]\ncontext_threshold = 7", "`settings`: `context_threshold`"),
        ("[memory]\nfile = 'x'", "did you mean `memory.files`"),
        ("[memory]\nfiles = 'x'", "`memory`: `files`"),
        ("[rules.tone]\ninlude = 'always'", "`rules.tone.inlude`; did you mean `rules.tone.include`"),
        ("[rules.tone]\ninclude = 'often'", "`rules.tone`: `include`"),
        ("[rules.tone]\ntext = 'x'", "folder has an item of this name"),
        ("[rules.tune]\ninclude = 'always'", "`rules.tune` is not in the folder"),
        ("[rules.x]\ntext = 'x'\npath = 'instructions.md'", "either `text` or `path`"),
        ("[references.x]\npath = 'missing.md'", "`references.x.path`"),
        ("[references.x]\npath = 3", "`references.x.path`"),
        ("references = 3", "`references` must be a table"),
        ("[rules]\ntone = 'always'", r"`rules.tone` must be a table"),
        ("rules_folder = 'nowhere'", "`rules_folder`"),
        ("rules_folder = 3", "`rules_folder`"),
        ("instructions = 'x'\ninstructions_file = 'instructions.md'", "remove one"),
        ("instructions_file = 'missing.md'", "`instructions_file`"),
        ("instructions = 3", "`instructions`"),
        ("name = ''", "`name`"),
        ("model = 3", "`model`"),
        ("[servers.x]\ncomand = 'c'", "'x'.*did you mean `command`"),
        ("servers_file = 'mcp.json'\n[servers.files]\ncommand = 'c'", "'files'"),
        ("quatsch = 1", "known keys are name,"),
        ("name = ", "cannot be read"),
    ],
)
def test_a_slip_is_named_with_its_key(project: Path, toml: str, says: str):
    with pytest.raises(InvalidConfiguration, match=says):
        load(project, toml)


def test_an_error_names_the_file(project: Path):
    with pytest.raises(InvalidConfiguration, match=r"reviewer\.toml"):
        load(project, "nam = 'x'")


@pytest.mark.parametrize(
    "path", ["../../outside.md", "/etc/hostname", "~/x.md", "rules/../../../outside.md", "link.md"]
)
@pytest.mark.parametrize("key", ["instructions_file", "servers_file", "references.x", "rules.x", "rules_folder"])
def test_no_path_leaves_the_project(project: Path, key: str, path: str):
    (project / "agents/link.md").symlink_to(project.parent / "outside.md")
    (project / "agents/linked").symlink_to(project.parent)
    path = "../.." if key == "rules_folder" and path == "link.md" else path
    toml = f"[{key}]\npath = '{path}'" if "." in key else f"{key} = '{path}'"
    with pytest.raises(InvalidConfiguration) as caught:
        load(project, toml)
    assert "CANARY" not in str(caught.value)


def test_a_folder_behind_a_link_that_leaves_the_project_shows_nothing(
    project: Path, tmp_path_factory: pytest.TempPathFactory
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "secret.md").write_text("CANARY")
    (project / "agents/linked").symlink_to(elsewhere)
    with pytest.raises(InvalidConfiguration):
        load(project, "rules_folder = 'linked'")


def test_an_agent_outside_its_project_is_refused(project: Path, tmp_path_factory: pytest.TempPathFactory):
    with pytest.raises(InvalidConfiguration, match="outside"):
        load_agent(project / "README.md", project=tmp_path_factory.mktemp("other"))


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path):
    with pytest.raises(DocumentNotFound, match="nobody"):
        load_agent(tmp_path / "nobody.toml")


def test_two_files_of_one_name_are_refused(project: Path):
    write_files(project, {"agents/rules/other.md": "---\nname: tone\n---\nx"})
    with pytest.raises(InvalidConfiguration, match="'tone'"):
        load(project, "")


def test_a_front_matter_that_cannot_be_read_names_its_file(project: Path):
    write_files(project, {"agents/rules/broken.md": "---\ninclude: often\n---\nx"})
    with pytest.raises(InvalidConfiguration, match=r"rules/broken\.md.*include"):
        load(project, "")
