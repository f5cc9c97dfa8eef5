"""Conversations: the messages they ask by, and files that hold them."""

from pathlib import Path

import pytest

from specdec.apps.chat.conversation import Conversation, Turn
from specdec.errors import RequestError

FIRST, SECOND = Turn(question="Who?", answer="I."), Turn(question="Where?", answer="“Here” – 東京.")


def test_messages_are_the_turns_and_the_question() -> None:
    talk = Conversation(system="Be brief.").followed_by(FIRST)
    assert talk.asking("Why?") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "I."},
        {"role": "user", "content": "Why?"},
    ]
    assert Conversation().asking("Why?") == [{"role": "user", "content": "Why?"}]


def test_turns_leave_at_both_ends() -> None:
    talk = Conversation().followed_by(FIRST).followed_by(SECOND)
    assert talk.without_last().turns == (FIRST,)
    assert talk.without_oldest(1).turns == (SECOND,)
    assert talk.turns == (FIRST, SECOND)


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    talk = Conversation(system="").followed_by(FIRST).followed_by(SECOND)
    talk.save(tmp_path / "talk.json")
    assert Conversation.load(tmp_path / "talk.json") == talk
    assert [each.name for each in tmp_path.iterdir()] == ["talk.json"]


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"{}\xff",
        b'{"format": "specdec chat 2", "turns": []}',
        b'{"turns": [{"question": "Who?"}]}',
        b'{"turns": [{"question": 3, "answer": "I."}]}',
        b'{"messages": []}',
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "talk.json"
    path.write_bytes(broken)
    with pytest.raises(RequestError, match=r"talk\.json (isn't a conversation written by /save|can't be read)"):
        Conversation.load(path)


def test_a_file_that_cannot_be_read_or_written_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="none can't be read: No such file"):
        Conversation.load(tmp_path / "none")
    with pytest.raises(RequestError, match="can't be written"):
        Conversation().save(tmp_path / "no" / "talk.json")
    with pytest.raises(RequestError, match="can't be written"):
        Conversation().save(tmp_path)
    with pytest.raises(RequestError, match="can't be written"):
        Conversation().save(Path("/"))
    path = tmp_path / "talk.json"
    path.write_text("old")
    with pytest.raises(RequestError, match="can't be written"):
        Conversation(system="\ud800").save(path)
    assert path.read_text() == "old"
