"""The page of questions: every command on it is one, and what it printed is of the command."""

from __future__ import annotations

import shlex

import pytest

from benchmarks.advice.questions import BLOCK, PAGE, printed
from pearl.advice import advise
from pearl.spec.reading import load, parse_set

TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = BLOCK.findall(TEXT)


def test_there_are_ten_each_with_a_command_and_most_with_an_answer() -> None:
    questions = TEXT.split("\n## ")[1:]
    assert len(questions) == 10
    assert all("pearl advise " in question for question in questions)
    assert len(BLOCKS) > len(questions) / 2
    for words, output in BLOCKS:
        assert words.startswith("advise ")
        assert "seed 0" in output.splitlines()[-1]
        assert sum(line.startswith("  pearl ") for line in output.splitlines()) >= 1


@pytest.mark.parametrize("words", [words for words, _ in BLOCKS])
def test_every_command_names_a_spec_and_questions_there_are(words: str) -> None:
    _, spec, *more = shlex.split(words)
    options = dict(zip(more, [*more[1:], ""], strict=True))
    sets = dict(parse_set(w) for w in more if "=" in w)
    if "--platform" in options:
        sets["platform"] = options["--platform"]
    about = [more[i + 1] for i, w in enumerate(more) if w == "--about"]
    load(spec, set=sets)
    with pytest.raises(Exception, match="no device of the catalogue"):
        advise(spec, about=about, add=["none"])  # what is asked is looked at first


def test_what_is_printed_now_has_the_questions_of_the_page() -> None:
    words, output = next(b for b in BLOCKS if "--about replay" in b[0])
    now = printed(words)
    questions = [line for line in output.splitlines() if line.endswith("?")]
    assert questions == [line for line in now.splitlines() if line.endswith("?")]
    assert questions == ["Where should the replay live?"]
