"""What waits to be looked at: bounded, in order, and nobody sleeps through a call."""

from __future__ import annotations

import threading

from gpufrag.restarter.alerts import Alert
from gpufrag.restarter.inbox import Inbox, Item
from gpufrag.restarter.ledger import Ledger, Said
from gpufrag.restarter.record import DAY_S


def item(due_s: float = 0.0, name: str = "") -> Item:
    return Item(Alert("firing", {"alertname": name}), 0.0, due_s)


def test_all_of_a_call_or_none() -> None:
    inbox = Inbox(3)
    assert inbox.put([item(), item()])
    assert not inbox.put([item(), item()])
    assert len(inbox) == 2
    assert inbox.put([item()])


def test_what_is_due_comes_in_order_and_the_rest_later() -> None:
    inbox = Inbox(9)
    inbox.put([item(5.0, "late"), item(0.0, "one"), item(1.0, "two")])
    taken = [inbox.take(2.0) for _ in range(3)]
    assert [one.alert.name for one in taken if one] == ["one", "two"]
    assert inbox.next_due_s() == 5.0


def test_what_is_put_back_may_go_over_the_bound() -> None:
    inbox = Inbox(1)
    inbox.put([item()])
    inbox.put_back(item(7.0))
    assert len(inbox) == 2


def test_what_was_put_before_the_wait_ends_it() -> None:
    inbox = Inbox(9)
    inbox.put([item()])
    waiter = threading.Thread(target=inbox.wait, args=(60.0,), daemon=True)
    waiter.start()
    waiter.join(10.0)
    assert not waiter.is_alive()


def test_a_wait_is_ended_from_another_thread() -> None:
    inbox = Inbox(9)
    waiter = threading.Thread(target=inbox.wait, args=(60.0,), daemon=True)
    waiter.start()
    inbox.wake()
    waiter.join(10.0)
    assert not waiter.is_alive()


def test_the_ledger_knows_each_job_and_all_of_them_for_a_day() -> None:
    ledger = Ledger()
    for at, uid in enumerate(["a", "a", "b"]):
        ledger.begin(uid, float(at))
    assert (ledger.age_s("a", 11.0), ledger.age_s("c", 11.0)) == (10.0, None)
    assert (ledger.within(60.0, 11.0), ledger.within(60.0, 11.0, "a")) == (3, 2)
    ledger.begin("c", DAY_S + 1.5)
    assert ledger.within(2 * DAY_S, DAY_S + 2, "a") == 0


def test_what_was_said_is_said_again_after_a_while() -> None:
    said = Said(300.0)
    assert [said.again("x", at) for at in (0.0, 299.0, 300.0, 301.0)] == [False, True, False, True]
