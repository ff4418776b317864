"""What the commands of `docs/questions.md` print: `python -m benchmarks.advice.questions`."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

from pearl.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
BLOCK = re.compile(r"^```\n\$ pearl (.*)\n((?:(?!```).*\n)*)```$", re.MULTILINE)
"""A block of the page: the words of a command, and what it printed."""

TIMED = re.compile(r"; [\d.,]+ (ms|s)\.$", re.MULTILINE)
"""The time that a command took, which is not kept."""


def printed(words: str) -> str:
    """What a command prints, less the time that it took."""
    ran = CliRunner().invoke(app, shlex.split(words))
    if ran.exit_code != 0:
        sys.exit(f"pearl {words}: {ran.output}")
    return TIMED.sub(".", ran.stdout)


def main() -> None:
    """The page with every output anew."""

    def anew(block: re.Match[str]) -> str:
        print(block[1], flush=True)
        return f"```\n$ pearl {block[1]}\n{printed(block[1])}```"

    PAGE.write_text(BLOCK.sub(anew, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
