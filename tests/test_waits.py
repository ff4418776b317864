"""A wait that takes long is named on standard error; a short one is not."""

import threading

from pearl import waits


def test_a_wait_is_named_once_it_takes_long(monkeypatch, capsys):
    said = threading.Event()
    monkeypatch.setattr(waits, "say", lambda text: (print(text), said.set()))
    with waits.naming("host b", "after 60 s it counts as lost"):
        pass
    monkeypatch.setattr(waits, "NAMED_S", 0.01)
    with waits.naming("host a", "after 60 s it counts as lost"):
        assert said.wait(60.0)
    found = capsys.readouterr().out.splitlines()
    assert found == ["host a has not answered for 0.01 s; after 60 s it counts as lost"]
