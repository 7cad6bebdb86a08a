"""How long trajectories take to a controller, and what the buffer is told to keep for it."""

from __future__ import annotations

import pytest

from vla_accel_ros.control.outputs.delivery import LOST_S, WINDOW, Delivery

S = 1_000_000_000
MS = S // 1000
PERIOD, STATE = 100 * MS, 10 * MS


def run(delivery: Delivery, delay_ms: float, chunks: int, begin_ns: int = S) -> int:
    """Chunks at 10 Hz, executed delay_ms after they were decided; the controller tells at 100 Hz. Returns the
    time after them."""
    end_ns, executed_ns = begin_ns + chunks * PERIOD, None
    for now_ns in range(begin_ns, end_ns, STATE):
        if (now_ns - begin_ns) % PERIOD == 0:
            delivery.sent(now_ns, now_ns, now_ns + MS)
        arrived = [t for t in range(begin_ns, now_ns + 1, PERIOD) if t + delay_ms * MS <= now_ns]
        if arrived:
            executed_ns = arrived[-1]
        if executed_ns is not None:
            delivery.executing(executed_ns, now_ns)
        delivery.step(now_ns)
    return end_ns


def test_before_anything_was_sent_it_is_what_was_expected():
    delivery = Delivery(0.03, 0.15)
    assert delivery.step(S) == 0.03 and not delivery.trouble


@pytest.mark.parametrize("delay_ms", [0, 5, 20])
def test_a_prompt_delivery_changes_nothing(delay_ms):
    delivery = Delivery(0.03, 0.15)
    run(delivery, delay_ms, 30)
    assert delivery.lead_s == 0.03 and delivery.source == "controller_state" and not delivery.trouble


@pytest.mark.parametrize("delay_ms", [40, 60, 95, 140, 190])
def test_what_the_controller_executes_tells_how_late_it_came(delay_ms):
    """Later than by a look at the controller it cannot be taken for, and never for earlier."""
    delivery = Delivery(0.03, 0.3)
    run(delivery, delay_ms, 30)
    assert delay_ms * 1e-3 <= delivery.p99_s <= delay_ms * 1e-3 + 0.02
    assert delivery.lead_s == delivery.p99_s and delivery.count >= 28


def test_it_rises_before_the_late_one_has_arrived():
    delivery = Delivery(0.03, 0.15)
    now_ns = run(delivery, 5, 10)
    delivery.sent(now_ns, now_ns, now_ns)
    delivery.executing(now_ns - PERIOD, now_ns + 90 * MS)
    assert delivery.step(now_ns + 90 * MS) == pytest.approx(0.09)


def test_it_falls_slowly_when_one_was_late():
    delivery = Delivery(0.03, 0.15)
    now_ns = run(delivery, 5, WINDOW)
    delivery.sent(now_ns, now_ns, now_ns)
    delivery.executing(now_ns - PERIOD, now_ns + 90 * MS)
    assert delivery.step(now_ns + 90 * MS) == pytest.approx(0.09)
    delivery.executing(now_ns, now_ns + 100 * MS)
    now_ns = run(delivery, 5, 10, now_ns + PERIOD)
    assert delivery.lead_s == pytest.approx(0.08, abs=0.002), "10 ms a second"
    run(delivery, 5, 2 * WINDOW, now_ns)
    assert delivery.lead_s == 0.03


def test_beyond_the_bound_a_sentence_has_the_figures():
    delivery = Delivery(0.03, 0.15)
    run(delivery, 190, 40)
    assert delivery.lead_s == 0.15
    assert "takes 0.190 s" in delivery.trouble and "by controller_state" in delivery.trouble
    assert "lead_max_s = 0.150 s" in delivery.trouble


def test_a_trajectory_that_is_never_executed_is_late_and_then_lost():
    delivery = Delivery(0.03, 0.15)
    now_ns = run(delivery, 5, 10)
    delivery.sent(now_ns, now_ns, now_ns)
    for later_ms in (50, 1000):
        delivery.executing(now_ns - PERIOD, now_ns + later_ms * MS)
    assert "takes 1.000 s" in delivery.trouble
    delivery.executing(now_ns - PERIOD, now_ns + round(LOST_S * S) + MS)
    assert delivery.lost == 1 and not delivery.trouble


def steps(delivery: Delivery, since_ns: int, until_ns: int) -> None:
    """The watchdog's rate."""
    for now_ns in range(since_ns, until_ns + 1, 20 * MS):
        delivery.step(now_ns)


def test_what_is_not_executed_in_time_is_overdue_until_it_is_or_is_lost():
    delivery = Delivery(0.03, 0.15)
    now_ns = run(delivery, 5, 10)
    steps(delivery, now_ns - S, now_ns)
    assert not delivery.overdue(now_ns), "all was executed"
    delivery.sent(now_ns, now_ns - 300 * MS, now_ns)  # held up before it was sent
    delivery.sent(now_ns + 33 * MS, now_ns + 33 * MS, now_ns + 33 * MS)
    steps(delivery, now_ns, now_ns + 240 * MS)
    assert not delivery.overdue(now_ns + 240 * MS)
    steps(delivery, now_ns + 260 * MS, now_ns + S)
    assert delivery.overdue(now_ns + S) and not delivery.overdue(now_ns + 3 * S)
    delivery.executing(now_ns + 33 * MS, now_ns + S)
    assert not delivery.overdue(now_ns + S) and not delivery.unsure
    delivery.sent(now_ns + 2 * S, now_ns + 2 * S, now_ns + 2 * S)
    delivery.executing(now_ns + 33 * MS, now_ns + 5 * S)
    assert delivery.unsure and not delivery.overdue(now_ns + 5 * S)
    delivery.sent(now_ns + 5 * S, now_ns + 5 * S, now_ns + 5 * S)
    assert not delivery.unsure, "it is on its way"


def test_what_is_not_acknowledged_in_time_is_overdue_too():
    delivery = Delivery(0.03, 0.15)
    delivery.step(S)
    delivery.sent(S, S, S)
    delivery.acknowledged(False, S + 20 * MS)
    steps(delivery, S, S + 240 * MS)
    assert not delivery.overdue(S + 240 * MS)
    steps(delivery, S + 260 * MS, S + 300 * MS)
    assert delivery.overdue(S + 300 * MS)
    delivery.acknowledged(True, S + 310 * MS)
    assert not delivery.overdue(S + 320 * MS)


def test_a_process_that_was_not_scheduled_has_not_waited_for_what_it_sent_before():
    delivery = Delivery(0.03, 0.15)
    delivery.step(S)
    delivery.sent(S, S, S)
    delivery.step(S + 20 * MS)
    delivery.step(S + 900 * MS)
    assert not delivery.overdue(S + 900 * MS)


def test_what_others_have_it_execute_says_nothing():
    delivery = Delivery(0.03, 0.15)
    now_ns = run(delivery, 5, 10)
    delivery.sent(now_ns, now_ns, now_ns)
    delivery.executing(now_ns - 33 * MS, now_ns + 900 * MS)
    assert delivery.step(now_ns + 900 * MS) == 0.03


@pytest.mark.parametrize(("began_ns", "ours"), [(S - 50 * MS, True), (S + MS, True), (S + 50 * MS, False)])
def test_what_began_after_the_first_that_was_sent_and_is_none_of_them_is_not_ours(began_ns, ours):
    """The controller was off when they came, and holds by itself since it was activated."""
    delivery = Delivery(0.03, 0.15)
    for sent_ns in (S, S + 100 * MS):
        delivery.sent(sent_ns, sent_ns, sent_ns)
    assert delivery.executing(began_ns, S + 200 * MS) is ours


def test_states_that_are_seldom_seen_do_not_pass_for_late_deliveries():
    delivery = Delivery(0.03, 0.15)
    for i in range(1, 20):
        delivery.sent(i * S, i * S, i * S + MS)
        delivery.executing(i * S, i * S + 900 * MS)
    assert delivery.step(20 * S) == 0.03


def test_a_clock_that_stamps_a_little_late_is_recognised():
    """Humble's controller stamps its state when it publishes it."""
    delivery = Delivery(0.03, 0.15)
    for i in range(1, 10):
        delivery.sent(i * S, i * S, i * S + MS)
        delivery.executing(i * S + MS // 2, i * S + 9 * MS)
    assert delivery.source == "controller_state" and delivery.count == 9


def test_where_no_controller_tells_the_acknowledgement_counts():
    delivery = Delivery(0.03, 0.15)
    for i in range(1, 10):
        delivery.sent(i * S, i * S, i * S + MS)
        for later_ms in (20, 40, 60):
            delivery.acknowledged(False, i * S + later_ms * MS)
        delivery.acknowledged(True, i * S + 80 * MS)
        assert not delivery.awaits_acknowledgement(i * S + 80 * MS)
    assert delivery.source == "acknowledgement" and delivery.p99_s == pytest.approx(0.08)
    delivery.sent(10 * S, 10 * S, 10 * S + MS)
    delivery.acknowledged(False, 10 * S + 400 * MS)
    assert "takes 0.400 s" in delivery.trouble, "nobody is there to acknowledge it"


@pytest.mark.parametrize("takes_ms", [20, 40, 95, 140])
def test_of_messages_that_hide_the_acknowledgement_of_those_before_one_is_seen_while_chunks_wait(takes_ms):
    """Chunks at 30 Hz, looks at 50 Hz: the middleware only says whether all are acknowledged."""
    delivery, last_ns, count = Delivery(0.03, 0.15), 0, 0
    for now_ns in range(S, 11 * S, MS):
        if now_ns % (33 * MS) == 0 and not delivery.awaits_arrival(now_ns):
            delivery.sent(now_ns, now_ns, now_ns)
            last_ns, count = now_ns, count + 1
        if now_ns % (20 * MS) == 0:
            if delivery.awaits_acknowledgement(now_ns):
                delivery.acknowledged(now_ns >= last_ns + takes_ms * MS, now_ns)
            delivery.step(now_ns)
            assert not delivery.overdue(now_ns)
    assert count >= 150, "half of them"
    assert takes_ms <= delivery.p99_s * 1e3 <= max(takes_ms + 20, 80)


def test_chunks_do_not_wait_for_a_listener_that_has_died():
    delivery = Delivery(0.03, 0.15)
    delivery.sent(S, S, S)
    delivery.acknowledged(False, S + 20 * MS)
    steps(delivery, S, S + 100 * MS)
    assert delivery.awaits_arrival(S + 100 * MS) and not delivery.awaits_arrival(4 * S)
    delivery.sent(4 * S, 4 * S, 4 * S)
    delivery.acknowledged(False, 4 * S)
    steps(delivery, 4 * S, 5 * S)
    assert not delivery.awaits_arrival(5 * S) and not delivery.overdue(5 * S)
    assert "takes 3.000 s" in delivery.trouble
    delivery.acknowledged(True, 20 * S)
    assert not delivery.trouble and delivery.p99_s == 0.0, "that was no delivery"


def test_an_acknowledgement_that_was_looked_for_late_is_not_late():
    delivery = Delivery(0.03, 0.15)
    delivery.sent(S, S, S + MS)
    delivery.acknowledged(True, S + 90 * MS)
    assert delivery.p99_s == pytest.approx(0.021)


def test_a_process_that_stalls_between_decision_and_publishing_is_late_itself():
    delivery = Delivery(0.03, 0.15)
    delivery.sent(S, S, S + 80 * MS)
    delivery.acknowledged(True, S + 81 * MS)
    assert delivery.step(S + 81 * MS) == pytest.approx(0.081)


def test_where_the_controller_tells_nobody_asks_for_acknowledgements_until_it_falls_silent():
    delivery = Delivery(0.03, 0.15)
    now_ns = run(delivery, 5, 10)
    delivery.sent(now_ns, now_ns, now_ns)
    assert not delivery.awaits_acknowledgement(now_ns + 20 * MS)
    delivery.sent(now_ns + 3 * S, now_ns + 3 * S, now_ns + 3 * S)
    assert delivery.awaits_acknowledgement(now_ns + 3 * S)


def test_after_a_clock_jump_it_waits_for_nothing_but_knows_what_it_learnt():
    delivery = Delivery(0.03, 0.15)
    now_ns = run(delivery, 95, 10)
    delivery.forget()
    delivery.executing(now_ns - PERIOD, now_ns + 900 * MS)
    assert 0.095 <= delivery.step(S) <= 0.115 and not delivery.trouble


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_hold_that_began_after_what_was_sent_is_known_once_the_controller_was_recognised(forgotten):
    delivery = Delivery(0.03, 0.15)
    assert delivery.executing(S - MS, S)  # nobody knows what its states tell
    now_ns = run(delivery, 5, 3)
    assert delivery.executing(now_ns - PERIOD, now_ns)
    if forgotten:
        delivery.forget()
    assert not delivery.executing(now_ns + 30 * MS, now_ns + 40 * MS)


def test_what_is_older_than_the_newest_that_was_recognised_is_no_hold():
    """A state that was on its way for longer, or is stamped a little otherwise."""
    delivery = Delivery(0.03, 0.15)
    now_ns = run(delivery, 5, 3)
    assert delivery.executing(now_ns - PERIOD, now_ns)
    assert delivery.executing(now_ns - PERIOD + 30 * MS, now_ns + MS)
