"""Uses the parts of pynsq that need no event loop. Arguments: ADDRESS TOPIC."""

import sys

import nsq

ADDRESS, TOPIC = sys.argv[1:]
ID = b"0123456789abcdef"

print(nsq.identify({"a": 1}), nsq.subscribe("t", "c"), nsq.ready(5), nsq.finish(ID))
print(nsq.requeue(ID), nsq.requeue(ID, 70), nsq.touch(ID), nsq.nop())
print(nsq.pub("t", b"x"), nsq.mpub("t", [b"x", b"yz"]), nsq.protocol.dpub("t", 5, b"x"))
print(nsq.protocol.auth(b"secret"), nsq.protocol.MAGIC_V2)
for bad in (lambda: nsq.subscribe("t", "b d"), lambda: nsq.ready(-1), lambda: nsq.mpub("t", "x")):
    try:
        bad()
    except AssertionError:
        print("refused")
names = ["t", "", "x" * 64, "x" * 65, "t#ephemeral", "t#other", "a.b-c_d", "b d", "t\n"[:1]]
print([(nsq.valid_topic_name(name), nsq.valid_channel_name(name)) for name in names])
print(nsq.unpack_response(b"\0\0\0\2abc"))
print(nsq.FRAME_TYPE_RESPONSE, nsq.FRAME_TYPE_ERROR, nsq.FRAME_TYPE_MESSAGE)
message = nsq.decode_message(b"\0\0\0\0\0\0\0\7\0\3" + ID + b"body")
print(message.timestamp, message.attempts, message.id, message.body)
print(message.has_responded(), message.is_async())
message.on("requeue", lambda **about: print(sorted(about), about["time_ms"]))
message.requeue(delay=2, backoff=False)
try:
    message.touch()
except AssertionError:
    print("answered already")
try:
    message.off("touch", print)
except nsq.event.InvalidListenerError:
    print("nobody listens")

timer = nsq.BackoffTimer(0, 128)
intervals = []
for succeeds in [False] * 12 + [True] * 14 + [False] * 3:
    (timer.success if succeeds else timer.failure)()
    intervals.append(timer.get_interval())
print(intervals)
print(nsq.BackoffTimer(1, 2, 0.5, 3, 4).get_interval())

host, port = ADDRESS.split(":")
conn = nsq.SyncConn(timeout=10.0)
conn.connect(host, int(port))
conn.send(nsq.identify({"client_id": "x"}) + nsq.pub(TOPIC, b"x") + nsq.subscribe(TOPIC, "c"))
print([nsq.unpack_response(conn.read_response()) for _ in range(3)])
conn.send(nsq.ready(1))
frame, data = nsq.unpack_response(conn.read_response())
found = nsq.decode_message(data)
print(frame, found.body, found.attempts, len(found.id))
print(nsq.protocol.SendError("m", ValueError("e")), issubclass(nsq.protocol.SendError, nsq.Error))
