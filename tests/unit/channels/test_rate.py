"""A channel's rate limit: how many messages per second its consumers receive."""

import pytest

from support.worker_core import MILLISECOND, SECOND, Client, Core, mpub


@pytest.fixture
def core(tmp_path):
    core = Core(tmp_path)
    yield core
    core.close()


def fill(core: Core, count: int) -> None:
    client = core.client()
    for at in range(0, count, 1000):
        client.ask(mpub("t", [b"x"] * min(1000, count - at)))
    core.settle()


def consumers(core: Core, count: int, rate: float, ready: int = 100, **identity) -> list[Client]:
    """Return consumers of channel c, which is limited before they are ready."""
    found = [core.client(**identity).subscribe("t", "c") for _ in range(count)]
    core.topic("t").channels["c"].set_rate(rate)
    for client in found:
        client.ready(ready)
    core.settle()
    return found


def finish_all(clients: list[Client]) -> int:
    """Finish all delivered messages; return their number."""
    count = 0
    for client in clients:
        for message in client.messages():
            client.finish(message.id)
            count += 1
    return count


def go_on(core: Core, ns: int, late: int = 0) -> None:
    """Run the next turn as a worker does: when something is due, or after `ns`."""
    core.advance(min(max(core.due - core.now, 0) + late, ns))


@pytest.mark.slow
@pytest.mark.parametrize("rate", [500, 7.5, 3000, 100_000])
@pytest.mark.parametrize("late", [0, 3 * MILLISECOND, 40 * MILLISECOND])
def test_ten_consumers_are_sent_so_many_a_second(core, rate, late):
    clients = consumers(core, 10, rate, ready=2500)
    seconds = 20 if rate < 10_000 else 1
    fill(core, int(rate * (seconds + 1)))
    end = core.now + seconds * SECOND
    sent = []
    turns = 0
    while core.now < end:
        turns += 1
        go_on(core, end - core.now, late)
        sent.append((core.now, finish_all(clients)))
    total = sum(count for _, count in sent)
    assert abs(total - rate * seconds) <= max(0.005 * rate * seconds, 1 + rate / 20)
    # There are no more turns than messages, and at most one per millisecond.
    assert turns <= min(rate, 1000) * seconds * 1.02 + 25
    if not late:
        # At first, a burst of 10 ms, then at most a hundredth of the rate every 10 ms.
        maximum = rate / 100 + 1
        first = core.now - seconds * SECOND
        for at in range(0, seconds * 100, 7):
            since = first + at * 10 * MILLISECOND
            there = sum(n for when, n in sent if since < when <= since + 10 * MILLISECOND)
            assert there <= maximum + max(1, rate / 1000) + (rate / 100 if at == 0 else 0)


def test_each_consumer_gets_its_part(core):
    clients = consumers(core, 10, 500)
    fill(core, 2000)
    counts = [0] * 10
    for _ in range(1000):
        core.advance(2 * MILLISECOND)
        for i, client in enumerate(clients):
            counts[i] += finish_all([client])
    assert max(counts) - min(counts) <= 1


def test_a_rest_saves_up_no_more_than_a_small_burst(core):
    clients = consumers(core, 1, 500)
    core.advance(60 * SECOND)
    fill(core, 100)
    assert finish_all(clients) == 6  # a burst of 10 ms, and the message that is due now
    core.advance(10 * MILLISECOND)
    assert finish_all(clients) == 5


def test_changed_while_it_waits_for_a_slow_rate(core):
    clients = consumers(core, 1, 0.01)
    fill(core, 100)
    assert finish_all(clients) == 1
    core.advance(SECOND)
    assert finish_all(clients) == 0
    channel = core.topic("t").channels["c"]
    channel.set_rate(1000)
    core.settle()
    assert finish_all(clients) == 1
    core.advance(5 * MILLISECOND)
    assert finish_all(clients) == 5
    channel.set_rate(0)
    core.settle()
    assert channel.rate == 0
    assert finish_all(clients) == 93


def test_setting_the_same_rate_lets_nothing_go(core):
    clients = consumers(core, 1, 0.01)
    fill(core, 100)
    for _ in range(10):
        core.topic("t").channels["c"].set_rate(0.01)
        core.settle()
    assert finish_all(clients) == 1


def test_what_is_delivered_again_counts_again(core):
    (client,) = consumers(core, 1, 100, msg_timeout=1000)
    fill(core, 1)
    for attempt in range(1, 6):
        core.settle()
        (message,) = client.messages()
        assert message.attempts == attempt
        client.requeue(message.id)
        core.settle()
        assert not client.messages()
        core.advance(9 * MILLISECOND)
        assert not client.messages()
        core.advance(1 * MILLISECOND + 1)
    (message,) = client.messages()
    core.topic("t").channels["c"].set_rate(0.25)
    core.advance(1001 * MILLISECOND)
    (again,) = client.messages()  # redelivered; the new rate starts with one message
    core.advance(1001 * MILLISECOND)
    assert core.counters("t", "c")["timeout_count"] == 2
    core.advance(2980 * MILLISECOND)
    assert not client.messages()
    core.advance(20 * MILLISECOND)
    (again,) = client.messages()
    assert again.attempts == 8


def test_what_is_sampled_out_was_sent_to_nobody(core):
    clients = consumers(core, 1, 500, sample_rate=10, ready=2500)
    fill(core, 20_000)
    for _ in range(1000):
        core.advance(2 * MILLISECOND)
    count = finish_all(clients)
    assert 980 <= count <= 1010
    assert core.topic("t").channels["c"].sampled_count > 7 * count


def test_a_paused_channel_that_is_held_back_does_not_wake(core):
    clients = consumers(core, 1, 500)
    fill(core, 100)
    core.topic("t").pause_channel("c", True)
    core.advance(SECOND // 2)
    assert core.due >= core.now + SECOND // 4  # the end of the second
    assert finish_all(clients) == 1
    core.topic("t").pause_channel("c", False)
    core.advance(10 * MILLISECOND)
    assert finish_all(clients) >= 5


def test_an_ephemeral_channel_at_its_rate_drops_the_newest(tmp_path):
    core = Core(tmp_path, mem_queue_size=20)
    client = core.client().subscribe("t", "c#ephemeral")
    core.topic("t").channels["c#ephemeral"].set_rate(100)
    client.ready(2500)
    fill(core, 100)
    for _ in range(100):
        core.advance(10 * MILLISECOND)
    assert 20 <= finish_all([client]) <= 23
    core.close()


def test_channels_that_are_held_back_can_go(core):
    client, _ = consumers(core, 2, 1)
    fill(core, 100)
    core.topic("t").delete_channel("c")
    core.advance(2 * SECOND)
    assert client.closed


@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf"), 1e10])
def test_no_rate(core, rate):
    with pytest.raises(ValueError):
        core.create("t").channel("c").set_rate(rate)
