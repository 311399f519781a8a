"""Prints the Homebrew formula of a release, for a tap: the wheel of quire-core with its pinned dependencies.

    python tools/homebrew_formula.py OWNER VERSION dist/quire_core-VERSION-py3-none-any.whl > quire.rb

The formula installs into an environment of its own. Dependencies are wheels of PyPI, in the versions of
constraints.txt, which the release has as a file: built from source, some of them would need Rust and a C compiler.
"""

import argparse
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
FORMULA = """\
class Quire < Formula
  desc "Flight recorder for coding agents: costs, findings, search and undo"
  homepage "https://github.com/{owner}/quire"
  url "{release}/{wheel}", using: :nounzip
  version "{version}"
  sha256 "{wheel_digest}"
  license "Apache-2.0"

  depends_on "python@3.13"

  resource "constraints" do
    url "{release}/constraints.txt"
    sha256 "{constraints_digest}"
  end

  def install
    system Formula["python@3.13"].opt_bin/"python3.13", "-m", "venv", libexec
    buildpath.install resource("constraints")
    system libexec/"bin/python", "-m", "pip", "install", "--disable-pip-version-check", "--only-binary=:all:",
           "--constraint", "constraints.txt", "./{wheel}[standard]"
    bin.install_symlink libexec/"bin/quire"
  end

  test do
    assert_match "quire", shell_output("#{{bin}}/quire --version")
    assert_match "No agent has stored sessions", shell_output("#{{bin}}/quire scan 2>&1")
  end
end
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("owner", help="Account of the repository.")
    parser.add_argument("version")
    parser.add_argument("wheel", type=Path)
    options = parser.parse_args()
    print(
        FORMULA.format(
            owner=options.owner,
            version=options.version,
            release=f"https://github.com/{options.owner}/quire/releases/download/v{options.version}",
            wheel=options.wheel.name,
            wheel_digest=sha256(options.wheel.read_bytes()).hexdigest(),
            constraints_digest=sha256((ROOT / "constraints.txt").read_bytes()).hexdigest(),
        ),
        end="",
    )


if __name__ == "__main__":
    main()
